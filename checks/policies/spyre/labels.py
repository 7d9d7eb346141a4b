"""What is counted of Spyre's steps."""

from collections import Counter

from checks.policies.labels import STEPS, Labels, named_actions
from spec.spyre.records import Step

_TRANSITIONS = (
    *("admit", "prefix_hit", "reserve", "allocate", "chunk", "join", "jump_tkv", "decode"),
    *("finish", "preempt", "pause", "resume"),
)
_JUMPS = ("SPY-TKV-3", "SPY-TKV-4", "SPY-TKV-5", "SPY-TKV-7")


def _further(step: Step) -> Counter[str]:
    """Jumps by their rules, and chunks that begin within a cached block."""
    jumps = Counter(f"jump by {event.rule}" for event in step.happened("jump_tkv"))
    jumps["boundary chunk"] += step.chunk is not None and step.chunk.inner_padding > 0
    return jumps


LABELS = Labels(
    actions=named_actions(
        *(*STEPS, *_TRANSITIONS, *(f"jump by {rule}" for rule in _JUMPS)),
        refusals=(
            *("SPY-PRI-3", "SPY-PAU-4", "SPY-RES-1", "BLK-9", "SPY-ADM-1"),
            *("SPY-LEN-2", "SPY-VOL-2", "SPY-VOL-3", "SPY-VOL-4"),
        ),
        phases=("waiting", "prefilling", "decoding", "paused"),
        others=("eviction", "boundary chunk"),
    ),
    further=_further,
)
