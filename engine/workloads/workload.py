"""A workload as read from a file: which format, which requests, and on which line each stands."""

from collections.abc import Callable, Iterator
from enum import StrEnum
from itertools import count
from math import ceil
from os import PathLike, fspath
from typing import Protocol

from attrs import define, evolve, field, frozen

from engine.workloads.checked import MOST_LINE_BYTES, MOST_REQUESTS, brief, json_object, whole
from engine.workloads.own import OwnRows
from engine.workloads.public import AZURE_HEADER, AzureRows, MooncakeRows
from spec.core.errors import InputError, WorkloadError, cannot
from spec.core.requests import Request


class Format(StrEnum):
    """The formats of workload files."""

    LOCKSTEP = "lockstep"
    AZURE = "azure"
    MOONCAKE = "mooncake"


class _Rows(Protocol):
    """What every format provides: the meaning of a first line and of any other."""

    def takes_as_header(self, line: str) -> bool: ...

    def request(self, line: str, row: int) -> Request | None: ...


_ROWS: dict[Format, type[_Rows]] = {
    Format.LOCKSTEP: OwnRows,
    Format.AZURE: AzureRows,
    Format.MOONCAKE: MooncakeRows,
}


@frozen
class Workload:
    """Requests in the order of their file.

    `lines`: the line of each request, from 1. `skipped`: rows of a public trace that are no
    requests, for they have no prompt or generated nothing.
    """

    path: str
    format: Format
    requests: tuple[Request, ...]
    lines: tuple[int, ...]
    skipped: int = 0


def read_workload(
    path: str | PathLike[str], format: str | None = None, limit: int | None = None
) -> Workload:
    """The requests of a file, at most the first `limit` of them.

    `format`: one of `Format`; by default what the file's first line looks like. Rows behind the
    limit are not looked at.

    Raises:
        WorkloadError: a file that cannot be read, an unknown format, a line that is no request,
            an id that an earlier line has, no request at all; with file and line.
    """
    source = fspath(path)
    reader = _Reader(None if format is None else _named_format(format))
    wanted = None if limit is None else whole("limit", limit, 1, MOST_REQUESTS, "requests")
    for number, line in numbered_lines(source):
        try:
            reader.take(number, line)
        except WorkloadError as error:
            raise error.at(source, number) from None
        if len(reader.lines) == wanted:
            break
    if reader.format is None or not reader.lines:
        raise WorkloadError("file", "no request", "one request or more").at(source)
    requests = tuple(reader.requests)
    return Workload(source, reader.format, requests, tuple(reader.lines.values()), reader.skipped)


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


@define
class _Reader:
    """What has been read so far; `lines` by request id, `rows` is the meaning of a line."""

    format: Format | None
    rows: _Rows | None = None
    requests: list[Request] = field(factory=list)
    lines: dict[str, int] = field(factory=dict)
    skipped: int = 0

    def take(self, number: int, line: str) -> None:
        if self.rows is None:
            self.format = self.format or _likely_format(line)
            self.rows = _ROWS[self.format]()
            if self.rows.takes_as_header(line):
                return
        request = self.rows.request(line, len(self.requests) + self.skipped)
        if request is None:
            self.skipped += 1
        else:
            self._add(request, number)

    def _add(self, request: Request, number: int) -> None:
        if request.id in self.lines:
            allowed = f"an id of its own; line {self.lines[request.id]} has this one"
            raise WorkloadError("id", request.id, allowed)
        if len(self.requests) == MOST_REQUESTS:
            allowed = f"{MOST_REQUESTS}; a limit reads the first ones"
            raise WorkloadError("requests", "one more", allowed)
        self.requests.append(request)
        self.lines[request.id] = number


def _named_format(name: str) -> Format:
    try:
        return Format(name)
    except ValueError:
        raise WorkloadError("format", brief(name), ", ".join(Format)) from None


def _likely_format(first_line: str) -> Format:
    if first_line.startswith("TIMESTAMP"):
        return Format.AZURE
    if not first_line.startswith("{"):
        allowed = f"JSON lines (lockstep, mooncake) or the CSV header {AZURE_HEADER} (azure)"
        raise WorkloadError("format", brief(first_line), allowed)
    is_mooncake = {"hash_ids", "input_length"} & json_object(first_line).keys()
    return Format.MOONCAKE if is_mooncake else Format.LOCKSTEP


def at_rate(workload: Workload, rate: float) -> Workload:
    """The workload with its own spacing, stretched or compressed to a mean rate.

    `rate`: requests per time unit, from the first arrival to the last.

    Raises:
        WorkloadError: a request that arrives with a step instead of at a moment, with file and
            line; a workload in which all arrive at the same moment.
    """
    moments: list[float] = []
    for request, line in zip(workload.requests, workload.lines, strict=True):
        if request.arrival_time is None:
            error = WorkloadError(
                "arrival", request.arrival, "arrival_s, to be stretched to a rate"
            )
            raise error.at(workload.path, line)
        moments.append(request.arrival_time)
    first = min(moments)
    span = max(moments) - first
    if span == 0:
        allowed = "arrivals at two moments or more, to be stretched to a rate"
        raise WorkloadError("arrival_s", first, allowed).at(workload.path)
    stretch = (len(moments) - 1) / (rate * span)
    stretched = (
        evolve(request, arrival_time=(moment - first) * stretch)
        for request, moment in zip(workload.requests, moments, strict=True)
    )
    return evolve(workload, requests=tuple(stretched))


def asking(workload: Workload, times: float) -> Workload:
    """The workload of clients whose max_tokens is a multiple of the tokens that they use.

    `times`: `max_tokens` over the tokens that are sampled, which stay what they are; at least 1.
    """
    requests = []
    for request in workload.requests:
        used = request.end if request.output is None else None  # else its tokens are written down
        requests.append(evolve(request, max_tokens=ceil(times * request.end), output_len=used))
    return evolve(workload, requests=tuple(requests))


def fit_for(
    workload: Workload, refuse: Callable[[Request], None]
) -> tuple[list[Request], list[InputError]]:
    """The requests that can be served, and of each other one why it never can.

    `refuse` raises WorkloadError for the latter. A public trace was recorded on other hardware:
    what is too long for this one is left out and counted. A file of our own format is meant as it
    stands.

    Raises:
        WorkloadError: the first request of an own file that can never be served, with file and
            line.
    """
    servable: list[Request] = []
    refused: list[InputError] = []
    for request, line in zip(workload.requests, workload.lines, strict=True):
        try:
            refuse(request)
        except WorkloadError as error:
            refused.append(error.at(workload.path, line))
        else:
            servable.append(request)
    if refused and workload.format is Format.LOCKSTEP:
        raise refused[0]
    return servable, refused
