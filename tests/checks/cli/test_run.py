"""`lockstep run`: engine and reference, goodput, comparisons, timelines, refusals."""

import json
import re
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from checks.cli import common
from tests.checks.command import Ran, lockstep, settings
from tests.engine.foreign_files import SAMPLES

EXAMPLES = Path(__file__).parents[3] / "examples"
FIRST = [EXAMPLES / "first.jsonl", "--config", EXAMPLES / "first.toml"]
SMALL = ["block_size=2", "chunk_size=4", "max_model_len=16", "max_batch_tkv_limit=6"]
TWO = (
    '{"id": "0", "prompt_len": 1, "max_tokens": 4}\n{"id": "1", "prompt_len": 1, "max_tokens": 2}\n'
)


def report(*arguments: object) -> Any:
    return json.loads(lockstep("run", *arguments, "--json", "-").out)


def two_requests() -> Path:
    """The documented volume rule admits both; their second step exceeds a limit of 6."""
    path = Path("two.jsonl")
    path.write_text(TWO, encoding="utf-8")
    return path


# --- what schedules ---------------------------------------------------------------------------


WORKLOADS = [
    pytest.param(FIRST, id="first"),
    pytest.param([*FIRST, *settings("admission=shipped", "queue=overtaking")], id="overtaking"),
    pytest.param([*FIRST, *settings("queue=aligned", "max_overtakes=2")], id="aligned"),
    pytest.param([*FIRST, *settings("reservation=false", "num_blocks=16")], id="preemption"),
    pytest.param([EXAMPLES / "shared_prefix.jsonl", "--limit", 12], id="shared prefixes"),
    pytest.param(
        [EXAMPLES / "azure_sample.csv", "--limit", 8, *settings("cost.per_chunk_token=0.01")],
        id="azure, with costs",
    ),
    pytest.param([EXAMPLES / "mooncake_sample.jsonl", "--limit", 2], id="mooncake"),
]


@pytest.mark.parametrize("workload", WORKLOADS)
def test_engine_and_reference_write_the_same_files(workload: list[object]) -> None:
    for using in ("engine", "reference"):
        files = ("--trace", f"{using}.t", "--figures", f"{using}.f", "--timeline", f"{using}.json")
        ran = lockstep("run", *workload, "--using", using, *files, "--json", f"{using}.r")
        assert (ran.code, ran.err) == (0, "")
    of_engine, of_reference = Path("engine.t").read_text(), Path("reference.t").read_text()
    assert of_engine.count("\n") > 20
    assert '"source":"engine"' in of_engine
    assert of_engine.replace('"source":"engine"', '"source":"reference"', 1) == of_reference
    for kind in ("f", "json"):
        assert Path(f"engine.{kind}").read_bytes() == Path(f"reference.{kind}").read_bytes()
    reports = [json.loads(Path(f"{using}.r").read_text()) for using in ("engine", "reference")]
    for figures in reports:
        del figures["using"], figures["seconds"], figures["steps_per_second"]
    assert reports[0] == reports[1]


@pytest.mark.parametrize("name", SAMPLES)
def test_the_file_of_another_tool_is_served_and_the_answer_says_what_was_assumed(name: str) -> None:
    Path("sample").write_text(SAMPLES[name].text, encoding="utf-8")

    ran = lockstep("run", "sample", *settings("policy=vllm-v1"), "--json", "r.json")

    said = json.loads(Path("r.json").read_text())
    assert (ran.code, said["finished"]) == (0, len(SAMPLES[name].requests))
    assert said["workload"] == {"format": SAMPLES[name].format, "notes": [*SAMPLES[name].notes]}
    first, _, _ = ran.out.partition("\n")
    notes = "; ".join(SAMPLES[name].notes)
    assert (first == f"read as {SAMPLES[name].format}: {notes}") == bool(notes)


def test_lengths_of_texts_are_those_asked_for_and_the_result_is_one_of_a_benchmark() -> None:
    Path("prompts").write_text('{"prompt": "hello"}\n{"prompt": "hello there"}\n')

    ran = lockstep(
        *("run", "prompts", "--chars-per-token", 2, "--output-len", 3, "--rate", 0.5),
        *("--bench", "bench.json"),
    )

    written = json.loads(Path("bench.json").read_text())
    assert (ran.code, ran.out.splitlines()[-1]) == (0, "written: bench.json")
    assert (written["input_lens"], written["output_lens"]) == ([3, 6], [3, 3])
    assert (written["start_times"], written["request_rate"]) == ([0, 2], 0.5)


def test_at_a_tenth_of_the_rate_the_clock_runs_longer_and_the_first_tokens_come_sooner() -> None:
    busy, idle = (
        report(EXAMPLES / "azure_sample.csv", "--limit", 12, "--rate", rate)
        for rate in (0.05, 0.005)
    )

    assert idle["duration_units"] > 5 * busy["duration_units"]
    assert idle["ttft_units"]["mean"] < busy["ttft_units"]["mean"]


def test_clients_that_ask_for_more_keep_others_out_of_the_batch() -> None:
    exact, more = (
        report(
            EXAMPLES / "azure_sample.csv", *settings("max_batch_tkv_limit=32768"), "--asked", factor
        )
        for factor in (1, 9)
    )

    assert more["output_tokens"] == exact["output_tokens"]
    assert more["steps"]["decode"] > exact["steps"]["decode"]


