"""The book, put together: its source in a temporary directory, then the site."""

import json
import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from shutil import copytree, rmtree
from tempfile import TemporaryDirectory
from typing import Any

from attrs import frozen

from checks.book.chapters import chapter_pages
from checks.book.instances import instance_pages
from checks.book.proofs import proof_pages
from checks.book.releases import release_pages
from checks.book.rules import rule_pages
from checks.book.runs import Shown, shown_runs
from checks.book.source import Page, policies, slug
from spec.core.errors import ConfigError, InputError

_HERE = Path(__file__).parent
_SETTINGS, _PAGES = _HERE / "mkdocs.yml", _HERE / "pages"
_MARK = "lockstep-book.json"  # what is in a directory that a book was written into
Say = Callable[[str], None]


@frozen
class Built:
    """What was built: how many pages, and how large the site is, in bytes."""

    pages: int
    size: int


def build(out: Path, say: Say) -> Built:
    """Write the site; `say` is called with what is done next.

    Raises:
        ConfigError: the extra is not installed.
        InputError: the directory holds something else.
    """
    mkdocs = _require_mkdocs()
    _refuse_what_is_no_book(out)
    with TemporaryDirectory(prefix="lockstep-book-") as temporary:
        source, site = Path(temporary) / "source", Path(temporary) / "site"
        say("exploring the default instances")
        write_source(source)
        say("writing the pages")
        mkdocs(source, site)
        built = Built(sum(1 for _ in site.rglob("*.html")), _size(site))
        (site / _MARK).write_text(json.dumps({"pages": built.pages}) + "\n")
        rmtree(out, ignore_errors=True)
        copytree(site, out)
    return built


def _require_mkdocs() -> Callable[[Path, Path], None]:
    try:
        from mkdocs.commands.build import build as build_site
        from mkdocs.config import load_config
    except ImportError:
        allowed = "an environment with pip install 'lockstep-schedulers[book]'"
        raise ConfigError("book", "mkdocs is not installed", allowed) from None

    def write(source: Path, site: Path) -> None:
        logging.getLogger("mkdocs").setLevel(logging.WARNING)
        settings: Any = load_config(
            str(_SETTINGS), docs_dir=str(source), site_dir=str(site), nav=_navigation()
        )
        build_site(settings)

    return write


def _refuse_what_is_no_book(out: Path) -> None:
    if out.is_dir() and any(out.iterdir()) and not (out / _MARK).exists():
        raise InputError("--out", str(out), "a new directory, an empty one, or that of a book")


def _size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


# --- the source -----------------------------------------------------------------------------------


def write_source(source: Path) -> None:
    """Write every page and file that the site is made of."""
    runs = source / "runs"
    runs.mkdir(parents=True)
    instances = [one for policy in policies() for one in policy.instances]
    shown = shown_runs(instances, runs)
    for page in pages(shown):
        page.write(source)


def pages(shown: Iterable[Shown]) -> Iterator[Page]:
    """Every page of the book."""
    for path in sorted(_PAGES.glob("*.md")):
        yield Page(path.name, path.read_text(encoding="utf-8"))
    yield from chapter_pages()
    yield from rule_pages(shown, _drawn)
    yield from instance_pages(shown, _drawn)
    yield from proof_pages()
    yield from release_pages()


def _drawn(shown: Shown, _name: str) -> str:
    lines = (f"{number}. {line}" for number, line in enumerate(shown.story, start=1))
    return "\n".join(lines)


def _navigation() -> list[Any]:
    """What stands in the menu; single rules, instances and proofs are reached from their lists."""
    own = list(policies())
    chapters = {one.name: f"chapters/{one.name.replace('-', '_')}.md" for one in own}
    return [
        {"Start": "index.md"},
        {"Why was it refused?": "refused.md"},
        {"The exact rule in pictures": "exact.md"},
        {"The schedulers": [{name: path} for name, path in chapters.items()]},
        {
            "Chapters": [
                {"Admission": "chapters/admission.md"},
                {"Proofs": "chapters/proofs.md"},
                {"Evidence": "chapters/evidence.md"},
                {"Releases": "chapters/releases.md"},
                {"Drivers": "chapters/drivers.md"},
                {"Serving": "chapters/serving.md"},
                {"Glossary": "chapters/glossary.md"},
            ]
        },
        {"Rules": [{one.name: f"rules/{slug(one.name)}.md"} for one in own]},
        {"Instances": [{one.name: f"instances/{slug('of ' + one.name)}.md"} for one in own]},
        {"Proofs": "proofs/index.md"},
        {"Releases": "releases/index.md"},
        {"What is claimed": "claims.md"},
    ]
