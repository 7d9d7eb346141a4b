"""What is counted of Spyre's steps: how often each kind of action happened."""

from collections import Counter

from checks.policies.policy import Labels
from spec.spyre.records import Step
from spec.spyre.state import State

_STEPS = ("prefill step", "decode step", "idle step")
_TRANSITIONS = (
    *("admit", "prefix_hit", "reserve", "allocate", "chunk", "join", "jump_tkv", "decode"),
    *("finish", "preempt", "pause", "resume"),
)
_JUMPS = ("SPY-TKV-3", "SPY-TKV-4", "SPY-TKV-5", "SPY-TKV-7")
_REFUSALS = (
    *("SPY-PRI-3", "SPY-PAU-4", "SPY-RES-1", "BLK-9", "SPY-ADM-1"),
    *("SPY-LEN-2", "SPY-VOL-2", "SPY-VOL-3", "SPY-VOL-4"),
)
_PHASES = ("waiting", "prefilling", "decoding", "paused", "gone already")
_OTHERS = ("arrive", "early end", "eviction", "boundary chunk")

_ACTIONS = (
    *_STEPS,
    *_TRANSITIONS,
    *(f"jump by {rule}" for rule in _JUMPS),
    *(f"refused by {rule}" for rule in _REFUSALS),
    *(f"abort, {phase}" for phase in _PHASES),
    *_OTHERS,
)


def _phase(state: State, request_id: str) -> str:
    """Where a request is."""
    if any(one.id == request_id for one in state.waiting):
        return "waiting"
    if state.prefilling is not None and state.prefilling.id == request_id:
        return "prefilling"
    if any(one.id == request_id for one in state.decoding):
        return "decoding"
    paused = any(one.id == request_id for one in state.paused)
    return "paused" if paused else "gone already"


def _add(counts: Counter[str], step: Step, early: int) -> None:
    """Add what happened in a step; `early`: requests that ended before their `max_tokens`."""
    counts[f"{step.kind} step"] += 1
    for event in step.events:
        counts[event.transition] += 1
        if event.transition == "jump_tkv":
            counts[f"jump by {event.rule}"] += 1
    if step.refusal is not None:
        counts[f"refused by {step.refusal}"] += 1
    if early:
        counts["early end"] += early
    if step.chunk is not None and step.chunk.inner_padding:
        counts["boundary chunk"] += 1
    if len(step.after.pool.keys) < len(step.before.pool.keys):
        counts["eviction"] += 1


LABELS = Labels(actions=_ACTIONS, add=_add, phase=_phase)
