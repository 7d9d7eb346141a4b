"""Campaigns in files, to go on with: counts, and the episodes in which something was seen first.

Episodes are numbered and their cases follow from the seed, so what was found is had again by
running these episodes again; a file holds no case and no finding.
"""

from collections import Counter
from hashlib import blake2b
from pathlib import Path

from attrs import asdict, frozen

from checks.export.checkpoint import CheckpointError, load, save, sources_digest
from checks.export.trace.records import Json
from checks.harness.campaign import Campaign, Plan, own_system, run_batch
from checks.harness.coverage import PAIRED
from checks.harness.driver.system import DriverCommand
from checks.harness.finding import Kind, Signature
from checks.registry import RULES
from engine.workloads.checked import brief

_COUNTS = ("episodes", "steps", "judged", "on_device", "seconds", "not_evaluated")
_COUNTERS = ("counts", "pairs", "known", "overdue", "expected")
_SOURCES = ("spec", "reference", "engine", "checks/harness", "checks/policies", "checks/drivers")


@frozen
class _Seen:
    """A finding: how often, and the episode whose case stands for it."""

    kind: Kind
    cause: str
    times: int
    episode: int

    @property
    def signature(self) -> Signature:
        """By which a campaign knows it."""
        return self.kind, self.cause


@frozen(kw_only=True)
class _Progress:
    """How far a campaign is; the next episode is the one numbered `episodes`."""

    episodes: int
    steps: int
    judged: int
    on_device: int
    seconds: float
    counts: dict[str, int]
    pairs: dict[str, int]
    known: dict[str, int]
    overdue: dict[str, int]
    expected: dict[str, int]
    not_evaluated: dict[str, str]
    rules: tuple[str, ...]
    found: tuple[_Seen, ...]
    examples: dict[str, int]


def save_campaign(seen: Campaign, path: Path) -> None:
    """Write how far a campaign is, all of whose episodes up to now were run.

    Raises:
        TraceError: the file cannot be written.
    """
    plain: Json = {name: getattr(seen, name) for name in (*_COUNTS, *_COUNTERS)}
    progress = _Progress(
        **plain,
        rules=tuple(sorted(seen.rules)),
        found=tuple(
            _Seen(*signature, seen.times[signature], first.episode)
            for signature, first in seen.first_seen.items()
        ),
        examples={id_: first.episode for id_, first in seen.examples.items()},
    )
    save(path, _about(seen.plan), progress)


def read_campaign(plan: Plan, path: Path) -> Campaign:
    """The campaign of this plan as far as it was when it was written.

    Raises:
        CheckpointError: no such file, or of another plan, or an episode does not show again what
            it had shown.
    """
    found = load(path, _about(plan), _Progress)
    for pair in found.pairs:
        if pair.count(PAIRED) != 1:
            allowed = f"an event, {PAIRED!r} and a transition"
            raise CheckpointError("content.pairs", pair, allowed).at(path)
    for name, rules in (("rules", found.rules), ("not_evaluated", found.not_evaluated)):
        for rule in rules:
            if rule not in RULES:
                raise CheckpointError(f"content.{name}", brief(rule), "ids of rules").at(path)
    episodes = {one.episode for one in found.found} | set(found.examples.values())
    again = {episode: run_batch(plan, [episode]) for episode in sorted(episodes)}
    plain: Json = {name: getattr(found, name) for name in _COUNTS}
    plain |= {name: Counter(getattr(found, name)) for name in _COUNTERS}
    try:
        return Campaign(
            plan,
            **plain,
            rules=set(found.rules),
            times=Counter({one.signature: one.times for one in found.found}),
            first_seen={
                one.signature: again[one.episode].first_seen[one.signature] for one in found.found
            },
            examples={id_: again[episode].examples[id_] for id_, episode in found.examples.items()},
        )
    except KeyError as error:
        allowed = "what the episode shows again; the system does otherwise now"
        raise CheckpointError("content.found", str(error), allowed).at(path) from None


def _about(plan: Plan) -> Json:
    """What must be the same: the system, what is drawn, how it is compared, the sources of both."""
    hello, source = own_system(plan.system).hello, plan.system
    argv = source.argv if isinstance(source, DriverCommand) else ()
    return {
        "system": hello.name,
        "release": hello.release,
        "policy": hello.policy,
        "driver": [_digest(Path(one)) for one in argv if one.endswith(".py")],
        "seed": plan.seed,
        "terms": asdict(plan.terms),
        "set": {key: plan.pinned[key] for key in sorted(plan.pinned)},
        "sources": sources_digest(*_SOURCES),
    }


def _digest(path: Path) -> str:
    return blake2b(path.read_bytes(), digest_size=8).hexdigest()
