"""Build of the book: the source in a temporary directory, then the site."""

import json
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from shutil import copyfile, copytree, rmtree
from tempfile import TemporaryDirectory
from typing import Any

from attrs import evolve, frozen

from checks.book.chapters import chapter_pages
from checks.book.drawing import STEPS, Films, Introduced, in_words, shared_rules, written_films
from checks.book.instances import instance_pages
from checks.book.pictures import with_pictures, write_examples
from checks.book.proofs import proof_pages
from checks.book.published import figures_page
from checks.book.releases import release_pages
from checks.book.rules import rule_pages
from checks.book.runs import Shown, shown_runs
from checks.book.source import Page, policies, sections, slug
from checks.chapters import CHAPTERS
from checks.explore.exploring import sentence
from checks.explore.policy import machine_of
from checks.export.files import new_file, noting_files
from checks.export.pages.assets import write_assets
from checks.export.pages.runtime import write_runtime
from spec.core.errors import ConfigError, InputError

_HERE = Path(__file__).parent
_SETTINGS, PAGES = _HERE / "mkdocs.yml", _HERE / "pages"
RUNTIME = "runtime"  # the directory of the in-browser reference, from the root of the book
_MARK = "lockstep-book.json"  # the file that marks a directory as a written book
Say = Callable[[str], None]


@frozen
class Built:
    """The number of pages of a built site, and its size in bytes."""

    pages: int
    size: int


def build(out: Path, say: Say) -> Built:
    """Write the site; `say` is called with a line of progress before each stage.

    Raises:
        ConfigError: the extra `book` is not installed.
        InputError: the directory is not empty and holds no book.
    """
    mkdocs = _require_mkdocs()
    _refuse_other_directory(out)
    with TemporaryDirectory(prefix="lockstep-book-") as temporary, noting_files():
        source, site = Path(temporary) / "source", Path(temporary) / "site"
        say("exploring the default instances")
        write_source(source)
        _write_runtime(source, say)
        say("writing the pages")
        mkdocs(source, site)
        _drop_unused_files(site)
        made = [_without_blank_lines(path) for path in site.rglob("*.html")]
        built = Built(len(made), _size(site))
        with new_file(site / _MARK) as mark:
            mark.write(json.dumps({"pages": built.pages}) + "\n")
        rmtree(out, ignore_errors=True)
        copytree(site, out)
    return built


def _write_runtime(source: Path, say: Say) -> None:
    """Write the in-browser reference; without npm the book lacks only that."""
    try:
        write_runtime(_made(source / RUNTIME))
    except InputError as error:
        say(f"the reference will not run in the browser: {error}")


def _require_mkdocs() -> Callable[[Path, Path], None]:
    try:
        from mkdocs.commands.build import build as build_site
        from mkdocs.config import load_config
    except ImportError:
        needed = "pip install 'lockstep-schedulers[book]'"
        raise ConfigError("mkdocs is not installed", needed, "") from None

    def write(source: Path, site: Path) -> None:
        logging.getLogger("mkdocs").setLevel(logging.WARNING)
        settings: Any = load_config(
            str(_SETTINGS), docs_dir=str(source), site_dir=str(site), nav=_navigation()
        )
        settings.markdown_extensions.append(f"{__package__}.links")
        build_site(settings)

    return write


def _refuse_other_directory(out: Path) -> None:
    if out.is_dir() and any(out.iterdir()) and not (out / _MARK).exists():
        raise InputError("--out", str(out), "a new directory, an empty one, or that of a book")


def _drop_unused_files(site: Path) -> None:
    """Remove the theme's source maps, its other languages, and a page that needs a server root."""
    for path in site.rglob("*.map"):
        path.unlink()
    rmtree(site / "assets" / "javascripts" / "lunr", ignore_errors=True)
    (site / "404.html").unlink()


_AS_IT_IS = re.compile(r"(<pre.*?</pre>|<script.*?</script>)", re.DOTALL)


