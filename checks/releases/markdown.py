"""Markdown blocks and tables, as lines."""

from collections.abc import Iterable, Iterator, Sequence


def block(*lines: str) -> Iterator[str]:
    """A heading, a paragraph or a list, followed by an empty line."""
    yield from lines
    yield ""


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """A table: a line for its columns, a separator, and a line for each row."""
    for cells in (columns, ["---"] * len(columns), *rows):
        yield "".join(f"| {cell} " if cell else "| " for cell in cells) + "|"
