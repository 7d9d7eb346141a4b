"""The numeric machine takes the reference's steps, or what was proven of it is stale."""

from collections import Counter
from random import Random
from typing import Any

import pytest
import z3
from attrs import astuple, evolve, fields, make_class

from checks.explore.instance import Instance
from checks.harness.campaign import Plan
from checks.harness.policy import Own
from checks.harness.serving import served
from checks.proofs.nano_vllm import scope as nano_vllm
from checks.proofs.obligations import OBLIGATIONS
from checks.proofs.scope import Scope
from checks.proofs.spyre import bounded, inductive
from checks.proofs.spyre import scope as spyre
from checks.proofs.spyre.agreement import (
    INSTANCES,
    instance,
    kind_of,
    machine_stale,
    numeric_state,
    setting_of,
    small,
    transitions,
)
from checks.proofs.spyre.inductive import SIZES, Scene
from checks.proofs.spyre.numeric_machine import (
    ABSENT,
    GONE,
    NEVER,
    Client,
    RequestState,
    StepResult,
    at_the_start,
    between,
    rule_of,
    step,
)
from checks.proofs.vllm_v1 import scope as vllm_v1
from reference.spyre import admission as prefill_refusals
from spec.core.requests import Request
from spec.spyre.config import SpyreConfig
from spec.spyre.records import Context, Step
from spec.spyre.state import Sequence, State
from spec.spyre.variants import Admission
from tests.checks.command import lockstep

# --- all small states ---------------------------------------------------------------------------

LARGER = {
    "exact": instance(small(), (3, 4), (6, 3), (2, 5)),
    "exact, two slots": instance(
        small(max_num_seqs=2, max_batch_tkv_limit=30), (1, 5), (3, 4), (2, 2)
    ),
    "exact, not interleaved": instance(small(interleave=False), (7, 3), (2, 4), (3, 3)),
    "exact, blocks of 3": instance(small(block_size=3, chunk_size=3), (4, 5), (2, 4), (3, 3)),
    "documented": instance(
        small(admission=Admission.DOCUMENTED, max_batch_tkv_limit=15), (1, 4), (3, 2), (5, 4)
    ),
    "documented, not interleaved": instance(
        small(admission=Admission.DOCUMENTED, interleave=False, max_model_len=8),
        *((1, 6), (5, 3), (2, 3)),
    ),
    "shipped": instance(
        small(admission=Admission.SHIPPED, max_batch_tkv_limit=24), (3, 5), (7, 4), (2, 3)
    ),
    "shipped, not interleaved": instance(
        small(admission=Admission.SHIPPED, interleave=False, max_batch_tkv_limit=20),
        *((7, 3), (2, 3), (3, 3)),
    ),
}


def compared(one: Instance[SpyreConfig]) -> dict[str, int]:
    """How often each action, and each refusal, is compared."""
    taken: Counter[str] = Counter()
    for _, edge, difference in transitions(one):
        assert difference is None
        if isinstance(edge.record, Step):
            taken[edge.record.refusal or "no refusal"] += 1
        taken[edge.action.split()[0].rstrip(",")] += 1
    return dict(sorted(taken.items()))


# How often each action, and each refusal, is compared.
COMPARED: dict[str, dict[str, int]] = {
    "exact": {"SPY-PRI-3": 319, "SPY-VOL-4": 2}
    | {"abort": 3718, "arrive": 663, "no refusal": 4667, "step": 4988},
    "exact, two slots": {"SPY-ADM-1": 9, "SPY-PRI-3": 126}
    | {"abort": 1625, "arrive": 431, "no refusal": 1961, "step": 2096},
    "exact, not interleaved": {"SPY-VOL-4": 112}
    | {"abort": 3633, "arrive": 611, "no refusal": 4549, "step": 4661},
    "exact, blocks of 3": {"SPY-PRI-3": 201, "SPY-VOL-4": 10}
    | {"abort": 2408, "arrive": 516, "no refusal": 2984, "step": 3195},
    "documented": {"SPY-PRI-3": 106, "SPY-VOL-2": 33}
    | {"abort": 1129, "arrive": 367, "no refusal": 1273, "step": 1412},
    "documented, not interleaved": {"SPY-LEN-2": 150, "SPY-VOL-2": 39}
    | {"abort": 4590, "arrive": 674, "no refusal": 5863, "step": 6052},
    "shipped": {"SPY-PRI-3": 254, "SPY-VOL-3": 16}
    | {"abort": 3839, "arrive": 873, "no refusal": 5035, "step": 5305},
    "shipped, not interleaved": {"SPY-VOL-3": 99}
    | {"abort": 1755, "arrive": 472, "no refusal": 2094, "step": 2193},
}


