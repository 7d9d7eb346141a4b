"""Drivers that report few fields are compared and judged by these fields alone."""

import pytest

from checks.harness.campaigns.campaign import Plan
from checks.harness.comparison import Terms, compare
from checks.harness.driver.process import DRIVER_FILES
from checks.harness.finding import Episode
from checks.releases.recipes import TEMPLATES
from lockstep import api
from lockstep.systems import DriverClass
from tests.lockstep.broken import TEMPLATE, class_named

TWO_ROWS = [{"id": name, "prompt_len": 20, "max_tokens": 8} for name in "ab"]


def alone(limit: int) -> Episode:
    """Two rows of 20 tokens and more under a limit that the toy does not look at."""
    system = DriverClass(class_named(TEMPLATE.replace("[1_000_000]", f"[{limit}]"))).open()
    config = Plan(DriverClass(class_named(TEMPLATE))).case(0).config.as_mapping()
    keys = config | {"max_num_seqs": 2, "max_batch_tkv_limit": limit}
    keys.pop("policy")
    case = api.Case(api.configuration(**keys), api.requests(TWO_ROWS))
    return compare(system, case, Terms(rules_only=True))


def test_volume_is_judged_by_lengths_where_no_tkv_is_reported() -> None:
    """20 tokens of the prompt and one of each step so far: 2 rows with tkv 24 are over 47."""
    found = {finding.cause: finding.broken for finding in alone(47).findings.values()}

    assert found["SPY-VOL-1"] == (("SPY-VOL-1", "batch 2 x tkv 24 = 48, limit 47"),)
    assert "SPY-VOL-1" not in alone(47).not_evaluated
    assert "SPY-VOL-1" not in {finding.cause for finding in alone(60).findings.values()}


def test_the_running_queue_is_optional() -> None:
    text = TEMPLATE.replace('            "running": list(self.scheduler.decoding),\n', "")
    assert text != TEMPLATE

    assert api.conform(class_named(text), episodes=5).holds


@pytest.mark.parametrize("policy", ["nano-vllm", "vllm-v1"])
def test_no_device_does_steps_without_their_blocks(policy: str) -> None:
    conformed = api.conform(DRIVER_FILES / TEMPLATES[policy], episodes=3)

    assert (conformed.holds, conformed.campaign.on_device) == (True, 0)
