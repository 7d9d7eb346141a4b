"""Cutting a finding out of a log: a short case that `lockstep conform --case` runs again.

A case begins with an empty scheduler. So the cut begins at a moment at which the server was idle:
the latest from which the log's own steps still show the finding, else the beginning of the log.
Contents that the server had cached before that moment are not in the case.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from pathlib import Path

from attrs import define, evolve, field, frozen

from checks.harness.campaigns.recording import file_name, record
from checks.harness.case import Case
from checks.harness.comparison import Terms, compare
from checks.harness.decoding import decoded
from checks.harness.finding import Finding, Kind
from checks.harness.logs.reading import (
    UNKNOWN_TOKEN,
    Abort,
    Arrival,
    Logged,
    LogReader,
)
from checks.harness.logs.watching import Watch, known_tokens
from checks.harness.policy import evidence_of
from checks.harness.system import Action, Failure, Hello, Taken
from checks.registry import claims_of
from checks.remembered import remembering
from spec.core.errors import InputError
from spec.core.requests import Request

MOST_STEPS = 5_000  # of a case
_MOST_MOMENTS = 8  # that are tried


@frozen
class Moment:
    """A place in a log: the number of steps and lines before it, and its byte."""

    steps: int = 0
    lines: int = 1
    offset: int | None = None  # None: behind the header


@define
class Moments:
    """The idle moments of a log, from which a cut may begin."""

    _idle: deque[Moment] = field(factory=lambda: deque[Moment]([Moment()], maxlen=_MOST_MOMENTS))

    def note(self, watch: Watch, reader: LogReader) -> None:
        """Remember this moment if the server is idle."""
        if watch.is_idle and self._idle[-1].steps != watch.seen.steps:
            self._idle.append(Moment(watch.seen.steps, reader.line, reader.offset))

    def before(self, step: int) -> list[Moment]:
        """The moments before this step, the latest first, then the beginning of the log."""
        near = [moment for moment in self._idle if step - MOST_STEPS < moment.steps <= step]
        beginning = [Moment()] if step < MOST_STEPS and Moment() not in near else []
        return [*reversed(near), *beginning]


@frozen
class LogSystem:
    """The steps of a log from a moment on; implements `System`, for the case of that part."""

    hello: Hello
    steps: tuple[Logged, ...]

    def play(self, case: Case, actions: Iterable[Action]) -> Iterator[Taken | Failure]:
        """The logged steps, whatever the actions."""
        policy = case.config.policy
        ctx = remembering(claims_of(policy).context_of(case.config, case.requests))
        decoder = evidence_of(policy).adapter.decoder(ctx)
        sampled = Counter[str]()
        for index, (entry, action) in enumerate(zip(self.steps, actions, strict=False)):
            outputs = entry.record["outputs"]
            known = {name: known_tokens(name, sampled[name], outputs[name]) for name in outputs}
            sampled.update({name: len(tokens) for name, tokens in outputs.items()})
            whole = entry.whole | {"outputs": known}
            yield Taken(decoded(decoder, whole, action, index, is_checked=True), whole)

    def close(self) -> None:
        """Nothing is held."""


def cut(
    path: Path, moments: Iterable[Moment], watch: Watch, finding: Finding, directory: Path
) -> Path | None:
    """Write the shortest part of the log that shows the finding as a recorded case.

    Returns the file, or None if no part shows it by itself.

    Raises:
        OSError: the file cannot be written.
    """
    if watch.hello is None:
        return None
    for moment in moments:
        try:
            case, steps, leaves_running = _part(path, moment, finding.step)
        except (InputError, KeyError):  # of a request that is not in this part, or makes no case
            continue
        system = LogSystem(evolve(watch.hello, release=watch.header.release), steps)
        for terms in _terms(finding, finding.step + 1 - moment.steps, leaves_running):
            if _shows(system, case, terms, finding, moment):
                target = directory / file_name(watch.header.policy, case, finding)
                directory.mkdir(parents=True, exist_ok=True)
                about = f"step {finding.step} of the log {path.name}"
                command = f"lockstep conform DRIVER --case {target.name}"
                record(system, case, terms, target, about=about, command=command)
                return target
    return None


def _terms(finding: Finding, steps: int, leaves_running: bool) -> Iterator[Terms]:
    """Compared; a broken rule also without a comparison, which ends at the first difference."""
    yield Terms(aborts_while_running=leaves_running, most_steps=steps)
    if finding.kind is Kind.BROKEN_RULE:
        yield Terms(aborts_while_running=leaves_running, rules_only=True)


def _shows(system: LogSystem, case: Case, terms: Terms, finding: Finding, moment: Moment) -> bool:
    """True if this part of the log shows the finding by itself, in the same step."""
    try:
        found = compare(system, case, terms).findings.get(finding.signature)
    except InputError:  # a request that the specification refuses
        return False
    return found is not None and found.step + moment.steps == finding.step


@define
class _Row:
    """What a log says of one request."""

    request: Request
    arrival: int
    output: list[int] = field(factory=list)
    ended: bool = False
    abort_at: int | None = None

    def whole(self) -> Request:
        """The request as a client of a case: its tokens, and when it leaves."""
        tokens = self.output
        if not self.ended:  # what it would have sampled
            tokens = tokens + [UNKNOWN_TOKEN] * (self.request.max_tokens - len(tokens))
        output = tuple(known_tokens(self.request.id, 0, tokens))
        return evolve(self.request, arrival=self.arrival, output=output, abort_at=self.abort_at)


def _part(path: Path, moment: Moment, last: int) -> tuple[Case, tuple[Logged, ...], bool]:
    """The requests and the steps of a log from a moment to the step `last`.

    Also true if clients leave while the model runs.
    """
    reader = LogReader(path)
    if moment.offset is not None:
        reader.seek(moment.offset, moment.lines)
    rows: dict[str, _Row] = {}
    steps: list[Logged] = []
    leaves_running = False
    count = last + 1 - moment.steps
    for entry in reader:
        at = len(steps)
        match entry:
            case Arrival(request=request):
                rows[request.id] = _Row(request, at)
            case Abort(id=name) if name in rows:  # else it had left before
                rows[name].abort_at = at
            case Logged():
                leaves_running = leaves_running or bool(entry.around.abort_running)
                _note_step(entry, rows, at)
                steps.append(entry)
                if len(steps) == count:
                    break
    reader.close()
    requests = tuple(row.whole() for row in rows.values())
    return Case(reader.header.config, requests), tuple(steps), leaves_running


def _note_step(entry: Logged, rows: dict[str, _Row], at: int) -> None:
    for name, tokens in entry.record["outputs"].items():
        rows[name].output += tokens
    ended = entry.around.ended
    for name in entry.record.get("finished", ()):
        rows[name].ended = ended is None or name in ended
    for name in entry.around.abort_running:
        rows[name].abort_at = at + 1
