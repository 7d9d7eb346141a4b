"""`lockstep explain`: terms of the glossary, and the message for an unknown term."""

import re

import pytest

from checks.glossary import GLOSSARY, glossary
from tests.checks.command import lockstep


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("tkv", "tkv, max-tkv: The tkv of a request is the padded position up to which its cache"),
        ("Volume", "volume: Batch size times max-tkv of a step. The device stops where it"),
        ("known difference", "known difference: A divergence from a release that is understood."),
        ("spy-vol-1", "SPY-VOL-1: Batch size times max-tkv never exceeds the limit, in any step."),
        ("mutant", "see the chapter on evidence."),
        ("continued_by", "continued_by (key of a request): the id of the next turn of its session"),
    ],
)
def test_word_is_explained(word: str, says: str) -> None:
    ran = lockstep("explain", word)
    assert ran.code == 0
    assert says in ran.out


def test_all_are_listed_in_a_line_each() -> None:
    ran = lockstep("explain")
    assert len(ran.out.splitlines()) == len(glossary()) > 30
    assert "jump: A change of tkv by more than the one token of the step" in ran.out


def test_unknown_word_is_refused_with_the_nearest() -> None:
    ran = lockstep("explain", "volum")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == "lockstep: WORD: found 'volum'; allowed: volume\n"


def test_entries_are_in_order_and_link_to_files_that_there_are() -> None:
    assert list(glossary()) == sorted(glossary())
    for target in re.findall(r"\]\((.+?)\)", GLOSSARY.read_text(encoding="utf-8")):
        assert GLOSSARY.with_name(target).is_file()


def test_chapters_link_to_it() -> None:
    linking = {
        path.stem for path in GLOSSARY.parent.glob("*.md") if "](glossary.md)" in path.read_text()
    }
    assert linking >= {"spyre", "nano_vllm", "vllm_v0", "vllm_v1", "admission", "evidence"}
