"""The record of the mutants' outcomes: a part can be tried again and the totals renewed.

A mutant is recorded by a digest of its id, under the fingerprint of all that its outcome depends
on. Mutants that no longer exist are dropped. New mutants, and those whose code has changed, count
as untried. An outcome with another fingerprint than the newest of its room and policy is stale: it
is kept, and not counted.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from attrs import frozen

from checks.mutants.report import ALIVE, Findings, Score, is_overlooked, kill_means


def renewed(
    record: Mapping[str, Any],
    found: Findings,
    everything: Mapping[str, Sequence[str]],
    policy_fingerprint: Callable[[str], str],
) -> dict[str, Any]:
    """The record with the new findings.

    `everything`: the ids of all mutants, by room and policy; only groups with new findings change.
    A mutant that only tests noticed keeps that outcome if the tests did not run again.
    `policy_fingerprint`: gives the present fingerprint of a policy.
    """
    tried: dict[str, dict[str, str]] = {}
    for module, outcome in found.outcomes:
        tried.setdefault(module.group, {})[outcome.mutant.id] = kill_means(outcome)
    before = outcomes_on_record(record)
    return dict(record) | {
        group: _entry(group, everything[group], now, before, found.equivalents, policy_fingerprint)
        for group, now in tried.items()
    }


@frozen
class Recorded:
    """An outcome on record: the means that killed the mutant, and the program's fingerprint."""

    means: str
    fingerprint: str


def outcomes_on_record(record: Mapping[str, Any]) -> dict[str, Recorded]:
    """The outcome of every recorded mutant, by the digest of its id."""
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
    policy_fingerprint: Callable[[str], str],
) -> dict[str, Any]:
    """The entry of a room and policy: the score, the overlooked mutants, and all outcomes."""
    room, policy = group.split(", ")
    score, newest = Score(room, policy), policy_fingerprint(policy)
    overlooked, digests = {}, dict[str, dict[str, list[str]]]()
    counts = Counter[str]()
    for id_ in ids:
        outcome = _latest(now.get(id_), before.get(digest(id_)), newest)
        if outcome is None:
            counts["untried"] += 1
            continue
        by_means = digests.setdefault(outcome.fingerprint, {})
        by_means.setdefault(outcome.means, []).append(digest(id_))
        if outcome.fingerprint != newest:
            counts["stale"] += 1
            continue
        score.count(outcome.means, is_listed=id_ in equivalents)
        if is_overlooked(outcome.means, is_listed=id_ in equivalents):
            overlooked[id_] = outcome.means
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
    """The new outcome, else the old one; a mutant that only tests killed keeps that outcome."""
    if now is None or (now == ALIVE and before == Recorded("tests", newest)):
        return before
    return Recorded(now, newest)


def digest(id_: str) -> str:
    """The digest of an id in the record."""
    return blake2b(id_.encode(), digest_size=5).hexdigest()