@pytest.mark.parametrize("name", LARGER)
def test_every_transition_of_a_small_instance_is_that_of_the_reference(name: str) -> None:
    assert compared(LARGER[name]) == COMPARED[name]


def test_the_prover_compares_every_action_and_every_refusal() -> None:
    total = sum((Counter(compared(one)) for one in INSTANCES.values()), Counter[str]())
    assert total == {
        "SPY-ADM-1": 12,
        "SPY-LEN-2": 10,
        "SPY-PRI-3": 228,
        "SPY-VOL-2": 16,
        "SPY-VOL-3": 50,
        "SPY-VOL-4": 21,
        "abort": 5494,
        "arrive": 1986,
        "no refusal": 5766,
        "step": 6103,
    }


# --- random runs --------------------------------------------------------------------------------


def as_client(one: Request) -> Client:
    gone = NEVER if one.abort_at is None else one.abort_at
    return Client(one.prompt_len, one.max_tokens, one.end, one.arrival, gone)


def test_random_runs_are_those_of_the_reference() -> None:
    taken: Counter[str] = Counter()
    pinned = {"prefix_caching": False, "queue": "fcfs", "pausing": False, "num_blocks": None}
    small = Plan(Own("spyre", "reference"), pinned=pinned)
    large = evolve(small, pinned=pinned | {"block_size": 64})
    for case in (*map(small.case, range(120)), *map(large.case, range(6))):
        config: Any = case.config
        clients = [as_client(one) for one in case.requests]
        state = at_the_start(clients)
        for index, done in enumerate(served(case)):
            if done.after.paused:
                break  # the numeric machine never pauses
            result = step(setting_of(config), clients, between(clients, state, index))
            state = result.after
            assert (kind_of(result), result.tkv, result.volume) == (
                done.kind,
                done.tkv,
                done.volume,
            )
            expected = numeric_state(done.after, case.requests)
            for client, one, found in zip(clients, expected.requests, state.requests, strict=True):
                # A request whose client goes away before it arrives is in neither of the phases.
                never = one.phase == ABSENT and client.abort_at <= index
                assert found == (RequestState(GONE, 0, 0) if never else one)
            taken[done.refusal or done.kind] += 1
    assert all(taken[one] > 10 for one in ("prefill", "decode", "idle", "SPY-PRI-3", "SPY-ADM-1"))
    assert all(taken[one] > 10 for one in ("SPY-VOL-2", "SPY-VOL-3", "SPY-VOL-4", "SPY-LEN-2"))


# --- terms --------------------------------------------------------------------------------------


def everything_in(result: StepResult) -> list[Any]:
    after = [number for one in result.after.requests for number in astuple(one)]
    kinds = [result.after.prefilled, result.is_prefill, result.is_decode]
    return [*after, *kinds, result.tkv, result.volume]


def some_number(name: str, random: Random) -> int:
    """Of the size that numbers of this name have in a scene, and now and then of another."""
    tops = {"phase": 4, "generated": 9, "computed": 30, "limit": 90, "interleave": 1}
    name = name.rstrip("_0123456789")
    return random.randint(0, tops.get("interleave" if name == "prefilled" else name, 12))


