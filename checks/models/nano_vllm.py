"""The nano-vLLM machine as a model to explore, its rules as properties, and the instances."""

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from checks.explore.model import Always, Eventually, OnStep, Transition, Witness
from checks.models.environment import EnvironmentModel
from reference.nano_vllm.machine import NanoVllmMachine
from spec.policies.nano_vllm import NanoVllmConfig, NanoVllmContext, Oversized, documented, repaired
from spec.records import Step
from spec.requests import Prompt, Request
from spec.rules.nano_vllm import applicable
from spec.rules.registry import Kind, Rule
from spec.state import State


@frozen(kw_only=True)
class Instance:
    """A bounded question: these requests under this configuration, and what may happen to them.

    `aborts`: requests whose client may go away, in any phase. `early_ends`: requests that may
    sample the end of sequence with any token. Arrivals are free in order and time.
    """

    name: str
    about: str
    config: NanoVllmConfig
    requests: tuple[Request, ...]
    aborts: frozenset[str] = frozenset()
    early_ends: frozenset[str] = frozenset()


def model_of(instance: Instance) -> EnvironmentModel:
    """The reachable states of an instance.

    Raises:
        WorkloadError: a request of the instance could never be served, and such are refused.
    """
    machine = NanoVllmMachine.of(instance.config, instance.requests)
    ids = [request.id for request in instance.requests]
    return EnvironmentModel(machine, ids, instance.aborts, instance.early_ends)


# --- properties, taken from the registry --------------------------------------------------------


@frozen
class Properties:
    """The rules of an instance in the explorer's terms."""

    safety: tuple[Always[State] | OnStep[State], ...]
    eventually: tuple[Eventually[State], ...]
    witnesses: tuple[Witness[State], ...]

    @property
    def all(self) -> list[Always[State] | OnStep[State] | Eventually[State]]:
        """Everything that can be violated."""
        return [*self.safety, *self.eventually]


def properties_of(instance: Instance) -> Properties:
    """The registry's rules that apply to the instance; no rule is defined here."""
    by_id = {request.id: request for request in instance.requests}
    ctx = NanoVllmContext.of(instance.config, by_id)
    rules = applicable(instance.config)
    return Properties(
        safety=tuple(_safety(rule, ctx) for rule in rules if rule.kind is not Kind.EVENTUALLY),
        eventually=tuple(_eventually(rule) for rule in rules if rule.kind is Kind.EVENTUALLY),
        witnesses=tuple(_witness(rule, ctx) for rule in rules),
    )


def _safety(rule: Rule, ctx: Any) -> Always[State] | OnStep[State]:
    def holds(before: State, edge: Transition[State]) -> str | None:
        if isinstance(edge.record, Step):
            return rule.found_of_step(ctx, edge.record) if rule.of_step else None
        return rule.found_between(ctx, before, edge.state)

    if rule.kind is Kind.ALWAYS:
        return Always(rule.id, lambda state: rule.found_in_state(ctx, state))
    return OnStep(rule.id, holds)


def _eventually(rule: Rule) -> Eventually[State]:
    goal = rule.goal
    assert goal is not None
    return Eventually(rule.id, lambda state: not goal(state), goal)


def _witness(rule: Rule, ctx: Any) -> Witness[State]:
    def seen(_before: State, edge: Transition[State]) -> bool:
        return isinstance(edge.record, Step) and rule.witness(ctx, edge.record)

    return Witness(rule.id, seen)


# --- instances: small in numbers, rich in behaviour ----------------------------------------------

_SMALL: Mapping[str, Any] = {
    "block_size": 2,
    "max_num_batched_tokens": 10,
    "max_model_len": 10,
    "max_num_seqs": 3,
}


def _sharing(*prompts: tuple[str, int]) -> tuple[Request, ...]:
    """Requests 0, 1, …: a prompt of tokens named by letters, and a maximum output."""
    return tuple(
        Request(id=str(index), prompt=Prompt.of_tokens([ord(one) for one in text]), max_tokens=most)
        for index, (text, most) in enumerate(prompts)
    )


def _ids(text: str) -> frozenset[str]:
    return frozenset(text.split())


