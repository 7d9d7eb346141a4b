"""Whether the numeric machine takes the reference's steps, on every edge of small instances.

What is proven of the numeric machine says something of the reference only as long as the two agree.
So they are compared before the prover says proven: from every reachable state, every arrival, abort
and step, whichever requests end early in it. The instances are small; that the machines agree on
larger ones and on random runs is tested.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any

from checks.explore.instance import Instance
from checks.explore.model import Transition
from checks.policies.spyre.model import spyre_model
from checks.proofs import registry
from checks.proofs.registry import Of
from checks.proofs.spyre import numeric_machine as numeric
from checks.proofs.spyre.scope import SCOPE
from checks.proofs.unshared import unshared
from reference.core.guards import GuardError
from spec.core.requests import Request
from spec.spyre.config import SpyreConfig
from spec.spyre.records import Step
from spec.spyre.state import State
from spec.spyre.variants import Admission

# --- the reference in the words of the numeric machine ------------------------------------------


def setting_of(config: SpyreConfig) -> numeric.Setting:
    """The configuration as the numeric machine has it."""
    return numeric.Setting(
        block_size=config.block_size,
        chunk_size=config.chunk_size,
        interleave=config.interleave,
        limit=config.max_batch_tkv_limit,
        max_num_seqs=config.max_num_seqs,
        max_model_len=config.max_model_len,
        rule=numeric.rule_of(config.admission),
        judged_first=config.variant.is_judged_first(interleave=config.interleave),
    )


def numeric_state(state: State, requests: Sequence[Request]) -> numeric.SchedulerState:
    """A state of the reference; its requests in this order, which is that of their arrival."""
    places = {numeric.WAITING: state.waiting, numeric.DECODING: state.decoding}
    if state.prefilling is not None:
        places[numeric.PREFILLING] = (state.prefilling,)
    present = {
        row.id: numeric.RequestState(phase, row.computed, row.generated)
        for phase, rows in places.items()
        for row in rows
    }
    absent, gone = (numeric.RequestState(phase, 0, 0) for phase in (numeric.ABSENT, numeric.GONE))
    left = state.finished | state.aborted
    found = (present.get(one.id, gone if one.id in left else absent) for one in requests)
    return numeric.SchedulerState(tuple(found), state.last_kind == "prefill", state.last_tkv)


def in_order_of_arrival(state: State, requests: Sequence[Request]) -> list[Request]:
    """Requests that were admitted, those that wait, those that are still to arrive."""
    waiting = [row.id for row in state.waiting]
    come = {row.id for row in state.admitted} | state.finished | state.aborted

    def turn(one: Request) -> int:
        if one.id in come:
            return -1
        return waiting.index(one.id) if one.id in waiting else len(waiting)

    return sorted(requests, key=turn)


# --- one transition -----------------------------------------------------------------------------


def kind_of(result: numeric.StepResult) -> str:
    """What a step was, as the reference names it."""
    return "prefill" if result.is_prefill else "decode" if result.is_decode else "idle"


Take = Callable[[tuple[numeric.Client, ...], numeric.SchedulerState], numeric.StepResult]


def difference(
    take: Take, one: Instance[SpyreConfig], state: State, edge: Transition[State]
) -> str | None:
    """The first field in which the two machines differ after a transition of the reference.

    `take`: a step of the numeric machine.
    """
    ordered = in_order_of_arrival(state, one.requests)
    after = edge.state
    expected = _fields(numeric_state(after, ordered), ordered)
    expected["waiting"] = [row.id for row in after.waiting]
    expected["decoding"] = sorted(row.id for row in after.decoding)
    clients, before = _clients(ordered, state, edge), numeric_state(state, ordered)
    if isinstance(edge.record, Step):
        result, done = take(clients, before), edge.record
        expected |= {"kind": done.kind, "tkv": done.tkv, "volume": done.volume}
        found = _fields(result.after, ordered)
        found |= {"kind": kind_of(result), "tkv": result.tkv, "volume": result.volume}
    else:
        found = _fields(numeric.between(clients, before, 0), ordered)
    # The reference keeps the last tkv for the rule that reads it alone.
    unkept = () if one.config.variant.uses_last_tkv else ("last_tkv",)
    for name, value in expected.items():
        if name not in unkept and found[name] != value:
            return f"{name}: the reference has {value}, the numeric machine {found[name]}"
    return None


def _clients(
    requests: Sequence[Request], state: State, edge: Transition[State]
) -> tuple[numeric.Client, ...]:
    """The clients of whose behaviour this transition is one step."""
    action, _, subject = edge.action.partition(" ")
    ended = edge.record.ended if isinstance(edge.record, Step) else ()
    come = {row.id for row in state.present} | state.finished | state.aborted
    come |= {subject} if action == "arrive" else set()
    generated = {row.id: row.generated for row in state.present}
    return tuple(
        numeric.Client(
            prompt_len=one.prompt_len,
            max_tokens=one.max_tokens,
            output_len=generated[one.id] + 1 if one.id in ended else one.max_tokens,
            arrival=0 if one.id in come else numeric.NEVER,
            abort_at=0 if (action, subject) == ("abort", one.id) else numeric.NEVER,
        )
        for one in requests
    )


_PHASES = ("absent", "waiting", "prefilling", "decoding", "gone")


def _fields(state: numeric.SchedulerState, requests: Sequence[Request]) -> dict[str, Any]:
    """Everything that a numeric state holds, by name."""
    ids = {
        name: [one.id for one, found in zip(requests, state.are(phase), strict=True) if found]
        for name, phase in (("waiting", numeric.WAITING), ("decoding", numeric.DECODING))
    }
    fields: dict[str, Any] = {"prefilled": state.prefilled, "last_tkv": state.last_tkv}
    fields |= {"waiting": ids["waiting"], "decoding": sorted(ids["decoding"])}
    for one, found in zip(requests, state.requests, strict=True):
        fields[f"phase of {one.id}"] = _PHASES[found.phase]
        fields[f"computed of {one.id}"] = found.computed
        fields[f"generated of {one.id}"] = found.generated
    return fields


# --- every transition ---------------------------------------------------------------------------


def transitions(
    one: Instance[SpyreConfig],
) -> Iterator[tuple[State, Transition[State], str | None]]:
    """Every reachable transition, and in what the numeric machine takes it otherwise, if in any.

    A request that is paused ends the way there: the numeric machine never pauses one. Many states
    are alike to it, so what it has computed is kept.
    """
    model, take = spyre_model(one), cache(partial(numeric.step, setting_of(one.config)))
    pending = deque(model.initial())
    seen = set(pending)
    while pending:
        state = pending.popleft()
        for edge in model.successors(state):
            if edge.state.paused:
                continue
            yield state, edge, difference(take, one, state, edge)
            if edge.state not in seen:
                seen.add(edge.state)
                pending.append(edge.state)


def instance(config: SpyreConfig, *sizes: tuple[int, int]) -> Instance[SpyreConfig]:
    """Requests of these prompt and output lengths; all may be aborted or end early."""
    requests = tuple(unshared(*sizes))
    ids = frozenset(one.id for one in requests)
    return Instance(name="", about="", config=config, requests=requests, aborts=ids, early_ends=ids)


def small(**keys: Any) -> SpyreConfig:
    """A configuration of small numbers, these keys changed."""
    sizes = {"block_size": 2, "chunk_size": 4, "max_model_len": 12, "max_num_seqs": 3}
    return SpyreConfig(**{**sizes, "max_batch_tkv_limit": 18, "prefix_caching": False, **keys})


INSTANCES = {
    f"{admission}{'' if interleave else ', not interleaved'}": instance(
        small(admission=admission, interleave=interleave), (3, 3), (6, 2), (1, 2)
    )
    for admission in Admission
    for interleave in (True, False)
} | {
    # Each refuses where the others do not.
    "tight": instance(small(max_batch_tkv_limit=8), (3, 3), (6, 2), (1, 2)),
    "two slots, blocks of 3": instance(
        small(interleave=False, max_num_seqs=2, block_size=3, chunk_size=3), (1, 3), (5, 2), (3, 2)
    ),
    "peak before the end": instance(small(block_size=4, max_batch_tkv_limit=13), (2, 5), (4, 3)),
    "slack in the text": instance(
        small(admission=Admission.DOCUMENTED, block_size=4, max_batch_tkv_limit=12), (1, 4), (4, 2)
    ),
    "half a block of length": instance(
        small(admission=Admission.DOCUMENTED, block_size=4, max_model_len=10), (3, 5), (6, 4)
    ),
    "length, not interleaved": instance(
        small(admission=Admission.DOCUMENTED, interleave=False, block_size=4, max_model_len=7),
        *((5, 2), (3, 4)),
    ),
    "slack in the release": instance(
        small(admission=Admission.SHIPPED, max_batch_tkv_limit=14), (4, 4), (4, 3)
    ),
}


def disagreement(name: str, one: Instance[SpyreConfig]) -> str | None:
    """The first transition of the instance that the numeric machine takes otherwise, in words."""
    (start,) = spyre_model(one).initial()
    if numeric_state(start, one.requests) != numeric.at_the_start(one.requests):
        return f"instance {name}: the machines start in different states"
    try:
        for state, edge, found in transitions(one):
            if found is not None:
                return f"instance {name}, {_in_words(state)}, {edge.action}: {found}"
    except GuardError as error:
        return f"instance {name}: the reference stops: {error}"
    return None


def _in_words(state: State) -> str:
    """The places of a state, each request with its computed and generated tokens."""

    def rows(found: Sequence[Any]) -> str:
        return ", ".join(f"{row.id} ({row.computed}, {row.generated})" for row in found) or "none"

    prefilling = () if state.prefilling is None else (state.prefilling,)
    return (
        f"waiting {rows(state.waiting)}; prefilling {rows(prefilling)}; decoding "
        f"{rows(state.decoding)}; last step {state.last_kind}"
    )


def machine_stale() -> str | None:
    """Why evidence about the numeric machine is stale, None if it takes the reference's steps."""
    found = (disagreement(name, one) for name, one in INSTANCES.items())
    return SCOPE.stale() or next((one for one in found if one is not None), None)


# What the numeric machine leaves out, see `SCOPE`.
OF_NUMERIC_MACHINE = (
    "queue=fcfs, prefix_caching=false, reservation=true, pausing=false, reading=text"
)

of_machine = partial(
    registry.obligation, basis=machine_stale, of=Of.MACHINE, where=OF_NUMERIC_MACHINE
)