def _without_blank_lines(path: Path) -> Path:
    """Remove the empty lines that the theme leaves, a third of a page."""
    parts = _AS_IT_IS.split(path.read_text(encoding="utf-8"))
    parts[::2] = [re.sub(r"\n\s+", "\n", part) for part in parts[::2]]
    with new_file(path) as file:
        file.write("".join(parts))
    return path


def _size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


# --- the source -----------------------------------------------------------------------------------


def write_source(source: Path) -> None:
    """Write every source page and file of the site."""
    shown, films = write_runs(source)
    write_assets(_made(source / "javascripts"))
    Page("javascripts/rules.js", shared_rules()).write(source)
    for page in pages(shown, films):
        page.write(source)


def write_runs(source: Path) -> tuple[list[Shown], Films]:
    """Write the runs that the pages show, and each counterexample as a trace."""
    with TemporaryDirectory(prefix="lockstep-runs-") as temporary:
        traces = Path(temporary)
        instances = [instance for policy in policies() for instance in machine_of(policy).instances]
        shown = shown_runs(instances, traces)
        introduced = dict(write_examples(traces))
        introduced |= {traces / run.trace: _introduced(run) for run in shown}
        films = written_films(introduced, source / STEPS)
        kept = _made(source / "runs")
        for run in shown:
            if run.found:
                copyfile(traces / run.trace, kept / run.trace)
    return shown, films


def _introduced(shown: Shown) -> Introduced:
    if shown.found:
        return Introduced(f"{shown.rule} is broken in {shown.instance}", shown.found)
    return Introduced(f"{shown.rule} speaks in {shown.instance}", sentence(shown.rule))


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def pages(shown: Sequence[Shown], films: Films) -> Iterator[Page]:
    """Every page of the book."""

    def drawn(run: Shown, name: str) -> str:
        return sections(films.element(run.trace, name, root="../"), in_words(run.story))

    for path in sorted(PAGES.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        yield Page(path.name, with_pictures(text, films, root=""))
    for page in chapter_pages():
        root = "../" * page.path.count("/")
        yield evolve(page, text=with_pictures(page.text, films, root=root))
    yield figures_page(films)
    yield from rule_pages(shown, drawn)
    yield from instance_pages(shown, drawn)
    yield from proof_pages()
    yield from release_pages()


def _navigation() -> list[Any]:
    """The menu; the pages of single rules, instances and proofs are linked from their lists."""
    own = list(policies())
    chapters = {name: f"chapters/{name.replace('-', '_')}.md" for name in own}
    in_one_page = sorted(path.name for path in CHAPTERS.glob("*-in-one-page.md"))
    return [
        {"Start": "index.md"},
        {"Why was it refused?": "refused.md"},
        {"The exact rule in pictures": "exact.md"},
        {"The published figures": "figures.md"},
        {"Run it": "live.md"},
        *({"In one page": f"chapters/{name}"} for name in in_one_page),
        {"The schedulers": [{name: path} for name, path in chapters.items()]},
        {
            "Chapters": [
                {"Admission": "chapters/admission.md"},
                {"Proofs": "chapters/proofs.md"},
                {"For a referee": "chapters/referee.md"},
                {"Evidence": "chapters/evidence.md"},
                {"Releases": "chapters/releases.md"},
                {"Defects of releases": "chapters/releases/index.md"},
                {"The command": "chapters/commands.md"},
                {"Configuration": "chapters/configuration.md"},
                {"In your own project": "chapters/adoption.md"},
                {"Drivers": "chapters/drivers.md"},
                {"Logs of servers": "chapters/logs.md"},
                {"Time and cost": "chapters/time.md"},
                {"Serving": "chapters/serving.md"},
                {"Aligned batches": "chapters/aligned.md"},
                {"Aligned batches in the plugin": "chapters/aligned-plugin.md"},
                {"Benchmarks": "chapters/benchmarks.md"},
                {"Glossary": "chapters/glossary.md"},
            ]
        },
        {"Rules": [{name: f"rules/{slug(name)}.md"} for name in own]},
        {"Instances": [{name: f"instances/{slug('of ' + name)}.md"} for name in own]},
        {"Proofs": "proofs/index.md"},
        {"Releases": "releases/index.md"},
        {"What is claimed": "claims.md"},
    ]
