"""A whole run: judging in several processes, costs on the clock, bounded memory."""

import gc
import pickle
import sys
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from checks.ending import WorkerDiedError
from checks.harness.judging import Judge, judgeable
from checks.harness.runs import slices
from checks.harness.runs.serving import Run, run_workload
from checks.harness.runs.settings import Settings
from checks.harness.runs.slices import Slices
from checks.remembered import remembering
from engine.core.blocks import FreeList
from engine.core.clock import CostModel
from engine.core.faults import Constraint, ConstraintError
from engine.core.metrics import Objective
from engine.core.tensors import Tensor
from engine.spyre.device import DecodeInput, SpyreDevice
from engine.spyre.scheduler import prefill as planning
from engine.workloads import read_workload
from spec.core.requests import Request
from spec.spyre.config import SpyreConfig
from tests.engine.workload_files import fit
from tests.requests import request

EXAMPLES = Path(__file__).parents[4] / "examples"
CONFIG = SpyreConfig(block_size=4, chunk_size=8, max_model_len=64, max_num_seqs=3)


def settings(config: SpyreConfig = CONFIG, costs: dict[str, float] | None = None) -> Settings:
    return Settings(config, CostModel.from_mapping(costs or {}, config))


def several() -> list[Request]:
    return [request(str(n), 3 + 5 * n, 4 + n, arrival=2 * n) for n in range(6)]


def outcome(run: Run) -> Any:
    """The summary of a run without its duration."""
    return evolve(run, seconds=0)


def in_slices(patch: pytest.MonkeyPatch, steps: int = 7) -> None:
    """Judge the run in slices of `steps` steps, in other processes."""
    patch.setattr(slices, "_STEPS", steps)
    patch.setattr("os.cpu_count", lambda: 2)


def at_once(patch: pytest.MonkeyPatch) -> None:
    """Each step is judged when it was taken."""
    patch.setattr("os.cpu_count", lambda: 1)


def found_by_both(patch: pytest.MonkeyPatch, **options: Any) -> tuple[Run, Run]:
    """The same run, judged in this process and by several."""
    at_once(patch)
    alone = run_workload(settings(), several(), **options)
    in_slices(patch)
    return alone, run_workload(settings(), several(), **options)


@pytest.mark.parametrize("using", ["engine", "reference"])
def test_several_processes_find_what_one_finds(using: str, monkeypatch: pytest.MonkeyPatch) -> None:
    alone, together = found_by_both(monkeypatch, using=using)

    assert outcome(alone) == outcome(together)
    assert alone.holds
    assert alone.steps > 20
    assert len(alone.rules) == len(judgeable(CONFIG))


def test_the_collector_looks_rarely_during_a_run_and_as_usual_after_it() -> None:
    usual, during = gc.get_threshold(), set[int]()

    run_workload(settings(), several(), observers=[lambda _: during.add(gc.get_threshold()[0])])

    assert min(during) > usual[0]
    assert (gc.get_threshold(), gc.get_freeze_count()) == (usual, 0)


def test_breaches_are_reported_whichever_process_sees_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = planning.plan_prefill
    monkeypatch.setattr(
        "engine.spyre.scheduler.scheduler.plan_prefill",
        lambda core: (None, "SPY-PRI-3") if len(core.decoding) > 1 else plan(core),
    )
    monkeypatch.setattr(FreeList, "put_back", FreeList.put_front)
    alone, together = found_by_both(monkeypatch)

    assert {violation.rule.id for violation in alone.broken} >= {"SPY-PRI-6", "BLK-4"}
    assert outcome(alone) == outcome(together)


@pytest.mark.parametrize("most", [0, 1])
def test_a_token_that_a_request_alone_does_not_sample_ends_the_run(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = SpyreDevice.decode
    monkeypatch.setattr(SpyreDevice, "decode", lambda device, given: decode(device, given) ^ 1)
    (in_slices if most else at_once)(monkeypatch)

    with pytest.raises(RuntimeError, match=r"step \d+: output 1 of 0 is \d+, served alone it is"):
        run_workload(settings(), several())


def test_a_judging_process_that_dies_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Judge, "observe", lambda _judge, _step: sys.exit(3))
    in_slices(monkeypatch)

    with pytest.raises(WorkerDiedError, match="a worker process that judged the run was killed"):
        run_workload(settings(), several())


