"""The files of the book's source, and how Markdown is written."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from attrs import frozen

from checks.export.files import new_file
from checks.registry import POLICIES


@frozen
class Page:
    """A file of the source: its path below the source's directory, and its text.

    The title of a page in Markdown is its first heading.
    """

    path: str
    text: str

    def write(self, directory: Path) -> None:
        """Write the file where the source is made."""
        path = directory / self.path
        path.parent.mkdir(parents=True, exist_ok=True)
        with new_file(path) as file:
            file.write(self.text)


def rule_page(id_: str) -> str:
    """The page of a rule, from the root of the book."""
    return f"rules/{id_}.md"


def proof_page(id_: str) -> str:
    """The page of an obligation."""
    return f"proofs/{id_}.md"


def sections(*parts: str) -> str:
    """Parts of a page with a blank line between; empty ones are left out."""
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def section(title: str, *parts: str, searched: bool = True) -> str:
    """A section with its heading, which the search finds or not; nothing without content."""
    heading = f"## {title}" if searched else f"## {title} {{ data-search-exclude }}"
    return sections(heading, *parts) if any(parts) else ""


def bullets(items: Iterable[str]) -> str:
    """A list."""
    return "\n".join(f"- {item}" for item in items)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table, or nothing without rows; columns whose name begins with ">" are right-aligned."""
    lines = [_line(map(str, row)) for row in rows]
    if not lines:
        return ""
    ruler = ("--:" if one.startswith(">") else ":--" for one in columns)
    return "\n".join([_line(one.removeprefix(">") for one in columns), _line(ruler), *lines])


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(one.replace('|', chr(92) + '|') for one in cells)} |"


def code(language: str, text: str) -> str:
    """A block of code."""
    return f"```{language}\n{text.rstrip()}\n```"


def folded(title: str, text: str) -> str:
    """A block that the reader opens."""
    lines = (f"    {line}" if line else "" for line in text.splitlines())
    return "\n".join([f'??? note "{title}"', "", *lines])


def slug(title: str) -> str:
    """The name of a file for this title: letters and digits, words joined by hyphens."""
    return "-".join("".join(c if c.isalnum() else " " for c in title.lower()).split())


def policies() -> Iterator[str]:
    """Every policy, in the order of the registry."""
    yield from POLICIES
