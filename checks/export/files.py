"""Output files that are there whole or not at all."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from spec.core.errors import TraceError

as_line: Callable[[Any], str] = json.JSONEncoder(
    separators=(",", ":"), allow_nan=False, check_circular=False
).encode


@contextmanager
def new_file(path: Path) -> Iterator[TextIO]:
    """A text file that takes the place of `path` when the block ends without an exception.

    Until then it has a name of its own in the same directory. What is there and is no regular
    file (a terminal, a pipe, the null device) is written to as it is.

    Raises:
        TraceError: on entering, if no file can be written there.
    """
    target, part = _names(path)
    file = _opened(part, path)
    try:
        with file:
            yield file
        if part != target:
            part.replace(target)
    finally:
        if part != target:
            part.unlink(missing_ok=True)


def refuse_unwritable(path: Path) -> None:
    """Find out before long work whether its outcome can be written there.

    Raises:
        TraceError: no file can be written there.
    """
    target, part = _names(path)
    if part != target:
        _opened(part, path).close()
        part.unlink(missing_ok=True)


def _names(path: Path) -> tuple[Path, Path]:
    """The file itself, links followed, and the name under which it is written."""
    try:
        if path.exists() and not path.is_file():
            return path, path
        target = path.resolve()
    except (OSError, RuntimeError, ValueError):  # no possible name: opening says why
        return path, path
    return target, target.with_name(f".{target.name}.{os.getpid()}.part")


def _opened(part: Path, path: Path) -> TextIO:
    try:
        return part.open("w", encoding="utf-8")
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        allowed = f"a file that can be written ({getattr(error, 'strerror', error)})"
        raise TraceError("file", str(path), allowed) from None


def write_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Write JSON lines: the file is there with all of them, or not at all.

    Raises:
        TraceError: no file can be written there.
    """
    with new_file(path) as file:
        file.writelines(f"{as_line(line)}\n" for line in lines)
