"""A log of a running server, judged by the rules and compared with the reference's decisions.

The reference gets the log's arrivals, aborts, ends and tokens; its decisions are its own. The first
difference ends the comparison, because from there on the states differ; rules judge all steps.
Requests that have left are forgotten, so that memory does not grow with the log.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from hashlib import blake2b
from typing import Any

from attrs import define, evolve, field, fields, frozen

from checks.harness.case import Case
from checks.harness.comparing import Difference, Strictness
from checks.harness.comparison import divergence_finding, step_differences
from checks.harness.decoding import RecordDecoder, RecordError, decoded
from checks.harness.difference import Divergence
from checks.harness.finding import Finding, Kind, Signature
from checks.harness.judging import Judge, judgeable
from checks.harness.logs.reading import (
    UNKNOWN_TOKEN,
    Abort,
    Arrival,
    Entry,
    Header,
    LogError,
    Logged,
    Stopped,
    unreported_fields,
)
from checks.harness.own_steps import nearest
from checks.harness.policy import AnyEvidence, evidence_of
from checks.harness.reference import Reference
from checks.harness.system import Action, Hello, Json, Step, Taken, take_step
from checks.harness.unreported import BEFORE, REPORTING_ABILITY
from checks.registry import claims_of
from checks.remembered import RememberedRequest, remembered_as, remembering
from spec.core.errors import InputError
from spec.core.requests import VOCABULARY, Request

_LAST_STEPS = 64  # that a known difference may look at
_MOST_GONE = 256  # requests that have left and are still remembered
_BY_REQUEST = ("requests", "sequences", "external", "names", "owners")  # of contexts


def known_tokens(request_id: str, first: int, tokens: Iterable[int]) -> list[int]:
    """The tokens that a request samples, number `first` and so on; a stand-in for unknown ones."""
    return [
        _stand_in(f"{request_id} {first + place}") if token == UNKNOWN_TOKEN else token
        for place, token in enumerate(tokens)
    ]


def _stand_in(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=4).digest(), "big") % VOCABULARY


@frozen(kw_only=True)
class LoggedRequest(RememberedRequest):
    """A request whose sampled tokens come from a log; `UNKNOWN_TOKEN` for those not yet logged.

    `_ended`: not empty once its model has ended it, with the newest token.
    """

    _ended: list[bool] = field(factory=list, init=False, eq=False, repr=False)

    def learn(self, tokens: Iterable[int]) -> None:
        """Add tokens that the server sampled; an unknown one is replaced by one of its own."""
        self._sampled.extend(known_tokens(self.id, len(self._sampled), tokens))

    def stop(self) -> None:
        """Its model ended it with the newest token."""
        self._ended.append(True)

    @property
    def end(self) -> int:
        """Tokens after which it has all that it samples."""
        return len(self._sampled) if self._ended else self.max_tokens

    def output_token(self, index: int) -> int:
        """The `index`-th token that the request sampled in the log."""
        return self._sampled[index] if index < len(self._sampled) else UNKNOWN_TOKEN

    def last_tokens(self, count: int) -> list[int]:
        """Its newest tokens."""
        return self._sampled[len(self._sampled) - count :] if count else []


@define
class Seen:
    """What a check has judged and found so far.

    `steps`: of the log; `compared`: those that were compared and agreed, in `compared_fields`.
    `not_compared`: why the comparison ended before the log, or empty. `findings`: the first of each
    kind and cause, each with its line in `lines` and its Unix time in `times`. `repeated`: how
    often each broken rule was broken. `known`: the known difference that ended the comparison.
    `expected`: expected violations by rule. `stopped`: why the recorder wrote no more.
    """

    steps: int = 0
    requests: int = 0
    compared: int = 0
    compared_fields: list[str] = field(factory=list)
    not_compared: str = ""
    findings: dict[Signature, Finding] = field(factory=dict)
    lines: dict[Signature, int] = field(factory=dict)
    times: dict[Signature, float | None] = field(factory=dict)
    repeated: Counter[str] = field(factory=Counter)
    known: str | None = None
    expected: Counter[str] = field(factory=Counter)
    stopped: str = ""

    def note(self, finding: Finding, entry: Logged) -> None:
        """Add the finding of a step, unless one of this kind and cause is known."""
        self.findings.setdefault(finding.signature, finding)
        self.lines.setdefault(finding.signature, entry.line)
        self.times.setdefault(finding.signature, entry.around.at)


@define
class Watch:
    """Judges and compares the entries of a log, one after the other.

    `hello`: the log as a system; None until its first step.
    """

    header: Header
    seen: Seen = field(factory=Seen, init=False)
    hello: Hello | None = field(default=None, init=False)
    _evidence: AnyEvidence = field(init=False)
    _reference: Reference = field(init=False)
    _decoder: RecordDecoder[Any] = field(init=False)
    _judge: Judge | None = field(default=None, init=False)
    _ignored: frozenset[str] = field(default=frozenset(), init=False)
    _between: dict[str, list[str]] = field(init=False)  # arrivals and aborts before the next step
    _present: set[str] = field(factory=set, init=False)
    _gone: deque[str] = field(factory=deque, init=False)
    _last: deque[tuple[Action, Step, Step, Json]] = field(init=False)

    def __attrs_post_init__(self) -> None:
        config = self.header.config
        self._evidence = evidence_of(config.policy)
        self._reference = self._evidence.reference(Case(config, ()))
        self._decoder = self._evidence.adapter.decoder(self.ctx)
        self._between = {"arrive": [], "abort": []}
        self._last = deque(maxlen=_LAST_STEPS)
        if self.header.asynchronous:
            self.seen.not_compared = (
                "asynchronous scheduling decides a step before the outputs of the last one are"
                " known; only steps that have their own results are compared"
            )
        elif self.header.undescribed:
            used = ", ".join(self.header.undescribed)
            self.seen.not_compared = f"the server uses {used}, of which a log says nothing"

    @property
    def ctx(self) -> Any:
        """The context of the rules, with the requests that are present or left lately."""
        return self._reference.machine.ctx

    @property
    def is_idle(self) -> bool:
        """True if no request is present."""
        return not self._present

    @property
    def judged_rules(self) -> list[str]:
        """The ids of the rules that judged every step."""
        judge = self._judge
        if judge is None:
            return []
        return [rule.id for rule in judge.rules if rule.id not in judge.not_evaluated]

    @property
    def not_judged(self) -> Mapping[str, str]:
        """The rules that could not judge, each with the field that it needs."""
        return {} if self._judge is None else self._judge.not_evaluated

    @property
    def missing_fields(self) -> list[str]:
        """The fields that the log does not have, named as in records."""
        return [] if self.hello is None else sorted(self.hello.unreported)

    def observe(self, entry: Entry) -> None:
        """The next entry of the log.

        Raises:
            LogError: a request arrives twice, or a step names one that never arrived.
        """
        match entry:
            case Arrival():
                self._arrive(entry)
            case Abort():
                if entry.id in self._present:  # else it has left, and nothing happens
                    self._between["abort"].append(entry.id)
            case Logged():
                self._step(entry)
            case Stopped():
                self.seen.stopped = entry.why

    # --- requests ---------------------------------------------------------------------------------

    def _arrive(self, arrival: Arrival) -> None:
        request = arrival.request
        if request.id in self._present:
            raise LogError("arrive.id", request.id, "an id of its own")
        if request.id in self.ctx.requests:  # of a request that has left
            self._forget(request.id)
        self.seen.requests += 1
        self._remember(request, arrival.hashes)
        self._present.add(request.id)
        self._between["arrive"].append(request.id)
        if not self.seen.not_compared:
            try:
                claims_of(self.header.policy).refuse_unservable(request, self.header.config)
            except InputError as error:
                self.seen.not_compared = (
                    f"request {request.id}: the specification refuses it ({error})"
                )

    def _remember(self, request: Request, hashes: tuple[str, ...] | None) -> None:
        ctx = self.ctx
        logged = remembered_as(LoggedRequest, request)
        own: Any = remembering(claims_of(self.header.policy).context_of(ctx.config, [logged]))
        ctx.keys.requests.update(own.keys.requests)
        for name in _BY_REQUEST:
            if hasattr(ctx, name):
                getattr(ctx, name).update(getattr(own, name))
        if hashes is not None:
            ctx.keys.learn(request.id, hashes)

    def _forget(self, request_id: str) -> None:
        ctx = self.ctx
        self._decoder.forget(request_id)
        names = getattr(ctx, "names", {}).get(request_id, (request_id,))
        for name in names:
            ctx.keys.forget(name)
            for holder in (ctx.keys.requests, *(getattr(ctx, kind, {}) for kind in _BY_REQUEST)):
                holder.pop(name, None)

    # --- steps ------------------------------------------------------------------------------------

    def _step(self, entry: Logged) -> None:
        if self._judge is None:
            self._begin(entry.record)
        index = self.seen.steps
        action = self._action(entry)
        self._learn(entry)
        expected = None if self.seen.not_compared else self._expected(index, action, entry)
        try:
            found = decoded(self._decoder, entry.whole, action, index, is_checked=True)
        except RecordError as error:
            raise LogError(error.field, error.found, error.allowed) from None
        self.seen.steps += 1
        was_known = self.seen.known
        if expected is not None and self.hello is not None:
            self._compare(action, expected, found, entry)
        self._judge_step(found, action, entry, is_known=self.seen.known != was_known)
        self._leave(found)
        self._between = {"arrive": [], "abort": []}

    def _begin(self, record: Json) -> None:
        """Know from the first step which fields there are, and which rules can judge."""
        header, adapter = self.header, self._evidence.adapter
        recorded = header.recorded
        if recorded is None:
            if not record["scheduled"] and len(record) < 3:
                return
            recorded = frozenset(record)
        unreported = unreported_fields(header, recorded)
        abilities = {by for name, by in REPORTING_ABILITY.items() if name in recorded}
        hides = adapter.fields.hides_states(unreported)
        if hides:
            unreported |= {BEFORE}
        config = header.config
        self.hello = Hello(
            name=header.policy,
            release=header.release,
            policy=header.policy,
            abilities=frozenset({"abort", "abort_running", "ends"} | abilities),
            unreported=unreported,
        )
        self._judge = Judge(
            self.ctx, judgeable(config), adapter, unreported, abilities, trusted=False
        )
        self._ignored = adapter.fields.not_compared(unreported)
        if hides:  # whole states, which need not be looked into
            step = fields(adapter.fields.step)
            self._ignored |= {key.name for key in step if key.type is adapter.fields.state}

    def _action(self, entry: Logged) -> Action:
        around, record = entry.around, entry.record
        accepted = record.get("accepted")
        if accepted is None:
            accepted = {name: len(tokens) - 1 for name, tokens in _by_sequence(record).items()}
        return Action(
            arrive=tuple(self._between["arrive"]),
            abort=tuple(self._between["abort"]),
            abort_running=around.abort_running,
            accepted={name: count for name, count in accepted.items() if count > 0},
            proposed=record.get("proposed", {}),
            loaded=around.loaded,
            lost=around.lost,
            sent=around.sent,
            answered=around.answered,
            compiled=around.compiled,
            encoded=around.encoded,
            unencodable=around.unencodable,
        )

    def _learn(self, entry: Logged) -> None:
        """Give the requests the tokens and hashes of the step."""
        requests = self.ctx.keys.requests
        outputs = _by_sequence(entry.record)
        for name, tokens in outputs.items():
            request = requests.get(name)
            if request is None:
                allowed = "requests that have arrived"
                raise LogError("step.outputs", name, allowed)
            request.learn(tokens)
            if UNKNOWN_TOKEN in tokens:
                outputs[name] = request.last_tokens(len(tokens))
        ended = entry.around.ended
        for name in entry.record.get("finished", ()) if ended is None else ended:
            if name in requests:
                requests[name].stop()
        for name, hashes in entry.around.block_hashes.items():
            self.ctx.keys.learn(name, hashes)

    def _expected(self, index: int, action: Action, entry: Logged) -> Step | None:
        """The reference's step; None if it cannot take one."""
        try:
            return self._without(action.abort_running, take_step(self._reference, index, action))
        except Exception as error:  # a server may do what the machine forbids
            self.seen.not_compared = f"step {index}: the reference stops: {error}"
            says = f"the reference stops: {error}"
            self.seen.note(Finding(Kind.REFERENCE, index, type(error).__name__, says), entry)
            return None

    def _without(self, leavers: Iterable[str], step: Step) -> Step:
        """The reference's step without these clients, of which some references keep some.

        They keep those that leave in a step in which a request finishes, because the order of the
        freed blocks is then open.
        """
        present = {row.id for row in step.after.present}
        late = [name for name in leavers if name in present]
        if not late:
            return step
        after = reduce(self._reference.machine.abort_running, late, step.after)
        self._reference.state = after
        outputs = {name: tokens for name, tokens in step.outputs.items() if name not in late}
        return evolve(step, after=after, outputs=outputs)

    def _compare(self, action: Action, expected: Step, found: Step, entry: Logged) -> None:
        evidence, record = self._evidence, entry.record
        self._last.append((action, expected, found, record))
        seen = step_differences(
            evidence, self.ctx, Strictness.EXACT, expected, Taken(found, record), self._ignored
        )
        if not seen:
            if not self.seen.compared:
                look = evidence.compared[Strictness.EXACT](found)
                self.seen.compared_fields = [name for name in look if name not in self._ignored]
            self.seen.compared += 1
            return
        self.seen.not_compared = (
            f"step {found.index} differs, and the steps behind it follow from it"
        )
        self.seen.known = self._known(seen)
        if self.seen.known is None:
            steps = tuple(expected for _, expected, _, _ in self._last)
            finding = divergence_finding(evidence, self.header.config, expected, found, seen, steps)
            self.seen.note(finding, entry)

    def _known(self, seen: tuple[Difference, ...]) -> str | None:
        """The id of the known difference of the release that this is, or None."""
        actions, expected, found, records = zip(*self._last, strict=True)
        divergence = Divergence(
            config=self.header.config,
            actions=actions,
            expected=expected,
            found=found,
            records=records,
            index=len(self._last) - 1,
            failure=None,
            differing=seen,
        )
        rows = self._evidence.known_differences
        release = self.header.release
        known = (row for row in rows if release and release.startswith(row.releases))
        return next((row.id for row in known if row.occurs(divergence)), None)

    def _judge_step(self, step: Step, action: Action, entry: Logged, *, is_known: bool) -> None:
        """Judge a step; what a known difference breaks in its own step is part of it."""
        judge = self._judge
        if judge is None:
            return
        adapter, config = self._evidence.adapter, self.header.config
        if "after" not in self._ignored:  # the states are known, and the events that they show
            step = evolve(step, events=adapter.inferred_events(step, config))
        wrong = []
        for broken in judge.observe(step, aborted_while_running=bool(action.abort_running)):
            rule = broken.rule
            self.seen.repeated[rule.id] += 1
            expected = self._evidence.expected_reason(rule.id, config, step) is not None
            if expected or is_known:
                self.seen.expected[rule.id] += 1
            else:
                wrong.append((rule.id, rule.sentence, ((rule.id, broken.found),)))
        if wrong:
            cause, says, broken_rules = nearest(wrong, lambda violation: violation[0])
            finding = Finding(Kind.BROKEN_RULE, step.index, cause, says, broken=broken_rules)
            self.seen.note(finding, entry)

    def _leave(self, step: Step) -> None:
        """Remember who left; forget who left long ago, in all that judges and compares."""
        for name in (*step.finished, *step.aborted, *self._left_running(step)):
            if name in self._present:
                self._present.discard(name)
                self._gone.append(name)
        if len(self._gone) < 2 * _MOST_GONE:
            return
        while len(self._gone) > _MOST_GONE:
            name = self._gone.popleft()
            if name not in self._present:
                self._forget(name)
        kept = frozenset(self._gone)
        for holder, state in ((self._reference, "state"), (self._decoder, "last")):
            old = getattr(holder, state)
            setattr(holder, state, evolve(old, **_past_within(old, kept)))
        if self._judge is not None:
            self._judge.pass_over(evolve(step, after=self._decoder.last))

    def _left_running(self, step: Step) -> Iterator[str]:
        return iter(step.after.aborted - step.before.aborted)


def _by_sequence(record: Json) -> dict[str, list[int]]:
    """The sampled tokens by sequence, of policies whose requests have several; else by request."""
    sampled: dict[str, list[int]] = record["sampled" if "sampled" in record else "outputs"]
    return sampled


def _past_within(state: Any, kept: frozenset[str]) -> dict[str, Any]:
    """The requests that left lately, of those that a state remembers."""
    return {name: frozenset(getattr(state, name)) & kept for name in ("finished", "aborted")}
