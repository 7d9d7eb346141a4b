"""Costs are fitted to the log of a stub server whose costs are known."""

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from attrs import asdict

from checks.harness.case import Case
from checks.harness.logs.reading import LogReader
from checks.harness.logs.timing import fitted, timed_steps
from checks.harness.runs.simulating import simulated_steps
from engine.core.clock import CostModel
from spec.core.requests import Prompt, Request
from spec.vllm_v1.config import VllmV1Config
from tests.checks.command import lockstep
from tests.checks.harness.logs.written import Json, write_log

CONFIG = VllmV1Config(
    block_size=16,
    num_blocks=90,
    max_model_len=1_024,
    max_num_seqs=16,
    max_num_batched_tokens=256,
    reserve_full_prompt=False,
)
COST = CostModel(
    prefill_time=0.004,
    decode_time=0.004,
    per_chunk_token=6e-5,
    per_row=2e-4,
    per_attended_token=5e-8,
)


def clients() -> tuple[Request, ...]:
    """Requests with common beginnings, in a pool that is too small for all of them."""
    draws = Random(1)
    return tuple(
        Request(
            id=f"{number}",
            prompt=Prompt.of_parts(
                [
                    (f"system {number % 3}", 64 * (number % 4 + 1)),
                    (f"{number}", draws.randint(1, 500)),
                ]
            ),
            max_tokens=draws.randint(1, 60),
            arrival_time=number / 10,
        )
        for number in range(80)
    )


def served(noise: float = 0.0) -> Iterator[Json]:
    """The log of a server whose steps take what `COST` says, but for some noise."""
    yield {"format": "lockstep-log", "version": 1, "policy": "vllm-v1", "release": "stub 1.0"} | {
        "config": CONFIG.as_mapping()
    }
    requests, draws = clients(), Random(2)
    for request in requests:
        yield {
            "arrive": {"id": request.id, "prompt_len": request.prompt_len}
            | {"max_tokens": request.max_tokens}
        }
    records: list[Any] = []
    for step in simulated_steps(Case(CONFIG, requests), COST, records.append):
        record = records.pop()
        seconds = step.work.duration(COST) * (1 + draws.uniform(-noise, noise))
        events = [event for event in record.events if event.transition == "preempt"]
        yield {
            "step": {
                "scheduled": dict(record.scheduled),
                "outputs": {name: len(tokens) for name, tokens in record.outputs.items()},
                "preempted": [event.id for event in events],
                "finished": [*record.finished],
                "seconds": seconds,
            }
        }


@pytest.fixture(scope="module")
def lines() -> list[Json]:
    return [*served()]


def test_known_costs_come_back(tmp_path: Path, lines: list[Json]) -> None:
    """Exactly: hits, chunks and preempted requests are placed where they were computed.

    Only chunks that are preempted before the prompt ends have an unknown place.
    """
    preempted = [line for line in lines if line.get("step", {}).get("preempted")]
    assert len(preempted) > 3
    steps, unknown = timed_steps(LogReader(write_log(tmp_path / "log.jsonl", iter(lines))))
    fit = fitted(steps)
    assert 0 < unknown < len(steps) / 10
    assert fit.left_out == {}
    assert fit.r_squared > 0.999_999
    for name, cost in fit.cost.items():
        assert cost == pytest.approx(getattr(COST, name), rel=1e-6)