_TIGHT: Mapping[str, Any] = {
    **_SMALL,
    "max_num_batched_tokens": 8,
    "max_model_len": 8,
    "max_num_seqs": 2,
}
_PREEMPTED = _sharing(("abc", 4), ("de", 5), ("f", 4))
_SHARED = _sharing(("ssssab", 3), ("ssssc", 3), ("ssss", 3))
_SAME_BLOCK_ELSEWHERE = _sharing(("ppaa", 1), ("qqaa", 1), ("ppaax", 1))
_SAME_ANSWERS = (
    Request(id="0", prompt=Prompt.of_tokens((7, 7)), max_tokens=5, output=(1, 2, 3, 4, 5)),
    Request(id="1", prompt=Prompt.of_tokens((7, 7)), max_tokens=3, output=(1, 2, 3)),
    Request(id="2", prompt=Prompt.of_tokens((8, 8, 8)), max_tokens=2, output=(1, 2)),
    Request(id="3", prompt=Prompt.of_tokens((7, 7, 1, 2, 9)), max_tokens=1, output=(1,)),
)
_BUDGET = _sharing(("abcdef", 2), ("gh", 3), ("ijk", 2))

DEFAULT: tuple[Instance, ...] = (
    Instance(
        name="preemption",
        about="as released: the pool runs dry, victims come back",
        config=NanoVllmConfig(**_SMALL, num_blocks=4),
        requests=_PREEMPTED,
        aborts=_ids("0"),
        early_ends=_ids("0 1"),
    ),
    Instance(
        name="budget",
        about="as released: tokens and sequences of a step are limited",
        config=NanoVllmConfig(**_TIGHT, num_blocks=8),
        requests=_BUDGET,
        aborts=_ids("1"),
        early_ends=_ids("0 1 2"),
    ),
    Instance(
        name="left behind",
        about="as released: one sequence a step, so that others run without getting a token",
        config=NanoVllmConfig(**{**_SMALL, "max_num_seqs": 1}, num_blocks=3),
        requests=_sharing(("ab", 3), ("cd", 2), ("ef", 3)),
        early_ends=_ids("0 1"),
    ),
    Instance(
        name="shared prefix",
        about="as released: a common beginning, one prompt is all of it",
        config=NanoVllmConfig(**_SMALL, num_blocks=7),
        requests=_SHARED,
        aborts=_ids("0 1"),
        early_ends=_ids("1 2"),
    ),
    Instance(
        name="same block elsewhere",
        about="as released: equal tokens behind different ones, blocks handed out anew",
        config=NanoVllmConfig(**_SMALL, num_blocks=3),
        requests=_SAME_BLOCK_ELSEWHERE,
        aborts=_ids("0 1"),
    ),
    Instance(
        name="same answers",
        about="repaired: two blocks of equal tokens, the one that is named is handed out anew",
        config=repaired(**{**_SMALL, "max_num_seqs": 4}, num_blocks=6),
        requests=_SAME_ANSWERS,
    ),
    Instance(
        name="oversized",
        about="as released: a request that the pool can never hold is queued",
        config=NanoVllmConfig(**_SMALL, num_blocks=2, oversized=Oversized.QUEUED),
        requests=_sharing(("abc", 4), ("d", 2)),
        early_ends=_ids("0"),
    ),
    Instance(
        name="documented",
        about="the text to the letter",
        config=documented(**_SMALL, num_blocks=4),
        requests=_PREEMPTED,
        early_ends=_ids("0 1"),
    ),
    Instance(
        name="documented, eviction",
        about="the text's hits, which nothing checks, without its early blocks",
        config=documented(**_SMALL, num_blocks=3, new_block="after_boundary"),
        requests=_SAME_BLOCK_ELSEWHERE,
    ),
    Instance(
        name="repaired, preemption",
        about="the pool runs dry under the choices that keep the promises",
        config=repaired(**_SMALL, num_blocks=4),
        requests=_PREEMPTED,
        aborts=_ids("0"),
        early_ends=_ids("1"),
    ),
    Instance(
        name="repaired, budget",
        about="tokens and running sequences are limited",
        config=repaired(**_TIGHT, num_blocks=8),
        requests=_BUDGET,
        aborts=_ids("1"),
        early_ends=_ids("0 1 2"),
    ),
    Instance(
        name="repaired, shared prefix",
        about="a common beginning under those choices",
        config=repaired(**_SMALL, num_blocks=7),
        requests=_SHARED,
        aborts=_ids("0 1"),
        early_ends=_ids("1 2"),
    ),
    Instance(
        name="repaired, same block elsewhere",
        about="equal tokens behind different ones, the hash is checked",
        config=repaired(**_SMALL, num_blocks=3),
        requests=_SAME_BLOCK_ELSEWHERE,
        aborts=_ids("0 1"),
    ),
)
