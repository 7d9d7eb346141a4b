"""Runs as pictures in a page: documents for the viewer script, and its page elements."""

import json
from collections.abc import Iterable, Mapping
from functools import partial
from html import escape
from pathlib import Path

from attrs import field, frozen

from checks.book.source import bullets, folded
from checks.cores import on_all_cores
from checks.export.files import as_line, new_file
from checks.export.pages.assets import as_script
from checks.export.pages.document import rule_as_json
from checks.export.pages.markup import live_fragment
from checks.export.pages.situation import Json
from checks.harness.campaigns.recording import FORMAT as RECORDING_FORMAT
from checks.harness.views.viewing import document_of_file
from checks.registry import RULES, claims_of

# From the root of the book: the directory of the documents, the page on which the reference runs.
STEPS, LIVE = "steps", "live.html"


@frozen
class Introduced:
    """The title of a run, and one or two sentences about it."""

    title: str
    about: str


@frozen
class Films:
    """The documents of traces.

    By the name of a trace: `frames`, the frame that is shown first; `situations`, the fragment of
    the address at which the in-browser reference loads the run, empty for the run of a release;
    `broken`, the first frame in which the run breaks each rule.
    """

    frames: Mapping[str, int]
    situations: Mapping[str, str]
    broken: Mapping[str, Mapping[str, int]] = field(factory=dict)

    def element(
        self, trace: str, name: str, *, root: str, at: int | None = None, parts: str = ""
    ) -> str:
        """The element that shows the run of a trace, first frame `at`.

        `name`: the key of the frame in the address. `root`: the relative path to the book's root.
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
        steps = f"<lockstep-steps{written}></lockstep-steps>"
        return f"<div>{steps}{self._live_link(trace, root)}</div>"

    def _live_link(self, trace: str, root: str) -> str:
        if not self.situations[trace]:
            return ""
        address = f"{root}{LIVE}#{self.situations[trace]}"
        return f'<p class="run"><a href="{escape(address)}">Run it here, and change it</a></p>'


def written_films(traces: Mapping[Path, Introduced], directory: Path) -> Films:
    """Write the document of each trace into the directory, on all cores."""
    directory.mkdir(parents=True, exist_ok=True)
    written = on_all_cores(partial(_written, directory=directory), [*traces.items()])
    by_name = dict(zip((path.name for path in traces), written, strict=True))
    return Films(
        {name: frame for name, (frame, _, _) in by_name.items()},
        {name: situation for name, (_, situation, _) in by_name.items()},
        {name: broken for name, (_, _, broken) in by_name.items()},
    )


def _written(trace: tuple[Path, Introduced], directory: Path) -> tuple[int, str, Mapping[str, int]]:
    """Write one document; returns its first shown frame, its fragment, and the broken rules.

    The first shown frame is the one with the violation, else the last. The fragment of a release's
    recording is empty. Each broken rule has its first frame.
    """
    path, said = trace
    document = document_of_file(path) | {"title": said.title, "about": said.about}
    rules = document.pop("rules")
    with new_file(directory / f"{path.stem}.js") as file:
        file.write(as_script(document))
        file.write(f"document.currentScript.lockstep.rules = lockstepRules({as_line([*rules])});\n")
    violation = document["violation"]
    last: int = document["overview"]["count"] - 1
    with path.open(encoding="utf-8") as lines:
        header = json.loads(next(lines))
    is_recording = header["format"] == RECORDING_FORMAT
    fragment = "" if is_recording else live_fragment(situation_of_header(header, said.title))
    broken: dict[str, int] = {}
    for frame, rules_broken in document["overview"]["broken"].items():
        for rule in rules_broken:
            broken.setdefault(rule, frame)
    return (last if violation is None else violation["frame"]), fragment, broken


def situation_of_header(header: Json, title: str) -> Json:
    """The header of a trace as a live situation: configuration, requests and actions."""
    usual = claims_of(header["policy"]).config().as_mapping()
    config = {key: value for key, value in header["config"].items() if value != usual.get(key)}
    kept: Json = {key: header[key] for key in _KEPT if key in header}
    return kept | {"config": config, "title": title}


_KEPT = ("policy", "requests", "actions", "external")


def shared_rules() -> str:
    """A script with the rules of all documents: they would be most of each short document."""
    rules = as_line({rule.id: rule_as_json(rule) for rule in RULES.values()})
    return (
        f"const LOCKSTEP_RULES = {rules};\n"
        "const lockstepRules = (ids) =>"
        " Object.fromEntries(ids.map((id) => [id, LOCKSTEP_RULES[id]]));\n"
    )


def in_words(lines: Iterable[str]) -> str:
    """The events of a run as a folded list, for readers and for the search."""
    return folded("The same in words", bullets(lines))
