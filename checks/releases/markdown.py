"""Parts of a page in Markdown, as lines."""

from collections.abc import Iterable, Iterator, Sequence


def block(*lines: str) -> Iterator[str]:
    """A heading, a paragraph or a list, and the empty line behind it."""
    yield from lines
    yield ""


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """A table, a line for its columns, one below them and one for each row."""
    for cells in (columns, ["---"] * len(columns), *rows):
        yield "".join(f"| {cell} " if cell else "| " for cell in cells) + "|"
