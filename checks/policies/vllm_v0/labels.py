"""What is counted of vLLM V0's steps."""

from checks.policies.labels import STEPS, Labels, named_actions
from spec.vllm_v0.records import State, Step

_TRANSITIONS = (
    *("admit", "append", "copy", "chunk", "decode", "sample", "fork", "finish"),
    *("preempt", "swap_out", "swap_in", "ignore"),
)


def _further(step: Step) -> dict[str, int]:
    """Steps with prompts and decodes, hits, victims of priority, tokens rightly speculated on."""
    return {
        "prompts and decodes": 0 < len(step.prefills) < len(step.scheduled),
        "prefix hit": sum(tokens > 0 for tokens in step.budget.cached.values()),
        "preempt by priority": len(step.by_priority),
        "several tokens": sum(len(tokens) > 1 for tokens in step.sampled.values()),
        "engine ends": bool(step.after.failure) and not step.before.failure,
    }


def _phase(state: State, request_id: str) -> str:
    """Where a request is; one that runs is prefilled or decodes."""
    group = next((one for one in state.present if one.id == request_id), None)
    if group is None:
        return "gone already"
    if group in state.running:
        return "prefilling" if group.is_prefill else "decoding"
    return "waiting" if group in state.waiting else "swapped"


LABELS = Labels(
    actions=named_actions(
        *STEPS,
        *_TRANSITIONS,
        refusals=("V0-ADM-1", "V0-BUD-1"),
        phases=("waiting", "prefilling", "decoding", "swapped"),
        others=(
            *("eviction", "prompts and decodes", "prefix hit", "preempt by priority"),
            *("several tokens", "engine ends"),
        ),
    ),
    further=_further,
    phase=_phase,
)
