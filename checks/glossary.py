"""The glossary among the chapters: its entries, for commands and for the book."""

import re
from collections.abc import Iterator
from pathlib import Path

import spec

GLOSSARY = Path(spec.__file__).parent / "chapters" / "glossary.md"
_NAMED = re.compile(r"((?:`[^`]+`, )*`[^`]+`): (.*)", re.DOTALL)


def glossary() -> dict[str, str]:
    """The entries by title; each item of a list on a line of its own."""
    _, *parts = re.split(r"^## (.+)\n", GLOSSARY.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {title: _plain(text) for title, text in zip(parts[::2], parts[1::2], strict=True)}


def listed_words() -> Iterator[tuple[list[str], str]]:
    """The words of each item in an entry's list, and the item with the entry's title."""
    for title, text in glossary().items():
        _, *items = text.split("\n- ")
        for match in filter(None, map(_NAMED.fullmatch, items)):
            words = re.findall(r"`([^`]+)`", match[1])
            yield words, f"{', '.join(words)} ({title}): {match[2]}"


def _plain(text: str) -> str:
    """The text without link addresses, and without line breaks but for those before items."""
    parts = (" ".join(part.split()) for part in re.split(r"\n- ", text))
    return re.sub(r"\[(.+?)\]\(.+?\)", r"\1", "\n- ".join(parts))
