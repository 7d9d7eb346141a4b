"""Standalone judging names the violation nearest to the cause that is not excused."""

import pytest

from checks.harness.comparison import Terms
from checks.harness.own_steps import nearest
from checks.harness.standalone import alone
from checks.harness.system import Json
from tests.checks.policies.spyre.driver import SAYS_WHY, driver
from tests.checks.policies.spyre.test_adapter import two_requests


@pytest.mark.parametrize(
    ("causes", "due"),
    [
        (["V1-BUD-5", "V1-CHK-1"], "V1-CHK-1"),  # any other share is not the one that is due
        (["BLK-10", "LIF-9", "BLK-2"], "BLK-2"),
        (["V1-KV-15", "V1-KV-10"], "V1-KV-15"),  # about as rare: the first
        (["device: token", "V1-LIF-4"], "V1-LIF-4"),
        (["count: blocks.used", "device: token"], "count: blocks.used"),
    ],
)
def test_a_rule_about_a_rare_situation_is_nearer_than_what_breaks_with_anything(
    causes: list[str], due: str
) -> None:
    assert nearest(causes, str) == due


def test_what_is_known_not_to_hold_is_excused_in_the_steps_that_are_known() -> None:
    """A wrong refusal is, where blocks stay reserved for those that have left: here nobody left."""

    def refuse_wrongly(records: list[Json]) -> None:
        for record in records:
            if record["refusal"] == "SPY-PRI-3":
                record["refusal"] = "SPY-ADM-1"

    wrong = alone(driver(SAYS_WHY, fault=refuse_wrongly), two_requests(), Terms()).wrong

    assert wrong is not None
    assert wrong.cause == "SPY-PRI-6"