def test_a_terminal_shows_how_far_the_run_is(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = StringIO()
    monkeypatch.setattr(common, "err", Console(file=shown, force_terminal=True, width=120))
    assert lockstep("run", *FIRST).code == 0
    assert re.search(r"0/7.* step 0, time 0, [\d,]+ steps/s", shown.getvalue())


# --- a step that the device refuses -------------------------------------------------------------

REFUSED = (
    "refused step 3: the device refuses: volume: Batch size times the largest tkv does not exceed "
    "the limit."
)


def test_a_step_that_the_device_refuses_ends_the_run_and_the_trace() -> None:
    options = settings(*SMALL, "admission=documented")
    ran = lockstep("run", two_requests(), *options, "--trace", "t.jsonl")
    assert (ran.code, ran.err) == (1, "")
    told = " ".join(ran.out.split())
    assert REFUSED in told
    assert "2: 0 finished, 0 aborted, 2 unfinished" in told
    assert re.search(r"every rule holds: \d+ rules, 3 steps until the device refused one", told)
    lines = Path("t.jsonl").read_text().splitlines()
    assert len(lines) == 1 + 3 + 1
    violation = json.loads(lines[-1])["violation"]
    assert violation["rule"] == "device: volume"
    assert violation["says"] == "Batch size times the largest tkv does not exceed the limit."
    assert violation["found"].startswith("step 3: the device refuses: volume")


def test_a_trace_with_costs_says_so_and_replays() -> None:
    costs = settings("cost.per_chunk_token=0.01", "cost.per_cached_token=0.001")
    assert lockstep("run", *FIRST, *costs, "--trace", "t.jsonl").code == 0
    header = json.loads(Path("t.jsonl").read_text().splitlines()[0])
    assert header["cost"] == {"per_chunk_token": 0.01, "per_cached_token": 0.001}
    ran = lockstep("replay", "t.jsonl")
    assert (ran.code, ran.out) == (0, "52 steps as in the file, no rule broken\n")
    Path("t.jsonl").write_text(Path("t.jsonl").read_text().replace("per_chunk_token", "each"))
    assert lockstep("replay", "t.jsonl") == Ran(
        2,
        "",
        "lockstep: t.jsonl, line 1: cost.each: found 0.01; allowed: a key out of "
        "prefill_time, decode_time, per_chunk_token, per_row, per_cached_token, "
        "per_attended_token\n",
    )


# --- goodput --------------------------------------------------------------------------------------


def test_goodput_is_the_requests_that_meet_every_bound() -> None:
    # Alone, each has its first token after 8 units; the second waits for the first: 8 + 1 + 8.
    path = two_requests()
    first, both = (report(path, "--slo", slo) for slo in ("ttft=16.5", "ttft=17,e2e=30"))
    assert (first["good"], first["goodput_share"], first["slo"]) == (1, 0.5, {"ttft": 16.5})
    assert (both["good"], both["goodput_share"]) == (2, 1.0)
    assert both["goodput_per_unit"] == pytest.approx(2 / both["duration_units"])


def test_goodput_is_printed_where_bounds_are_given() -> None:
    ran = lockstep("run", two_requests(), "--slo", "ttft=16.5, itl=9")
    assert "goodput (ttft 16.5, itl 9)" in ran.out
    assert "50.0% of those finished" in ran.out


# --- comparisons ----------------------------------------------------------------------------------

COMPARED = """\
                                 admission=exact            admission=documented
refused, never servable                        0                               0
outcome                         every rule holds          step 3 refused: volume
requests finished                         2 of 2                          0 of 2
steps                                          6                               3
of them prefill                                2                               2
time units                                    20                              17
output tokens per time unit                  0.3                            0.18
"""


def test_configurations_are_compared_in_one_table() -> None:
    compared = ["--compare", "admission=exact,documented"]
    ran = lockstep("run", two_requests(), *settings(*SMALL), *compared)
    assert ran.code == 1
    table = [row for row in rows(ran.out) if row[:1] != ["rules judged in every step"]]
    assert table[:8] == rows(COMPARED)
    assert any(row[0] == "TTFT p99" for row in table)
    assert REFUSED in " ".join(ran.out.split())


def rows(table: str) -> list[list[str]]:
    """The cells of each line of a table."""
    return [
        [cell.strip() for cell in line.strip().split("  ") if cell.strip()]
        for line in table.splitlines()
    ]


def test_several_comparisons_give_every_combination() -> None:
    both = ["--compare", "admission=exact,shipped", "--compare", "interleave=true,false"]
    found = report(two_requests(), *both)["runs"]
    assert list(found) == [
        "admission=exact, interleave=true",
        "admission=exact, interleave=false",
        "admission=shipped, interleave=true",
        "admission=shipped, interleave=false",
    ]
    interleaved = [report["config"]["interleave"] for report in found.values()]
    assert interleaved == [True, False, True, False]


def test_a_comparison_reports_what_each_run_alone_would() -> None:
    compared = report(*FIRST, "--compare", "admission=exact,shipped")["runs"]["admission=shipped"]
    alone = report(*FIRST, *settings("admission=shipped"))
    for run in (compared, alone):
        del run["seconds"], run["steps_per_second"]
    assert compared == {name: alone[name] for name in compared}
