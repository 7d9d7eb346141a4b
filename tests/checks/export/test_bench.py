"""The result of a run as `vllm bench serve` writes it."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from checks.export.bench import Bench
from checks.export.policy import presentation_of
from checks.harness.case import Case
from checks.harness.runs.serving import served
from engine.core.metrics import Metrics, Objective
from engine.workloads import read_workload
from spec.core.requests import Request
from spec.spyre.config import SpyreConfig
from tests.engine.foreign_files import summary
from tests.requests import request

CONFIG = SpyreConfig(
    block_size=4, chunk_size=8, max_model_len=64, max_num_seqs=2, num_blocks=20, prefill_time=8
)


def result_of(*requests: Request, slo: Objective | None = None) -> dict[str, Any]:
    by_id, shown = {request.id: request for request in requests}, presentation_of("spyre")
    bench = Bench(by_id, shown.duration_of(CONFIG))
    metrics = Metrics(by_id, shown.cost, partial(shown.work, CONFIG), objective=slo)
    for step in served(Case(CONFIG, requests)):
        bench.observe(step)
        metrics.observe(step)
    bench.write(Path("bench.json"), metrics.summary(), "spyre", rate=None)
    written: dict[str, Any] = json.loads(Path("bench.json").read_text(encoding="utf-8"))
    return written


def test_names_order_and_units_are_those_of_the_tool() -> None:
    """One chunk of 8 tokens takes 8 units, a decode step 1: b's first token comes in step 5."""
    written = result_of(
        request("a", 10, 3, arrival_time=0.5),
        request("b", 15, 2, arrival_time=1.25),
        slo=Objective(ttft=17),
    )

    assert len(written.pop("date")) == len("20260131-235959")
    assert [*written.items()] == [
        ("endpoint_type", "lockstep"),
        ("backend", "lockstep"),
        ("label", None),
        ("model_id", "spyre"),
        ("tokenizer_id", None),
        ("num_prompts", 2),
        ("request_rate", "inf"),
        ("burstiness", 1.0),
        ("max_concurrency", None),
        ("duration", 35.0),
        ("completed", 2),
        ("failed", 0),
        ("total_input_tokens", 25),
        ("total_output_tokens", 5),
        ("request_throughput", 2 / 35),
        ("request_goodput", 1 / 35),
        ("output_throughput", 5 / 35),
        ("total_token_throughput", 30 / 35),
        ("input_lens", [10, 15]),
        ("output_lens", [3, 2]),
        ("ttfts", [16.0, 33.25]),
        ("itls", [[1.0, 9.0], [1.0]]),
        ("latencies", [26.0, 34.25]),
        ("start_times", [0.5, 1.25]),
        ("queue_times", [0.0, 0.0]),
        ("generated_texts", ["", ""]),
        ("errors", ["", ""]),
        ("max_output_tokens_per_s", 1.0),
        ("max_concurrent_requests", 2),
        ("rtfx", 0.0),
        ("mean_ttft_ms", 24_625),
        ("median_ttft_ms", 24_625),
        ("std_ttft_ms", 8_625),
        ("p99_ttft_ms", pytest.approx(33_077.5)),
        ("mean_tpot_ms", 3_000),  # of 5 and 1
        ("median_tpot_ms", 3_000),
        ("std_tpot_ms", 2_000),
        ("p99_tpot_ms", pytest.approx(4_960)),
        ("mean_itl_ms", pytest.approx(11_000 / 3)),
        ("median_itl_ms", 1_000),
        ("std_itl_ms", pytest.approx(3_771.236166)),
        ("p99_itl_ms", pytest.approx(8_840)),
        ("mean_e2el_ms", 30_125),
        ("median_e2el_ms", 30_125),
        ("std_e2el_ms", 4_125),
        ("p99_e2el_ms", pytest.approx(34_167.5)),
    ]


def test_a_request_without_its_whole_answer_has_failed_and_counts_nowhere() -> None:
    written = result_of(
        request("a", 3, 9, abort_at=3),
        request("b", 3, 1),
        request("never", 3, 1, after="a", arrival_time=2.0),
        request("left", 3, 1, arrival_time=19.0, abort_at=2),
        request("turn", 3, 1, after="b", arrival_time=2.5),
        request("next", 3, 1, after="turn", arrival_time=0.0),
    )

    assert (written["completed"], written["failed"], written["num_prompts"]) == (3, 1, 6)
    assert written["errors"] == ["aborted", "", "", ""]
    assert written["output_lens"] == [0, 1, 1, 1]
    assert written["start_times"] == [0, 0, 19.5, 27.5]  # 2.5 after the end of b; with that of turn
    assert (written["mean_ttft_ms"], written["mean_tpot_ms"]) == (11_000, 0)
    assert written["max_concurrent_requests"] == 1


def test_what_is_written_is_read_as_the_workload_that_was_served() -> None:
    requests = [request(str(row), 5 + row, 3, arrival_time=4.0 * row) for row in range(3)]
    result_of(*requests)

    read = read_workload("bench.json")

    assert read.format == "bench-serve"
    assert [summary(request) for request in read.requests] == [
        ("0", 5, 3, 0, None),
        ("1", 6, 3, 4, None),
        ("2", 7, 3, 8, None),
    ]
