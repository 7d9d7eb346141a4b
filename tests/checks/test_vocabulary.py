"""`lockstep explain` knows every word of messages and pages, from where the code defines them."""

import ast
import re
from collections.abc import Iterator
from enum import Enum
from functools import cache
from pathlib import Path

import pytest
from attrs import fields

import checks
import reference
from checks.cli.run_tables import _PARTS
from checks.evidence import PROVEN, recorded
from checks.explore.result import Outcome
from checks.export.examples import Example
from checks.export.pages.situation import Json, Moment, situation_of
from checks.export.policy import presentation_of
from checks.harness.case import Case
from checks.harness.comparing import Strictness
from checks.harness.finding import Kind
from checks.harness.policy import evidence_of
from checks.harness.runs.serving import served
from checks.mutants.report import COLUMNS
from checks.proofs.registry import Of, Second, Verdict
from checks.registry import POLICIES, RULES, claims_of
from checks.vocabulary import vocabulary
from engine.core.clock import CostModel
from engine.core.faults import Constraint, Failure
from spec.core.rule import Kind as JudgedKind

KINDS: tuple[type[Enum], ...] = (
    *(Kind, Strictness, Verdict, Of, Second, Outcome, Failure, JudgedKind),
)
LATENCIES = ("TTFT", "ITL", "end to end", "goodput")  # of the tables of `run`


@cache
def known() -> dict[str, list[str]]:
    return vocabulary()


def unknown(words: Iterator[str]) -> set[str]:
    """The words that `explain` does not know; the id behind "by" stands for any rule."""
    named = {re.sub(r" by [A-Z0-9]+(-[A-Z0-9]+)*$", " by RULE", word) for word in words}
    assert named
    return {word for word in named if word.lower() not in known()}


def actions() -> Iterator[str]:
    """What campaigns and searches count: an abort by the phase of its request."""
    for policy in POLICIES:
        for action in evidence_of(policy).labels.actions:
            yield from action.split(", ") if action.startswith("abort, ") else [action]


def events() -> Iterator[str]:
    """The transitions that the machines report."""
    for path in Path(reference.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Name(id="Event"), args=[ast.Constant(value=str(name)), *_]):
                    yield name


def kinds() -> Iterator[str]:
    for kind in KINDS:
        yield from (str(value.value) for value in kind)
    yield from map(str, Constraint)


def configuration() -> Iterator[str]:
    for config in (*(claims_of(policy).config for policy in POLICIES), CostModel):
        for key in fields(config):
            yield key.name
            if isinstance(key.type, type) and issubclass(key.type, Enum):
                yield from (str(value.value) for value in key.type)


def tables() -> Iterator[str]:
    yield from (*LATENCIES, *_PARTS)
    yield from (column.lstrip(">") for column in COLUMNS)


def pages() -> Iterator[str]:
    """The words of the drawn runs of every policy: meters, kinds of blocks, places, queues."""
    for policy in POLICIES:
        picture = presentation_of(policy).picture
        yield from (*picture.numbers, *picture.charts, *picture.queues)
        for example in presentation_of(policy).examples:
            for situation in situations(policy, example):
                yield from (meter["name"] for meter in situation["meters"])
                yield from (queue["name"] for queue in situation["queues"])
                yield from (pool["name"] for pool in situation["pools"])
                for row in situation["rows"]:
                    yield row["place"]
                    yield from (cells["kind"] for cells in row["cells"])


def situations(policy: str, example: Example) -> Iterator[Json]:
    """What the pages draw of each step of an example."""
    context = claims_of(policy).context_of(example.config, example.requests)
    for step in served(Case(example.config, example.requests)):
        yield situation_of(context, Moment(after=step.after, step=step, last=step.before))


def nouns() -> Iterator[str]:
    """What messages count: the nouns of `counted`, without an adjective of quantity."""
    for path in Path(checks.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Name(id="counted"), args=[_, ast.Constant(value=str(noun))]):
                    yield re.sub("^(more|further|equal) ", "", noun)


def ids() -> Iterator[str]:
    yield from RULES
    yield from recorded(PROVEN)


SOURCES = {
    source.__name__: source
    for source in (actions, events, kinds, configuration, tables, pages, nouns, ids)
}


@pytest.mark.parametrize("source", SOURCES)
def test_every_word_is_known(source: str) -> None:
    assert unknown(SOURCES[source]()) == set()


def test_an_unknown_word_is_noticed() -> None:
    assert unknown(iter(["volume", "refused by SPY-VOL-1", "quux"])) == {"quux"}


def test_a_word_with_several_meanings_has_them_all() -> None:
    meanings = known()["exact"]

    assert [meaning.partition(":")[0] for meaning in meanings] == [
        "exact (admission)",
        "exact (strictness)",
        "exact (admission of spyre)",
    ]
