"""Rules that ask for what a driver does not report are not judged, all others are."""

import pytest

from checks.harness.comparison import Terms, compare
from checks.harness.judging import Judge
from checks.harness.script import Script
from checks.harness.unreported import Guard, UnreportedError
from checks.policies.spyre.adapter import ADAPTER
from spec.spyre.records import Context, Step
from spec.spyre.rules import SPYRE
from tests.checks.policies.spyre.driver import STRANGER, driver
from tests.checks.policies.spyre.test_adapter import two_requests

FIELDS = ADAPTER.fields
EVENTS_OR_REFUSALS = {"SPY-ADM-4", "SPY-TKV-8", "SPY-RES-4", "SPY-PRI-6", "SPY-PRI-7", "BLK-4"}


def scripted() -> tuple[Context, list[Step]]:
    script = Script(two_requests(), aborts_while_running=False, aborts_of_gone=False)
    assert [*script]
    return script.ctx, script.steps


def test_a_driver_that_reports_everything_is_judged_by_all_rules_but_those_about_reasons() -> None:
    episode = compare(driver(), two_requests(), Terms())

    assert set(episode.not_evaluated) <= EVENTS_OR_REFUSALS
    assert episode.judged == episode.steps == 10


@pytest.mark.parametrize(
    ("unreported", "rule"),
    [
        ("blocks", "BLK-1"),
        ("batch", "SPY-DEC-2"),
        ("left_padding", "SPY-DEC-3"),
        ("tkv", "SPY-VOL-1"),
        ("computed", "LIF-8"),
        ("reserved", "SPY-RES-2"),
    ],
)
def test_a_rule_that_asks_for_what_is_not_reported_is_not_judged(
    unreported: str, rule: str
) -> None:
    ctx, steps = scripted()
    judge = Judge(ctx, adapter=ADAPTER, unreported=(unreported,))

    broken = [one for step in steps for one in judge.observe(step)]

    assert broken == []
    assert rule in judge.not_evaluated
    assert "LIF-3" not in judge.not_evaluated


def test_what_is_not_reported_is_not_compared() -> None:
    everything = FIELDS.not_compared(FIELDS.names)

    totals = {"before.orphaned", "after.orphaned"}
    assert FIELDS.not_compared(()) == {"events", "refusal"} | totals
    assert {"after.decoding.computed", "before", "chunk.writes", "after.pool"} <= everything
    assert "after.decoding.generated" not in everything


def test_a_guarded_step_answers_what_was_reported() -> None:
    step = scripted()[1][0]

    guarded = Guard(FIELDS, ("blocks",))(step)

    assert guarded.after.prefilling.computed == step.after.prefilling.computed  # type: ignore[union-attr]
    with pytest.raises(UnreportedError, match="blocks"):
        _ = guarded.after.prefilling.blocks


def test_every_rule_is_in_the_registry() -> None:
    assert set(SPYRE.rules) >= EVENTS_OR_REFUSALS
    assert STRANGER.unreported == frozenset()
