"""Campaigns: many episodes on all cores, what happened in them, what was found.

Episodes are run in batches of the same size whatever the number of cores, and their outcomes are
taken in order, so that the same seed and number of episodes give the same answer everywhere.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import count
from multiprocessing import parent_process
from signal import SIG_IGN, SIGINT, signal
from time import monotonic
from typing import Any

from attrs import define, field, frozen

from checks.fuzz.cases import Case, case_of
from checks.fuzz.counts import ACTIONS
from checks.fuzz.finding import Finding, Kind
from checks.fuzz.lockstep import Terms, run_case
from checks.fuzz.shrink import Shrunk, shrink
from checks.fuzz.target import Subject
from checks.harness.cores import on_all_cores

BATCH = 25  # episodes; about a second of work
MOST_FINDINGS = 5  # different ones, after which a campaign ends

Signature = tuple[Kind, str]
Progress = Callable[["Campaign"], None]


@frozen
class Plan:
    """What a campaign does in every episode. `pinned`: configuration keys that are not drawn."""

    subject: Subject
    seed: int = 0
    terms: Terms = field(factory=Terms)
    pinned: Mapping[str, Any] = field(factory=dict)

    def case(self, episode: int) -> Case:
        """The case of an episode.

        Raises:
            ConfigError: nothing can be drawn with the pinned keys.
        """
        return case_of(self.seed, episode, self.pinned, self.subject.can_do)


@frozen
class Batch:
    """Some episodes, from the `first`; none is begun at the moment `until` or later.

    `until`: on the clock of `time.monotonic`, which all processes share. The very first episode
    is run whatever the time.
    """

    first: int
    episodes: int
    until: float | None = None

    def __iter__(self) -> Iterator[int]:
        for episode in range(self.first, self.first + self.episodes):
            if episode and self.until is not None and monotonic() >= self.until:
                return
            yield episode


@frozen
class Met:
    """A finding with the episode and the case in which it was met first."""

    episode: int
    case: Case
    finding: Finding


@define
class Campaign:
    """What became of the episodes so far. `met`: the first of each kind and cause; `times`: all.

    `interrupted`: somebody ended it before its time.
    """

    episodes: int = 0
    steps: int = 0
    counts: Counter[str] = field(factory=Counter)
    known: Counter[str] = field(factory=Counter)
    met: dict[Signature, Met] = field(factory=dict)
    times: Counter[Signature] = field(factory=Counter)
    interrupted: bool = False

    @property
    def never(self) -> list[str]:
        """Kinds of action that did not happen."""
        return [action for action in ACTIONS if not self.counts[action]]

    def add(self, other: "Campaign") -> None:
        """Take in what became of later episodes."""
        self.episodes += other.episodes
        self.steps += other.steps
        self.counts += other.counts
        self.known += other.known
        self.times += other.times
        self.met = {**other.met, **self.met}


def run_batch(plan: Plan, batch: Batch) -> Campaign:
    """What becomes of a few episodes."""
    seen = Campaign()
    for index in batch:
        case = plan.case(index)
        episode = run_case(plan.subject, case, plan.terms)
        seen.episodes += 1
        seen.steps += episode.steps
        seen.counts += episode.counts
        seen.known += episode.known
        if episode.finding is not None:
            signature = episode.finding.signature
            seen.times[signature] += 1
            seen.met.setdefault(signature, Met(index, case, episode.finding))
    return seen


def campaign(plan: Plan, batches: Iterable[Batch], progress: Progress) -> Campaign:
    """Run the batches on all cores; ends early once there are many different findings.

    `progress` is called after each batch with what is known by then. An interrupt ends it, too,
    and leaves what is known.

    Raises:
        ConfigError: nothing can be drawn with the pinned keys.
    """
    known = Campaign()
    try:
        for seen in on_all_cores(partial(_uninterrupted, plan), batches):
            known.add(seen)
            progress(known)
            if len(known.met) >= MOST_FINDINGS:
                break
    except KeyboardInterrupt:
        known.interrupted = True
    return known


def _uninterrupted(plan: Plan, batch: Batch) -> Campaign:
    """A batch that an interrupt of the terminal does not reach: the main process decides."""
    if parent_process() is not None:
        signal(SIGINT, SIG_IGN)
    return run_batch(plan, batch)


def batches_of(episodes: int) -> list[Batch]:
    """So many episodes, from the first."""
    firsts = range(0, episodes, BATCH)
    return [Batch(first, min(BATCH, episodes - first)) for first in firsts]


def batches_for(seconds: float) -> Iterator[Batch]:
    """Batches until so many seconds have passed."""
    until = monotonic() + seconds
    for first in count(0, BATCH):
        if first and monotonic() >= until:
            return
        yield Batch(first, BATCH, until)


def shrunk(plan: Plan, met: Iterable[Met]) -> list[Shrunk]:
    """Each finding with the smallest case that shows it."""
    return [shrink(plan.subject, one.case, one.finding, plan.terms, plan.pinned) for one in met]
