"""Generated pages are written in sentences: capitals, one and many, a subject before its verb."""

import re
from collections.abc import Iterator

import pytest

from checks.book.drawing import Films
from checks.book.instances import instance_pages
from checks.book.proofs import proof_pages
from checks.book.releases import release_pages
from checks.book.rules import rule_pages
from checks.book.runs import Shown
from checks.book.source import Page
from checks.words import joined, sentence_case

FENCED = re.compile(r"```.*?```", re.DOTALL)
NAMES = ("vLLM", "nano", "sendnn", "lockstep", "cvc5")
SLIPS = {
    "a sentence begins in lower case": re.compile(
        r"(?:^- |^    - |^(?=[a-z])|[.!?] )([a-z][a-z]+ \w.*)"
    ),
    "one is written as many": re.compile(
        r"\b1 (?:steps|tokens|requests|rules|states|cases|blocks)\b"
    ),
    "a list stands before its subject": re.compile(r"\bOf \d+(?:, \d+)*, the\b"),
}


def slips(text: str) -> Iterator[str]:
    for line in FENCED.sub("", text).splitlines():
        for slip, pattern in SLIPS.items():
            found = pattern.search(line)
            if found and not (found.lastindex and found[1].startswith(NAMES)):
                yield f"{slip}: {line[:120]}"


def generated() -> Iterator[Page]:
    broken = Shown("SPY-VOL-1", "documented", "batch 2 x tkv 4", "a.jsonl", ("Request 0 arrives",))

    def drawn(_run: Shown, _name: str) -> str:
        return ""

    yield from rule_pages([broken], drawn)
    yield from instance_pages([broken], drawn)
    yield from proof_pages({}, Films({}, {}))
    yield from release_pages(Films({}, {}))


@pytest.mark.thorough
def test_no_generated_page_has_a_slip() -> None:
    found = {page.path: list(slips(page.text)) for page in generated()}

    assert len(found) > 600
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "line",
    [
        "Of 0, 1, the may sample the end of sequence with any token.",
        "SPY-PAU-6, in 1 steps: refused.",
        "- the client of request 1 goes away",
        "An end. left padding takes the tkv to a boundary",
    ],
)
def test_a_slip_is_noticed(line: str) -> None:
    assert [*slips(line)]


def test_sentences_begin_with_a_capital_and_names_stay() -> None:
    assert sentence_case("batch 2 x tkv 4") == "Batch 2 x tkv 4"
    assert sentence_case("vLLM looks") == "vLLM looks"
    assert joined(["0"]) == "0"
    assert joined(["0", "1", "2"]) == "0, 1 and 2"
