"""The recorder for vLLM, on a stand-in that repeats what the released scheduler did."""

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from checks.harness.logs.watching import Watch
from engine.workloads.own import request_of
from lockstep import vllm
from spec.core.requests import BlockKeys
from spec.vllm_v1.config import VllmV1Config
from tests.checks.harness.logs.written import RECORDED, Json, watched

NAMES = (
    "vllm-v1-0.28.0-preempted_last",
    "vllm-v1-0.28.0-prefix_hit",
    "vllm-v1-0.28.0-gone_while_running",
)


class Scheduler:
    """Repeats the recorded steps of a case with the objects of vLLM."""

    def __init__(self, name: str) -> None:
        header, *lines = map(json.loads, (RECORDED / f"{name}.jsonl").read_text().splitlines())
        self.steps: list[Json] = [line for line in lines if "record" in line]
        self.config: Json = header["config"]
        self.cases = {entry["id"]: request_of(entry) for entry in header["requests"]}
        config = VllmV1Config.from_mapping(self.config)
        self.keys = BlockKeys(self.cases, config.block_size)
        self.scheduler_config = SimpleNamespace(
            async_scheduling=False,
            enable_chunked_prefill=config.chunked_prefill,
            long_prefill_token_threshold=config.long_prefill_token_threshold,
            policy=config.scheduling.value,
            scheduler_reserve_full_isl=config.reserve_full_prompt,
        )
        cache = SimpleNamespace(enable_prefix_caching=config.prefix_caching)
        self.vllm_config = SimpleNamespace(cache_config=cache)
        self.kv_cache_config = SimpleNamespace(
            num_blocks=config.pool_blocks + 1, kv_cache_groups=[0]
        )
        self.kv_cache_manager = SimpleNamespace(usage=0.0)
        self.block_size, self.max_model_len = config.block_size, config.max_model_len
        self.max_num_running_reqs = config.max_num_seqs
        self.max_num_scheduled_tokens = config.token_budget
        self.finished_req_ids: set[str] = set()
        self.waiting: list[Any] = []
        self.running: list[Any] = []
        self.record: Json = {}

    def serve(self) -> None:
        for step in self.steps:
            action, self.record = step["action"], step["record"]
            for id_ in action.get("arrive", ()):
                self.add_request(self.request(id_))
            aborted = SimpleNamespace(name="FINISHED_ABORTED")
            for id_ in action.get("abort", ()):
                self.finish_requests(id_, aborted)
            scheduled = self.schedule()
            for id_ in action.get("abort_running", ()):
                self.finish_requests([id_], aborted)
            self.update_from_output(scheduled, SimpleNamespace())

    def request(self, id_: str) -> Any:
        case = self.cases[id_]
        blocks = case.most_tokens // self.block_size
        return SimpleNamespace(
            request_id=id_,
            num_prompt_tokens=case.prompt_len,
            max_tokens=case.max_tokens,
            priority=case.priority,
            block_hashes=self.keys.of(id_, blocks),
        )

    def add_request(self, request: Any) -> None:
        pass

    def finish_requests(self, ids: Any, _status: Any) -> None:
        pass

    def _preempt_request(self, request: Any, _time: float) -> None:
        pass

    def schedule(self) -> Any:
        record = self.record
        for id_ in record.get("preempted", ()):
            self._preempt_request(SimpleNamespace(request_id=id_), 0.0)
        planned = record.get("planned", record)
        self.hold(planned, record["scheduled"])
        self.finished_req_ids = set(planned.get("unreported", ()))
        admitted = record.get("admitted", ())
        return SimpleNamespace(
            num_scheduled_tokens=record["scheduled"],
            total_num_scheduled_tokens=sum(record["scheduled"].values()),
            scheduled_new_reqs=[SimpleNamespace(req_id=id_) for id_ in admitted],
            scheduled_cached_reqs=SimpleNamespace(resumed_req_ids=set()),
            scheduled_spec_decode_tokens={},
            finished_req_ids=set(record.get("reported", ())),
        )

    def hold(self, state: Json, counted: Json) -> None:
        """Queues as recorded, and requests that count the scheduled tokens as computed."""
        rows = {
            row["id"]: SimpleNamespace(
                request_id=row["id"],
                num_computed_tokens=row["computed"] + counted.get(row["id"], 0),
                num_output_tokens=row["generated"],
                spec_token_ids=[],
            )
            for row in state["rows"]
        }
        self.waiting = [rows[id_] for id_ in state.get("waiting", ())]
        self.running = [rows[id_] for id_ in state.get("running", ())]

    def update_from_output(self, _scheduled: Any, _output: Any) -> Any:
        record = self.record
        self.hold(record, {})
        self.kv_cache_manager.usage = record["statistics"]["usage"]
        self.finished_req_ids = set(record.get("unreported", ()))
        reason = SimpleNamespace(name="LENGTH")
        outputs = [
            SimpleNamespace(
                request_id=id_,
                new_token_ids=tokens,
                finish_reason=reason if id_ in record["finished"] else None,
            )
            for id_, tokens in record["outputs"].items()
        ]
        return {0: SimpleNamespace(outputs=outputs)}


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "log.jsonl"
    monkeypatch.setenv(vllm.LOG, str(path))
    monkeypatch.setattr(vllm, "version", lambda _package: "0.28.0")
    return path


