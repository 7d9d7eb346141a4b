"""The comparison of steps of vLLM V1: reference, paged device and engine."""

from checks.harness.comparing import Strictness, by_fields
from checks.harness.labels import Labels, named_actions
from checks.harness.policy import Engine, Evidence, steps_alone
from checks.policies.vllm_v1.adapter import ADAPTER
from checks.policies.vllm_v1.differences import EXPECTED_VIOLATIONS, KNOWN_DIFFERENCES
from checks.policies.vllm_v1.generator import generate
from checks.policies.vllm_v1.reference import VllmV1Reference
from checks.policies.vllm_v1.situations import ADVICE, TABLE, phase_of
from checks.registry import imported_when_called
from spec.core.requests import Request
from spec.vllm_v1.config import VllmV1Config
from spec.vllm_v1.records import Context, Step

_DECISIONS = ("scheduled", "drafts", "preempted", "outputs", "finished")
# Decisions come before their consequences.
_COMPARED = {
    Strictness.DECISIONS: by_fields(*_DECISIONS),
    Strictness.OBSERVABLE: by_fields(
        *_DECISIONS, "after", "statistics", "lookups", "encoded", "evicted"
    ),
    Strictness.EXACT: by_fields(
        *("before", "scheduled", "drafts", "admitted", "preempted", "planned", "budget_left"),
        *("refusal", "reported", "accepted", "outputs", "finished", "external", "failed_loads"),
        *("ended", "aborted", "after", "statistics", "lookups", "encoded", "evicted", "events"),
    ),
}


def _steps_alone(config: VllmV1Config, request: Request) -> int:
    budget = config.token_budget
    at_once = min(budget, config.long_prefill_token_threshold or budget)
    return steps_alone(request, at_once, max(config.steps_in_flight, 1))


_TRANSITIONS = (
    *("admit", "prefix_hit", "allocate", "catch_up", "preempt", "rollback", "finish"),
    *("load", "loaded", "load_failed", "promote", "lose_load", "undo", "leave"),
    *("hit_in_group", "allocate_in_group", "give_back"),
)


def _further(step: Step) -> dict[str, int]:
    """Counts of chunks before the last, accepted drafts, and requests admitted with drafts."""
    return {
        "chunk": sum(id_ not in step.outputs for id_ in step.scheduled),
        "accepted draft": sum(step.accepted.values()),
        "padded newcomer": sum(id_ in step.drafts for id_ in step.admitted),
    }


_LABELS = Labels(
    actions=named_actions(
        *_TRANSITIONS,
        refusals=(
            *("V1-BUD-1", "V1-SEQ-1", "V1-SES-3", "V1-KV-1", "V1-PRE-4", "V1-CHK-2", "V1-SPC-5"),
            *("V1-ENC-8", "V1-GRP-14", "V1-GRP-15"),
        ),
        phases=("waiting", "prefilling", "decoding"),
        others=("eviction", "chunk", "accepted draft", "padded newcomer"),
    ),
    further=_further,
    phase=phase_of,
    situations=TABLE,
    advice=ADVICE,
)

_ENGINE = "policies.vllm_v1.engine"

EVIDENCE: Evidence[VllmV1Config, Context, Step] = Evidence(
    reference=VllmV1Reference.of,
    engine=Engine(
        start=imported_when_called(_ENGINE, "engine"),
        simulated=imported_when_called(_ENGINE, "simulated"),
        under_test=imported_when_called(_ENGINE, "engine_under_test"),
        new_device=imported_when_called(_ENGINE, "new_device"),
        abilities=frozenset({"abort_running"}),
    ),
    steps_alone=_steps_alone,
    watch=imported_when_called("policies.vllm_v1.paging", "vllm_v1_watch"),
    generate=generate,
    compared=_COMPARED,
    looks=imported_when_called("policies.vllm_v1.looks", "looks"),
    labels=_LABELS,
    adapter=ADAPTER,
    expected_violations=EXPECTED_VIOLATIONS,
    known_differences=KNOWN_DIFFERENCES,
)
