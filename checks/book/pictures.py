"""The pictures of the book: the examples of every policy, drawn from the reference's steps.

A comment in the page places a picture: `picture: NAME` for a run to step through, `run: NAME` for
the same with its events and verdicts, `plot: NAME` for a line, `live: NAME` for the in-browser
reference, `waits: NAME NAME ...` for a table of runs: the work of each step, and the rule that
keeps a request waiting. Each build checks the examples' claims on the reference's steps.
"""

import re
from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path

from checks.book.drawing import Films, Introduced
from checks.book.source import policies
from checks.book.staircase import staircase
from checks.book.waits import waits_table
from checks.export.examples import Example
from checks.export.pages.markup import live_element
from checks.export.policy import presentation_of
from checks.export.trace.requests import request_as_json
from checks.export.trace.writing import TraceWriter
from checks.harness.case import Case
from checks.harness.runs.serving import served
from checks.registry import claims_of
from spec.core.records import SomeStep

_PLACE = re.compile(r"<!-- (picture|run|live|plot|waits): ([a-z-]+(?: [a-z-]+)*) -->")


class PictureError(Exception):
    """The reference's steps do not show what an example claims, or the example does not exist."""


def examples() -> dict[str, Example]:
    """Every example of every policy, by name."""
    return {
        example.name: example
        for policy in policies()
        for example in presentation_of(policy).examples
    }


def steps_of(example: Example) -> tuple[SomeStep, ...]:
    """The reference's steps for an example.

    Raises:
        PictureError: the steps do not show what the example claims.
    """
    steps = tuple(served(Case(example.config, example.requests)))
    if not example.shows(steps):
        raise PictureError(f"{example.name}: the reference does not show this: {example.says}")
    return steps


def trace_name(example: Example) -> str:
    """The name of the example's trace file."""
    return f"example-{example.name}.jsonl"


def write_examples(directory: Path) -> Iterator[tuple[Path, Introduced]]:
    """Write the steps of each example as a trace; yields its path, title and description."""
    for example in examples().values():
        path = directory / trace_name(example)
        with TraceWriter(path, example.config, example.requests, full=True) as trace:
            for step in steps_of(example):
                trace.write(step)
        yield path, Introduced(example.title, example.says)


def picture_names(text: str) -> list[str]:
    """The names of the pictures in a page."""
    return [name for match in _PLACE.finditer(text) for name in match[2].split(" ")]


def with_pictures(text: str, films: Films, root: str) -> str:
    """The page with its pictures.

    Raises:
        PictureError: there is no example with that name.
    """
    by_name = examples()

    def drawn(match: re.Match[str]) -> str:
        names = match[2].split(" ")
        if unknown := [name for name in names if name not in by_name]:
            raise PictureError(f"no example is called {unknown[0]}; there are {', '.join(by_name)}")
        if match[1] == "waits":
            return waits_table([(by_name[name], steps_of(by_name[name])) for name in names])
        (name,) = names
        return _DRAWN[match[1]](by_name[name], films, root)

    return _PLACE.sub(drawn, text)


def _picture(example: Example, films: Films, root: str) -> str:
    name = trace_name(example)
    return films.element(name, example.name, root=root, at=example.at, parts="chart picture")


def _run(example: Example, films: Films, root: str) -> str:
    return films.element(trace_name(example), example.name, root=root, at=example.at)


def _plot(example: Example, _films: Films, _root: str) -> str:
    drawn = staircase(steps_of(example), example)
    return f"<figure>{drawn}<figcaption>{escape(example.says)}</figcaption></figure>"


def _live(example: Example, _films: Films, root: str) -> str:
    config = example.config.as_mapping()
    usual = claims_of(example.config.policy).config().as_mapping()
    situation = {
        "policy": example.config.policy,
        "config": {key: value for key, value in config.items() if value != usual[key]},
        "requests": [request_as_json(request) for request in example.requests],
        "title": example.title,
    }
    runtime, link = f"{root}runtime/", f"{root}rules/{{id}}.html"
    return f"<div>{live_element(situation, runtime=runtime, name='live', rule_link=link)}</div>"


_DRAWN: dict[str, Callable[[Example, Films, str], str]] = {
    **{"picture": _picture, "run": _run, "live": _live, "plot": _plot}
}
