"""Campaigns: random episodes on all cores, their counts and their findings.

Outcomes are merged in the order of the episodes: the same seed and number of episodes give the same
result on every machine.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import count, islice
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any, Protocol, TypeVar

from attrs import define, evolve, field, frozen

from checks.cores import on_all_cores
from checks.ending import OutOfTimeError, keeping_results
from checks.harness.campaigns.drawn import decisive_keys
from checks.harness.campaigns.guiding import Kept, Start, known_episodes, mutations, start
from checks.harness.campaigns.shrinking import Budget, Shrunk, shrink
from checks.harness.case import Case
from checks.harness.choices import Choices, Node
from checks.harness.comparison import Terms, can, compare, within_abilities
from checks.harness.driver.process import answers_until
from checks.harness.finding import FOR_EVER, Episode, Finding, Kind, Signature
from checks.harness.judging import judgeable
from checks.harness.paths import choices_of_path, redrawn_path
from checks.harness.policy import evidence_of
from checks.harness.situations import Advice, situations
from checks.harness.standalone import with_own_steps
from checks.harness.system import Hello, System
from engine.workloads.checked import brief
from spec.core.errors import ConfigError, InputError, WorkloadError

KeyT = TypeVar("KeyT")

MOST_FINDINGS = 5  # different ones, after which a campaign ends
_TRIES = 200  # draws of a configuration until one can be done
_MUTATIONS = 10  # that are tried until one can be done


# --- plan -----------------------------------------------------------------------------------------


class Source(Hashable, Protocol):
    """Opens the system of a worker process; equal sources open equal systems."""

    def open(self) -> System:
        """A system that stays open until the process ends.

        Raises:
            DriverError: the system cannot be started.
        """


@frozen(eq=False)
class Given:
    """A campaign's source: a system that exists already."""

    system: System

    def open(self) -> System:
        """The system itself."""
        return self.system


def own_system(source: Source) -> System:
    """The system of this process, the same for all episodes."""
    return _opened(source, os.getpid())


@cache
def _opened(source: Source, _process: int) -> System:
    """The cache is per process: a forked worker must not share the driver of its parent."""
    return source.open()


@frozen
class Plan:
    """The settings of a campaign.

    `system`: opens the system in each process. `pinned`: configuration keys that are not drawn;
    keys for which the system supports one value are pinned, too. `batch`: episodes that a process
    runs before it returns their outcomes. `guided`: episodes mutate the choices of earlier ones.

    Raises:
        ConfigError: the system does not support a pinned value.
    """

    system: Source
    seed: int = 0
    terms: Terms = field(factory=Terms)
    pinned: Mapping[str, Any] = field(factory=dict, hash=False)
    batch: int = 1
    guided: bool = True

    def __attrs_post_init__(self) -> None:
        hello = own_system(self.system).hello
        for key, value in self.pinned.items():
            values = hello.config.get(key)
            if values is not None and value not in values:
                can_do = ", ".join(json.dumps(value) for value in values)
                raise ConfigError(f"--set {key}", value, f"{can_do}, as {hello.release} can do")

    def case(self, episode: int) -> Case:
        """The case of an episode: the first draw that the system can run.

        Raises:
            ConfigError: no allowed configuration with the pinned keys can be drawn and served.
        """
        refused: ConfigError | None = None
        for choices in islice(Choices.seeded(self.seed, episode), _TRIES):
            try:
                return self.drawn(choices)
            except _CannotDoError as error:  # the configuration is valid: report this one
                refused = error
            except ConfigError as error:
                refused = refused or error
        assert refused is not None
        raise refused

    def started(self, start: Start) -> Case:
        """The case of an episode: a mutation of its parents, if it has any and one can be run.

        Raises:
            ConfigError: no allowed configuration with the pinned keys can be drawn and served.
        """
        for choices in mutations(self.seed, start, _MUTATIONS) if start.parents else ():
            try:
                return self.drawn(choices)
            except ConfigError:
                continue
        return self.case(start.episode)

    def drawn(self, choices: Choices) -> Case:
        """The case that these choices make, without what the system cannot be told.

        Raises:
            ConfigError: its configuration is not allowed, or the system does not support it.
        """
        system = own_system(self.system)
        hello = system.hello
        pinned = {**hello.pinned, **self.pinned}
        case = evidence_of(hello.policy).generate(choices, pinned)
        if not hello.can_do(case.config):
            where = "--set" if self.pinned else "driver's config"
            allowed = "values of which the system can do some configuration"
            raise _CannotDoError(where, brief(str(pinned)), allowed)
        requests = case.requests
        if not can(system, "abort"):
            requests = tuple(evolve(request, abort_at=None) for request in requests)
        case = evolve(case, requests=requests, choices=choices.node)
        return within_abilities(system, case)

    def redrawn(self, case: Case, choices: Choices) -> Case:
        """The case that these choices make instead of this one; a path stays one.

        Raises:
            InputError: there is none, or the system does not support it.
        """
        return redrawn_path(case, choices) if case.path else self.drawn(choices)

    def terms_of(self, episode: int) -> Terms:
        """The terms of an episode.

        Clients abort between two steps in even episodes and while the model runs in odd ones. In
        every fourth episode the actions name the requests that end.
        """
        system = own_system(self.system)
        while_running = can(system, "abort_running") and episode % 2 == 1
        return evolve(self.terms, aborts_while_running=while_running, ends_named=episode % 4 == 2)