def test_one_process_more_than_cores_judges_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker processes wait until the run is over: the main process judges the other slices."""
    begun = list[str]()
    start = ForkProcess.start

    def noted(process: ForkProcess) -> None:
        begun.append(process.name)
        start(process)

    monkeypatch.setattr(ForkProcess, "start", noted)
    monkeypatch.setattr(Connection, "poll", lambda *_: False)
    in_slices(monkeypatch, steps=3)

    run = run_workload(settings(), several())

    assert run.holds
    assert len(begun) == 3 < run.steps // 3


@pytest.mark.parametrize("using", ["engine", "reference"])
def test_a_long_queue_makes_slices_short_where_states_copy_it(
    using: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = list[int]()
    drop = Slices._drop_steps

    def noted(slices: Slices) -> None:
        lengths.append(len(slices._steps))
        drop(slices)

    monkeypatch.setattr(Slices, "_drop_steps", noted)
    in_slices(monkeypatch, steps=1000)
    monkeypatch.setattr(slices, "_QUEUED", 5)

    run = run_workload(settings(), [request(str(n), 5, 4) for n in range(9)], using=using)

    assert sum(lengths) == run.steps == 20
    # Nine, seven, six ... requests wait.
    assert len(lengths) > 5 if using == "reference" else len(lengths) == 1


def test_a_refused_step_ends_the_run_in_several_processes_as_in_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Blocks have come back in a wrong order before: that is found up to the refused step."""
    decode = SpyreDevice.decode

    def refusing(device: SpyreDevice, given: DecodeInput) -> Tensor:
        if given.positions.max() > 20:
            raise ConstraintError(Constraint.MODEL_LENGTH, {"position": 21, "max_model_len": 21})
        return decode(device, given)

    monkeypatch.setattr(SpyreDevice, "decode", refusing)
    monkeypatch.setattr(FreeList, "put_back", FreeList.put_front)
    alone, together = found_by_both(monkeypatch)

    assert alone.refused is not None
    assert alone.refused.step == alone.steps > 10
    assert {violation.rule.id for violation in alone.broken} == {"BLK-4"}
    assert str(alone.refused) == str(together.refused)
    assert outcome(evolve(alone, refused=None)) == outcome(evolve(together, refused=None))


def test_costs_lengthen_the_steps_and_all_latencies_with_them() -> None:
    # Chunks of 4 and 5 tokens, the second reads 4; two decode steps of one row read 9 and 10.
    costs = {"per_chunk_token": 0.5, "per_row": 0.25, "per_cached_token": 0.01}
    summary = run_workload(settings(costs=costs), [request("a", 9, 3)]).summary

    first = 8 + 4 * 0.5 + 8 + 5 * 0.5 + 4 * 0.01
    assert summary.ttft_units.mean == pytest.approx(first)
    assert summary.itl_units.max == pytest.approx(1 + 0.25 + 0.1)
    assert summary.duration_units == pytest.approx(first + 2 * 1.25 + 0.19)


def test_goodput_counts_requests_that_meet_every_bound_at_the_bound_itself_too() -> None:
    # First tokens at 8 and 17, b's second at 18; a's at 8, 9 and 18: 5 between them in the mean.
    requests = [request("a", 6, 3), request("b", 2, 2)]

    def good(**bounds: float) -> int:
        return run_workload(settings(), requests, objective=Objective(**bounds)).summary.good

    assert [good(ttft=7.9), good(ttft=8), good(ttft=17)] == [0, 1, 2]
    assert [good(itl=4.9), good(itl=5)] == [1, 2]
    assert [good(e2e=17.9), good(e2e=18)] == [0, 2]
    assert good(ttft=8, itl=4.9) == 0
    single = run_workload(settings(), [request("a", 6, 1)], objective=Objective(itl=0.001))
    assert single.summary.good == 1  # one token has no time between tokens


def test_nothing_is_kept_of_requests_that_have_left(monkeypatch: pytest.MonkeyPatch) -> None:
    requests, contexts = several(), list[Any]()

    def kept(ctx: Any) -> Any:
        contexts.append(remembering(ctx))
        return contexts[-1]

    monkeypatch.setattr("checks.harness.runs.serving.remembering", kept)
    run_workload(settings(), requests)

    ctx = contexts[-1]
    assert ctx.requests.keys() == {request.id for request in requests}
    assert all(not request._sampled for request in ctx.requests.values())
    assert not ctx.keys._known


@pytest.mark.thorough
@pytest.mark.parametrize("sample", ["azure_sample.csv", "mooncake_sample.jsonl"])
@pytest.mark.parametrize("changes", [{}, {"admission": "shipped", "queue": "overtaking"}])
def test_public_traces_keep_every_rule_with_the_real_sizes(
    sample: str, changes: dict[str, str]
) -> None:
    config = SpyreConfig.from_mapping(changes)
    servable, refused = fit(read_workload(EXAMPLES / sample), config)
    run = run_workload(settings(config), servable)
    assert run.holds
    assert run.summary.finished == len(servable) > len(refused)
    assert run.steps > 150


def test_a_run_crosses_to_another_process_with_what_it_broke_and_what_refused_it() -> None:
    keys = {"block_size": 2, "chunk_size": 4, "max_model_len": 16, "max_num_seqs": 3}
    limits = {"max_batch_tkv_limit": 6, "admission": "documented", "prefix_caching": False}
    config = SpyreConfig.from_mapping(keys | limits)
    two = [request("0", 1, 4), request("1", 1, 2)]
    for using in ("engine", "reference"):  # the device refuses the one, a rule falls in the other
        run = run_workload(settings(config), two, using=using)

        read = pickle.loads(pickle.dumps(run))

        assert not read.holds
        same = {"refused": None, "device": None}  # compared as they are printed
        assert evolve(outcome(read), **same) == evolve(outcome(run), **same)
        assert str(read.refused) == str(run.refused)
        assert [violation.rule for violation in read.broken] == [
            violation.rule for violation in run.broken
        ]
