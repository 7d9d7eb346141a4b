"""Campaigns: many episodes with a driver on each core, what happened in them, what was found."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import count, takewhile
from time import monotonic
from typing import Any

from attrs import define, evolve, field, frozen

from checks.conformance.alone import FOR_EVER
from checks.conformance.counterparts import COUNTERPARTS
from checks.conformance.episode import Outcome, Terms, run_episode
from checks.conformance.finding import Finding
from checks.fuzz.cases import Case
from checks.fuzz.finding import Kind
from checks.harness.cores import on_all_cores
from checks.harness.driver.lab import own_lab, start_own_lab
from checks.harness.driver.protocol import Hello
from spec.core.errors import ConfigError
from spec.core.requests import Request
from spec.core.rule import Kind as RuleKind

_SHORT = 20  # tokens
MOST_FINDINGS = 5  # different ones, after which a campaign ends

Signature = tuple[str, str]


@frozen
class Plan:
    """What a campaign does in every episode.

    `command`: starts the driver, which said `hello`. `pinned`: configuration keys that are not
    drawn; those of which the driver can do one value only are added to them.

    Raises:
        ConfigError: the driver cannot do a value that is pinned.
    """

    command: tuple[str, ...]
    hello: Hello
    seed: int = 0
    terms: Terms = field(factory=Terms)
    pinned: Mapping[str, Any] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        for key, value in self.pinned.items():
            values = self.hello.config.get(key)
            if values is not None and value not in values:
                can_do = ", ".join(json.dumps(one) for one in values)
                allowed = f"{can_do}, as {self.hello.release} can do"
                raise ConfigError(f"--set {key}", value, allowed)

    def case(self, episode: int) -> Case:
        """The case of an episode; without aborts if the driver knows none.

        In half of the episodes answers are short, so that more of the steps are prefills.

        Raises:
            ConfigError: nothing can be drawn with the pinned keys.
        """
        pinned = {**self.hello.pinned, **self.pinned}
        case = COUNTERPARTS[self.hello.policy].draw(self.seed, episode, pinned, self.hello.can_do)
        requests = case.requests
        if "abort" not in self.hello.abilities:
            requests = tuple(evolve(one, abort_at=None) for one in requests)
        if episode % 4 >= 2:
            requests = tuple(_with_short_answer(one) for one in requests)
        return evolve(case, requests=requests)

    def terms_of(self, episode: int) -> Terms:
        """Aborts come between two steps in every other episode, else while the model runs."""
        while_running = "abort_running" in self.hello.abilities and episode % 2 == 1
        return evolve(self.terms, aborts_while_running=while_running)


def _with_short_answer(request: Request) -> Request:
    tokens = min(request.max_tokens, _SHORT)
    ends = None if request.output_len is None else min(request.output_len, tokens)
    output = None if request.output is None else request.output[:tokens]
    return evolve(request, max_tokens=tokens, output_len=ends, output=output)


@frozen
class Met:
    """A finding with the episode, case and terms with which it was met first."""

    episode: int
    case: Case
    terms: Terms
    finding: Finding


@define
class Campaign:
    """What became of the episodes so far.

    `actions`: all kinds that are counted.
    `known`: episodes that ended with a known difference, by id; `missed`: those where it was due
    and did not show. `excused`: rules broken where that is known. `untold`: rules that could not
    be judged, with what they ask for. `met`: the first of each kind and cause, `times`: all.
    `examples`: the first episode of each known difference and each rule that was excused, by id.
    """

    actions: tuple[str, ...]
    episodes: int = 0
    steps: int = 0
    judged: int = 0
    on_device: int = 0
    counts: Counter[str] = field(factory=Counter)
    known: Counter[str] = field(factory=Counter)
    missed: Counter[str] = field(factory=Counter)
    excused: Counter[str] = field(factory=Counter)
    untold: dict[str, str] = field(factory=dict)
    rules: set[str] = field(factory=set)
    met: dict[Signature, Met] = field(factory=dict)
    times: Counter[Signature] = field(factory=Counter)
    examples: dict[str, Met] = field(factory=dict)

    @property
    def never(self) -> list[str]:
        """Kinds of action that did not happen."""
        return [action for action in self.actions if not self.counts[action]]

    def add(self, other: "Campaign") -> None:
        """Take in what became of later episodes."""
        for name in ("episodes", "steps", "judged", "on_device"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("counts", "known", "missed", "excused", "times"):
            getattr(self, name).update(getattr(other, name))
        self.untold.update(other.untold)
        self.rules |= other.rules
        self.met = {**other.met, **self.met}
        self.examples = {**other.examples, **self.examples}


def run_one(plan: Plan, index: int) -> Campaign:
    """What becomes of one episode."""
    case, terms = plan.case(index), plan.terms_of(index)
    outcome = run_episode(own_lab(plan.command), case, terms)
    counterpart = COUNTERPARTS[plan.hello.policy]
    seen = Campaign(
        counterpart.counts.actions,
        episodes=1,
        steps=outcome.steps,
        judged=outcome.judged,
        on_device=outcome.on_device,
        counts=outcome.counts,
        known=Counter([outcome.known] if outcome.known else []),
        missed=outcome.missed,
        excused=outcome.excused,
        untold=outcome.untold,
    )
    if outcome.judged:
        rules = counterpart.policy.registry.applicable(case.config)
        seen.rules = {one.id for one in rules if one.kind is not RuleKind.EVENTUALLY}
    if outcome.finding is not None:
        seen.times[outcome.finding.signature] += 1
        seen.met[outcome.finding.signature] = Met(index, case, terms, outcome.finding)
    for id_, one in _known_findings(outcome):
        seen.examples[id_] = Met(index, case, terms, one)
    return seen


def _known_findings(outcome: Outcome) -> Iterator[tuple[str, Finding]]:
    """The known difference that ended the episode, and what was excused in it, by id."""
    if outcome.known is not None:
        yield outcome.known, Finding(Kind.DIVERGENCE, outcome.steps, outcome.known, outcome.known)
    for rule in outcome.excused:
        if rule == Kind.ENDLESS:
            yield rule, Finding(Kind.ENDLESS, 0, FOR_EVER, rule)
        else:
            yield rule, Finding(Kind.BROKEN_RULE, 0, rule, rule)


def campaign(plan: Plan, episodes: Iterable[int], progress: Callable[[Campaign], None]) -> Campaign:
    """Run the episodes on all cores, a driver on each; ends early with many different findings.

    Raises:
        ConfigError: nothing can be drawn with the pinned keys.
        DriverError: the driver does not speak the protocol.
    """
    known = Campaign(COUNTERPARTS[plan.hello.policy].counts.actions)
    prepare = partial(start_own_lab, plan.command)
    for seen in on_all_cores(partial(run_one, plan), episodes, prepare):
        known.add(seen)
        progress(known)
        if len(known.met) >= MOST_FINDINGS:
            break
    return known


@define
class TimedEpisodes:
    """Episodes until so many seconds have passed since the first was asked for; at least one."""

    seconds: float
    _began: float | None = field(default=None, init=False)

    @property
    def passed_seconds(self) -> float:
        """Since the first was asked for."""
        return 0.0 if self._began is None else monotonic() - self._began

    def __iter__(self) -> Iterator[int]:
        self._began = monotonic()
        yield from takewhile(lambda index: not index or self.passed_seconds < self.seconds, count())
