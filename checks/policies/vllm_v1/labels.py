"""What is counted of vLLM V1's steps."""

from checks.policies.labels import Labels, named_actions
from spec.vllm_v1.records import State, Step

_TRANSITIONS = (
    *("admit", "prefix_hit", "allocate", "catch_up", "preempt", "rollback", "finish"),
    *("load", "loaded", "load_failed", "promote", "lose_load", "undo", "leave"),
)


def _further(step: Step) -> dict[str, int]:
    """Chunks that are not the last one, drafts, and requests that are admitted with drafts."""
    return {
        "chunk": sum(one not in step.outputs for one in step.scheduled),
        "accepted draft": sum(step.accepted.values()),
        "padded newcomer": sum(one in step.drafts for one in step.admitted),
    }


def _phase(state: State, request_id: str) -> str:
    """Where a request is; one that runs is prefilled or decodes."""
    row = next((one for one in state.present if one.id == request_id), None)
    if row is None or row in state.queued:
        return "waiting" if row else "gone already"
    return "prefilling" if row.prefilling else "decoding"


LABELS = Labels(
    actions=named_actions(
        *_TRANSITIONS,
        refusals=("V1-BUD-1", "V1-SEQ-1", "V1-KV-1", "V1-PRE-4", "V1-CHK-2", "V1-SPC-5"),
        phases=("waiting", "prefilling", "decoding"),
        others=("eviction", "chunk", "accepted draft", "padded newcomer"),
    ),
    further=_further,
    phase=_phase,
)