def test_with_noise_they_come_back_within_5_percent_and_simulate_in_seconds(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.jsonl", served(noise=0.02))
    ran = lockstep("calibrate", log, "--out", "cost.toml", "--json", "c.json")
    assert (ran.code, ran.err) == (0, "")
    assert "of stub 1.0; R² 0.99" in ran.out
    calibration = tomllib.loads(Path("cost.toml").read_text())
    assert (calibration["format"], calibration["unit"]) == ("lockstep-cost", "second")
    for name, cost in calibration["cost"].items():
        assert cost == pytest.approx(asdict(COST)[name], rel=0.05)
    report = json.loads(Path("c.json").read_text())
    assert report["cost"] == calibration["cost"]
    assert 0.01 < report["largest_error"] < 0.03

    request = {"id": "0", "arrival_s": 0, "prompt_len": 400, "max_tokens": 20}
    Path("w.jsonl").write_text(json.dumps(request))
    asked = ("simulate", "w.jsonl", "--set", "policy=vllm-v1", "--cost", "cost.toml")
    simulated = lockstep(*asked, "--json", "s.json")
    assert "TTFT, seconds" in simulated.out
    assert "time unit" not in simulated.out
    figures = json.loads(Path("s.json").read_text())
    alone = 0.004 + 400 * 6e-5 + 400 * 401 / 2 * 5e-8
    assert figures["unit"] == "second"
    assert figures["ttft_units"]["max"] == pytest.approx(alone, rel=0.05)


def test_steps_that_overlap_take_from_the_end_of_the_one_before(tmp_path: Path) -> None:
    """As with asynchronous scheduling: each is decided while the one before it runs."""
    requests = [{"arrive": {"id": name, "prompt_len": 4, "max_tokens": 9}} for name in "ab"]
    steps = [
        {"step": {"scheduled": {"a": 4}, "outputs": {"a": 1}, "seconds": 0.5, "at": 10.5}},
        {"step": {"scheduled": {"a": 1}, "outputs": {"a": 1}, "seconds": 0.9, "at": 10.75}},
        {"step": {"scheduled": {"b": 4}, "outputs": {}, "seconds": 0.5, "at": 20.0}},
    ]
    header = {"format": "lockstep-log", "version": 1, "policy": "vllm-v1"}
    config = {"config": CONFIG.as_mapping()}
    log = write_log(tmp_path / "log.jsonl", iter([header | config, *requests, *steps]))
    known, unknown = timed_steps(LogReader(log), asynchronous=True)
    assert [(step.seconds, step.chunk_tokens, step.rows) for step in known] == [
        (0.5, 4, 0),
        (0.25, 0, 1),
    ]
    assert [step.attended_tokens for step in known] == [10, 5]
    in_turn, _ = timed_steps(LogReader(log))
    assert [step.seconds for step in in_turn] == [0.5, 0.9]
    assert unknown == 1  # the prompt of b was not computed whole, as far as the log goes


def decoding(steps: int) -> Iterator[Json]:
    """One request that decodes alone: a base and a row are the same to it."""
    yield {"format": "lockstep-log", "version": 1, "policy": "vllm-v1"} | {
        "config": CONFIG.as_mapping()
    }
    yield {"arrive": {"id": "a", "prompt_len": 1, "max_tokens": 99}}
    for number in range(steps):
        step = {"scheduled": {"a": 1}, "outputs": {"a": 1}, "seconds": 0.01 + number * 1e-4}
        yield {"step": step}


def test_costs_that_a_log_does_not_tell_apart_are_named(tmp_path: Path) -> None:
    ran = lockstep("calibrate", write_log(tmp_path / "log.jsonl", decoding(40)), "--json", "c.json")
    assert ran.code == 0
    left_out = json.loads(Path("c.json").read_text())["left_out"]
    assert left_out == {"per_row": "the log does not tell it apart from the others"}


def test_costs_that_explain_little_say_so(tmp_path: Path) -> None:
    lines = [*decoding(40)]
    for number, line in enumerate(lines):
        if "step" in line:
            line["step"]["seconds"] = 0.01 if number % 2 else 0.03
    ran = lockstep("calibrate", write_log(tmp_path / "log.jsonl", iter(lines)))
    assert ran.code == 0
    assert "R² below 0.5: these costs say little about this server" in ran.out


def test_a_log_without_enough_times_is_refused(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.jsonl", decoding(4))
    ran = lockstep("calibrate", log, "--out", "cost.toml")
    assert (ran.code, ran.out) == (2, "")
    assert "log.jsonl: steps: found 4; allowed: 20 or more whose work and seconds are" in ran.err
    assert not Path("cost.toml").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[cost]\nper_row = 1\n", "cost.toml: format: found 'nothing'; allowed: lockstep-cost"),
        ('format = "lockstep-cost"\nversion = 2\n', "line 2: version: found 2; allowed: 1"),
        (
            'format = "lockstep-cost"\nversion = 1\nunit = "second"\n[cost]\nper_raw = 1\n',
            "line 5: cost.per_raw: found 1; allowed: a key out of prefill_time",
        ),
    ],
)
def test_a_file_that_is_no_calibration_is_refused(text: str, message: str) -> None:
    Path("cost.toml").write_text(text)
    Path("w.jsonl").write_text('{"id": "0", "prompt_len": 4, "max_tokens": 2}')
    ran = lockstep("simulate", "w.jsonl", "--cost", "cost.toml")
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
