"""A system and the reference side by side: nothing is found in equals, all else has its name."""

from typing import Any

import pytest
from attrs import evolve

from checks.harness.campaigns.campaign import Plan, run_batch
from checks.harness.campaigns.guiding import Start
from checks.harness.case import Case
from checks.harness.comparing import Strictness
from checks.harness.comparison import Terms, compare
from checks.harness.finding import Kind
from checks.harness.policy import Own, evidence_of
from checks.harness.reference import Reference
from checks.harness.runs.serving import served
from checks.harness.standalone import with_own_steps
from checks.harness.system import ENGINE
from checks.registry import POLICIES
from reference.core.frozen_map import updated
from reference.spyre import step as step_module
from spec.core.records import IDLE
from spec.core.requests import Prompt, Request
from spec.spyre.records import Step
from spec.vllm_v1.config import VllmV1Config
from tests.checks.harness.cases import (
    REFERENCE,
    SMALL,
    UNJUDGED,
    case,
    changed,
    faulty_spyre,
    found_in,
    system,
)
from tests.recorded.scenes import asks


def test_a_turn_that_comes_late_is_waited_for() -> None:
    config = VllmV1Config(block_size=2, num_blocks=8, max_num_seqs=1, max_model_len=16)
    tokens = Prompt.of_tokens([1, 2])
    first = Request(id="a", prompt=tokens, max_tokens=1, continued_by="b")
    longer = Prompt.of_tokens([1, 2, 3, 4])
    turn = Request(id="b", prompt=longer, max_tokens=1, after="a", arrival_time=200.0)
    other = Request(id="c", prompt=tokens, max_tokens=1)

    episode = compare(Own("vllm-v1", ENGINE).open(), Case(config, (first, other, turn)), UNJUDGED)

    assert (episode.finding, episode.steps > 200) == (None, True)


@pytest.mark.parametrize(
    ("policy", "steps", "never"),
    [
        ("spyre", 4_000, ["refused by SPY-STR-1"]),  # only 2.6.3 does
        ("nano-vllm", 3_000, []),
        # No client leaves within a step; a newcomer rarely lacks the budget of a whole block.
        ("vllm-v1", 3_000, ["leave"]),
    ],
)
def test_reference_and_reference_take_the_same_steps_and_meet_every_action(
    policy: str, steps: int, never: list[str]
) -> None:
    seen = run_batch(Plan(Own(policy, "reference"), terms=UNJUDGED), map(Start, range(120)))

    assert seen.first_seen == {}
    assert (seen.episodes, seen.never) == (120, never)
    assert seen.steps > steps


@pytest.mark.parametrize("policy", POLICIES)
def test_no_rule_is_broken_by_a_reference_but_those_that_are_known(policy: str) -> None:
    seen = run_batch(Plan(Own(policy, "reference"), seed=1), map(Start, range(25)))

    assert seen.first_seen == {}
    assert seen.judged == seen.steps > 300
    assert set(seen.expected) <= {*evidence_of(policy).expected_reasons()}


def test_after_the_last_request_two_idle_steps_are_compared() -> None:
    assert compare(REFERENCE, SMALL, UNJUDGED).steps == len(list(served(SMALL))) + 2


def test_a_divergence_names_the_first_differing_field_and_both_sides_rules() -> None:
    limit = case(asks("0", 1, 3), asks("1", 1, 2), max_batch_tkv_limit=3, block_size=1)

    finding = found_in(faulty_spyre("exact forgets the candidate"), limit)

    assert finding.signature == (Kind.DIVERGENCE, "kind")
    assert finding.step == len(finding.steps) - 1 == 2
    assert finding.followed[0] == ("SPY-VOL-4", "refuses an admission of the reference")
    assert (finding.rule, finding.name) == ("", "differs: kind")
    own = with_own_steps(faulty_spyre("exact forgets the candidate"), limit, UNJUDGED, finding)
    assert (own.rule, own.name, own.signature) == ("SPY-VOL-4", "SPY-VOL-4", finding.signature)


def test_a_system_that_raises_has_crashed() -> None:
    def raises(_step: Step) -> dict[str, Any]:
        raise ZeroDivisionError("by design")

    finding = found_in(changed(raises))

    assert finding.signature == (Kind.CRASH, "ZeroDivisionError")
    assert finding.says == "ZeroDivisionError: by design"
    assert (finding.step, finding.rule, finding.rule_or_kind) == (0, "", "crash")
    assert finding.followed[0][0] == "SPY-ADM-1"  # which the reference follows there


def test_a_system_that_cannot_be_made_has_crashed() -> None:
    def refuses(_case: Case) -> Reference:
        raise NotImplementedError

    finding = found_in(system("none", refuses))

    assert finding.signature == (Kind.CRASH, "NotImplementedError")


def test_a_system_that_goes_on_when_the_reference_is_idle_diverges_after_the_last_request() -> None:
    def never_idle(step: Step) -> dict[str, Any]:
        return {"kind": "decode"} if step.kind == IDLE else {}

    finding = found_in(changed(never_idle), terms=Terms(Strictness.DECISIONS, judged=False))

    assert finding.signature == (Kind.DIVERGENCE, "kind")
    assert not finding.steps[-1].before.present


def test_what_is_held_at_the_end_is_found_even_if_states_are_not_compared() -> None:
    def holds(step: Step) -> dict[str, Any]:
        pool = evolve(step.after.pool, references=updated(step.after.pool.references, {7: 1}))
        return {"after": evolve(step.after, pool=pool)}

    finding = found_in(changed(holds), terms=Terms(Strictness.DECISIONS, judged=False))

    assert finding.signature == (Kind.HELD, "BLK-6")
    assert finding.says == "all requests have left, still there: blocks [7]"


def test_a_defect_of_both_is_found_by_the_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_module, "max_tkv", lambda tkvs, _size: max(tkvs) + 1)

    assert compare(REFERENCE, SMALL, UNJUDGED).finding is None
    finding = found_in(REFERENCE, terms=Terms())
    assert finding.signature == (Kind.BROKEN_RULE, "SPY-TKV-2")


def test_a_reference_that_never_ends_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_module, "choose_prefill", lambda *_: (None, None))

    finding = found_in(REFERENCE)

    assert finding.signature == (Kind.ENDLESS, "steps")
    assert finding.says == "no end after 35 steps, nor in the reference"


def test_a_reference_that_stops_at_a_guard_is_an_error_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        step_module, "choose_prefill", lambda _ctx, state: (evolve(state.waiting[0], id="x"), None)
    )

    finding = found_in(REFERENCE)

    assert finding.signature == (Kind.REFERENCE, "LIF-1")
    assert finding.says == "the reference stops: admit is not allowed here: LIF-1"


def test_fields_that_are_not_reported_are_not_compared() -> None:
    def without_events(_step: Step) -> dict[str, Any]:
        return {"events": ()}

    assert found_in(changed(without_events)).cause == "events"
    silent = changed(without_events, unreported=frozenset({"events"}))
    assert compare(silent, SMALL, UNJUDGED).finding is None
