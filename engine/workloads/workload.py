"""A workload as read from a file: its format, its requests, and the line of each."""

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, pairwise
from math import ceil
from os import PathLike, fspath
from random import Random
from typing import Any

from attrs import define, evolve, field, frozen

from engine.workloads.checked import MOST_REQUESTS, brief, whole
from engine.workloads.files import Rows, head_and_rows
from engine.workloads.formats import (
    FORMATS,
    LOCKSTEP,
    detected_format,
    requests_of_plugin,
    unknown_format,
)
from engine.workloads.own import behind, own_stream
from engine.workloads.recorded import CHARS_PER_TOKEN, OUTPUT_LEN, Reading
from spec.core.errors import InputError, WorkloadError
from spec.core.requests import Request, refuse_broken_session

_EQUAL = 1e-6  # gaps between arrivals that differ by less of the largest


@frozen
class Workload:
    """Requests in the order of their file.

    `lines`: the line of each request, from 1; None in a JSON document. `skipped`: rows of a
    file of others that are no requests, for they have no prompt or generated nothing. `notes`: what
    the file does not say and was assumed, a clause each.
    """

    path: str
    format: str
    requests: tuple[Request, ...]
    lines: tuple[int | None, ...]
    skipped: int = 0
    notes: tuple[str, ...] = ()


def read_workload(
    path: str | PathLike[str],
    format: str | None = None,
    limit: int | None = None,
    *,
    chars_per_token: float = CHARS_PER_TOKEN,
    output_len: int = OUTPUT_LEN,
) -> Workload:
    """The requests of a file, at most the first `limit` of them.

    `format`: one of `FORMATS`, or an entry point of the group `lockstep.workloads`; by default what
    the file looks like. Rows behind the limit are not looked at. `chars_per_token` estimates the
    length of texts; `output_len`: tokens of a request whose file does not say how many.

    Raises:
        WorkloadError: a file that cannot be read, an unknown format, a row that is no request, an
            id that an earlier row has, no request at all; with file and line.
    """
    source, reading = fspath(path), Reading(chars_per_token, output_len)
    wanted = None if limit is None else whole("limit", limit, 1, MOST_REQUESTS, "requests")
    name, requests, rows = _requests(source, format, reading)
    taken = _Requests()
    try:
        for request in requests:
            taken.take(request, rows.place)
            if len(taken.requests) == wanted:
                break
    except WorkloadError as error:
        raise _placed(error, source, rows.place) from None
    if not taken.requests:
        raise WorkloadError("file", "no request", "one request or more").at(source)
    read = [*taken.requests.values()]
    for request, line in zip(read, taken.lines.values(), strict=True):
        try:
            refuse_broken_session(request, taken.requests)
        except WorkloadError as error:
            raise error.at(source, line) from None
    return Workload(
        source,
        name,
        tuple(_from_earliest(read)),
        tuple(taken.lines.values()),
        taken.skipped,
        () if name == LOCKSTEP else (*reading.notes(), *_notes(read)),
    )


@define
class _Numbered:
    """The rows of a file, and the place of the last one."""

    rows: Rows
    place: int | str = ""

    def __iter__(self) -> Iterator[Any]:
        for place, row in self.rows:
            self.place = place
            yield row


def _requests(
    source: str, name: str | None, reading: Reading
) -> tuple[str, Iterator[Request | None], _Numbered]:
    """The format of a file, its requests, and its rows."""
    if name is not None and name not in FORMATS:
        of_plugin = requests_of_plugin(source, name)
        assert of_plugin is not None
        return *of_plugin, _Numbered(iter(()))
    named = None if name is None else FORMATS[name]
    is_csv = None if named is None else bool(named.columns)
    place, head, rows = head_and_rows(source, is_csv=is_csv)
    if named is not None and named.columns and not named.fits(head):
        error = WorkloadError("header", brief(",".join(head)), ",".join(named.columns))
        raise _placed(error, source, place)
    name = name or detected_format(head)
    if name is None:
        of_plugin = requests_of_plugin(source, None)
        if of_plugin is None:
            raise _placed(unknown_format(head), source, place)
        return *of_plugin, _Numbered(iter(()))
    numbered = _Numbered(rows)
    return name, FORMATS[name].reader(iter(numbered), reading), numbered


def _placed(error: WorkloadError, source: str, place: int | str) -> WorkloadError:
    """The error with its file, and its line or its place in a JSON document."""
    if isinstance(place, int):
        return error.at(source, place)
    if error.place is not None:
        return error
    return evolve(error, field=f"{place}{error.field}").at(source)


