"""Rules that need not hold everywhere: each is listed once, with all its reasons."""

from types import SimpleNamespace

import pytest

from checks.harness.policy import evidence_of
from checks.registry import POLICIES, claims_of
from spec.spyre.config import released_2_6_3
from spec.vllm_v1.config import Connector, Scheduling, VllmV1Config

V1 = evidence_of("vllm-v1")
LOST = "blocks whose load is lost within the step have been hashed when it was planned"
VICTIM = "by priority, a victim's chunk of this very step has been hashed when it was planned"


def test_a_rule_with_two_reasons_is_named_once_with_both() -> None:
    assert V1.expected_reasons()["V1-KV-12"] == f"{LOST}; or {VICTIM}"


def test_the_reason_in_an_episode_is_that_of_its_configuration() -> None:
    by_priority = VllmV1Config(scheduling=Scheduling.PRIORITY)
    with_loads = VllmV1Config(connector=Connector.SYNC)
    assert V1.expected_reason("V1-KV-12", by_priority) == VICTIM
    assert V1.expected_reason("V1-KV-12", with_loads) == LOST
    assert V1.expected_reason("V1-KV-12", VllmV1Config()) is None
    assert V1.expected_reasons(by_priority)["V1-KV-12"] == VICTIM


def test_a_rule_is_excused_in_steps_that_show_the_reason_and_in_no_other() -> None:
    def reason(orphaned: int) -> str | None:
        step = SimpleNamespace(before=SimpleNamespace(orphaned=orphaned))
        return evidence_of("spyre").expected_reason("SPY-PRI-6", released_2_6_3(), step)

    assert (reason(1) is not None, reason(0)) == (True, None)


@pytest.mark.parametrize("policy", POLICIES)
def test_only_rules_of_the_policy_and_what_runs_show_are_expected(policy: str) -> None:
    others = set(evidence_of(policy).expected_reasons()) - set(claims_of(policy).registry.rules)
    assert {cause for cause in others if not cause.startswith("device: ")} <= {"endless"}
