"""Atomic output files: a file is written completely or not at all."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from errno import EISDIR
from io import BufferedWriter, FileIO, TextIOWrapper
from pathlib import Path
from typing import Any, TextIO

from spec.core.errors import TraceError, cannot

as_line: Callable[[Any], str] = json.JSONEncoder(
    separators=(",", ":"), allow_nan=False, check_circular=False
).encode


@contextmanager
def new_file(path: Path) -> Iterator[TextIO]:
    """A text file that replaces `path` when the block ends without an exception.

    Until then it has a temporary name in the same directory. A terminal, a pipe or the null device
    is written directly.

    Raises:
        OSError: the file cannot be written completely; names `path`.
    """
    target, part = _names(path)
    try:
        with TextIOWrapper(BufferedWriter(_Named(part, path)), encoding="utf-8") as file:
            yield file
            if part != target:  # the content must be on the disk before the name is
                file.flush()
                _on_disk(file.fileno())
        if part != target:
            part.replace(target)
            _on_disk_by_name(target.parent)
    finally:
        if part != target:
            part.unlink(missing_ok=True)
    if (written := _WRITTEN.get()) is not None:
        written.append(path)


def _on_disk(descriptor: int) -> None:
    with suppress(OSError):  # not every file system supports fsync
        os.fsync(descriptor)


def _on_disk_by_name(directory: Path) -> None:
    with suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            _on_disk(descriptor)
        finally:
            os.close(descriptor)


_WRITTEN: ContextVar[list[Path] | None] = ContextVar("written", default=None)


@contextmanager
def noting_files() -> Iterator[list[Path]]:
    """A list of the files that the block writes, in order."""
    written: list[Path] = []
    token = _WRITTEN.set(written)
    try:
        yield written
    finally:
        _WRITTEN.reset(token)


class _Named(FileIO):
    """An output file whose errors name its final path instead of the temporary one."""

    def __init__(self, part: Path, path: Path) -> None:
        self._path = path
        try:
            super().__init__(part, "w")
        except OSError as error:
            raise self._with_name(error) from None

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise self._with_name(error) from None

    def _with_name(self, error: OSError) -> OSError:
        return OSError(error.errno, error.strerror, str(self._path))


def refuse_unwritable(path: Path) -> None:
    """Refuse a path that cannot be written, before long work.

    Raises:
        TraceError: the file cannot be written.
    """
    target, part = _names(path)
    try:
        if path.is_dir():
            raise IsADirectoryError(EISDIR, os.strerror(EISDIR))
        if part != target:
            part.open("xb").close()
            part.unlink()
        elif not path.exists() or not os.access(
            path, os.W_OK
        ):  # a reader would notice an open pipe
            part.open("ab").close()
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        raise cannot("write", path, error, TraceError) from None


def _names(path: Path) -> tuple[Path, Path]:
    """The file with links resolved, and the temporary file that is written."""
    try:
        if path.exists() and not path.is_file():
            return path, path
        target = path.resolve()
    except (OSError, RuntimeError, ValueError):  # not a possible name: opening it raises the reason
        return path, path
    return target, target.with_name(f".{target.name}.{os.getpid()}.part")


def write_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Write JSON lines into an atomic file.

    Raises:
        OSError: the file cannot be written.
    """
    with new_file(path) as file:
        file.writelines(f"{as_line(line)}\n" for line in lines)