@define
class _Requests:
    """The requests read so far, by id; `lines`: of each, None in a JSON document.

    `continued`: by turn of a session that is still to be read, the one before.
    """

    requests: dict[str, Request] = field(factory=dict)
    lines: dict[str, int | None] = field(factory=dict)
    continued: dict[str, str] = field(factory=dict)
    skipped: int = 0

    def take(self, request: Request | None, place: int | str) -> None:
        """Add the next request; None: a row that is none."""
        if request is None:
            self.skipped += 1
            return
        if request.id in self.lines:
            line = self.lines[request.id]
            there = "" if line is None else f"; line {line} has this one"
            raise WorkloadError("id", request.id, f"an id of its own{there}")
        if request.after is not None and request.after not in self.lines:
            raise WorkloadError("after", request.after, "the id of an earlier request")
        if len(self.requests) == MOST_REQUESTS:
            allowed = f"{MOST_REQUESTS}; a limit reads the first ones"
            raise WorkloadError("requests", "one more", allowed)
        earlier = self.requests.get(self.continued.pop(request.id, ""))
        request = request if earlier is None else behind(earlier, request)
        if (turn := request.continued_by) is not None:
            if turn in self.continued or turn in self.lines or turn == request.id:
                allowed = "the id of a later request that no other names"
                raise WorkloadError("continued_by", turn, allowed)
            self.continued[turn] = request.id
        self.requests[request.id] = request
        self.lines[request.id] = place if isinstance(place, int) else None


def _from_earliest(requests: list[Request]) -> list[Request]:
    """Where rows are not in the order of time, moments count from the earliest, not the first."""
    moments = [request.arrival_time or 0.0 for request in requests if request.after is None]
    earliest = min(moments)
    if earliest >= 0:
        return requests
    return [
        evolve(request, arrival_time=(request.arrival_time or 0.0) - earliest)
        if request.after is None
        else request
        for request in requests
    ]


def _notes(requests: list[Request]) -> Iterator[str]:
    """Clauses on what a file of others leaves open: conversations, times, shared prefixes."""
    if turns := sum(request.after is not None for request in requests):
        yield f"turns that follow the end of the one before: {turns:,}"
    elif len(requests) > 1 and len({request.arrival_time for request in requests}) == 1:
        yield "all arrive at once"
    own = (((own_stream(request.id), request.prompt_len),) for request in requests)
    if all(request.prompt.parts == parts for request, parts in zip(requests, own, strict=True)):
        yield "no prompt shares a prefix with another"


def at_rate(workload: Workload, rate: float) -> Workload:
    """The workload with its own spacing, stretched or compressed to a mean rate.

    `rate`: requests per time unit, from the first arrival to the last. Where all arrive at once
    they are spaced evenly. Turns that follow the end of another request keep their delays.

    Raises:
        WorkloadError: a request that arrives with a step instead of at a moment, with file and
            line.
    """
    moments = _moments(workload, "to be stretched to a rate")
    first, span = min(moments), max(moments) - min(moments)
    if span == 0:
        return _arriving(workload, [place / rate for place in range(len(moments))])
    stretch = (len(moments) - 1) / (rate * span)
    return _arriving(workload, [(moment - first) * stretch for moment in moments])


def with_shuffled_gaps(workload: Workload, seed: int) -> Workload:
    """The workload whose arrivals have the same gaps in another order, which the seed draws.

    Requests keep their order. Where all gaps are equal, as of arrivals at once, they are drawn from
    an exponential distribution instead, like those of independent clients; their mean is that of
    the gaps, or one time unit.

    Raises:
        WorkloadError: a request that arrives with a step instead of at a moment.
    """
    moments, draws = _moments(workload, "whose gaps can be shuffled"), Random(seed)
    order = sorted(range(len(moments)), key=moments.__getitem__)
    gaps = [moments[late] - moments[early] for early, late in pairwise(order)]
    if gaps and max(gaps) - min(gaps) <= _EQUAL * max(gaps):
        gaps = [draws.expovariate(1.0 / (gap or 1.0)) for gap in gaps]
    draws.shuffle(gaps)
    new = dict(zip(order, accumulate(gaps, initial=moments[order[0]]), strict=True))
    return _arriving(workload, [new[place] for place in range(len(moments))])


def _moments(workload: Workload, purpose: str) -> list[float]:
    """The moments at which requests arrive that follow no other.

    Raises:
        WorkloadError: a request that arrives with a step, with file and line.
    """
    moments = []
    for request, line in zip(workload.requests, workload.lines, strict=True):
        if request.after is not None:
            continue
        if request.arrival_time is None:
            error = WorkloadError("arrival", request.arrival, f"arrival_s, {purpose}")
            raise error.at(workload.path, line)
        moments.append(request.arrival_time)
    return moments


def _arriving(workload: Workload, moments: Iterable[float]) -> Workload:
    """The workload with these moments for requests that follow no other."""
    new = iter(moments)
    moved = (
        evolve(request, arrival_time=next(new)) if request.after is None else request
        for request in workload.requests
    )
    return evolve(workload, requests=tuple(moved))


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

    `refuse` raises WorkloadError for the latter. A file of others was recorded on other hardware:
    what is too long for this one is left out and counted, and so are the requests that follow it.
    A file of our own format is meant as it stands.

    Raises:
        WorkloadError: the first request of an own file that can never be served, with file and
            line.
    """
    servable: list[Request] = []
    lost: set[str] = set()
    refused: list[InputError] = []
    for request, line in zip(workload.requests, workload.lines, strict=True):
        try:
            if request.after in lost:
                raise WorkloadError("after", request.after, "a request that can be served")
            refuse(request)
        except WorkloadError as error:
            refused.append(error.at(workload.path, line))
            lost.add(request.id)
        else:
            servable.append(request)
    if refused and workload.format == LOCKSTEP:
        raise refused[0]
    return servable, refused
