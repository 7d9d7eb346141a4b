"""The parts of a step that suffice to judge nano-vLLM's rules in a long run."""

from checks.harness.incremental.course import Places, Row
from checks.harness.incremental.looks import Looks, blocks, contents, holders, places, queue


def _refilled(before: Row, row: Row, size: int) -> list[int]:
    """By computed tokens, which fill a block or begin one, and by cached blocks that it found."""
    pairs = (
        (before.computed // size, row.computed // size),
        (-(-before.computed // size), -(-row.computed // size)),
        (before.hit_blocks, row.hit_blocks),
    )
    return [min(pair) for pair in pairs if pair[0] != pair[1]]


_BY_LOOK = {
    queue: (
        *("NANO-ADM-7", "NANO-BLK-6", "NANO-LIF-2", "NANO-LIF-3", "NANO-LIF-4", "NANO-LIF-5"),
        *("NANO-LIF-8", "NANO-LIF-9", "NANO-LIF-10"),
    ),
    places: ("NANO-LIF-1",),
    blocks: (
        "NANO-BLK-1",
        "NANO-BLK-4",
        "NANO-BLK-5",
        "NANO-PFX-2",
        "NANO-PFX-4",
        "NANO-PFX-11",
    ),
    contents: ("NANO-PFX-1",),
    holders: ("NANO-BLK-2",),
}


def looks() -> Looks:
    """The looks by rule."""
    return Looks(
        Places(queues=("running",), batch="batch", refilled=_refilled),
        {rule: look for look, rules in _BY_LOOK.items() for rule in rules},
    )
