"""Rules that ask for what a driver does not tell are not judged, all others are."""

import pytest
from checks.conformance.episode import Terms, run_episode
from checks.conformance.judging import Judge
from checks.conformance.leftout import FIELDS, Guard
from checks.conformance.script import script_of
from checks.policies.spyre.driver.counterpart import SPYRE
from tests.checks.conformance.faithful import STRANGER, FaithfulLab
from tests.checks.conformance.test_episode import two_requests

from spec.spyre.records import Step
from spec.spyre.rules import REGISTRY

FIELDS_OF_SPYRE = FIELDS["spyre"]
EVENTS_OR_REFUSALS = {"SPY-ADM-4", "SPY-TKV-8", "SPY-RES-4", "SPY-PRI-6", "SPY-PRI-7", "BLK-4"}


def test_a_driver_that_tells_everything_is_judged_by_all_rules_but_those_about_reasons() -> None:
    outcome = run_episode(FaithfulLab(), two_requests(), Terms())

    assert set(outcome.untold) <= EVENTS_OR_REFUSALS
    assert outcome.judged == outcome.steps == 10


@pytest.mark.parametrize(
    ("left_out", "rule"),
    [
        ("blocks", "BLK-1"),
        ("batch", "SPY-DEC-2"),
        ("left_padding", "SPY-DEC-3"),
        ("tkv", "SPY-VOL-1"),
        ("computed", "LIF-8"),
        ("reserved", "SPY-RES-2"),
    ],
)
def test_a_rule_that_asks_for_what_is_left_out_is_not_judged(left_out: str, rule: str) -> None:
    script = script_of(two_requests(), aborts_while_running=False)
    judge = Judge(SPYRE, script.machine.ctx, (left_out,))

    broken = [
        one for step in script.steps for one in judge.observe(step, aborted_while_running=False)
    ]

    assert broken == []
    assert rule in judge.untold
    assert "LIF-3" not in judge.untold


def test_what_is_left_out_is_not_compared() -> None:
    everything = FIELDS_OF_SPYRE.not_compared(FIELDS_OF_SPYRE.names)

    assert FIELDS_OF_SPYRE.not_compared(()) == {"events", "refusal"}
    assert {"after.decoding.computed", "before", "chunk.writes", "after.pool"} <= everything
    assert "after.decoding.generated" not in everything


def test_a_guarded_step_answers_what_was_told() -> None:
    step: Step = script_of(two_requests(), aborts_while_running=False).steps[0]

    guarded = Guard(FIELDS_OF_SPYRE, ("blocks",))(step)

    assert guarded.after.prefilling.computed == step.after.prefilling.computed  # type: ignore[union-attr]
    with pytest.raises(Exception, match="blocks"):
        _ = guarded.after.prefilling.blocks


def test_every_rule_is_in_the_registry() -> None:
    assert set(REGISTRY) >= EVENTS_OR_REFUSALS
    assert STRANGER.left_out == frozenset()
