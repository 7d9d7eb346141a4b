"""What is counted of vLLM V1's steps: how often each kind of action happened."""

from collections import Counter

from checks.policies.policy import Labels
from spec.vllm_v1.records import State, Step

_TRANSITIONS = (
    *("admit", "prefix_hit", "allocate", "catch_up", "preempt", "rollback", "finish"),
    *("load", "loaded", "load_failed", "promote", "lose_load", "undo", "leave"),
)
_REFUSALS = ("V1-BUD-1", "V1-SEQ-1", "V1-KV-1", "V1-PRE-4", "V1-CHK-2", "V1-SPC-5")
_PHASES = ("waiting", "prefilling", "decoding", "gone already")
_OTHERS = ("arrive", "early end", "eviction", "chunk", "accepted draft", "padded newcomer")

_ACTIONS = (
    *_TRANSITIONS,
    *(f"refused by {rule}" for rule in _REFUSALS),
    *(f"abort, {phase}" for phase in _PHASES),
    *_OTHERS,
)


def _add(counts: Counter[str], step: Step, early: int) -> None:
    """Add what happened in a step; `early`: requests that ended before their `max_tokens`."""
    counts.update(event.transition for event in step.events)
    if step.refusal is not None:
        counts[f"refused by {step.refusal}"] += 1
    counts["early end"] += early
    counts["chunk"] += sum(one not in step.outputs for one in step.scheduled)
    counts["accepted draft"] += sum(step.accepted.values())
    counts["padded newcomer"] += sum(one in step.drafts for one in step.admitted)
    if len(step.after.pool.keys) < len(step.before.pool.keys):
        counts["eviction"] += 1


def _phase(state: State, request_id: str) -> str:
    """Where a request is."""
    row = next((one for one in state.present if one.id == request_id), None)
    if row is None:
        return "gone already"
    if row in state.queued:
        return "waiting"
    return "prefilling" if row.prefilling else "decoding"


LABELS = Labels(actions=_ACTIONS, add=_add, phase=_phase)
