"""What is counted of nano-vLLM's steps: how often each kind of action happened."""

from collections import Counter

from checks.policies.policy import Labels
from spec.nano_vllm.records import State, Step

_STEPS = ("prefill step", "decode step", "idle step")
_TRANSITIONS = ("admit", "prefix_hit", "allocate", "prefill", "decode", "preempt", "finish")
_REFUSALS = ("NANO-ADM-1", "NANO-ADM-2", "NANO-ADM-3")
_PHASES = ("waiting", "running", "gone already")

_ACTIONS = (
    *_STEPS,
    *_TRANSITIONS,
    *(f"refused by {rule}" for rule in _REFUSALS),
    *(f"abort, {phase}" for phase in _PHASES),
    *("arrive", "early end"),
)


def _add(counts: Counter[str], step: Step, early: int) -> None:
    """Add what happened in a step; `early`: requests that ended before their `max_tokens`."""
    counts[f"{step.kind} step"] += 1
    counts.update(event.transition for event in step.events)
    if step.refusal is not None:
        counts[f"refused by {step.refusal}"] += 1
    counts["early end"] += early


def _phase(state: State, request_id: str) -> str:
    """Where a request is."""
    for name, queue in (("waiting", state.waiting), ("running", state.running)):
        if any(one.id == request_id for one in queue):
            return name
    return "gone already"


LABELS = Labels(actions=_ACTIONS, add=_add, phase=_phase)
