"""What became of each mutant, on record, so that a part can be tried again and the sum be renewed.

A mutant is recorded by a digest of its id. One that is no mutant any more is forgotten; a new one,
or one whose code has changed, is counted as untried until it is tried.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from checks.mutants.report import ALIVE, Findings, Score, is_overlooked, means_of


def renewed(
    record: Mapping[str, Any], found: Findings, everything: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    """The record with what was found now.

    `everything`: the ids of all mutants, by room and policy; only of those that were tried now is
    there anything new. What only tests noticed stays so where they were not asked again.
    """
    tried: dict[str, dict[str, str]] = {}
    for module, one in found.outcomes:
        tried.setdefault(module.group, {})[one.mutant.id] = means_of(one)
    return dict(record) | {
        group: _entry(
            group,
            {id_: _latest(now.get(id_), known.get(digest(id_))) for id_ in everything[group]},
            found.equivalents,
        )
        for group, now in tried.items()
        for known in [_known(record.get(group, {}))]
    }


def outcomes_on_record(record: Mapping[str, Any]) -> dict[str, str]:
    """What became of every mutant that was tried, by the digest of its id."""
    return {id_: means for entry in record.values() for id_, means in _known(entry).items()}


def _latest(now: str | None, before: str | None) -> str | None:
    return before if now is None or (now, before) == (ALIVE, "tests") else now


def _known(entry: Mapping[str, Any]) -> dict[str, str]:
    """What became of mutants before, by digest."""
    outcomes = entry.get("outcomes", {}).items()
    return {digest: means for means, digests in outcomes for digest in digests.split()}


def _entry(
    group: str, outcomes: Mapping[str, str | None], equivalents: Collection[str]
) -> dict[str, Any]:
    """What is on record of a room and policy: the score, what was overlooked, and by digest all."""
    room, policy = group.split(", ")
    score = Score(room, policy)
    overlooked, digests = {}, dict[str, list[str]]()
    for id_, means in outcomes.items():
        if means is None:
            continue
        score.count(means, is_listed=id_ in equivalents)
        digests.setdefault(means, []).append(digest(id_))
        if is_overlooked(means, is_listed=id_ in equivalents):
            overlooked[id_] = means
    return {
        **score.as_mapping(),
        "untried": Counter(outcomes.values())[None],
        "overlooked": overlooked,
        "outcomes": {means: " ".join(sorted(digests[means])) for means in sorted(digests)},
    }


def digest(id_: str) -> str:
    """The id as it stands in the record."""
    return blake2b(id_.encode(), digest_size=5).hexdigest()
