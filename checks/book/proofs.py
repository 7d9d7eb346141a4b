"""A page for each obligation: what it claims in words and in mathematics, and what came out."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from inspect import getsource
from typing import Any

from checks.book.chapters import proofs_table
from checks.book.formula import formula_of
from checks.book.source import Page, bullets, code, policies, proof_page, section, sections
from checks.chapters import obligation_ids
from checks.evidence import PROVEN, recorded
from checks.proofs.obligations import OBLIGATIONS
from checks.proofs.registry import Obligation, written_of

_VERDICTS = {
    "proven": "**proven**: there are no numbers for which it is false",
    "refuted": "**refuted**: there are numbers for which it is false, and they run",
    "stale": "**stale**: the machine that it speaks of takes other steps by now",
}


def proof_pages() -> Iterator[Page]:
    """A page for each obligation, and one that lists them."""
    proven = recorded(PROVEN)
    cited_by = _cited_by(proven)
    yield Page("proofs/index.md", _list_of(proven))
    for id_, one in proven.items():
        yield Page(proof_page(id_), _page_of(OBLIGATIONS[id_], one, cited_by[id_]))


def cites_of(obligation: Obligation) -> list[str]:
    """The obligations that its statement names as known, in the order of its text."""
    found = re.findall(r"\bcite\(\s*f?\"(PRV-[A-Z0-9-]+)\"", getsource(written_of(obligation)))
    return [one for one in dict.fromkeys(found) if one in OBLIGATIONS]


def _cited_by(proven: Mapping[str, Any]) -> defaultdict[str, list[str]]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for id_ in proven:
        for cited in cites_of(OBLIGATIONS[id_]):
            found[cited].append(id_)
    return found


def _list_of(proven: Mapping[str, Any]) -> str:
    refuted = [id_ for id_, one in proven.items() if one["verdict"] == "refuted"]
    listed: list[str] = []
    for policy in policies():
        beginnings = obligation_ids(policy)
        own = [id_ for id_ in proven if id_.startswith(beginnings)]
        listed.append(section(policy, proofs_table(own)) if own else "")
    of_policies = tuple(one for policy in policies() for one in obligation_ids(policy))
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


def _page_of(obligation: Obligation, record: Mapping[str, Any], cited_by: list[str]) -> str:
    second = record.get("second")
    looked = obligation.every is not None
    formula = formula_of(obligation)
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
        section("In mathematics", code("text", formula)) if formula else "",
        section(
            "As it is written",
            "A parameter is any integer, at least 0 where it is `Natural` and 1 where it is"
            " `Positive`. The functions in it are those that the reference runs.",
            code("python", getsource(written_of(obligation))),
            searched=False,
        ),
        section("It rests on", bullets(map(_with_sentence, cites_of(obligation)))),
        section("Others rest on it", bullets(map(_with_sentence, cited_by))),
        section(
            "Again on your machine",
            "It prints the verdict, the time, and for a refutation the numbers.",
            code("sh", f"lockstep prove {obligation.id}"),
        ),
    )


def _time(record: Mapping[str, Any]) -> Iterator[str]:
    """How long it took when it was recorded; records of before times were kept have none."""
    if "seconds" in record:
        yield f"**Time when recorded:** {max(record['seconds'], 0.1):.1f} s of one processor"


def _with_sentence(id_: str) -> str:
    return f"{id_}: {OBLIGATIONS[id_].sentence}"
