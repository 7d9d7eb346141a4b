"""The parts of a step that suffice to judge vLLM V1's rules in a long run."""

from checks.harness.incremental.course import Course, Places, Row, States
from checks.harness.incremental.looks import Looks, blocks, contents, holders, places, queue


def _refilled(before: Row, row: Row, size: int) -> list[int]:
    """By computed tokens, by its tokens where it has fewer, and by tokens that it awaited."""
    was, now, tokens = before.computed // size, row.computed // size, row.tokens // size
    other = [tokens] if tokens < before.tokens // size else []
    if before.placeholders and row.generated > before.generated:
        other.append((before.tokens - 1) // size)
    return other if was == now else [*other, min(was, now)]


def _queue_in_order(course: Course) -> States:
    """The whole queue where requests are held back: which of them are passed over depends on it."""
    return course.states if course.states[0].held_back else queue(course)


_BY_LOOK = {
    queue: (
        *("V1-EXT-3", "V1-EXT-8", "V1-EXT-9", "V1-KV-4", "V1-KV-5", "V1-KV-6", "V1-KV-7"),
        *("V1-ASY-3", "V1-ASY-6"),
        *("V1-KV-14", "V1-KV-16", "V1-LIF-2", "V1-LIF-3", "V1-LIF-4", "V1-KV-18", "V1-LIF-8"),
        *("V1-LIF-9", "V1-ORD-4", "V1-PRE-3", "V1-PRG-1", "V1-PRG-6"),
        *("V1-PRG-7", "V1-PRG-8", "V1-SPC-3", "V1-SPC-6", "V1-GRP-4", "V1-GRP-16", "V1-GRP-17"),
    ),
    _queue_in_order: ("V1-ORD-3", "V1-ORD-5"),
    places: ("V1-LIF-1",),
    blocks: (
        "V1-KV-1",
        "V1-KV-3",
        "V1-KV-8",
        "V1-KV-10",
        "V1-KV-11",
        "V1-KV-12",
        "V1-KV-15",
        "V1-LIF-7",
    ),
    contents: ("V1-KV-17",),
    holders: ("V1-KV-2",),
}


def looks() -> Looks:
    """The looks by rule."""
    return Looks(
        Places(
            states=("before", "planned", "after"),
            queues=("skipped", "running", "draining"),
            refilled=_refilled,
        ),
        {rule: look for look, rules in _BY_LOOK.items() for rule in rules},
    )
