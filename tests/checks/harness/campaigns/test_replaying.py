"""Every system replays every trace."""

from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from checks.explore.counterexample import write_counterexample
from checks.explore.exploring import explore_instance
from checks.explore.policy import machine_of
from checks.export.trace.reading import Trace, read_trace
from checks.export.trace.writing import TraceWriter
from checks.harness.campaigns.replaying import replay_of
from checks.harness.runs.serving import served
from checks.harness.system import System
from spec.core.errors import WorkloadError
from spec.spyre.records import Step
from tests.checks.harness.cases import ENGINE, REFERENCE, case, changed, faulty_spyre
from tests.recorded.scenes import asks

HERE = case(asks("0", 2, 6), asks("1", 8, 4, arrival=1), asks("2", 3, 3, abort_at=9))

SYSTEMS = [
    pytest.param(None, id="reference, by default"),
    pytest.param(REFERENCE, id="reference"),
    pytest.param(ENGINE, id="engine"),
]


@pytest.fixture
def run(tmp_path: Path) -> Trace:
    """The reference's run of `HERE`."""
    path = tmp_path / "run.jsonl"
    with TraceWriter(path, HERE.config, HERE.requests, full=True) as trace:
        for step in served(HERE):
            trace.write(step)
    return read_trace(path)


@pytest.fixture(scope="module")
def counterexample(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """A run by actions: the text's volume rule exceeds the limit."""
    instance = next(
        instance for instance in machine_of("spyre").instances if instance.name == "documented"
    )
    exploration = explore_instance(instance)
    path = tmp_path_factory.mktemp("traces") / "counterexample.jsonl"
    write_counterexample(exploration, exploration.findings[0], path)
    return read_trace(path)


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_replays_a_run_and_a_counterexample(
    run: Trace, counterexample: Trace, system: System | None
) -> None:
    result = replay_of(run, system)
    assert (result.difference, result.broken) == (None, [])
    assert len(result.steps) == len(run.steps) == 10

    result = replay_of(counterexample, system)
    assert (result.difference, result.confirms) == (None, True)
    assert {violation.rule for violation in result.broken} == {"SPY-VOL-1"}


def test_a_system_that_does_otherwise_differs_from_the_file(run: Trace) -> None:
    result = replay_of(run, faulty_spyre("rows not padded"))

    assert result.difference is not None
    assert "decoding" in result.difference.fields
    assert "SPY-DEC-2" in {violation.rule for violation in result.broken}


def test_a_system_that_raises_is_a_violation(run: Trace) -> None:
    def raises(step: Step) -> dict[str, Any]:
        return {} if step.index < 2 else {"kind": 1 // 0}

    result = replay_of(run, changed(raises))

    assert len(result.steps) == 2
    (broken,) = result.broken
    assert (broken.step, broken.rule, broken.says) == (2, "crash", "A scheduler raises nothing.")
    assert broken.found.startswith("changed raises ZeroDivisionError: ")


def test_a_guard_of_the_reference_is_named_as_the_explorer_names_it(run: Trace) -> None:
    (broken, *_) = replay_of(run, faulty_spyre("a block missing")).broken

    assert (broken.rule, broken.found) == ("machine-error", "decode is not allowed here: BLK-8")


def test_a_request_that_no_system_could_serve_is_refused(run: Trace) -> None:
    small = evolve(run, config=evolve(run.config, max_model_len=4))
    with pytest.raises(WorkloadError, match="prompt_len"):
        replay_of(small)


def test_a_counterexample_in_which_a_client_leaves_while_the_model_runs_is_replayed(
    tmp_path: Path,
) -> None:
    """What the client that left had been brought is lost, and found by the next request."""
    (instance,) = (
        instance
        for instance in machine_of("vllm-v1").instances
        if instance.name == "sync load, gone"
    )
    exploration = explore_instance(instance)
    (finding,) = (found for found in exploration.findings if found.rule == "V1-KV-19")
    write_counterexample(exploration, finding, tmp_path / "left.jsonl")

    result = replay_of(read_trace(tmp_path / "left.jsonl"))

    assert any("leaves" in action for action in finding.script)
    assert [broken.rule for broken in result.broken] == ["V1-KV-19"]
