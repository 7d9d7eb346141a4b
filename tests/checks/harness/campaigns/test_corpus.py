"""Findings as files: they are read as written, and kept findings do not occur any more."""

from pathlib import Path
from typing import Any

import pytest

from checks.export.trace.reading import read_trace
from checks.export.trace.writing import TraceWriter
from checks.harness.campaigns.corpus import case_of_trace, recorded, write_finding
from checks.harness.campaigns.recording import file_name
from checks.harness.comparing import plain_json
from checks.harness.comparison import Terms, compare
from checks.harness.finding import Finding, Kind
from checks.harness.runs.serving import served
from checks.harness.system import System
from spec.core.errors import TraceError
from spec.core.records import Event
from spec.spyre.records import Step
from tests.checks.harness.cases import (
    ENGINE,
    REFERENCE,
    UNJUDGED,
    case,
    changed,
    faulty_spyre,
    found_in,
)
from tests.recorded.scenes import asks

CORPUS = sorted((Path(__file__).parents[3] / "corpus").glob("*.jsonl"))
ANSWER = (1, 2, 0, 0, 1, 1)
SMALL = case(asks("0", 2, 6, output=ANSWER), asks("1", 8, 4, arrival=1, abort_at=9))


@pytest.mark.parametrize("system", [ENGINE, REFERENCE], ids=lambda system: system.hello.name)
@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in CORPUS])
def test_what_was_found_once_is_found_no_more(path: Path, system: System) -> None:
    here = case_of_trace(read_trace(path))

    episode = compare(system, here, Terms())

    assert episode.finding is None
    assert episode.steps > 1


@pytest.fixture(scope="module")
def finding() -> Finding:
    """The finding of a system that does not pad rows."""
    return found_in(faulty_spyre("rows not padded"), SMALL)


def test_a_finding_comes_back_from_its_file(tmp_path: Path, finding: Finding) -> None:
    path = write_finding(tmp_path / "new", "engine", SMALL, finding, Terms())

    trace = read_trace(path)
    again = recorded(trace)

    assert again is not None
    assert again.case == SMALL
    assert (again.using, again.terms) == ("engine", Terms())
    assert (again.kind, again.step, again.cause) == (finding.kind, finding.step, finding.cause)
    assert again.confirms(finding)
    assert len(trace.steps) == finding.step + 1


def test_the_file_says_the_rule_and_both_values(tmp_path: Path, finding: Finding) -> None:
    trace = read_trace(write_finding(tmp_path, "engine", SMALL, finding, Terms()))

    assert trace.violation is not None
    assert trace.violation.rule == "divergence"
    says = "batch.left_padding differs from the specification (in step 5)"
    assert trace.violation.says == says
    assert trace.violation.found["differences"][0] == {
        "field": "batch.left_padding",
        "place": "0",
        "expected": 4,
        "found": 0,
    }


def test_the_same_finding_is_the_same_file_and_another_case_is_not(
    tmp_path: Path, finding: Finding
) -> None:
    first = write_finding(tmp_path / "a", "engine", SMALL, finding, Terms())
    second = write_finding(tmp_path / "b", "engine", SMALL, finding, Terms())

    assert first.name == second.name != file_name("engine", case(asks("0", 3, 2)), finding)
    assert first.name.startswith("engine-divergence-batch-left-padding-")
    assert first.read_bytes() == second.read_bytes()


def test_what_a_target_makes_up_can_be_written(tmp_path: Path) -> None:
    def odd(_step: Step) -> dict[str, Any]:
        return {"tkv": float("nan"), "outputs": {"0": {3, 1}}, "refusal": object}

    odd_one = found_in(changed(odd), SMALL)
    trace = read_trace(write_finding(tmp_path, "odd", SMALL, odd_one, UNJUDGED))

    assert trace.violation is not None
    found = {
        difference["field"]: difference["found"]
        for difference in trace.violation.found["differences"]
    }
    assert found == {"tkv": "nan", "refusal": "<class 'object'>", "outputs": [1, 3]}


def test_values_of_states_plain_json() -> None:
    event = Event("allocate", "0", "SPY-CHK-1", (), (1, 2))
    assert plain_json({b"\xff": (event, frozenset({2, 1}))}) == {
        "ff": [
            {"transition": "allocate", "id": "0", "rule": "SPY-CHK-1"}
            | {"before": [], "after": [1, 2]},
            [1, 2],
        ]
    }
    assert plain_json(Kind.HELD) == "held"


def test_a_trace_of_a_run_is_no_finding(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with TraceWriter(path, SMALL.config, SMALL.requests) as trace:
        for step in served(SMALL):
            trace.write(step)

    assert recorded(read_trace(path)) is None


def test_a_finding_with_an_unknown_strictness_is_refused(tmp_path: Path, finding: Finding) -> None:
    path = write_finding(tmp_path, "engine", SMALL, finding, Terms())
    path.write_text(path.read_text().replace('"exact","judged"', '"strict","judged"'))

    with pytest.raises(
        TraceError, match=r"violation\.found\.strictness: found 'strict'"
    ) as refused:
        recorded(read_trace(path))
    assert str(path) in str(refused.value)


def test_a_corpus_that_cannot_be_written_is_refused(tmp_path: Path, finding: Finding) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TraceError, match="cannot write"):
        write_finding(tmp_path / "file", "engine", SMALL, finding, Terms())