@pytest.mark.parametrize("admission", Admission)
@pytest.mark.parametrize(("block_size", "chunk_size"), SIZES.values())
def test_terms_say_what_the_numbers_say(
    block_size: int, chunk_size: int, admission: Admission
) -> None:
    """One step of three requests as a term, evaluated on random numbers, consistent or not."""
    rule = rule_of(admission)
    random, values, kinds = Random(1), dict[str, int](), Counter[str]()
    terms = everything_in(Scene.drawn(z3.Int, block_size, chunk_size, rule).step())

    def integer(name: str) -> int:
        return values.setdefault(name, some_number(name, random))

    for _ in range(25):
        values.clear()
        result = Scene.drawn(integer, block_size, chunk_size, rule).step()
        substituted = [(z3.Int(name), z3.IntVal(value)) for name, value in values.items()]
        for term, number in zip(terms, everything_in(result), strict=True):
            assert str(z3.simplify(z3.substitute(term, *substituted))) == str(number)
        kinds[kind_of(result)] += 1
    assert min(kinds[one] for one in ("prefill", "decode", "idle")) > 1


# --- planted changes ----------------------------------------------------------------------------

_refusal = prefill_refusals._priority_refusal


def any_prefills_in_a_row(ctx: Context, state: State, sequence: Sequence) -> str | None:
    rule = _refusal(ctx, state, sequence)
    return None if rule == "SPY-PRI-3" else rule


def prompts_in_a_row(ctx: Context, state: State, sequence: Sequence) -> str | None:
    """The chunks of one prompt go on without a decode step between them."""
    return _refusal(
        ctx, state if state.prefilling is None else evolve(state, last_kind=""), sequence
    )


@pytest.mark.parametrize("planted", [any_prefills_in_a_row, prompts_in_a_row])
def test_with_prefills_in_a_row_what_was_proven_of_interleaving_is_stale(
    planted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefill_refusals, "_priority_refusal", planted)
    ran = lockstep("prove", "PRV-MAC-2", "--json", "-")
    assert ran.code == 3
    assert '"verdict": "stale"' in ran.out
    assert ran.err.endswith("1 obligation: 0 unknown, 1 stale\n")


def test_the_first_transition_in_which_they_differ_is_printed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prefill_refusals, "_priority_refusal", any_prefills_in_a_row)
    assert machine_stale() == (
        "instance exact, waiting 1 (0, 0); prefilling none; decoding 0 (3, 1); last step prefill, "
        "step: prefilled: the reference has True, the numeric machine False"
    )


def test_all_obligations_about_the_machine_rest_on_its_agreement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And no others do."""

    def refuse(*_: Any) -> None:
        raise LookupError

    for module in (inductive, bounded):
        for name in ("step", "between", "at_the_start"):
            monkeypatch.setattr(module, name, refuse)
    resting = {name for name, one in OBLIGATIONS.items() if one.basis is machine_stale}
    using = set()
    for name, one in OBLIGATIONS.items():
        try:
            one.statement(lambda _name: 1)
        except LookupError:
            using.add(name)
    assert using == resting


# --- keys of a configuration --------------------------------------------------------------------

SCOPES = {"spyre": spyre.SCOPE, "nano-vllm": nano_vllm.SCOPE, "vllm-v1": vllm_v1.SCOPE}


@pytest.mark.parametrize("policy", SCOPES)
def test_a_key_that_the_scope_does_not_list_makes_evidence_stale(policy: str) -> None:
    scope = SCOPES[policy]
    assert [key.name for key in fields(scope.config)] == list(scope.keys)
    assert scope.stale() is None
    wider = make_class("Wider", ["prefills_in_a_row"], bases=(scope.config,), kw_only=True)
    reason = "key prefills_in_a_row of the configuration is neither in the setting nor excluded"
    assert Scope(wider, scope.keys).stale() == reason


@pytest.mark.parametrize("name", ["PRV-MAC-2", "PRV-PAD-1"])
def test_a_forgotten_key_makes_all_that_is_proven_of_its_policy_stale(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(spyre.SCOPE.keys, "interleave")
    ran = lockstep("prove", name, "PRV-NANO-SLT-1")
    assert ran.code == 3
    assert (
        f"stale: {name}: key interleave of the configuration is neither in the setting nor excluded"
    ) in ran.out.replace("\n", " ")
    assert ran.out.endswith("2 obligations: 1 proven of the formula, 0 unknown, 1 stale\n")
