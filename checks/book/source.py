"""The source files of the book, and helpers that write Markdown."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from attrs import frozen

from checks.export.files import new_file
from checks.registry import POLICIES


@frozen
class Page:
    """A source file: its path below the source directory, and its text.

    The first heading of a Markdown page is its title.
    """

    path: str
    text: str

    def write(self, directory: Path) -> None:
        """Write the file below the source directory."""
        path = directory / self.path
        path.parent.mkdir(parents=True, exist_ok=True)
        with new_file(path) as file:
            file.write(self.text)


def rule_page(id_: str) -> str:
    """The page of a rule, from the root of the book."""
    return f"rules/{id_}.md"


def proof_page(id_: str) -> str:
    """The page of an obligation, from the root of the book."""
    return f"proofs/{id_}.md"


def sections(*parts: str) -> str:
    """The non-empty parts of a page, separated by blank lines."""
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def section(title: str, *parts: str, searched: bool = True) -> str:
    """A section with its heading; empty without content. `searched`: the search indexes it."""
    heading = f"## {title}" if searched else f"## {title} {{ data-search-exclude }}"
    return sections(heading, *parts) if any(parts) else ""


def bullets(items: Iterable[str]) -> str:
    """A bulleted list."""
    return "\n".join(f"- {item}" for item in items)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table, empty without rows; columns whose name begins with ">" are right-aligned."""
    lines = [_line(map(str, row)) for row in rows]
    if not lines:
        return ""
    ruler = ("--:" if column.startswith(">") else ":--" for column in columns)
    return "\n".join([_line(column.removeprefix(">") for column in columns), _line(ruler), *lines])


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def code(language: str, text: str) -> str:
    """A block of code."""
    return f"```{language}\n{text.rstrip()}\n```"


def folded(title: str, text: str) -> str:
    """A collapsed block."""
    lines = (f"    {line}" if line else "" for line in text.splitlines())
    return "\n".join([f'??? note "{title}"', "", *lines])


def slug(title: str) -> str:
    """A file name for this title: lower-case letters and digits, words joined by hyphens."""
    return "-".join("".join(c if c.isalnum() else " " for c in title.lower()).split())


def policies() -> Iterator[str]:
    """Every policy, in the order of the registry."""
    yield from POLICIES
