"""A page for each rule: its sentence, its code, a witness, and the verdicts of the checks."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from inspect import getsource, getsourcefile, getsourcelines
from operator import attrgetter
from pathlib import Path
from typing import Any

from attrs import frozen

import spec
from checks.book.chapters import rules_table
from checks.book.outward import citation
from checks.book.releases import difference_line
from checks.book.runs import Shown
from checks.book.source import (
    Page,
    bullets,
    code,
    folded,
    policies,
    proof_page,
    rule_page,
    section,
    sections,
    slug,
)
from checks.evidence import (
    CONFORMED,
    EXPLORED,
    Claim,
    Verdict,
    by_claim,
    recorded,
    recorded_verdicts,
    verdicts_on,
)
from checks.explore.instance import title_of
from checks.explore.policy import machine_of
from checks.harness.policy import evidence_of
from checks.registry import claims_of
from checks.words import counted, sentence_case
from spec.core.rule import AnyRule, Kind

_ROOT = Path(spec.__file__).parent.parent
_JUDGED = {
    Kind.ALWAYS: "in every state",
    Kind.STEP: "of every step",
    Kind.GUARD: "of every step that takes, or refuses, what it guards",
    Kind.BETWEEN: "of every change between two steps: arrivals and aborts",
    Kind.EVENTUALLY: "of every run in which the scheduler goes on",
}
Drawn = Callable[[Shown, str], str]  # the page element of a run, by the key of its frame


def instance_page(title: str) -> str:
    """The page of an instance, from the root of the book."""
    return f"instances/{slug(title)}.md"


def rule_pages(shown: Iterable[Shown], drawn: Drawn) -> Iterator[Page]:
    """A page for each rule, and one for each policy that lists them."""
    by_rule: dict[str, list[Shown]] = {}
    for run in shown:
        by_rule.setdefault(run.rule, []).append(run)
    for policy in policies():
        verdicts = recorded_verdicts(claims_of(policy).registry.rules.values())
        yield Page(f"rules/{slug(policy)}.md", _list_page(policy, verdicts))
        for verdict in verdicts:
            text = _page(policy, verdict, by_rule.get(verdict.rule.id, []), drawn)
            yield Page(rule_page(verdict.rule.id), text)


def _list_page(policy: str, verdicts: Sequence[Verdict]) -> str:
    counts: dict[str, int] = {}
    for verdict in verdicts:
        counts[verdict.word] = counts.get(verdict.word, 0) + 1
    said = ", ".join(f"{count} {word}" for word, count in counts.items())
    chapter = f"../chapters/{policy.replace('-', '_')}.md"
    return sections(
        f"# Rules of {policy}",
        f"{counted(len(verdicts), 'rule')}: {said}. What they are about is described in order in"
        f" [the chapter]({chapter}).",
        rules_table(verdicts),
    )


def _page(policy: str, verdict: Verdict, shown: Sequence[Shown], drawn: Drawn) -> str:
    rule = verdict.rule
    refuted = [run for run in shown if run.found]
    ends = {run.story for run in refuted}
    speaks = [run for run in shown if not run.found and run.story not in ends]
    return sections(
        f"# {rule.id}",
        f"> {rule.sentence}",
        bullets(
            [
                f"**Verdict:** {in_words(verdict)}",
                f"**Policy:** [{policy}]({slug(policy)}.md)",
                f"**Written in:** {citation(rule.source)}",
                f"**Judged:** {_JUDGED[rule.kind]}",
            ]
        ),
        _refutations(rule, refuted, drawn),
        section("A step on which it speaks", *(_speaking(run, drawn) for run in speaks)),
        section("Its code", *_code(rule), searched=False),
        _where_it_holds(policy, verdict),
        _proofs(verdict),
        _releases(policy, rule),
    )


def in_words(verdict: Verdict) -> str:
    """The verdict on a rule, with its bounds, in a sentence."""
    parts = []
    if verdict.refuted_in:
        where = counted(len(verdict.refuted_in), "instance")
        parts.append(f"refuted in {where} of {len(verdict.refuted_in) + len(verdict.holds_in)}")
    elif verdict.holds_in:
        parts.append(
            f"holds in every state of {counted(len(verdict.holds_in), 'instance')},"
            f" {verdict.states:,} states"
        )
    if verdict.proven:
        parts.append(f"{counted(len(verdict.proven), 'proof')}, the widest of {_widest(verdict)}")
    if verdict.disproven:
        parts.append(f"refuted, as the text has it, by {', '.join(verdict.disproven)}")
    return "; ".join(parts) or "not judged"


def _widest(verdict: Verdict) -> str:
    return next(iter(by_claim(verdict.proven)))


# --- runs -----------------------------------------------------------------------------------------


def _refutations(rule: AnyRule, refuted: Sequence[Shown], drawn: Drawn) -> str:
    """The shortest counterexample in pictures, and links to the others."""
    if not refuted:
        return ""
    first, *others = sorted(refuted, key=lambda run: len(run.story))
    more = bullets(
        f"[{run.instance}](../{instance_page(run.instance)}): {run.found}" for run in others
    )
    return section(
        "How it is broken",
        f"In the instance [{first.instance}](../{instance_page(first.instance)}), by a shortest"
        f" run: {first.found}.",
        drawn(first, "broken"),
        replayed(first),
        f"It is broken in {counted(len(others), 'more instance')} too:\n\n{more}" if others else "",
    )


def replayed(shown: Shown) -> str:
    """The commands that write and replay a counterexample."""
    asked = f'"{shown.instance}"' if " " in shown.instance else shown.instance
    lines = [f"lockstep explore {asked}", f"lockstep replay counterexamples/{shown.trace}"]
    return f"[The run as a file](../runs/{shown.trace}). Again on your machine:\n\n" + code(
        "sh", "\n".join(lines)
    )


def _speaking(shown: Shown, drawn: Drawn) -> str:
    return sections(
        f"The last step of a shortest run in [{shown.instance}](../{instance_page(shown.instance)})"
        " in which the rule has something to say.",
        drawn(shown, "speaks"),
    )


# --- code -----------------------------------------------------------------------------------------


@frozen
class _Written:
    """The source of a function: file, line and text."""

    file: str
    line: int
    text: str

    @classmethod
    def of(cls, function: Callable[..., Any]) -> "_Written":
        file = Path(getsourcefile(function) or "").relative_to(_ROOT)
        return cls(str(file), getsourcelines(function)[1], getsource(function))


def _code(rule: AnyRule) -> Iterator[str]:
    """The source of the predicate that alone decides whether the rule is broken."""
    written = _Written.of(predicate(rule))
    yield f"`{written.file}`, line {written.line}. Each value that it yields is a violation."
    yield code("python", written.text)


def predicate(rule: AnyRule) -> Callable[..., Any]:
    """The function that judges the rule, by its kind."""
    judged = rule.in_state or rule.of_step or rule.of_change or rule.goal
    assert judged is not None
    return judged


# --- evidence -------------------------------------------------------------------------------------


def _where_it_holds(policy: str, verdict: Verdict) -> str:
    explored = recorded(EXPLORED)
    judged = [*verdict.refuted_in, *verdict.holds_in]
    titles = [title for title in map(title_of, machine_of(policy).instances) if title in judged]
    links = [
        f"[{title}](../{instance_page(title)})"
        + (" (refuted)" if title in verdict.refuted_in else "")
        for title in titles
    ]
    speaks = sum(explored[title]["witnesses"].get(verdict.rule.id, 0) for title in titles)
    expected = evidence_of(policy).expected_reasons().get(verdict.rule.id)
    return section(
        "In which instances it holds",
        f"Every reachable state and step of {counted(len(titles), 'instance')} was judged. On"
        f" {speaks:,} transitions the rule had something to say."
        if titles
        else "",
        folded("All of them", ", ".join(links)) if links else "",
        f"Where it need not hold: {expected}." if expected else "",
        searched=False,
    )


def _proofs(verdict: Verdict) -> str:
    groups = (("proven", verdict.proven), ("refuted", verdict.disproven), ("stale", verdict.stale))
    parts = [
        part
        for word, claims in groups
        for family, own in _by_family(claims).items()
        for part in _family(family, word, own)
    ]
    return section("What is proven of it", *parts)


def _by_family(claims: Mapping[str, Claim]) -> dict[str, dict[str, Claim]]:
    """Claims by the beginning of their ids: PRV-ANY for PRV-ANY-1."""
    families: dict[str, dict[str, Claim]] = {}
    for id_, claim in claims.items():
        families.setdefault(id_.rpartition("-")[0], {})[id_] = claim
    return families


def _family(family: str, word: str, claims: Mapping[str, Claim]) -> Iterator[str]:
    """A line for the family, and a bullet for each scope with its obligations."""
    scopes = by_claim(claims, attrgetter("broken_by" if word == "refuted" else "about"))
    yield f"**{family}**, {counted(len(claims), 'claim')} {word}:"
    yield bullets(
        f"{sentence_case(scope)}: " + ", ".join(f"[{id_}](../{proof_page(id_)})" for id_ in ids)
        for scope, ids in scopes.items()
    )


def _releases(policy: str, rule: AnyRule) -> str:
    said: Mapping[str, str] = verdicts_on(rule.id, recorded(CONFORMED))
    differences = [
        difference_line(difference)
        for difference in evidence_of(policy).known_differences
        if rule.id in f"{difference.says} {difference.reason}"
    ]
    lines = [f"**[{name}](../releases/{slug(name)}.md):** {words}" for name, words in said.items()]
    return section("In released schedulers", bullets(lines), bullets(differences))
