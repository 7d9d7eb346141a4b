"""Runs as pictures in a page: documents that a script loads, and the elements that show them."""

from collections.abc import Iterable, Mapping
from functools import partial
from html import escape
from pathlib import Path

from attrs import frozen

from checks.book.source import bullets, folded
from checks.cores import on_all_cores
from checks.export.files import as_line, new_file
from checks.export.pages.assets import as_script
from checks.export.pages.document import rule_as_json
from checks.harness.viewing import document_of_file
from checks.policies import RULES

STEPS = "steps"  # the directory of the documents, from the root of the book


@frozen
class Introduced:
    """How a run is introduced: its title, and a sentence or two."""

    title: str
    about: str


@frozen
class Films:
    """The documents of traces; `frames`: by trace, the frame that is shown first."""

    frames: Mapping[str, int]

    def element(
        self, trace: str, name: str, *, root: str, at: int | None = None, parts: str = ""
    ) -> str:
        """The element that shows the run of a trace, from frame `at` on.

        `name`: of the frame in the address of the page. `root`: the way to the root of the book.
        """
        frame = self.frames[trace] if at is None else at
        attributes = {
            "name": name,
            "src": f"{root}{STEPS}/{Path(trace).stem}.js",
            "at": str(frame),
            "rule-link": f"{root}rules/{{id}}.html",
            **({"parts": parts} if parts else {}),
        }
        written = "".join(f' {key}="{escape(value)}"' for key, value in attributes.items())
        return f"<lockstep-steps{written}></lockstep-steps>"


def written_films(traces: Mapping[Path, Introduced], directory: Path) -> Films:
    """Write the document of each trace into the directory, on all cores."""
    directory.mkdir(parents=True, exist_ok=True)
    frames = on_all_cores(partial(_written, directory=directory), [*traces.items()])
    return Films(dict(zip((path.name for path in traces), frames, strict=True)))


def _written(trace: tuple[Path, Introduced], directory: Path) -> int:
    """Writes one document; the frame in which the rule is broken, else the last."""
    path, said = trace
    document = document_of_file(path) | {"title": said.title, "about": said.about}
    rules = document.pop("rules")
    with new_file(directory / f"{path.stem}.js") as file:
        file.write(as_script(document))
        file.write(f"document.currentScript.lockstep.rules = lockstepRules({as_line([*rules])});\n")
    violation = document["violation"]
    last: int = document["overview"]["count"] - 1
    return last if violation is None else violation["frame"]


def shared_rules() -> str:
    """A script with the rules of all documents, each once: they are most of a short run."""
    rules = as_line({one.id: rule_as_json(one) for one in RULES.values()})
    return (
        f"const LOCKSTEP_RULES = {rules};\n"
        "const lockstepRules = (ids) =>"
        " Object.fromEntries(ids.map((id) => [id, LOCKSTEP_RULES[id]]));\n"
    )


def in_words(lines: Iterable[str]) -> str:
    """What happened in a run, a line each, for readers and for the search."""
    return folded("The same in words", bullets(lines))
