"""Trace which lines of the mutated modules a piece of work runs."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeVar

from attrs import define, field

from checks.mutants.rooms import ROOMS, ROOT, is_excluded

Result = TypeVar("Result")
Lines = Mapping[str, frozenset[int]]
"""Line numbers by the path of a module from the root."""


def with_reach(work: Callable[[], Result]) -> tuple[Result, int, Lines]:
    """The result of the work, its number of function calls, and the lines that it runs.

    The number of calls is the same each time, apart from values cached in the process.
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
    """A trace function for a thread; it traces the lines of a function until all were seen.

    `unseen`: the lines not seen yet, by the identity of the code. `codes` keeps the codes alive.
    """

    calls: int = 0
    codes: list[CodeType] = field(factory=list)
    unseen: dict[int, set[int]] = field(factory=dict)

    def called(self, frame: FrameType, _event: str, _arg: Any) -> Callable[..., Any] | None:
        """Count a call; trace the function if some of its lines were not seen."""
        self.calls += 1
        code = frame.f_code
        unseen = self.unseen.get(id(code))
        if unseen is None:
            self.codes.append(code)
            unseen = self.unseen[id(code)] = _code_lines(code) if _is_ours(code) else set()
        return self._line if unseen else None

    def _line(self, frame: FrameType, _event: str, _arg: Any) -> Callable[..., Any] | None:
        unseen = self.unseen[id(frame.f_code)]
        unseen.discard(frame.f_lineno)
        return self._line if unseen else None

    def lines(self) -> Lines:
        """The lines that ran."""
        seen: dict[str, set[int]] = {}
        for code in self.codes:
            if _is_ours(code):
                path = Path(code.co_filename).relative_to(ROOT).as_posix()
                seen.setdefault(path, set()).update(_code_lines(code) - self.unseen[id(code)])
        return {path: frozenset(lines) for path, lines in seen.items()}


_FOLLOWED = tuple(f"{ROOT / room}/" for room in (*ROOMS, "tests"))  # tests have schedulers, too


def _is_ours(code: CodeType) -> bool:
    """True if some of the code can be mutated."""
    if not code.co_filename.startswith(_FOLLOWED):
        return False
    return not is_excluded(f"{Path(code.co_filename).relative_to(ROOT).as_posix()}:")


def _code_lines(code: CodeType) -> set[int]:
    return {line for *_, line in code.co_lines() if line is not None}
