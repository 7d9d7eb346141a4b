"""Every sentence about time and cost has a verdict, and each measured one comes out as it says."""

import re
from functools import cache
from math import ceil

import pytest
from attrs import evolve

from checks.chapters import TIME, all_measured, with_measured
from checks.export.policy import presentation_of
from checks.harness.runs import measuring
from checks.harness.runs.measuring import Measured, falls, rises
from checks.policies.nano_vllm import measured as nano_vllm
from checks.policies.vllm_v1 import measured as vllm_v1
from engine.core.clock import COUNTS

CITED = re.compile(r"(?:measured|refuted): (.+)")
EXPERIMENT = re.compile(r"(\w+) (\d+(?:, \d+)*)")
EQUATION = re.compile(r"(refuted, )?arithmetic: ([-0-9x+/(). ceil]+) = ([0-9.]+)")
# Sentences of each text that say something about time, cost, throughput or saved memory, as the
# tables name them. A sentence that comes or goes changes its number here.
SENTENCES = {"Spyre": 6, "nano-vLLM": 35, "vLLM V0": 51, "vLLM V1": 62}


@cache
def results() -> dict[str, Measured]:
    return {measured.name: measured for measured in all_measured()}


def table_verdicts(chapter: str) -> dict[str, list[str]]:
    """The verdicts in the table of each text."""
    parts = re.split(r"^## (.+)$", chapter, flags=re.MULTILINE)[1:]
    texts = zip(parts[::2], parts[1::2], strict=True)
    tables = {name: text.partition("\n### ")[0].splitlines() for name, text in texts}
    return {
        name: [line.split(" | ")[2].removesuffix(" |") for line in lines if line.startswith("| ")][
            2:
        ]
        for name, lines in tables.items()
    }


VERDICTS = table_verdicts(TIME.read_text(encoding="utf-8"))


def wrong(verdict: str) -> str:
    """The reason why the verdict is none, or not that of its experiment; empty if it is right."""
    if verdict.startswith("not measurable: ") and len(verdict) > 30:
        return ""
    if equation := EQUATION.fullmatch(verdict):
        _, left, right = equation.groups()
        value = eval(left.replace("x", "*"), {"__builtins__": {}, "ceil": ceil})
        return "" if value == float(right) else f"it is {value}"
    if not (cited := CITED.fullmatch(verdict)):
        return "no verdict"
    holds = []
    for name, numbers in EXPERIMENT.findall(cited[1]):
        claims = [*results()[name].claims.values()]
        holds += [claims[int(number) - 1] for number in numbers.split(", ")]
    return "" if holds and all(holds) == verdict.startswith("measured") else f"it is {holds}"


@pytest.mark.thorough
def test_every_sentence_has_a_verdict_that_its_experiment_shares() -> None:
    assert {name: len(verdicts) for name, verdicts in VERDICTS.items()} == SENTENCES
    found = {verdict: wrong(verdict) for verdicts in VERDICTS.values() for verdict in verdicts}

    assert {verdict: why for verdict, why in found.items() if why} == {}


@cache
def budgets_alone() -> dict[str, Measured]:
    return {"Budgets": vllm_v1.budgets()}


@pytest.mark.parametrize(
    ("verdict", "why"),
    [
        ("measured: Budgets 4", "it is [False]"),
        ("refuted: Budgets 1", "it is [True]"),
        ("measured: Budgets 1, 4", "it is [True, False]"),
        ("arithmetic: 2 x 3 = 7", "it is 6"),
        ("holds", "no verdict"),
        ("not measurable: ", "no verdict"),
    ],
)
def test_wrong_verdict_is_found(verdict: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "results", budgets_alone)
    assert wrong(verdict) == why


@pytest.mark.thorough
def test_every_experiment_is_cited() -> None:
    cited = {
        name
        for verdicts in VERDICTS.values()
        for verdict in verdicts
        if CITED.fullmatch(verdict)
        for name, _ in EXPERIMENT.findall(verdict)
    }

    assert cited == set(results())


@pytest.mark.thorough
def test_the_figures_of_the_chapter_are_what_is_measured() -> None:
    chapter = TIME.read_text(encoding="utf-8")

    assert with_measured(chapter, results().values()) == chapter
    assert chapter.count("<!-- measured ") == len(results())


def test_values_rise_or_fall_only_if_each_does() -> None:
    assert rises([1, 2, 3])
    assert falls([3, 2, 1])
    assert not rises([1, 2, 2])
    assert not falls([2, 2, 1])


# --- planted faults -------------------------------------------------------------------------------


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step has the same cost."""
    monkeypatch.setattr(
        measuring, "presentation_of", lambda policy: evolve(presentation_of(policy), cost=COUNTS)
    )


@pytest.mark.usefixtures("counted")
def test_steps_that_do_not_depend_on_their_tokens_refute_what_the_texts_say() -> None:
    p99_follows_the_budget, *_ = vllm_v1.budgets().claims.values()
    hits_bring_tokens_sooner, *_ = nano_vllm.hits().claims.values()

    assert not p99_follows_the_budget
    assert not hits_bring_tokens_sooner


def test_an_engine_that_reuses_nothing_refutes_that_hits_save_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = measuring.asking
    monkeypatch.setattr(nano_vllm, "asking", lambda *given, shared=0, **more: right(*given, **more))

    assert not any(nano_vllm.waste().claims.values())
    assert not next(iter(nano_vllm.admissions().claims.values()))
