"""The rows of a workload file: cells by column of a CSV file, objects of a JSON file."""

import csv
import json
import os
from collections.abc import Iterable, Iterator
from itertools import chain, count
from typing import Any, TypeVar

from engine.workloads.checked import MOST_DOCUMENT_BYTES, MOST_LINE_BYTES, brief, json_object
from spec.core.errors import WorkloadError, cannot

Rows = Iterator[tuple[int | str, Any]]
"""The rows of a file, each with its line, from 1, or with its place in the one JSON document."""

RowT = TypeVar("RowT")
_BOM = b"\xef\xbb\xbf"


def head_and_rows(path: str, *, is_csv: bool | None = None) -> tuple[int | str, Any, Rows]:
    """The beginning of a file with its line, and its rows.

    It begins with the columns of a CSV file or with a JSON object, which is the first row, too.

    A JSON file has an object a line, or is one document: an object, or an array of objects.
    `is_csv`: by default, what does not begin like JSON.

    Raises:
        WorkloadError: a file that cannot be read or whose beginning is broken, with file and line;
            an empty file.
    """
    lines = numbered_lines(path)
    if is_csv is not True and _is_document(path):
        rows = _document(path)
        first = _first(path, rows)
        return *first, chain([first], rows)
    number, line = first = _first(path, lines)
    is_csv = not line.startswith(("{", "[")) if is_csv is None else is_csv
    if not is_csv:
        rows = _objects(path, chain([first], lines))
        first = next(rows)
        return *first, chain([first], rows)
    try:
        columns = _cells(line)
    except WorkloadError as error:
        raise error.at(path, number) from None
    return number, columns, _records(path, columns, lines)


def _first(path: str, rows: Iterator[RowT]) -> RowT:
    for row in rows:
        return row
    raise WorkloadError("file", "no request", "one request or more").at(path)


def _objects(path: str, lines: Iterable[tuple[int, str]]) -> Rows:
    for number, line in lines:
        try:
            yield number, json_object(line)
        except WorkloadError as error:
            raise error.at(path, number) from None


def _records(path: str, columns: list[str], lines: Iterable[tuple[int, str]]) -> Rows:
    for number, line in lines:
        try:
            cells = _cells(line)
            if len(cells) != len(columns):
                allowed = f"{len(columns)} columns: {','.join(columns)}"
                raise WorkloadError("row", brief(line), allowed)
        except WorkloadError as error:
            raise error.at(path, number) from None
        yield number, dict(zip(columns, cells, strict=True))


def _cells(line: str) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([line]))]
    except csv.Error as error:
        raise WorkloadError("row", brief(line), f"CSV; {error}") from None


def _is_document(path: str) -> bool:
    """True for a JSON array, and for an object that is not the only one or not on one line."""
    try:
        with open(path, "rb") as stream:
            start = next(
                (
                    line
                    for raw in iter(lambda: stream.readline(MOST_LINE_BYTES + 1), b"")
                    if (line := raw.removeprefix(_BOM).strip())
                ),
                b"",
            )
    except (OSError, ValueError) as error:
        raise cannot("read", path, error, WorkloadError) from None
    is_long = len(start) > MOST_LINE_BYTES
    return start.startswith(b"[") or start == b"{" or (is_long and start.startswith(b"{"))


def _document(path: str) -> Rows:
    """The objects of the array, or the one object, that a file consists of."""
    try:
        size = os.stat(path).st_size
        if size > MOST_DOCUMENT_BYTES:
            allowed = f"at most {MOST_DOCUMENT_BYTES} in one JSON document"
            raise WorkloadError("bytes", size, allowed).at(path)
        with open(path, encoding="utf-8-sig") as stream:
            value = json.load(stream)
    except OSError as error:
        raise cannot("read", path, error, WorkloadError) from None
    except json.JSONDecodeError as error:
        allowed = f"one JSON document; this is broken at column {error.colno}"
        found = brief(error.doc.split("\n")[error.lineno - 1])
        raise WorkloadError("line", found, allowed).at(path, error.lineno) from None
    except UnicodeDecodeError:
        raise WorkloadError("document", "other bytes", "UTF-8 text").at(path) from None
    except (ValueError, RecursionError):  # an endless number, endless nesting
        raise WorkloadError("document", "this one", "JSON of sane size").at(path) from None
    entries = (
        {f"[{index}].": entry for index, entry in enumerate(value)}
        if isinstance(value, list)
        else {"": value}
    )
    for place, entry in entries.items():
        if not isinstance(entry, dict):
            raise WorkloadError(place.removesuffix("."), brief(entry), "a JSON object").at(path)
        yield place, entry


def numbered_lines(path: str) -> Iterator[tuple[int, str]]:
    """Every line that is not blank, without the white space around it, with its number from 1.

    Raises:
        WorkloadError: a file that cannot be read, a line that is too long or not UTF-8, with
            file and line.
    """
    try:
        with open(path, "rb") as stream:
            for number in count(1):
                raw = stream.readline(MOST_LINE_BYTES + 1)
                if not raw:
                    return
                try:
                    line = _decoded(raw)
                except WorkloadError as error:
                    raise error.at(path, number) from None
                if line:
                    yield number, line
    except (OSError, ValueError) as error:
        raise cannot("read", path, error, WorkloadError) from None


def _decoded(raw: bytes) -> str:
    if len(raw) > MOST_LINE_BYTES:
        raise WorkloadError("line", f"over {MOST_LINE_BYTES} bytes", "a shorter line")
    try:
        return raw.decode("utf-8-sig").strip()
    except UnicodeDecodeError as error:
        found = f"byte {raw[error.start]:#04x} at column {error.start + 1}"
        raise WorkloadError("line", found, "UTF-8 text") from None
