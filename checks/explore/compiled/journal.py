"""A file in which the states of a search are kept as they are found, to go on from there.

A line of JSON says what the search is about. Behind it come pieces, each a line of JSON with where
the search stood and then the states found since the piece before: their words, 64 bits each, and
of each the number of the state that it was found from, 32 bits, little-endian. Pieces are only ever
put behind each other, so keeping costs what is new, and a process that is killed while it writes
loses no more than that piece: its checksum, of position and states, shows it. Nothing in such a
file is run.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO
from zlib import crc32

import numpy as np
from attrs import define, field, frozen

from checks.explore.compiled.model import Words
from checks.explore.compiled.table import Indices, Table
from checks.export.checkpoint import CheckpointError, require_equal
from checks.export.files import new_file
from checks.export.outside import json_object
from checks.export.trace.records import Json, converter, structured
from engine.workloads.checked import brief
from spec.core.errors import InputError, TraceError, cannot

FORMAT, VERSION = "lockstep-states", 2
_LINE_BYTES = 10_000_000  # that a line of JSON may have
_MOST_WORDS = 1_000  # that a state may have


@frozen(kw_only=True)
class Breach:
    """Where a rule in numbers is broken first: the state before the edge, by number, and after."""

    source: int
    target: list[int]


@frozen(kw_only=True)
class Position:
    """Where a search stood; counts as in `checks.explore.compiled.search.Searched`.

    `expanded`: states whose edges were taken. `levels`: the number of the first state of each
    depth, the last one that of the depth behind the one under way. `kinds`: edges by action.
    """

    expanded: int
    levels: list[int]
    transitions: int
    peak_queue: int
    seconds: float
    kinds: dict[str, int]
    breaches: dict[str, Breach]


@frozen
class _Piece:
    position: Position
    states: int
    checksum: int


@define
class Journal:
    """The file at `path` for searches about the same, of JSON values; made when first appended to.

    `kept`: states that are in it. `end`: where the next piece goes. `due_seconds`: of the search,
    when that is.
    """

    path: Path
    about: Mapping[str, Any]
    kept: int = field(default=0, init=False)
    end: int = field(default=0, init=False)
    due_seconds: float = field(default=0.0, init=False)

    def words(self) -> int | None:
        """The words of the states in the file; None without a file.

        Raises:
            CheckpointError: it cannot be read, or is about another search.
        """
        if not self.path.exists():
            return None
        try:
            with self.path.open("rb") as file:
                header = _parsed(file.readline(_LINE_BYTES))
            words = header.get("words")
            require_equal("", header, json.loads(json.dumps(self._header(words))))
            if type(words) is not int or not 1 <= words <= _MOST_WORDS:
                allowed = f"a whole number from 1 to {_MOST_WORDS}"
                raise CheckpointError("words", brief(words), allowed)
        except OSError as error:
            raise cannot("read", self.path, error, CheckpointError) from None
        except InputError as error:
            raise CheckpointError(error.field, error.found, error.allowed).at(self.path) from None
        return words

    def restore(self, table: Table) -> Position | None:
        """Put the states of all whole pieces into the table; the position behind the last one.

        Raises:
            CheckpointError: what is whole cannot be.
        """
        position = None
        with self.path.open("rb") as file:
            self.end = len(file.readline(_LINE_BYTES))
            for piece, states, parents in _pieces(file, table.words):
                own = np.arange(table.count, table.count + piece.states)
                if (parents >= own).any() or piece.position.expanded > own.size + table.count:
                    raise CheckpointError("states", "others", "states found from earlier ones")
                table.append(states, parents)
                position, self.end, self.kept = piece.position, file.tell(), table.count
        return position

    def append(self, table: Table, position: Position) -> None:
        """Put what is new in the table behind the rest, in a file of its own if there is none yet.

        Raises:
            OSError: the file cannot be written.
        """
        first = max(self.kept, 1)  # every search has the first state by itself
        states, parents = table.states[first : table.count], table.parents[first : table.count]
        data = states.astype("<i8").tobytes() + parents.astype("<u4").tobytes()
        piece = _Piece(position, len(states), _checksum(position, data))
        if not self.end:
            self._begin(table.words)
        try:
            with self.path.open("r+b") as file:
                file.seek(self.end)
                file.truncate()
                file.write(_line(converter().unstructure(piece)) + data)
                self.end, self.kept = file.tell(), table.count
        except OSError as error:  # which has no name where it is the disk that is full
            raise OSError(error.errno, error.strerror, str(self.path)) from None

    def _begin(self, words: int) -> None:
        """Make the file, which is there with its header or not at all."""
        header = _line(self._header(words)).decode()
        with new_file(self.path) as file:
            file.write(header)
        self.end = len(header)

    def _header(self, words: int | None) -> Json:
        return {"format": FORMAT, "version": VERSION, "about": self.about, "words": words}


def is_journal(path: Path) -> bool:
    """True if there is such a file at the path."""
    begin = _line({"format": FORMAT})[:-2]
    try:
        with path.open("rb") as file:
            return file.read(len(begin)) == begin
    except OSError:
        return False


def _pieces(file: BinaryIO, words: int) -> Iterator[tuple[_Piece, Words, Indices]]:
    """The pieces up to the first that is not whole."""
    while True:
        try:
            line = _parsed(file.readline(_LINE_BYTES))
            piece = structured(converter(), line, _Piece)
        except InputError:
            return
        of_states, of_parents = 8 * words * piece.states, 4 * piece.states
        data = file.read(of_states + of_parents)
        if len(data) < of_states + of_parents or _checksum(piece.position, data) != piece.checksum:
            return
        states = np.frombuffer(data, "<i8", piece.states * words).reshape(-1, words)
        yield piece, states, np.frombuffer(data, "<u4", offset=of_states)


def _checksum(position: Position, data: bytes) -> int:
    return crc32(data, crc32(_line(converter().unstructure(position))))


def _line(value: Json) -> bytes:
    return json.dumps(value).encode() + b"\n"


def _parsed(line: bytes) -> Json:
    """The object in a line.

    Raises:
        TraceError: there is none, or not all of it.
    """
    if not line.endswith(b"\n"):
        raise TraceError("line", brief(line.decode(errors="replace")), "a line with its end")
    return json_object(line)
