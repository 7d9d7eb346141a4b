"""Checkpoints of campaigns: their counts, kept choices, and the first episode of each finding.

A file holds no case and no finding: the case of an episode follows from its choices, so reading a
file runs these episodes again.
"""

from collections import Counter
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

from attrs import asdict, frozen

from checks.export.checkpoint import CheckpointError, load, save, sources_digest
from checks.export.trace.records import Json
from checks.harness.campaigns.campaign import Campaign, Plan, own_system, run_case
from checks.harness.campaigns.guiding import Kept
from checks.harness.choices import Choices, Node, node_as_json, node_from_json
from checks.harness.coverage import PAIRED
from checks.harness.driver.system import DriverCommand
from checks.harness.finding import Kind, Signature
from checks.registry import RULES
from engine.workloads.checked import brief

_COUNTS = ("episodes", "steps", "judged", "on_device", "seconds", "not_evaluated")
_COUNTERS = ("counts", "pairs", "situations", "known", "overdue", "expected")
_SOURCES = ("spec", "reference", "engine", "checks/harness", "checks/policies", "checks/drivers")


@frozen
class _Seen:
    """A finding: its signature, its count, and the episode that showed it first."""

    kind: Kind
    cause: str
    times: int
    episode: int

    @property
    def signature(self) -> Signature:
        """The key of the finding in a campaign."""
        return self.kind, self.cause


@frozen
class _Kept:
    """Kept choices: the episode, the choices as JSON, the situations that it reached first."""

    episode: int
    choices: list[Any]
    reached: tuple[str, ...]


@frozen(kw_only=True)
class Progress:
    """The progress of a campaign; the next episode has the number `episodes`.

    `choices`: of each episode in `found` and `examples`, by its number; none of a path.
    """

    episodes: int
    steps: int
    judged: int
    on_device: int
    seconds: float
    drawn: dict[str, list[Any]]
    counts: dict[str, int]
    pairs: dict[str, int]
    situations: dict[str, int]
    kept: tuple[_Kept, ...]
    known: dict[str, int]
    overdue: dict[str, int]
    expected: dict[str, int]
    not_evaluated: dict[str, str]
    rules: tuple[str, ...]
    found: tuple[_Seen, ...]
    examples: dict[str, int]
    choices: dict[str, list[Any]]


def save_campaign(seen: Campaign, path: Path) -> None:
    """Write the progress of a campaign that has run all episodes up to the last one.

    Raises:
        TraceError: the file cannot be written.
    """
    save(path, about(seen.plan), progress_of(seen))


def progress_of(seen: Campaign) -> Progress:
    """What a checkpoint holds of a campaign."""
    plain: Json = {name: getattr(seen, name) for name in (*_COUNTS, *_COUNTERS)}
    firsts = (*seen.first_seen.values(), *seen.examples.values())
    return Progress(
        **plain,
        drawn={key: sorted(values, key=str) for key, values in sorted(seen.drawn.items())},
        kept=tuple(
            _Kept(kept.episode, node_as_json(kept.choices), tuple(sorted(kept.reached)))
            for kept in seen.kept
        ),
        choices={str(first.episode): node_as_json(first.case.choices) for first in firsts},
        rules=tuple(sorted(seen.rules)),
        found=tuple(
            _Seen(*signature, seen.times[signature], first.episode)
            for signature, first in seen.first_seen.items()
        ),
        examples={id_: first.episode for id_, first in seen.examples.items()},
    )


def read_campaign(plan: Plan, path: Path) -> Campaign:
    """The campaign of this plan, as far as the file records it.

    Raises:
        CheckpointError: there is no such file, it is of another plan, or an episode no longer shows
            its finding.
    """
    progress = load(path, about(plan), Progress)

    def run_again(episode: int) -> Campaign:
        choices = _node(progress.choices.get(str(episode)), path)
        return run_case(plan, episode, plan.drawn(Choices.again(choices)))

    return campaign_of(plan, progress, run_again, path)


def campaign_of(
    plan: Plan, progress: Progress, run_again: Callable[[int], Campaign], path: Path
) -> Campaign:
    """The campaign in a checkpoint; `run_again` runs an episode that a finding was seen in.

    Raises:
        CheckpointError: the file was changed, or an episode no longer shows its finding.
    """
    for pair in progress.pairs:
        if pair.count(PAIRED) != 1:
            allowed = f"an event, {PAIRED!r} and a transition"
            raise CheckpointError("content.pairs", pair, allowed).at(path)
    for name, rules in (("rules", progress.rules), ("not_evaluated", progress.not_evaluated)):
        for rule in rules:
            if rule not in RULES:
                raise CheckpointError(f"content.{name}", brief(rule), "ids of rules").at(path)
    for key, values in progress.drawn.items():
        if any(isinstance(value, list | dict) for value in values):
            allowed = "texts, numbers, true and false"
            raise CheckpointError(f"content.drawn.{key}", brief(values), allowed).at(path)
    episodes = {first.episode for first in progress.found} | set(progress.examples.values())
    again = {episode: run_again(episode) for episode in sorted(episodes)}
    plain: Json = {name: getattr(progress, name) for name in _COUNTS}
    plain |= {name: Counter(getattr(progress, name)) for name in _COUNTERS}
    try:
        return Campaign(
            plan,
            **plain,
            drawn={key: set(values) for key, values in progress.drawn.items()},
            kept=[
                Kept(entry.episode, _node(entry.choices, path), frozenset(entry.reached))
                for entry in progress.kept
            ],
            rules=set(progress.rules),
            times=Counter({finding.signature: finding.times for finding in progress.found}),
            first_seen={
                finding.signature: again[finding.episode].first_seen[finding.signature]
                for finding in progress.found
            },
            examples={
                id_: again[episode].examples[id_] for id_, episode in progress.examples.items()
            },
        )
    except KeyError as error:
        allowed = "what the episode shows again; the system does otherwise now"
        raise CheckpointError("content.found", str(error), allowed).at(path) from None


def _node(choices: list[Any] | None, path: Path) -> Node:
    """The choices that the checkpoint has of an episode.

    Raises:
        CheckpointError: they are missing, or are no choices.
    """
    try:
        return node_from_json(choices or ())
    except (TypeError, KeyError, ValueError):
        allowed = "choices as `lockstep` writes them"
        raise CheckpointError("content.choices", brief(choices), allowed).at(path) from None


def about(plan: Plan) -> Json:
    """The properties that a later run must share: system, seed, pinned keys, terms, sources."""
    hello, source = own_system(plan.system).hello, plan.system
    argv = source.argv if isinstance(source, DriverCommand) else ()
    return {
        "system": hello.name,
        "release": hello.release,
        "policy": hello.policy,
        "driver": [_digest(Path(path)) for path in argv if path.endswith(".py")],
        "seed": plan.seed,
        "terms": asdict(plan.terms),
        "set": {key: plan.pinned[key] for key in sorted(plan.pinned)},
        "sources": sources_digest(*_SOURCES),
    }


def _digest(path: Path) -> str:
    return blake2b(path.read_bytes(), digest_size=8).hexdigest()
