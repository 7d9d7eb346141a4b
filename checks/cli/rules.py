"""`lockstep rules`: every rule with its source and its verdicts."""

from collections import Counter
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import click
from attrs import asdict
from rich.console import Console
from rich.text import Text

from checks.cli import HOLDS
from checks.cli.ci import Case, status_of
from checks.cli.common import Output, json_option, match_prefixes, print_lines
from checks.cli.outputs import Command
from checks.evidence import (
    CONFORMED,
    Claim,
    Verdict,
    by_claim,
    evidence_on_releases,
    recorded,
    recorded_verdicts,
    verdicts_on,
)
from checks.registry import POLICIES, RULES, claims_of, known_policy
from checks.words import counted

_WORDS = (
    "proven of every run of the machine",
    "proven of the formula",
    "proven in part",
    "holds",
    "refuted",
    "not judged",
)
_SHORT = {_WORDS[0]: "proven, runs", _WORDS[1]: "proven, formula"}  # in a column


@click.command(cls=Command)
@click.argument("asked", nargs=-1, metavar="[ID|WORD …]")
@click.option(
    "--policy",
    metavar=f"[{'|'.join(POLICIES)}]",
    callback=lambda _context, _option, name: name and known_policy(name),
    help="Only of this one.",
)
@click.option("--refuted", is_flag=True, help="Only those that are refuted somewhere.")
@click.option("--unproven", is_flag=True, help="Only those that no obligation proves.")
@json_option
def rules(
    asked: tuple[str, ...], policy: str | None, refuted: bool, unproven: bool, output: Output
) -> int:
    """List every rule: its sentence, its source, and which checks cover it with what result.

    ID is a rule's id or the beginning of several: SPY-VOL-1, SPY-PFX, BLK; those of nano-vLLM begin
    with NANO, those of vLLM V1 with V1. What begins no id is a WORD, and only rules are listed with
    it in their sentence or source. Each takes a line; one rule alone is shown with everything. The
    verdicts are those on record with this version, made by exploring the default instances, by
    proving the obligations, and by campaigns with released schedulers.
    """
    chosen = [
        verdict
        for verdict in recorded_verdicts(RULES[id_] for id_ in _requested_ids(asked))
        if (policy is None or verdict.rule.id in claims_of(policy).registry.rules)
        and (not refuted or verdict.refuted_in or verdict.disproven)
        and (not unproven or not verdict.proven)
    ]
    screen, releases = output.screen, evidence_on_releases(recorded(CONFORMED))
    if len(chosen) == 1 and asked:
        _print_one(screen, chosen[0])
    else:
        _print_all(screen, chosen, {} if len(chosen) < len(RULES) else releases)
    cases = [_case(verdict) for verdict in chosen]
    report = {"rules": [_as_mapping(verdict) for verdict in chosen], "releases": releases}
    return output.end(HOLDS, report, cases)


def _requested_ids(asked: Sequence[str]) -> list[str]:
    """The ids that begin with an asked prefix (all without one) and whose rules have every word."""
    ids = [text for text in asked if any(id_.startswith(text.upper()) for id_ in RULES)]
    words = [text for text in asked if text not in ids]
    for word in words:
        if not any(_has(id_, word) for id_ in RULES):
            match_prefixes([word], RULES, "ID", nearest=3)
    listed = match_prefixes(ids, RULES, "ID")
    return [id_ for id_ in listed if all(_has(id_, word) for word in words)]


def _has(id_: str, word: str) -> bool:
    rule = RULES[id_]
    return word.lower() in f"{rule.sentence} {rule.source}".lower()


def _print_all(
    screen: Console, verdicts: Sequence[Verdict], releases: Mapping[str, Mapping[str, str]]
) -> None:
    """Print a line for each rule by policy, the evidence on releases, and counts of verdicts."""
    width = max((len(verdict.rule.id) for verdict in verdicts), default=0)
    for policy in POLICIES:
        own = [
            verdict for verdict in verdicts if verdict.rule.id in claims_of(policy).registry.rules
        ]
        if own:
            screen.print(Text.assemble((policy, "bold")))
        for verdict in own:
            word = _SHORT.get(verdict.phrase, verdict.phrase)
            print_lines(screen, f"{verdict.rule.id:{width}}  {word:15}  {verdict.rule.sentence}")
    for release, evidence in releases.items():
        screen.print(Text.assemble((release, "bold")))
        print_lines(screen, *(f"{means:10}  {extent}" for means, extent in evidence.items()))
    counts = Counter(verdict.phrase for verdict in verdicts)
    parts = [f"{counts[word]} {word}" for word in _WORDS if counts[word]]
    example = f"; one alone: lockstep rules {verdicts[0].rule.id}" if verdicts else ""
    print_lines(screen, f"{counted(len(verdicts), 'rule')}: {', '.join(parts) or 'none'}{example}")


def _print_one(screen: Console, verdict: Verdict) -> None:
    """Print everything about one rule; its obligations grouped by claim."""
    claims = {"proven": verdict.proven, "refuted": verdict.disproven, "stale": verdict.stale}
    for name, value in _as_mapping(verdict).items():
        title = name.replace("_", " ")
        match value:
            case dict() if name == "released":
                lines = [f"{title} {said}: {release}" for release, said in value.items()]
            case dict() if name == "claims":
                lines = []
            case dict():
                word = name.removesuffix("_for")
                said = attrgetter("broken_by" if word == "refuted" else "about")
                grouped = by_claim(claims[word], said).items()
                lines = [f"{word} of {about}: {', '.join(ids)}" for about, ids in grouped]
            case list():
                lines = [f"{title}: {'; '.join(value)}"] if value else []
            case _ if name == "verdict":
                lines = [f"{title}: {verdict.phrase}"]
            case _:
                lines = [] if name == "of" else [f"{title}: {value}"]
        print_lines(screen, *lines)


def _case(verdict: Verdict) -> Case:
    word = verdict.word
    return Case(
        suite=_policy(verdict),
        name=verdict.rule.id,
        status=status_of(violated=word == "refuted", undecided=word == "not judged"),
        says=verdict.rule.sentence,
        found=verdict.explored,
    )


def _policy(verdict: Verdict) -> str:
    return next(name for name in POLICIES if verdict.rule.id in claims_of(name).registry.rules)


def _as_mapping(verdict: Verdict) -> dict[str, Any]:
    rule = verdict.rule
    return {
        "id": rule.id,
        "policy": _policy(verdict),
        "says": rule.sentence,
        "source": str(rule.source),
        "kind": rule.kind.value,
        "verdict": verdict.word,
        "of": verdict.of,
        "explored": verdict.explored,
        "holds_in": list(verdict.holds_in),
        "refuted_in": list(verdict.refuted_in),
        "states": verdict.states,
        "witness_edges": verdict.witnessed,
        "proven_for": _bounds(verdict.proven),
        "refuted_for": _bounds(verdict.disproven),
        "stale_for": _bounds(verdict.stale),
        "claims": {
            id_: asdict(claim)
            for claims in (verdict.proven, verdict.disproven, verdict.stale)
            for id_, claim in claims.items()
        },
        "released": verdicts_on(rule.id, recorded(CONFORMED)),
    }


def _bounds(claims: Mapping[str, Claim]) -> dict[str, str]:
    return {id_: claim.bounds for id_, claim in claims.items()}
