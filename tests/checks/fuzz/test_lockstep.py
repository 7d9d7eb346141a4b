"""Two schedulers in lockstep: nothing is found in equals, everything else has its name."""

from collections.abc import Iterable
from typing import Any

import pytest
from attrs import evolve
from checks.fuzz.campaign import Batch, Plan, batches_of, campaign, run_batch
from checks.fuzz.compare import Strictness
from checks.fuzz.finding import Finding, Kind
from checks.fuzz.lockstep import Terms, run_case
from checks.fuzz.reference import ReferenceTarget
from checks.fuzz.subjects import ENGINE, REFERENCE
from checks.fuzz.target import Subject
from checks.harness.running import serve

from reference.spyre import step as step_module
from reference.spyre.machine import SpyreMachine
from spec.core.records import IDLE
from spec.core.requests import Request
from spec.spyre.config import SpyreConfig
from spec.spyre.records import Step
from tests.checks.fuzz.cases import case, changed, request
from tests.checks.fuzz.faulty import faulty

SMALL = case(request("0", 3, 3), request("1", 5, 2, arrival=1))


def found_in(subject: Subject, here: Any = SMALL, terms: Terms | None = None) -> Finding:
    finding = run_case(subject, here, terms).finding
    assert finding is not None
    return finding


def test_reference_and_reference_take_the_same_steps_and_meet_every_action() -> None:
    seen = run_batch(Plan(REFERENCE), Batch(0, 200))

    assert seen.met == {}
    assert (seen.episodes, seen.never) == (200, [])
    assert seen.steps > 8_000


def test_the_engine_takes_the_steps_of_the_reference() -> None:
    seen = run_batch(Plan(ENGINE, seed=2), Batch(0, 60))

    assert seen.met == {}
    assert seen.steps > 2_000


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [10, 11])
def test_the_engine_takes_the_steps_of_the_reference_for_long(seed: int) -> None:
    seen = campaign(Plan(ENGINE, seed, Terms(judged=True)), batches_of(800), lambda _: None)

    assert seen.met == {}
    assert (seen.episodes, seen.never) == (800, [])
    assert seen.steps > 30_000


def test_no_rule_is_broken_by_the_reference_but_those_that_are_known() -> None:
    seen = run_batch(Plan(REFERENCE, seed=1, terms=Terms(judged=True)), Batch(0, 60))

    assert seen.met == {}
    assert set(seen.known) == {"SPY-LEN-1"}


def test_the_last_compared_step_is_idle_and_nobody_is_left() -> None:
    machine = SpyreMachine.of(SMALL.config, SMALL.requests)
    alone = list(serve(machine, SMALL.requests))
    assert run_case(REFERENCE, SMALL).steps == len(alone) + 1


def test_a_divergence_names_the_first_differing_field_and_both_sides_rules() -> None:
    limit = case(request("0", 1, 3), request("1", 1, 2), max_batch_tkv_limit=3, block_size=1)

    finding = found_in(faulty("exact forgets the candidate"), evolve(limit))

    assert finding.signature == (Kind.DIVERGENCE, "kind")
    assert finding.step == len(finding.steps) - 1 == 2
    assert finding.followed == ("SPY-VOL-4", "it keeps the reference from a prefill step")
    assert [rule for rule, _ in finding.broken] == ["SPY-VOL-4"]
    assert finding.rule == "SPY-VOL-4"


def test_a_target_that_raises_has_crashed() -> None:
    def raises(_step: Step) -> dict[str, Any]:
        raise ZeroDivisionError("by nobody")

    finding = found_in(changed(raises))

    assert finding.signature == (Kind.CRASH, "ZeroDivisionError")
    assert finding.says == "changed raises ZeroDivisionError: by nobody"
    assert (finding.step, finding.rule) == (0, "crash")


def test_a_target_that_cannot_be_made_has_crashed() -> None:
    def refuses(_config: SpyreConfig, _requests: Iterable[Request]) -> ReferenceTarget:
        raise NotImplementedError

    assert found_in(Subject("none", refuses)).signature == (Kind.CRASH, "NotImplementedError")


def test_a_target_that_goes_on_when_the_reference_is_idle_diverges_in_the_last_step() -> None:
    def never_idle(step: Step) -> dict[str, Any]:
        return {"kind": "decode"} if step.kind == IDLE else {}

    finding = found_in(changed(never_idle), terms=Terms(Strictness.DECISIONS))

    assert finding.signature == (Kind.DIVERGENCE, "kind")
    assert not finding.steps[-1].before.present


def test_what_is_held_at_the_end_is_found_even_if_states_are_not_compared() -> None:
    def holds(step: Step) -> dict[str, Any]:
        pool = evolve(step.after.pool, references=step.after.pool.references.set({7: 1}))
        return {"after": evolve(step.after, pool=pool)}

    finding = found_in(changed(holds), terms=Terms(Strictness.DECISIONS))

    assert finding.signature == (Kind.HELD, "BLK-6")
    assert finding.says == "everybody has left, still there: blocks [7]"


def test_a_defect_of_both_is_found_by_the_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_module, "max_tkv", lambda tkvs, _size: max(tkvs) + 1)

    assert run_case(REFERENCE, SMALL).finding is None
    finding = found_in(REFERENCE, terms=Terms(judged=True))
    assert finding.signature == (Kind.BROKEN_RULE, "SPY-TKV-2")


def test_a_reference_that_never_ends_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_module, "choose_prefill", lambda *_: (None, None))

    finding = found_in(REFERENCE)

    assert finding.signature == (Kind.ENDLESS, "steps")
    assert finding.says == "no end after 82 steps"


def test_a_reference_that_stops_at_a_guard_is_an_error_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        step_module, "choose_prefill", lambda _ctx, state: (evolve(state.waiting[0], id="x"), None)
    )

    finding = found_in(REFERENCE)

    assert finding.signature == (Kind.REFERENCE, "LIF-1")
    assert finding.says == "the reference stops: admit is not allowed here: LIF-1"


def test_fields_that_are_left_out_are_not_compared() -> None:
    def knows_no_events(_step: Step) -> dict[str, Any]:
        return {"events": ()}

    assert found_in(changed(knows_no_events)).cause == "events"
    silent = changed(knows_no_events, leaves_out=frozenset({"events"}))
    assert run_case(silent, SMALL).finding is None
