"""The comparison of steps of vLLM V0: reference beside a paged device; there is no engine."""

from checks.harness.comparing import Strictness, by_fields
from checks.harness.labels import STEPS, Labels, named_actions
from checks.harness.policy import Evidence, steps_alone
from checks.policies.vllm_v0.adapter import ADAPTER
from checks.policies.vllm_v0.differences import KNOWN_DIFFERENCES
from checks.policies.vllm_v0.expected import EXPECTED_VIOLATIONS
from checks.policies.vllm_v0.generator import generate
from checks.policies.vllm_v0.reference import VllmV0Reference
from checks.policies.vllm_v0.situations import ADVICE, TABLE, phase_of
from checks.registry import imported_when_called
from spec.vllm_v0.config import VllmV0Config
from spec.vllm_v0.records import Context, Step

_DECISIONS = ("scheduled", "preempted", "swapped_out", "swapped_in", "outputs", "finished")
# Decisions come before their consequences.
_COMPARED = {
    Strictness.DECISIONS: by_fields(*_DECISIONS),
    Strictness.OBSERVABLE: by_fields(*_DECISIONS, "ignored", "after"),
    Strictness.EXACT: by_fields(
        *("before", "ignored", "preempted", "by_priority", "swapped_out", "swapped_in", "admitted"),
        *("scheduled", "prefills", "sampling", "budget", "lookahead_slots", "is_async"),
        *("swaps_out", "swaps_in", "copies", "planned", "refusal", "forked", "sampled", "outputs"),
        *("finished", "ended", "aborted", "after", "events"),
    ),
}


def _further(step: Step) -> dict[str, int]:
    """Counts of mixed steps, prefix hits, preemptions by priority, and several sampled tokens."""
    return {
        "prompts and decodes": 0 < len(step.prefills) < len(step.scheduled),
        "prefix hit": sum(tokens > 0 for tokens in step.budget.cached.values()),
        "preempt by priority": len(step.by_priority),
        "several tokens": sum(len(tokens) > 1 for tokens in step.sampled.values()),
    }


_LABELS = Labels(
    actions=named_actions(
        *STEPS,
        *("admit", "append", "copy", "chunk", "decode", "fork", "sample", "finish"),
        *("preempt", "preempt by priority", "swap_out", "swap_in", "ignore"),
        refusals=("V0-ADM-1", "V0-BUD-1"),
        phases=("waiting", "prefilling", "decoding", "swapped"),
        others=("eviction", "prefix hit", "prompts and decodes", "several tokens"),
    ),
    further=_further,
    phase=phase_of,
    situations=TABLE,
    advice=ADVICE,
)

EVIDENCE: Evidence[VllmV0Config, Context, Step] = Evidence(
    reference=VllmV0Reference.of,
    steps_alone=lambda config, request: steps_alone(
        request, config.token_budget if config.chunked_prefill else 8_192
    ),
    watch=imported_when_called("policies.vllm_v0.paging", "vllm_v0_watch"),
    generate=generate,
    compared=_COMPARED,
    labels=_LABELS,
    adapter=ADAPTER,
    expected_violations=EXPECTED_VIOLATIONS,
    known_differences=KNOWN_DIFFERENCES,
)
