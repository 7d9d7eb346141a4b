"""Campaigns: many episodes on all cores, what happened in them, what was found.

Outcomes are taken in the order of the episodes, so that the same seed and number of episodes give
the same answer everywhere.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import cache, partial
from itertools import count, islice
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any, Protocol, TypeVar

from attrs import define, evolve, field, frozen

from checks.cores import on_all_cores
from checks.ending import OutOfTimeError, keeping_results
from checks.harness.case import Case
from checks.harness.choices import Choices, Node
from checks.harness.comparison import Terms, can, compare
from checks.harness.driver.process import answers_until
from checks.harness.finding import FOR_EVER, Episode, Finding, Kind, Signature
from checks.harness.judging import judgeable
from checks.harness.policy import evidence_of
from checks.harness.shrinking import Budget, Shrunk, shrink
from checks.harness.standalone import with_own_steps
from checks.harness.system import ENGINE, Hello, System
from spec.core.errors import ConfigError, InputError, WorkloadError

KeyT = TypeVar("KeyT")

MOST_FINDINGS = 5  # different ones, after which a campaign ends
_TRIES = 200  # draws of a configuration until one can be done


# --- what is run ----------------------------------------------------------------------------------


class Source(Hashable, Protocol):
    """From where a process has its own system; equal ones give the same."""

    def open(self) -> System:
        """A system, which is kept until the process ends.

        Raises:
            DriverError: it cannot be started.
        """


def own_system(source: Source) -> System:
    """The system of this process, one for all episodes."""
    return _opened(source, os.getpid())


@cache
def _opened(source: Source, _process: int) -> System:
    """A worker process inherits what is opened here, and must not speak to the same driver."""
    return source.open()


@frozen
class Plan:
    """What a campaign does in every episode.

    `system`: from where each process has its own. `pinned`: configuration keys that are not drawn;
    those of which the system can do one value only are added to them. `batch`: episodes that a
    process runs before it says what became of them.

    Raises:
        ConfigError: the system cannot do a value that is pinned.
    """

    system: Source
    seed: int = 0
    terms: Terms = field(factory=Terms)
    pinned: Mapping[str, Any] = field(factory=dict, hash=False)
    batch: int = 1

    def __attrs_post_init__(self) -> None:
        hello = own_system(self.system).hello
        for key, value in self.pinned.items():
            values = hello.config.get(key)
            if values is not None and value not in values:
                can_do = ", ".join(json.dumps(one) for one in values)
                raise ConfigError(f"--set {key}", value, f"{can_do}, as {hello.release} can do")

    def case(self, episode: int) -> Case:
        """The case of an episode: the first that is drawn and can be run.

        Raises:
            ConfigError: no configuration with the pinned keys is allowed, can be served and done.
        """
        refused: ConfigError | None = None
        for choices in islice(Choices.seeded(self.seed, episode), _TRIES):
            try:
                return self.drawn(choices)
            except _CannotDoError as error:  # it is not the configuration as such
                refused = error
            except ConfigError as error:
                refused = refused or error
        assert refused is not None
        raise refused

    def drawn(self, choices: Choices) -> Case:
        """The case that these choices make; without aborts if the system knows none.

        Raises:
            ConfigError: its configuration is not allowed, or the system cannot do it.
        """
        system = own_system(self.system)
        hello = system.hello
        pinned = {**hello.pinned, **self.pinned}
        case = evidence_of(hello.policy).generate(choices, pinned)
        if not hello.can_do(case.config):
            raise _CannotDoError("--set", pinned, "keys with which the system can do something")
        requests = case.requests
        if not can(system, "abort"):
            requests = tuple(evolve(one, abort_at=None) for one in requests)
        return evolve(case, requests=requests, choices=choices.node)

    def terms_of(self, episode: int) -> Terms:
        """Aborts come between two steps in every other episode, else while the model runs.

        In every fourth episode an engine gets the names of the requests that end.
        """
        system = own_system(self.system)
        while_running = can(system, "abort_running") and episode % 2 == 1
        ends_named = system.hello.name == ENGINE and episode % 4 == 2
        return evolve(self.terms, aborts_while_running=while_running, ends_named=ends_named)


class _CannotDoError(ConfigError):
    """A configuration that is allowed and that the system does not implement."""


# --- which episodes -------------------------------------------------------------------------------


@frozen
class Batch:
    """Some episodes, from the `first`; none is begun at the moment `until` or later.

    `until`: on the clock of `time.monotonic`, which all processes share. The very first episode
    is run whatever the time, and where the batch is `whole` so are all others.
    """

    first: int
    episodes: int
    until: float | None = None
    whole: bool = False

    def __iter__(self) -> Iterator[int]:
        until = inf if self.until is None or self.whole else self.until
        for episode in range(self.first, self.first + self.episodes):
            if episode and monotonic() >= until:
                return
            yield episode


@define
class Batches:
    """The batches of so many episodes, or of so many seconds since the first was asked for.

    `first`: the episode to begin with; the number of episodes counts from 0. `whole`: a batch that
    was begun is run to its end, so that no episode before the last one is left out. `until`: on the
    clock of `time.monotonic`, when the time is over; None without such a time, or before it began.
    """

    size: int
    episodes: int | None
    seconds: float
    first: int = 0
    whole: bool = False
    until: float | None = field(default=None, init=False)
    _began: float | None = field(default=None, init=False)

    @property
    def passed_seconds(self) -> float:
        """Since the first was asked for."""
        return 0.0 if self._began is None else monotonic() - self._began

    @property
    def leaves_time_for_shrinking(self) -> bool:
        """True while a third of the time is left."""
        return self.until is None or monotonic() < self.until - self.seconds / 3

    def __iter__(self) -> Iterator[Batch]:
        """Batches of `size` episodes, the last of what is left; one at least."""
        self._began = monotonic()
        if self.episodes is not None:
            for first in range(self.first, self.episodes, self.size):
                yield Batch(first, min(self.size, self.episodes - first))
            return
        self.until = self._began + self.seconds
        for first in count(self.first, self.size):
            if first and monotonic() >= self.until:
                return
            yield Batch(first, self.size, self.until, self.whole)


# --- what became of them --------------------------------------------------------------------------


@frozen
class FirstSeen:
    """A finding with the episode, case and terms with which it was seen first.

    Where rules only judge, it is the one of the shortest run.
    """

    episode: int
    case: Case
    terms: Terms
    finding: Finding

    @property
    def rank(self) -> tuple[int, int]:
        """The lowest of a finding counts as the first."""
        return self.finding.step if self.terms.rules_only else 0, self.episode


@define
class Campaign:
    """What became of the episodes of a plan so far; its counters are those of `Episode`.

    `known`: episodes that ended with a known difference, by id. `rules`: those that were judged.
    `first_seen`: of each kind and cause; `times`: all. `examples`: the first episode of each known
    difference and each expected violation, by id. `interrupted`: it was ended before its time.
    `seconds`: since the first episode was asked for; `start_seconds` and `shrink_seconds`: that it
    took beside them to start drivers and to make findings small. `until`: when its time is over.
    """

    plan: Plan
    episodes: int = 0
    steps: int = 0
    judged: int = 0
    on_device: int = 0
    counts: Counter[str] = field(factory=Counter)
    pairs: Counter[str] = field(factory=Counter)
    known: Counter[str] = field(factory=Counter)
    overdue: Counter[str] = field(factory=Counter)
    expected: Counter[str] = field(factory=Counter)
    times: Counter[Signature] = field(factory=Counter)
    not_evaluated: dict[str, str] = field(factory=dict)
    rules: set[str] = field(factory=set)
    first_seen: dict[Signature, FirstSeen] = field(factory=dict)
    examples: dict[str, FirstSeen] = field(factory=dict)
    interrupted: bool = False
    seconds: float = 0.0
    start_seconds: float = 0.0
    shrink_seconds: float = 0.0
    until: float = inf

    @property
    def hello(self) -> Hello:
        """How the system introduces itself."""
        return own_system(self.plan.system).hello

    @property
    def policy(self) -> str:
        """The policy that the system schedules by."""
        return self.hello.policy

    @property
    def judged_rules(self) -> list[str]:
        """Rules that were held against steps, by id."""
        return sorted(self.rules - set(self.not_evaluated))

    @property
    def never(self) -> list[str]:
        """Kinds of action that did not happen."""
        labels = evidence_of(self.policy).labels
        return [action for action in labels.actions if not self.counts[action]]

    @property
    def has_found_enough(self) -> bool:
        """True if there are so many different findings that the campaign ends."""
        return len(self.first_seen) >= MOST_FINDINGS and not self.plan.terms.rules_only

    def must_shrink(self, batches: Batches) -> bool:
        """True if something was found, and the time that is left is needed to make it small."""
        is_small_enough = not self.first_seen or self.plan.terms.rules_only
        return not (is_small_enough or batches.leaves_time_for_shrinking)

    def add(self, other: "Campaign") -> None:
        """Take in what became of later episodes."""
        for name in ("episodes", "steps", "judged", "on_device"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("counts", "pairs", "known", "overdue", "expected", "times"):
            getattr(self, name).update(getattr(other, name))
        for rule, name in other.not_evaluated.items():  # of several fields the first by name
            self.not_evaluated[rule] = min(name, self.not_evaluated.get(rule, name))
        self.rules |= other.rules
        _take_lowest(self.first_seen, other.first_seen)
        _take_lowest(self.examples, other.examples)

    @staticmethod
    def of(plan: Plan, index: int, case: Case, terms: Terms, episode: Episode) -> "Campaign":
        """What became of one episode, numbered `index`."""
        seen = Campaign(
            plan,
            episodes=1,
            steps=episode.steps,
            judged=episode.judged,
            on_device=episode.on_device,
            counts=episode.counts,
            pairs=episode.pairs,
            known=Counter([episode.known] if episode.known else []),
            overdue=episode.overdue,
            expected=episode.expected,
            times=Counter(dict.fromkeys(episode.findings, 1)),
            not_evaluated=episode.not_evaluated,
        )
        if episode.judged:
            seen.rules = {one.id for one in judgeable(case.config)}
        for signature, finding in episode.findings.items():
            seen.first_seen[signature] = FirstSeen(index, case, terms, finding)
        for id_, finding in _known_findings(episode):
            seen.examples[id_] = FirstSeen(index, case, terms, finding)
        return seen


@frozen(kw_only=True)
class Found:
    """A finding where it was first seen and made small, its file, the command that repeats it.

    `times`: how often it was met, in episodes unless it is said otherwise. `also`: what else was
    seen of the same cause.
    """

    first: FirstSeen
    small: Shrunk
    path: Path
    again: str
    times: int = 1
    also: tuple[Signature, ...] = ()

    @property
    def finding(self) -> Finding:
        """What is wrong."""
        return self.small.finding

    @property
    def case(self) -> Case:
        """The smallest case that shows it."""
        return self.small.case


def _take_lowest(mine: dict[KeyT, FirstSeen], others: Mapping[KeyT, FirstSeen]) -> None:
    for key, one in others.items():
        mine[key] = min(mine.get(key, one), one, key=lambda seen: seen.rank)


def _known_findings(episode: Episode) -> Iterator[tuple[str, Finding]]:
    """The known difference that ended the episode, and the expected violations in it, by id."""
    if episode.known is not None:
        yield episode.known, Finding(Kind.DIVERGENCE, episode.steps, episode.known, episode.known)
    for rule in episode.expected:
        if rule == Kind.ENDLESS:
            yield rule, Finding(Kind.ENDLESS, 0, FOR_EVER, rule)
        else:
            yield rule, Finding(Kind.BROKEN_RULE, 0, rule, rule)


def run_batch(plan: Plan, batch: Iterable[int], until: float | None = None) -> Campaign:
    """What becomes of a few episodes.

    Raises:
        OutOfTimeError: the moment `until` is past, and a driver does not answer.
    """
    with answers_until(until):
        seen, system = Campaign(plan), own_system(plan.system)
        for index in batch:
            case, terms = plan.case(index), plan.terms_of(index)
            seen.add(Campaign.of(plan, index, case, terms, compare(system, case, terms)))
    return seen


def campaign(
    plan: Plan,
    batches: Batches,
    progress: Callable[[Campaign], None],
    earlier: Campaign | None = None,
) -> Campaign:
    """Run the batches on all cores, a system on each; ends early with many different findings.

    `progress` is called after each batch with what is known by then. What ends work early
    (`checks.ending`) ends it, too, and leaves what is known. `earlier`: what became of the episodes
    before the first batch.

    Raises:
        ConfigError: nothing can be drawn with the pinned keys.
        DriverError: a driver process does not speak the protocol.
    """
    known = Campaign(plan) if earlier is None else earlier
    seconds = known.seconds
    if known.has_found_enough:
        return known
    is_over = False
    if batches.episodes is not None:
        own_system(plan.system).close()  # it is of no use while the workers run theirs
    run, prepare = partial(_run_in_time, plan), partial(_prepare, plan)
    began = monotonic()
    with keeping_results():
        for seen in on_all_cores(run, batches, prepare, partial(_close, plan)):
            known.add(seen)
            known.seconds = seconds + batches.passed_seconds
            progress(known)
            if known.has_found_enough or known.must_shrink(batches):
                break
        is_over = True
    known.interrupted = not is_over
    known.until = inf if batches.until is None else batches.until
    known.seconds = seconds + batches.passed_seconds
    known.start_seconds += monotonic() - began - batches.passed_seconds
    return known


def _run_in_time(plan: Plan, batch: Batch) -> Campaign:
    return run_batch(plan, batch, batch.until)


def _prepare(plan: Plan) -> None:
    """Have the system at hand."""
    own_system(plan.system)


def _close(plan: Plan) -> None:
    """Have no system any more: the next campaign may be with another file of the same name."""
    own_system(plan.system).close()
    _opened.cache_clear()


# --- made small -----------------------------------------------------------------------------------


def shrunk(plan: Plan, first: FirstSeen, budget: Budget | None = None) -> Shrunk:
    """A finding with the smallest case that shows it, and with what comes of it.

    Of a known difference the cause is its id; it is shown by cases that end with it.
    """
    budget = budget or Budget()
    system = own_system(plan.system)
    known = {difference.id for difference in evidence_of(system.hello.policy).known_differences}
    signature, is_known = first.finding.signature, first.finding.cause in known

    def draw(node: Node) -> Case | None:
        try:
            return plan.drawn(Choices.again(node))
        except InputError:
            return None

    in_a_step = first.finding.kind in (Kind.DIVERGENCE, Kind.CRASH, Kind.BROKEN_RULE)

    def attempt(case: Case, most: int) -> tuple[Finding | None, int]:
        terms = evolve(first.terms, most_steps=most if in_a_step else None)
        try:
            episode = compare(system, case, terms)
        except (WorkloadError, OutOfTimeError):  # could never be served, or no answer in time
            return None, 0
        if is_known and episode.known == first.finding.cause:
            return evolve(first.finding, step=episode.steps), episode.steps
        return episode.findings.get(signature), episode.steps

    with answers_until(budget.until):
        small = shrink(first.case, first.finding, draw, attempt, budget)
        try:
            finding = with_own_steps(system, small.case, first.terms, small.finding)
        except OutOfTimeError:
            finding = small.finding
    return evolve(small, finding=finding)


def shrunk_causes(
    seen: Campaign, budget: Callable[[int], Budget] = lambda _left: Budget()
) -> Iterator[tuple[FirstSeen, Shrunk, int, tuple[Signature, ...]]]:
    """Each cause once: its smallest case, where that was seen, how often, and as what else.

    `budget`: of each, by how many are left with it. Two findings have one cause if they have one
    `Finding.name` once they are small.
    """
    small: dict[str, tuple[FirstSeen, Shrunk]] = {}
    times, also = Counter[str](), dict[str, list[Signature]]()
    firsts = sorted(seen.first_seen.values(), key=lambda first: first.rank)
    for place, first in enumerate(firsts):
        found = shrunk(seen.plan, first, budget(len(firsts) - place))
        name, signature = found.finding.name, first.finding.signature
        times[name] += seen.times[signature]
        also.setdefault(name, []).append(signature)
        if name not in small or found.size < small[name][1].size:
            small[name] = first, found
    for name, (first, found) in small.items():
        others = tuple(one for one in also[name] if one != first.finding.signature)
        yield first, found, times[name], others
