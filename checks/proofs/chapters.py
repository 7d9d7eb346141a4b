"""The tables of proofs in the chapters of nano-vLLM and vLLM V1, made from the record."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import spec

CHAPTERS = {"nano_vllm.md": "PRV-NANO", "vllm_v1.md": "PRV-V1"}  # by the beginning of the ids

_BEGIN, _END = "<!-- proofs -->\n", "<!-- end of proofs -->\n"
_COLUMNS = ("obligation", "says", "for", "rules", "verdict")


def chapter_path(name: str) -> Path:
    """Where a chapter is."""
    return Path(spec.__file__).parent / "chapters" / name


def with_proofs(name: str, chapter: str, proven: Mapping[str, Any]) -> str:
    """The chapter of that name with its table made anew from the record of proofs."""
    before, _, rest = chapter.partition(_BEGIN)
    after = rest.partition(_END)[2]
    rows = [_row(one, told) for one, told in proven.items() if one.startswith(CHAPTERS[name])]
    head = [f"| {' | '.join(_COLUMNS)} |", "| --- " * len(_COLUMNS) + "|"]
    return before + _BEGIN + "\n".join([*head, *rows]) + "\n" + _END + after


def _row(obligation: str, told: Mapping[str, Any]) -> str:
    rules = ", ".join(told["rules"]) or "-"
    return f"| {obligation} | {told['says']} | {told['bounds']} | {rules} | {told['verdict']} |"


def write_proofs(proven: Mapping[str, Any]) -> None:
    """Bring the tables up to date with the record."""
    for name in CHAPTERS:
        path = chapter_path(name)
        chapter = path.read_text(encoding="utf-8")
        path.write_text(with_proofs(name, chapter, proven), encoding="utf-8")