class _CannotDoError(ConfigError):
    """A configuration that is allowed but that the system does not support."""


# --- episodes -------------------------------------------------------------------------------------


@frozen
class Batch:
    """`episodes` consecutive episodes from `first`; none starts at the time `until` or later.

    `until`: on the clock of `time.monotonic`, which all processes share. Episode 0 always runs. A
    `whole` batch runs all its episodes.
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
    """The batches of a campaign, bounded by `episodes` or by `seconds` since the first batch.

    `first`: the first episode; `episodes` counts from 0. `whole`: a batch that was started runs to
    its end, so that no episode is skipped. `until`: the end of the time on the clock of
    `time.monotonic`; None before the first batch, or if `episodes` is the bound.
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
        """Seconds since the first batch."""
        return 0.0 if self._began is None else monotonic() - self._began

    @property
    def is_over(self) -> bool:
        """True if the time has passed."""
        return self.until is not None and monotonic() >= self.until

    @property
    def leaves_time_for_shrinking(self) -> bool:
        """True while more than a third of the time is left."""
        return self.until is None or monotonic() < self.until - self.seconds / 3

    def __iter__(self) -> Iterator[Batch]:
        """Batches of `size` episodes, at least one; the last may be smaller."""
        self._began = monotonic()
        if self.episodes is not None:
            for first in range(self.first, self.episodes, self.size):
                yield Batch(first, min(self.size, self.episodes - first))
            return
        self.until = self._began + self.seconds
        for first in count(self.first, self.size):
            if first and self.is_over:
                return
            yield Batch(first, self.size, self.until, self.whole)


# --- outcomes -------------------------------------------------------------------------------------


@frozen
class FirstSeen:
    """A finding with the first episode that showed it, and that episode's case and terms.

    If only rules judge, the episode is the one that shows it in the earliest step.
    """

    episode: int
    case: Case
    terms: Terms
    finding: Finding

    @property
    def rank(self) -> tuple[int, int]:
        """The sort key of `FirstSeen`: of one finding the lowest rank is kept."""
        return self.finding.step if self.terms.rules_only else 0, self.episode


