"""The chapters of nano-vLLM and vLLM V1 show every proof on record and explain every refutation."""

import pytest

from checks.evidence import PROVEN, recorded
from checks.proofs.chapters import CHAPTERS, chapter_path, with_proofs


@pytest.mark.parametrize("name", CHAPTERS)
def test_the_chapter_shows_every_obligation_with_the_recorded_verdict(name: str) -> None:
    chapter = chapter_path(name).read_text(encoding="utf-8")
    assert chapter == with_proofs(name, chapter, recorded(PROVEN))
    listed = chapter.partition("<!-- proofs -->")[2].count(f"\n| {CHAPTERS[name]}")
    assert listed == sum(one.startswith(CHAPTERS[name]) for one in recorded(PROVEN)) > 20


@pytest.mark.parametrize("name", CHAPTERS)
def test_the_chapter_tells_of_every_refutation_before_the_table_lists_it(name: str) -> None:
    prose = chapter_path(name).read_text(encoding="utf-8").partition("<!-- proofs -->")[0]
    refuted = [
        one
        for one, told in recorded(PROVEN).items()
        if one.startswith(CHAPTERS[name]) and told["verdict"] == "refuted"
    ]
    assert [one for one in refuted if one not in prose] == []
    assert refuted


def test_a_line_of_the_table_has_the_claim_its_bounds_its_rules_and_its_verdict() -> None:
    told = {"says": "Says.", "bounds": "every length", "rules": [], "verdict": "proven"}
    proven = {"PRV-V1-X-1": told, "PRV-NANO-X-1": {**told, "rules": ["A-1", "B-2"]}}
    chapter = "before\n<!-- proofs -->\nold\n<!-- end of proofs -->\nafter\n"
    assert with_proofs("vllm_v1.md", chapter, proven).splitlines() == [
        "before",
        "<!-- proofs -->",
        "| obligation | says | for | rules | verdict |",
        "| --- | --- | --- | --- | --- |",
        "| PRV-V1-X-1 | Says. | every length | - | proven |",
        "<!-- end of proofs -->",
        "after",
    ]
    assert "| PRV-NANO-X-1 | Says. | every length | A-1, B-2 | proven |\n" in with_proofs(
        "nano_vllm.md", chapter, proven
    )
