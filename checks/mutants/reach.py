"""Which lines of the rooms a piece of work runs."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeVar

from attrs import define, field

from checks.mutants.rooms import ROOMS, ROOT, is_left_out

Result = TypeVar("Result")
Lines = Mapping[str, frozenset[int]]
"""Of modules, by their path from the root."""


def with_reach(work: Callable[[], Result]) -> tuple[Result, int, Lines]:
    """What the work gives, how many calls it makes, and which lines of the rooms it runs.

    The calls are the same each time, but for what is made once in a process.
    """
    watch = _Watch()
    before = sys.gettrace()
    sys.settrace(watch.called)
    try:
        result = work()
    finally:
        sys.settrace(before)
    return result, watch.calls, watch.lines()


@define(eq=False)
class _Watch:
    """A trace of a thread that follows a function's lines until it has seen them all.

    `unseen`: the lines of each code by its identity, which `codes` keep.
    """

    calls: int = 0
    codes: list[CodeType] = field(factory=list)
    unseen: dict[int, set[int]] = field(factory=dict)

    def called(self, frame: FrameType, _event: str, _arg: Any) -> Callable[..., Any] | None:
        """A function is called: followed if some of its lines were not seen."""
        self.calls += 1
        code = frame.f_code
        unseen = self.unseen.get(id(code))
        if unseen is None:
            self.codes.append(code)
            unseen = self.unseen[id(code)] = _lines_of(code) if _is_ours(code) else set()
        return self._line if unseen else None

    def _line(self, frame: FrameType, _event: str, _arg: Any) -> Callable[..., Any] | None:
        unseen = self.unseen[id(frame.f_code)]
        unseen.discard(frame.f_lineno)
        return self._line if unseen else None

    def lines(self) -> Lines:
        """Those that were run."""
        seen: dict[str, set[int]] = {}
        for code in self.codes:
            if _is_ours(code):
                path = Path(code.co_filename).relative_to(ROOT).as_posix()
                seen.setdefault(path, set()).update(_lines_of(code) - self.unseen[id(code)])
        return {path: frozenset(lines) for path, lines in seen.items()}


_FOLLOWED = tuple(f"{ROOT / room}/" for room in (*ROOMS, "tests"))  # tests have schedulers, too


def _is_ours(code: CodeType) -> bool:
    """True if some of the code can be mutated."""
    if not code.co_filename.startswith(_FOLLOWED):
        return False
    return not is_left_out(f"{Path(code.co_filename).relative_to(ROOT).as_posix()}:")


def _lines_of(code: CodeType) -> set[int]:
    return {line for *_, line in code.co_lines() if line is not None}
