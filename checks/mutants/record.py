"""What became of each mutant, on record, so that a part can be tried again and the sum be renewed.

A mutant is recorded by a digest of its id, under the fingerprint of all that the outcome depends
on. One that is no mutant any more is forgotten; a new one, or one whose code has changed, is
counted as untried until it is tried. An outcome with another fingerprint than the newest of its
room and policy is stale: it is kept, and not counted.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from attrs import frozen

from checks.mutants.report import ALIVE, Findings, Score, is_overlooked, means_of


def renewed(
    record: Mapping[str, Any],
    found: Findings,
    everything: Mapping[str, Sequence[str]],
    fingerprint_of: Callable[[str], str],
) -> dict[str, Any]:
    """The record with what was found now.

    `everything`: the ids of all mutants, by room and policy; only of those that were tried now is
    there anything new. What only tests noticed stays so where they were not asked again.
    `fingerprint_of`: today's, of each policy.
    """
    tried: dict[str, dict[str, str]] = {}
    for module, one in found.outcomes:
        tried.setdefault(module.group, {})[one.mutant.id] = means_of(one)
    before = outcomes_on_record(record)
    return dict(record) | {
        group: _entry(group, everything[group], now, before, found.equivalents, fingerprint_of)
        for group, now in tried.items()
    }


@frozen
class Recorded:
    """An outcome on record: what killed the mutant, and the fingerprint it was found with."""

    means: str
    fingerprint: str


def outcomes_on_record(record: Mapping[str, Any]) -> dict[str, Recorded]:
    """The outcome of every mutant that was tried, by the digest of its id."""
    return {
        id_: Recorded(means, fingerprint)
        for entry in record.values()
        for fingerprint, outcomes in entry["outcomes"].items()
        for means, digests in outcomes.items()
        for id_ in digests.split()
    }


def _entry(
    group: str,
    ids: Sequence[str],
    now: Mapping[str, str],
    before: Mapping[str, Recorded],
    equivalents: Collection[str],
    fingerprint_of: Callable[[str], str],
) -> dict[str, Any]:
    """What is on record of a room and policy: the score, what was overlooked, and by digest all."""
    room, policy = group.split(", ")
    score, newest = Score(room, policy), fingerprint_of(policy)
    overlooked, digests = {}, dict[str, dict[str, list[str]]]()
    counts = Counter[str]()
    for id_ in ids:
        known = _latest(now.get(id_), before.get(digest(id_)), newest)
        if known is None:
            counts["untried"] += 1
            continue
        by_means = digests.setdefault(known.fingerprint, {})
        by_means.setdefault(known.means, []).append(digest(id_))
        if known.fingerprint != newest:
            counts["stale"] += 1
            continue
        score.count(known.means, is_listed=id_ in equivalents)
        if is_overlooked(known.means, is_listed=id_ in equivalents):
            overlooked[id_] = known.means
    return {
        **score.as_mapping(),
        "stale": counts["stale"],
        "untried": counts["untried"],
        "overlooked": overlooked,
        "outcomes": {
            fingerprint: {means: " ".join(sorted(some)) for means, some in sorted(by_means.items())}
            for fingerprint, by_means in sorted(digests.items())
        },
    }


def _latest(now: str | None, before: Recorded | None, newest: str) -> Recorded | None:
    """What was found now, or else before; what only tests noticed stays so in the same program."""
    if now is None or (now == ALIVE and before == Recorded("tests", newest)):
        return before
    return Recorded(now, newest)


def digest(id_: str) -> str:
    """The id as it stands in the record."""
    return blake2b(id_.encode(), digest_size=5).hexdigest()
