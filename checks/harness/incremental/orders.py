"""Differences between two successive orders, found without going through their common parts."""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from operator import is_
from typing import Any, TypeAlias, TypeVar

from engine.core.sharing import SharedOrder

Item = TypeVar("Item")
Items: TypeAlias = tuple[Item, ...]


def common_ends(before: Sequence[Item], after: Sequence[Item]) -> tuple[int, int]:
    """The number of items that two orders have in common at their beginning, and then at their end.

    Tuples are compared by slices, which costs little where the items are the same objects.
    """
    if before is after:
        return len(before), 0
    if isinstance(before, SharedOrder) and isinstance(after, SharedOrder):
        return _common_ends_of_runs(before, after)
    fewer = len(before) - len(after)
    if fewer >= 0 and before[fewer:] == after:  # taken from the head, the usual case
        return 0, len(after)
    if fewer < 0 and before[:1] == after[-fewer : 1 - fewer] and after[-fewer:] == before:
        return 0, len(before)  # put in front
    if fewer < 0 and after[:fewer] == before:
        return len(before), 0  # put behind
    start = common_start(before, after)
    return start, _common_end(before[start:], after[start:])


def differing(before: Sequence[Item], after: Sequence[Item]) -> tuple[Items[Item], Items[Item]]:
    """The items of each order between the longest common beginning and end."""
    start, end = common_ends(before, after)
    return tuple(before[start : len(before) - end]), tuple(after[start : len(after) - end])


def shared_runs(before: SharedOrder[Any], after: SharedOrder[Any]) -> tuple[int, int, int]:
    """The first place in each of the runs that both orders share, and the number of these runs."""
    start, begin = _first_shared(before.runs, after.runs)
    are_same = [*map(is_, before.runs[start:], after.runs[begin:])]
    return start, begin, are_same.index(False) if False in are_same else len(are_same)


def items_of(runs: Iterable[Items[Item]]) -> Items[Item]:
    """The items of these runs, one after the other."""
    return tuple(chain.from_iterable(runs))


def _common_ends_of_runs(before: SharedOrder[Item], after: SharedOrder[Item]) -> tuple[int, int]:
    start, begin, count = shared_runs(before, after)
    shared = sum(map(len, before.runs[start : start + count]))
    head, other_head = items_of(before.runs[:start]), items_of(after.runs[:begin])
    tail, other_tail = items_of(before.runs[start + count :]), items_of(after.runs[begin + count :])
    if head == other_head:
        more, end = common_ends(tail, other_tail)
        return len(head) + shared + more, end
    if tail == other_tail:
        first, more = common_ends(head, other_head)
        return first, more + shared + len(tail)
    return common_start(head, other_head), _common_end(tail, other_tail)


def _first_shared(before: Sequence[Item], after: Sequence[Item]) -> tuple[int, int]:
    """The place in each of the first item that both share; their lengths if they share none."""
    for start, begin in ((0, 0), (1, 1), (1, 0), (0, 1)):  # nearly always there
        if any(map(is_, before[start : start + 1], after[begin : begin + 1])):
            return start, begin
    places = {id(item): place for place, item in enumerate(after)}
    pairs = ((place, places[id(item)]) for place, item in enumerate(before) if id(item) in places)
    return next(pairs, (len(before), len(after)))


def common_start(before: Sequence[Item], after: Sequence[Item]) -> int:
    """The number of items that two orders have in common at their beginning."""
    return _common(len(before), len(after), lambda low, high: before[low:high] == after[low:high])


def _common_end(before: Sequence[Item], after: Sequence[Item]) -> int:
    def are_same(low: int, high: int) -> bool:
        ends = len(before) - high, len(before) - low, len(after) - high, len(after) - low
        return before[ends[0] : ends[1]] == after[ends[2] : ends[3]]

    return _common(len(before), len(after), are_same)


def _common(length: int, other: int, are_same: Callable[[int, int], bool]) -> int:
    """The number of items that are the same from one side: by doubling, then by halving."""
    low, high, stride = 0, min(length, other), 1
    while low < high and are_same(low, min(low + stride, high)):
        low, stride = min(low + stride, high), 2 * stride
    high = min(low + stride - 1, high)
    while low < high:
        middle = (low + high + 1) // 2
        if are_same(low, middle):
            low = middle
        else:
            high = middle - 1
    return low