@define
class Campaign:
    """The outcomes of the episodes of a plan so far; the counters are those of `Episode`.

    `drawn`: by configuration key, the values that the cases had.
    `situations`: episodes that reached each situation. `kept`: the choices that first reached one,
    in the order of their episodes. `known`: episodes that ended with a known difference, by id.
    `rules`: the rules that were judged. `first_seen`: the first finding of each kind and cause;
    `times`: episodes that showed it. `examples`: the first episode of each known difference and
    each expected violation, by id. `interrupted`: the campaign ended early. `seconds`: since the
    first batch; `start_seconds` and `shrink_seconds`: additional seconds for starting drivers and
    for shrinking findings. `until`: when its time ends.
    """

    plan: Plan
    episodes: int = 0
    steps: int = 0
    judged: int = 0
    on_device: int = 0
    drawn: dict[str, set[Any]] = field(factory=dict)
    counts: Counter[str] = field(factory=Counter)
    pairs: Counter[str] = field(factory=Counter)
    situations: Counter[str] = field(factory=Counter)
    kept: list[Kept] = field(factory=list)
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
        """The hello of the system: its name, release, policy and abilities."""
        return own_system(self.plan.system).hello

    @property
    def policy(self) -> str:
        """The policy of the system."""
        return self.hello.policy

    @property
    def judged_rules(self) -> list[str]:
        """Ids of the rules that judged steps, sorted."""
        return sorted(self.rules - set(self.not_evaluated))

    @property
    def never(self) -> list[str]:
        """Kinds of action that did not happen."""
        labels = evidence_of(self.policy).labels
        return [action for action in labels.actions if not self.counts[action]]

    @property
    def unreached(self) -> list[Advice]:
        """Advice for each rare situation that no episode reached and that this plan can reach."""
        labels = evidence_of(self.policy).labels
        fixed = {**self.hello.config, **{key: (value,) for key, value in self.plan.pinned.items()}}
        return [
            advice
            for advice in labels.advice
            if not self.situations[advice.situation] and advice.is_possible(fixed)
        ]

    @property
    def has_found_enough(self) -> bool:
        """True if the campaign ends because it has MOST_FINDINGS different findings."""
        return len(self.first_seen) >= MOST_FINDINGS and not self.plan.terms.rules_only

    def must_shrink(self, batches: Batches) -> bool:
        """True if there are findings and the remaining time is needed to shrink them."""
        is_small_enough = not self.first_seen or self.plan.terms.rules_only
        return not (is_small_enough or batches.leaves_time_for_shrinking)

    def starts(self, episodes: Sequence[int]) -> Sequence[Start]:
        """The starts of consecutive episodes, by what the episodes well before them kept."""
        known = known_episodes(episodes[0])
        kept = [entry for entry in self.kept if entry.episode < known] if self.plan.guided else []
        return [start(self.plan.seed, episode, kept) for episode in episodes]

    def add(self, other: "Campaign") -> None:
        """Add the outcomes of other episodes."""
        for name in ("episodes", "steps", "judged", "on_device"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for key, values in other.drawn.items():
            self.drawn.setdefault(key, set()).update(values)
        for kept in other.kept:
            reached = kept.reached - self.situations.keys() - self.pairs.keys()
            if reached and kept.choices:
                self.kept.append(evolve(kept, reached=reached))
        for name in ("counts", "pairs", "situations", "known", "overdue", "expected", "times"):
            getattr(self, name).update(getattr(other, name))
        for rule, name in other.not_evaluated.items():  # of several fields the first by name
            self.not_evaluated[rule] = min(name, self.not_evaluated.get(rule, name))
        self.rules |= other.rules
        _take_lowest(self.first_seen, other.first_seen)
        _take_lowest(self.examples, other.examples)

    @staticmethod
    def of(plan: Plan, index: int, case: Case, terms: Terms, episode: Episode) -> "Campaign":
        """The campaign that consists of one episode, numbered `index`."""
        table = evidence_of(case.config.policy).labels.situations
        reached = {name for profile in episode.profiles for name in situations(table, profile)}
        seen = Campaign(
            plan,
            episodes=1,
            steps=episode.steps,
            judged=episode.judged,
            on_device=episode.on_device,
            drawn={key: {value} for key, value in decisive_keys(case.config).items()},
            counts=episode.counts,
            pairs=episode.pairs,
            situations=Counter(reached),
            kept=[Kept(index, case.choices, frozenset(reached | episode.pairs.keys()))],
            known=Counter([episode.known] if episode.known else []),
            overdue=episode.overdue,
            expected=episode.expected,
            times=Counter(dict.fromkeys(episode.findings, 1)),
            not_evaluated=episode.not_evaluated,
        )
        if episode.judged:
            seen.rules = {rule.id for rule in judgeable(case.config)}
        for signature, finding in episode.findings.items():
            seen.first_seen[signature] = FirstSeen(index, case, terms, finding)
        for id_, finding in _known_findings(episode):
            seen.examples[id_] = FirstSeen(index, case, terms, finding)
        return seen


@frozen(kw_only=True)
class Found:
    """A finding as first seen and shrunk, with its file and the command that repeats it.

    `times`: the number of episodes that showed it. `also`: other findings with the same cause.
    """

    first: FirstSeen
    small: Shrunk
    path: Path
    again: str
    times: int = 1
    also: tuple[Signature, ...] = ()

    @property
    def finding(self) -> Finding:
        """The finding of the smallest case."""
        return self.small.finding

    @property
    def case(self) -> Case:
        """The smallest case that shows it."""
        return self.small.case


def _take_lowest(mine: dict[KeyT, FirstSeen], others: Mapping[KeyT, FirstSeen]) -> None:
    for key, other in others.items():
        mine[key] = min(mine.get(key, other), other, key=lambda seen: seen.rank)


def _known_findings(episode: Episode) -> Iterator[tuple[str, Finding]]:
    """The known difference that ended the episode, and the expected violations in it, by id."""
    if episode.known is not None:
        yield episode.known, Finding(Kind.DIVERGENCE, episode.steps, episode.known, episode.known)
    for rule in episode.expected:
        if rule == Kind.ENDLESS:
            yield rule, Finding(Kind.ENDLESS, 0, FOR_EVER, rule)
        else:
            yield rule, Finding(Kind.BROKEN_RULE, 0, rule, rule)


def run_batch(plan: Plan, batch: Iterable[Start], until: float | None = None) -> Campaign:
    """The outcomes of a batch of episodes.

    Raises:
        OutOfTimeError: a driver did not answer before the time `until`.
    """
    with answers_until(until):
        seen = Campaign(plan)
        for begun in batch:
            seen.add(run_case(plan, begun.episode, plan.started(begun)))
    return seen


def run_case(plan: Plan, episode: int, case: Case) -> Campaign:
    """The outcome of a case in the terms of this episode.

    Raises:
        OutOfTimeError: a driver did not answer in time.
    """
    terms = plan.terms_of(episode)
    return Campaign.of(plan, episode, case, terms, compare(own_system(plan.system), case, terms))


def campaign(
    plan: Plan,
    batches: Batches,
    progress: Callable[[Campaign], None],
    earlier: Campaign | None = None,
) -> Campaign:
    """Run the batches on all cores, one system per core.

    The campaign ends early after MOST_FINDINGS different findings, and when a signal or a time
    limit ends the work (`checks.ending`); the outcomes so far are kept. `progress` is called with
    them after each batch. `earlier`: the outcomes of the episodes before the first batch.

    Raises:
        ConfigError: no case can be drawn with the pinned keys.
        DriverError: a driver process violates the protocol.
    """
    total = Campaign(plan) if earlier is None else earlier
    seconds = total.seconds
    if total.has_found_enough:
        return total
    is_over = False
    if batches.episodes is not None:
        own_system(plan.system).close()  # only the workers' systems run now
    run, prepare = partial(_run_in_time, plan), partial(open_system, plan)
    began = monotonic()
    with keeping_results():
        work = _started(batches, total)
        for seen in on_all_cores(run, work, prepare, partial(close_system, plan)):
            total.add(seen)
            total.seconds = seconds + batches.passed_seconds
            progress(total)
            if total.has_found_enough or total.must_shrink(batches):
                break
        is_over = True
    total.interrupted = not is_over
    total.until = inf if batches.until is None else batches.until
    total.seconds = seconds + batches.passed_seconds
    total.start_seconds += monotonic() - began - batches.passed_seconds
    return total


def _started(batches: Batches, seen: Campaign) -> Iterator[tuple[Batch, Sequence[Start]] | None]:
    """The batches with their starts; None while a batch waits for outcomes that it must know."""
    for batch in batches:
        while seen.episodes < known_episodes(batch.first):
            if batches.is_over:
                return
            yield None
        yield batch, seen.starts(range(batch.first, batch.first + batch.episodes))


def _run_in_time(plan: Plan, work: tuple[Batch, Sequence[Start]]) -> Campaign:
    batch, starts = work
    return run_batch(plan, (starts[episode - batch.first] for episode in batch), batch.until)


def open_system(plan: Plan) -> None:
    """Open the system of this worker."""
    own_system(plan.system)


def close_system(plan: Plan) -> None:
    """Close the system: the next campaign may use another file of the same name."""
    own_system(plan.system).close()
    _opened.cache_clear()


# --- shrinking ------------------------------------------------------------------------------------


def shrunk(plan: Plan, first: FirstSeen, budget: Budget | None = None) -> Shrunk:
    """The smallest case that shows the finding, with the system's own steps on it.

    The cause of a known difference is its id; a case shows it if its episode ends with it.
    """
    budget = budget or Budget()
    system = own_system(plan.system)
    known_ids = {difference.id for difference in evidence_of(system.hello.policy).known_differences}
    signature, is_known = first.finding.signature, first.finding.cause in known_ids

    def draw(node: Node) -> Case | None:
        try:
            return plan.redrawn(first.case, Choices.again(node))
        except InputError:
            return None

    in_a_step = first.finding.kind in (Kind.DIVERGENCE, Kind.CRASH, Kind.BROKEN_RULE)

    def attempt(case: Case, most: int) -> tuple[Finding | None, int]:
        terms = evolve(first.terms, most_steps=most if in_a_step else None)
        try:
            episode = compare(system, case, terms)
        except (WorkloadError, OutOfTimeError):  # unservable, or no answer in time
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
    case = small.case
    if case.path:  # the choices of a path are those that make it from itself
        case = evolve(case, choices=choices_of_path(case.path))
    return evolve(small, case=case, finding=finding)


def shrunk_causes(
    seen: Campaign, budget: Callable[[int], Budget] = lambda _left: Budget()
) -> Iterator[tuple[FirstSeen, Shrunk, int, tuple[Signature, ...]]]:
    """For each cause: where it was first seen, its smallest case, its count, its other signatures.

    `budget`: the budget of a finding, by the number of findings left. Two findings have the same
    cause if their shrunk cases have the same `Finding.name`.
    """
    small: dict[str, tuple[FirstSeen, Shrunk]] = {}
    times, also = Counter[str](), dict[str, list[Signature]]()
    firsts = sorted(seen.first_seen.values(), key=lambda first: first.rank)
    for place, first in enumerate(firsts):
        shrunk_case = shrunk(seen.plan, first, budget(len(firsts) - place))
        name, signature = shrunk_case.finding.name, first.finding.signature
        times[name] += seen.times[signature]
        also.setdefault(name, []).append(signature)
        if name not in small or shrunk_case.size < small[name][1].size:
            small[name] = first, shrunk_case
    for name, (first, shrunk_case) in small.items():
        others = tuple(
            signature for signature in also[name] if signature != first.finding.signature
        )
        yield first, shrunk_case, times[name], others
