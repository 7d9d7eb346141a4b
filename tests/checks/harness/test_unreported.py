"""Rules that read unreported fields are not judged; all other rules are."""

import pytest

from checks.harness.comparison import Terms, compare
from checks.harness.judging import Judge
from checks.harness.script import Script
from checks.harness.unreported import Guard, UnreportedError
from checks.policies.spyre.adapter import ADAPTER
from spec.spyre.records import Context, Step
from tests.checks.harness.driver.faithful import at
from tests.checks.policies.spyre.driver import SAYS_WHY, driver
from tests.checks.policies.spyre.test_adapter import two_requests

FIELDS = ADAPTER.fields
JUMPS = {"SPY-TKV-8"}
REFUSALS = {"SPY-ADM-4", "SPY-RES-4", "SPY-PRI-6", "SPY-PRI-7", "SPY-VOL-3"}
PAUSES_OFF = two_requests(pausing=False, num_blocks=40, reading="text")


def scripted() -> tuple[Context, list[Step]]:
    script = Script(two_requests())
    assert [*script]
    return script.ctx, script.steps


def test_a_driver_that_reports_everything_is_judged_by_all_rules_but_those_about_reasons() -> None:
    episode = compare(driver(), two_requests(), Terms())

    assert set(episode.not_evaluated) <= JUMPS | REFUSALS
    assert episode.judged == episode.steps == 10


def test_a_driver_that_says_which_rule_refused_is_judged_by_the_rules_about_reasons() -> None:
    silent = compare(driver(), PAUSES_OFF, Terms())
    episode = compare(driver(SAYS_WHY), PAUSES_OFF, Terms())

    assert episode.finding is None, episode.finding
    nothing_overtakes = {"SPY-PRI-7"}
    assert set(silent.not_evaluated) == JUMPS | REFUSALS - nothing_overtakes
    assert set(episode.not_evaluated) == JUMPS


@pytest.mark.parametrize(
    ("refusal", "rule"),
    [
        pytest.param(None, "SPY-PRI-6", id="no reason"),
        pytest.param("SPY-ADM-1", "SPY-PRI-6", id="a reason that is not so"),
        pytest.param("SPY-RES-1", "SPY-RES-4", id="blocks that are there"),
        pytest.param("SPY-VOL-3", "SPY-VOL-3", id="a limit that is kept"),
    ],
)
def test_a_reason_that_is_not_so_breaks_a_rule(refusal: str | None, rule: str) -> None:
    wrong = at(2, lambda record: record.update(refusal=refusal))

    finding = compare(driver(SAYS_WHY, fault=wrong), PAUSES_OFF, Terms()).finding

    assert finding is not None
    assert rule in {broken for broken, _ in finding.broken}


@pytest.mark.parametrize(
    ("unreported", "rule"),
    [
        ("blocks", "BLK-1"),
        ("batch", "SPY-DEC-2"),
        ("left_padding", "SPY-DEC-3"),
        ("computed", "LIF-8"),
        ("reserved", "SPY-RES-2"),
    ],
)
def test_a_rule_that_asks_for_what_is_not_reported_is_not_judged(
    unreported: str, rule: str
) -> None:
    ctx, steps = scripted()
    judge = Judge(ctx, adapter=ADAPTER, unreported=(unreported,))

    broken = [violation for step in steps for violation in judge.observe(step)]

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
