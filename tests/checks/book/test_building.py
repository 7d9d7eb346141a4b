"""`lockstep book` writes a self-contained site and overwrites no foreign directory."""

import re
from pathlib import Path

import pytest

from tests.checks.command import lockstep

REMOTE = re.compile(r"(?:src=|<link[^>]* href=)\"?(https?:)?//[^\s\">]+")  # loads, not links
MOST_BYTES_A_PAGE = 50_000  # with its part of what all pages load


def test_a_directory_with_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")

    ran = lockstep("book", "--out", str(tmp_path))

    assert ran.code == 2
    assert "a new directory, an empty one, or that of a book" in ran.err
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_without_the_extra_the_command_says_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("checks.book.building.find_spec", lambda _name: None)

    ran = lockstep("book", "--out", str(tmp_path / "site"))

    assert ran.code == 2
    assert "lockstep-schedulers[book]" in ran.err


@pytest.mark.thorough
def test_the_whole_book_is_built_with_every_link_checked(tmp_path: Path) -> None:
    site = tmp_path / "site"
    ran = lockstep("book", "--out", str(site))

    assert ran.code == 0, ran.err
    pages = [*site.rglob("*.html")]
    assert len(pages) > 700
    size = sum(path.stat().st_size for path in site.rglob("*") if path.is_file())
    assert size < MOST_BYTES_A_PAGE * len(pages)
    loaded = [
        found.group()
        for page in pages
        for found in REMOTE.finditer(page.read_text(encoding="utf-8"))
    ]
    assert loaded == []
    again = lockstep("book", "--out", str(site))  # over an earlier book
    assert again.code == 0
