"""A page for each obligation: its claim in words and as a formula, and its verdict."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from inspect import getsource
from typing import Any

from checks.book.chapters import proofs_table
from checks.book.drawing import Films
from checks.book.formula import formula_text
from checks.book.refuted import Refuted
from checks.book.source import Page, bullets, code, policies, proof_page, section, sections
from checks.chapters import obligation_ids
from checks.evidence import PROVEN, recorded
from checks.proofs.obligations import OBLIGATIONS
from checks.proofs.registry import Obligation, written_statement

_VERDICTS = {
    "proven": "**proven**: there are no numbers for which it is false",
    "refuted": "**refuted**: there are numbers for which it is false, and they run",
    "stale": "**stale**: the machine that it speaks of takes other steps by now",
}


def proof_pages(refuted: Mapping[str, Refuted], films: Films) -> Iterator[Page]:
    """A page for each obligation, and one that lists them.

    `refuted`: the refuted claims with their numbers and runs.
    """
    proven = recorded(PROVEN)
    citing = _citing_obligations(proven)
    yield Page("proofs/index.md", _list_page(proven))
    for id_, proof in proven.items():
        shown = _refutation(refuted[id_], films) if id_ in refuted else ""
        yield Page(proof_page(id_), _page(OBLIGATIONS[id_], proof, citing[id_], shown))


def citations(obligation: Obligation) -> list[str]:
    """The obligations that its statement cites, in the order of the source."""
    cited = re.findall(
        r"\bcite\(\s*f?\"(PRV-[A-Z0-9-]+)\"", getsource(written_statement(obligation))
    )
    return [name for name in dict.fromkeys(cited) if name in OBLIGATIONS]


def _citing_obligations(proven: Mapping[str, Any]) -> defaultdict[str, list[str]]:
    citing: defaultdict[str, list[str]] = defaultdict(list)
    for id_ in proven:
        for cited in citations(OBLIGATIONS[id_]):
            citing[cited].append(id_)
    return citing


def _list_page(proven: Mapping[str, Any]) -> str:
    refuted = [id_ for id_, proof in proven.items() if proof["verdict"] == "refuted"]
    listed: list[str] = []
    for policy in policies():
        beginnings = obligation_ids(policy)
        own = [id_ for id_ in proven if id_.startswith(beginnings)]
        listed.append(section(policy, proofs_table(own)) if own else "")
    of_policies = tuple(id_ for policy in policies() for id_ in obligation_ids(policy))
    others = [id_ for id_ in proven if not id_.startswith(of_policies)]
    return sections(
        "# Proofs",
        f"{len(proven)} claims about every length, each decided by a solver: that there are no"
        " numbers for which it is false, or which ones. What is false of a text is stated as the"
        f" text has it, and {len(refuted)} such claims are refuted. How they make up one argument,"
        " and what is not in the solver, is in [the chapter on proofs](../chapters/proofs.md); the"
        " story without a solver is [in pictures](../exact.md).",
        section("Of Spyre's admission and padding", proofs_table(others)) if others else "",
        *listed,
    )


def _refutation(claim: Refuted, films: Films) -> str:
    """The numbers that refute a claim, and the run of the reference with them."""
    numbers = f"The smallest numbers: {claim.in_words}."
    if claim.trace is None:
        return section("The numbers that refute it", numbers)
    name = claim.trace.name
    return section(
        "The numbers that refute it",
        f"{numbers} In the reference they make this run.",
        films.element(name, "refuted", root="../"),
        f"[The run as a file](../runs/{name}); `lockstep replay {name}` takes it again.",
    )


def _page(
    obligation: Obligation, record: Mapping[str, Any], citing: list[str], refutation: str
) -> str:
    second = record.get("second")
    looked = obligation.every is not None
    formula = formula_text(obligation)
    return sections(
        f"# {obligation.id}",
        f"> {obligation.sentence}",
        bullets(
            [
                f"**Verdict:** {_VERDICTS.get(record['verdict'], record['verdict'])}",
                f"**For:** {obligation.bounds}",
                "**Decided by:** " + ("looking at all numbers" if looked else "the solver Z3"),
                *([f"**A second solver, cvc5:** {second}"] if second else []),
                *_time(record),
                f"**Serves the rules:** {', '.join(obligation.rules) or 'none by itself'}",
            ]
        ),
        refutation,
        section("In mathematics", code("text", formula)) if formula else "",
        section(
            "As it is written",
            "A parameter is any integer, at least 0 where it is `Natural` and 1 where it is"
            " `Positive`. The functions in it are those that the reference runs.",
            code("python", getsource(written_statement(obligation))),
            searched=False,
        ),
        section("It rests on", bullets(map(_with_sentence, citations(obligation)))),
        section("Others rest on it", bullets(map(_with_sentence, citing))),
        section(
            "Again on your machine",
            "It prints the verdict, the time, and for a refutation the numbers.",
            code("sh", f"lockstep prove {obligation.id}"),
        ),
    )


def _time(record: Mapping[str, Any]) -> Iterator[str]:
    """The recorded time; older records have none."""
    if "seconds" in record:
        yield f"**Time when recorded:** {max(record['seconds'], 0.1):.1f} s of one processor"


def _with_sentence(id_: str) -> str:
    return f"{id_}: {OBLIGATIONS[id_].sentence}"
