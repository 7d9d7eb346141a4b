"""The glossary among the chapters: its entries, for commands and for the book."""

import re
from pathlib import Path

import spec

GLOSSARY = Path(spec.__file__).parent / "chapters" / "glossary.md"


def glossary() -> dict[str, str]:
    """The entries by title."""
    _, *parts = re.split(r"^## (.+)\n", GLOSSARY.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {title: _plain(text) for title, text in zip(parts[::2], parts[1::2], strict=True)}


def _plain(text: str) -> str:
    """The text without line breaks and link addresses."""
    return re.sub(r"\[(.+?)\]\(.+?\)", r"\1", " ".join(text.split()))
