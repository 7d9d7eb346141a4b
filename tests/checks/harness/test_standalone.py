"""Standalone judging names the violation nearest to the cause that is not excused."""

import pytest

from checks.harness.case import Case
from checks.harness.comparison import Terms
from checks.harness.own_steps import nearest
from checks.harness.policy import system_of
from checks.harness.standalone import alone
from checks.harness.system import Json
from spec.core.requests import Oversized
from spec.vllm_v1.config import VllmV1Config
from tests.checks.policies.spyre.driver import SAYS_WHY, driver
from tests.checks.policies.spyre.test_adapter import two_requests
from tests.recorded.scenes import asks


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


def test_a_wait_for_ever_that_the_configuration_permits_is_not_blamed() -> None:
    """The pool has one block of two tokens, and the request that waits needs two."""
    config = VllmV1Config(block_size=2, num_blocks=1, max_model_len=4, oversized=Oversized.QUEUED)
    too_large = Case(config, (asks("0", 3, 1),))

    served = alone(system_of("vllm-v1", "reference"), too_large, Terms())

    assert served.steps > 10
    assert served.wrong is None
