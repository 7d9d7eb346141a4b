"""The parts of a step that suffice to judge Spyre's rules in a long run."""

from checks.harness.incremental.course import Places, Row
from checks.harness.incremental.looks import Looks, blocks, contents, holders, places, queue
from spec.spyre.config import SpyreConfig
from spec.spyre.variants import Queue


def _refilled(before: Row, row: Row, size: int) -> list[int]:
    """By computed tokens, by those that its prefill covers, by cached blocks that it found."""
    pairs = (
        (before.computed // size, row.computed // size),
        (before.prefill_len // size, row.prefill_len // size),
        (before.hit_blocks, row.hit_blocks),
    )
    return [min(pair) for pair in pairs if pair[0] != pair[1]]


def _head(config: SpyreConfig) -> int:
    """Requests in front of the queue whose places count: the cohort."""
    return config.max_overtakes + 1 if config.queue is Queue.ALIGNED else 0


_BY_LOOK = {
    queue: (
        *("BLK-8", "BLK-10", "BLK-11", "LIF-2", "LIF-3", "LIF-4", "LIF-5", "LIF-7", "LIF-8"),
        *("LIF-9", "LIF-11", "SPY-CHK-6", "SPY-PAU-8", "SPY-PFX-11", "SPY-PRI-1"),
        *("SPY-PRI-9", "SPY-PRI-10", "SPY-PRI-13", "SPY-RES-5", "SPY-TKV-9"),
    ),
    places: ("LIF-1",),
    blocks: (
        "BLK-1",
        "BLK-3",
        "BLK-4",
        "BLK-5",
        "SPY-PFX-1",
        "SPY-PFX-2",
    ),
    contents: (
        "BLK-12",
        "SPY-PFX-8",
    ),
    holders: ("BLK-2",),
}


def looks() -> Looks:
    """The looks by rule."""
    return Looks(
        Places(
            queues=("prefilling", "decoding", "paused"),
            batch="batch",
            refilled=_refilled,
            head=_head,
        ),
        {rule: look for look, rules in _BY_LOOK.items() for rule in rules},
    )
