"""Build of the book: the source in a temporary directory, then the site."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
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
from checks.book.refuted import Refuted, refuted_claims
from checks.book.releases import release_pages, release_recordings
from checks.book.rules import rule_pages
from checks.book.runs import Shown, shown_runs
from checks.book.source import Page, policies, sections, slug
from checks.chapters import CHAPTERS
from checks.explore.exploring import sentence
from checks.explore.policy import machine_of
from checks.export.files import new_file, noting_files
from checks.export.pages.assets import write_assets
from checks.export.pages.runtime import write_runtime
from checks.harness.campaigns.recording import read_recording
from checks.words import sentence_case
from spec.core.errors import ConfigError, InputError

_HERE = Path(__file__).parent
_SETTINGS, PAGES = _HERE / "mkdocs.yml", _HERE / "pages"
_SOURCE, _SITE = "source", "site"
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
        SiteError: a link or an anchor does not exist.
        InputError: the directory is not empty and holds no book.
    """
    _require_generator()
    _refuse_other_directory(out)
    with TemporaryDirectory(prefix="lockstep-book-") as temporary, noting_files():
        source, site = Path(temporary) / _SOURCE, Path(temporary) / _SITE
        say("exploring the default instances")
        write_source(source)
        _write_runtime(source, say)
        say("writing the pages")
        _generate(Path(temporary))
        _drop_unused_files(site)
        made = [_finished(path, site) for path in site.rglob("*.html")]
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


class SiteError(Exception):
    """The generator refuses the pages: a link or an anchor does not exist."""


def _require_generator() -> None:
    if find_spec("zensical") is None:
        needed = "pip install 'lockstep-schedulers[book]'"
        raise ConfigError("zensical is not installed", needed, "")


def _generate(directory: Path) -> None:
    """Make the site of the source in this directory."""
    copytree(_HERE / "theme", directory / "theme")
    own = {"docs_dir": _SOURCE, "site_dir": _SITE, "nav": _navigation()}
    settings = directory / _SETTINGS.name
    with new_file(settings) as file:
        file.write(_SETTINGS.read_text(encoding="utf-8") + f"  - {__package__}.links\n")
        file.writelines(f"{key}: {json.dumps(value)}\n" for key, value in own.items())
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    command += ["--config-file", str(settings)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SiteError(done.stdout)


def _refuse_other_directory(out: Path) -> None:
    if out.is_dir() and any(out.iterdir()) and not (out / _MARK).exists():
        raise InputError("--out", str(out), "a new directory, an empty one, or that of a book")


def _drop_unused_files(site: Path) -> None:
    """Remove a page that needs a server root, and the search index that only a server can send."""
    (site / "404.html").unlink()
    (site / "search.json").unlink()


_AS_IT_IS = re.compile(r"(<pre.*?</pre>|<script.*?</script>)", re.DOTALL)
_FROM_ROOT = re.compile(r'href="/([\w/-]+)\.md')


def _finished(path: Path, site: Path) -> Path:
    """Make a built page's links by id relative, and drop empty lines, a third of its size."""
    root = "../" * (len(path.relative_to(site).parts) - 1)
    text = _FROM_ROOT.sub(rf'href="{root}\1.html', path.read_text(encoding="utf-8"))
    parts = _AS_IT_IS.split(text)
    parts[::2] = [re.sub(r"\n\s+", "\n", part) for part in parts[::2]]
    with new_file(path) as file:
        file.write("".join(parts))
    return path


def _size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


# --- the source -----------------------------------------------------------------------------------


def write_source(source: Path) -> None:
    """Write every source page and file of the site."""
    runs = write_runs(source)
    write_assets(_made(source / "javascripts"))
    Page("javascripts/rules.js", shared_rules()).write(source)
    for page in pages(runs):
        page.write(source)


@frozen
class Runs:
    """The runs of the book: of rules and of refuted claims, and the documents of all."""

    shown: Sequence[Shown]
    refuted: Mapping[str, Refuted]
    films: Films


def write_runs(source: Path) -> Runs:
    """Write the runs that the pages show, and each counterexample as a trace."""
    with TemporaryDirectory(prefix="lockstep-runs-") as temporary:
        traces = Path(temporary)
        instances = [instance for policy in policies() for instance in machine_of(policy).instances]
        shown = shown_runs(instances, traces)
        introduced = dict(write_examples(traces))
        introduced |= {traces / run.trace: _introduced(run) for run in shown}
        refuted = refuted_claims(traces)
        introduced |= {claim.trace: _of_claim(claim) for claim in refuted if claim.trace}
        introduced |= {
            path: Introduced(release, read_recording(path).about)
            for path, release in release_recordings().items()
        }
        films = written_films(introduced, source / STEPS)
        kept = _made(source / "runs")
        files = [traces / run.trace for run in shown if run.found]
        for file in (*files, *(claim.trace for claim in refuted if claim.trace)):
            copyfile(file, kept / file.name)
    return Runs(shown, {claim.id: claim for claim in refuted}, films)


def _of_claim(claim: Refuted) -> Introduced:
    return Introduced(f"{claim.id} is refuted", f"With {claim.in_words}.")


def _introduced(shown: Shown) -> Introduced:
    if shown.found:
        title = f"{shown.rule} is broken in {shown.instance}"
        return Introduced(title, sentence_case(shown.found))
    return Introduced(f"{shown.rule} speaks in {shown.instance}", sentence(shown.rule))


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def pages(runs: Runs) -> Iterator[Page]:
    """Every page of the book."""
    shown, films = runs.shown, runs.films

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
    yield from proof_pages(runs.refuted, films)
    yield from release_pages(films)


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
                {"Workloads": "chapters/workloads.md"},
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