def recorded(name: str, log: Path) -> Watch:
    scheduler = Scheduler(name)
    recorder = vllm.record(scheduler)
    assert recorder is not None
    scheduler.serve()
    recorder.close()
    return watched(log)


@pytest.mark.parametrize("name", NAMES)
def test_what_the_recorder_writes_is_equal_to_the_reference(name: str, log: Path) -> None:
    watch = recorded(name, log)

    assert (watch.seen.findings, watch.seen.stopped) == ({}, "")
    assert watch.seen.compared == watch.seen.steps == len(Scheduler(name).steps)
    assert {"scheduled", "preempted", "statistics", "budget_left"} <= {*watch.seen.compared_fields}


@pytest.mark.parametrize("name", NAMES)
def test_with_states_most_rules_judge(
    name: str, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = recorded(name, log).judged_rules
    log.unlink()
    monkeypatch.setenv(vllm.STATES, "1")
    watch = recorded(name, log)

    assert (watch.seen.findings, watch.seen.stopped) == ({}, "")
    assert watch.seen.compared == watch.seen.steps == len(Scheduler(name).steps)
    assert {*few} < {*watch.judged_rules}
    assert len(watch.judged_rules) >= 30
    assert {"planned", "after"} <= {*watch.seen.compared_fields}


def test_no_token_of_a_client_is_in_the_log(log: Path) -> None:
    recorded("vllm-v1-0.28.0-prefix_hit", log)
    entries = [json.loads(line) for line in log.read_text().splitlines()]

    arrivals = [entry["arrive"] for entry in entries if "arrive" in entry]
    assert {*arrivals[0]} == {"id", "prompt_len", "max_tokens", "block_hashes"}
    steps = [entry["step"] for entry in entries if "step" in entry]
    assert all(type(count) is int for step in steps for count in step["outputs"].values())


def test_the_log_has_a_bound_and_says_that_it_was_reached(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(vllm.BYTES, "2000")
    watch = recorded("vllm-v1-0.28.0-preempted_last", log)

    assert log.stat().st_size <= 2000
    assert watch.seen.stopped == "the log has the size that it may have"
    assert 0 < watch.seen.compared == watch.seen.steps < 18


def test_an_error_of_the_recorder_ends_the_log_and_not_the_server(log: Path) -> None:
    scheduler = Scheduler("vllm-v1-0.28.0-prefix_hit")
    recorder = vllm.record(scheduler)
    assert recorder is not None
    del scheduler.kv_cache_manager.usage
    scheduler.update_from_output = lambda *_: {}  # type: ignore[method-assign]
    recorder = vllm.Recorder(scheduler, log, 10_000)
    scheduler.record = scheduler.steps[0]["record"]
    scheduler.update_from_output(scheduler.schedule(), SimpleNamespace())

    assert "usage" in recorder.stopped


def test_a_class_may_go_on_after_the_scheduler_of_vllm_is_made(log: Path) -> None:
    scheduler = Scheduler("vllm-v1-0.28.0-prefix_hit")
    size, scheduler.block_size = scheduler.block_size, None  # type: ignore[assignment]
    recorder = vllm.record(scheduler)
    assert recorder is not None
    scheduler.block_size = size
    scheduler.serve()
    recorder.close()

    assert watched(log).header.config.block_size == size


def test_a_scheduler_that_cannot_be_described_serves_without_a_log(log: Path) -> None:
    scheduler = Scheduler("vllm-v1-0.28.0-prefix_hit")
    recorder = vllm.record(scheduler)
    assert recorder is not None
    del scheduler.kv_cache_config
    scheduler.serve()
    recorder.close()

    assert "kv_cache_config" in recorder.stopped
    assert not log.exists()


@pytest.mark.parametrize(
    ("method", "undescribed"), [("ngram", ("a drafter that may propose fewer",)), ("eagle", ())]
)
def test_a_server_whose_drafter_may_propose_fewer_is_judged_and_not_compared(
    method: str, undescribed: tuple[str, ...], log: Path
) -> None:
    scheduler = Scheduler(NAMES[0])
    scheduler.vllm_config.speculative_config = SimpleNamespace(method=method)
    recorder = vllm.record(scheduler)
    assert recorder is not None
    scheduler.serve()
    recorder.close()

    watch = watched(log)

    assert watch.header.undescribed == undescribed
    assert (watch.seen.compared == 0) == bool(undescribed)


def test_a_log_that_exists_is_kept(log: Path) -> None:
    log.write_text("old")
    scheduler = Scheduler("vllm-v1-0.28.0-prefix_hit")
    recorder = vllm.record(scheduler)
    assert recorder is not None
    scheduler.serve()
    recorder.close()

    assert log.read_text() == "old"
    assert log.with_name("log.jsonl.1").exists()


def test_without_the_variable_nothing_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(vllm.LOG, raising=False)
    scheduler = Scheduler("vllm-v1-0.28.0-prefix_hit")
    before = {*vars(scheduler)}

    vllm.register()  # would import vLLM, which is not installed here

    assert vllm.record(scheduler) is None
    assert {*vars(scheduler)} == before


def test_a_scheduler_class_and_the_entry_point_record(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("vllm.v1.core.sched.scheduler")
    module.Scheduler = type("Scheduler", (Scheduler,), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm.v1.core.sched.scheduler", module)
    monkeypatch.delitem(vars(vllm), "RecordedScheduler", raising=False)

    by_class = vllm.RecordedScheduler("vllm-v1-0.28.0-prefix_hit")
    vllm.register()
    by_entry_point = module.Scheduler("vllm-v1-0.28.0-prefix_hit")
    for number, scheduler in enumerate((by_class, by_entry_point)):
        scheduler.serve()
        scheduler._lockstep_recorder.close()
        name = log.with_name(f"{log.name}.{number}") if number else log
        assert len(name.read_text().splitlines()) > len(scheduler.steps)
    monkeypatch.delitem(vars(vllm), "RecordedScheduler")


def test_the_file_needs_the_standard_library_alone() -> None:
    lines = Path(vllm.__file__).read_text(encoding="utf-8").splitlines()
    imports = [line.split() for line in lines if line.startswith(("import ", "from "))]

    assert {words[1].partition(".")[0] for words in imports} <= {*sys.stdlib_module_names}


@pytest.mark.parametrize(
    ("cached", "chunks"),
    [(0, [64, 128, 87]), (64, [128, 87]), (128, [128, 87]), (192, [87]), (256, [87])],
)
def test_the_plugins_device_computes_chunks_on_a_grid(cached: int, chunks: list[int]) -> None:
    writer: Any = SimpleNamespace(
        _rows={"a": [SimpleNamespace(num_prompt_tokens=279)]},
        _header={"config": {"chunk_size": 128}},
        _block_size=64,
        _chunks={},
    )
    new = [SimpleNamespace(num_computed_tokens=cached)]
    steps = [new, *[[]] * (len(chunks) - 1)]
    made = [
        vllm._Writer._chunk(
            writer, SimpleNamespace(num_scheduled_tokens={"a": 1}, scheduled_new_reqs=first)
        )
        for first in steps
    ]

    assert made == [{"a": tokens} for tokens in chunks]
