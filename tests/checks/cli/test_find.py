"""`lockstep simulate --find`: the answer is that of a sweep by hand."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from checks.harness.runs.capacity import Estimate
from tests.checks.command import lockstep

Json = dict[str, Any]
SMALL = ("--set", "block_size=4", "--set", "max_model_len=64", "--set", "max_num_seqs=4")


def chats() -> Iterator[Json]:
    """Short prompts, evenly spaced."""
    for number in range(24):
        yield {"id": f"{number}", "arrival_s": number, "prompt_len": 9, "max_tokens": 6}


def bursts() -> Iterator[Json]:
    """Three at a time, of several lengths."""
    for number in range(24):
        length = 5 + number * 7 % 40
        yield {
            **{"id": f"{number}", "arrival_s": 5 * (number // 3) + number % 3 / 4},
            **{"prompt_len": length, "max_tokens": 2 + number % 9},
        }


def turns() -> Iterator[Json]:
    """Every other request follows the end of the one before it, with its prompt."""
    for number in range(24):
        parts = [[f"chat {number // 2}", 8 + number % 2 * 12]]
        line = {"id": f"{number}", "prompt_parts": parts, "max_tokens": 5}
        follows = {"after": f"{number - 1}", "arrival_s": 2} if number % 2 else {}
        yield line | ({"arrival_s": float(number)} | follows)


def written(workload: Callable[[], Iterator[Json]]) -> Path:
    path = Path("w.jsonl")
    path.write_text("".join(f"{json.dumps(line)}\n" for line in workload()))
    return path


def found(*words: object) -> Json:
    ran = lockstep("simulate", *words, "--json", "f.json")
    assert (ran.code, ran.err) == (0, "")
    answer: Json = json.loads(Path("f.json").read_text())["find"]
    return answer


def share_by_hand(*words: object) -> float:
    assert lockstep("simulate", *words, "--json", "r.json").code == 0
    report: Json = json.loads(Path("r.json").read_text())
    return float(report["good"] / report["requests"])


@pytest.mark.parametrize(
    ("workload", "policy", "slo"),
    [
        (chats, "vllm-v1", "ttft=4"),
        (bursts, "nano-vllm", "ttft=9,itl=3"),
        (turns, "spyre", "e2e=50"),
    ],
)
def test_the_largest_rate_is_that_of_a_sweep_by_hand(
    workload: Callable[[], Iterator[Json]], policy: str, slo: str
) -> None:
    asked = (written(workload), "--set", f"policy={policy}", *SMALL, "--slo", slo)
    answer = found(*asked, "--find", "max_rate", "--goodput", "0.9", "--shuffles", "2")
    most = answer["arrivals"][0]["most"]
    sweep = {
        factor: share_by_hand(*asked, "--rate", factor * most)
        for factor in (0.25, 0.5, 0.8, 0.999, 1.01, 1.3, 2, 4)
    }
    kept = [factor for factor, share in sweep.items() if share >= 0.9]
    assert max(kept) == 0.999
    assert len(kept) == 4
    assert [order["seed"] for order in answer["arrivals"]] == [None, 1, 2]
    shuffled = [order["most"] for order in answer["arrivals"][1:]]
    estimate = answer["estimates"]["most"]
    assert estimate["low"] <= min(shuffled) <= estimate["mean"] <= max(shuffled)


def test_the_values_of_a_key_are_those_of_a_sweep_by_hand() -> None:
    words = ("--set", "policy=vllm-v1", *SMALL, "--slo", "ttft=12,itl=3", "--rate", "0.4")
    asked = (written(bursts), *words)
    key = "max_num_batched_tokens"
    answer = found(*asked, "--find", key, "--goodput", "0.8", "--shuffles", "2")
    kept = answer["arrivals"][0]
    assert kept["open_ends"] == ["most"]
    least = kept["least"]
    assert least > 1

    def share(value: int) -> float:
        return share_by_hand(*asked, "--set", f"{key}={value}")

    assert share(least) >= 0.8 > share(least - 1)
    assert share(2 * least) >= 0.8


def test_a_rate_that_no_bound_limits_is_said_to_be_open() -> None:
    asked = (written(chats), "--set", "policy=vllm-v1", *SMALL, "--find", "max_rate")
    ran = lockstep("simulate", *asked, "--slo", "e2e=100000", "--shuffles", "2")
    assert ran.code == 0
    assert "(larger ones are refused or were not tried) requests" in ran.out
    assert "largest value over 2 shuffles of the gaps: not found for each, no interval" in ran.out


def test_a_value_at_which_the_configuration_is_refused_is_no_boundary() -> None:
    """Slots by the model length make a pool that is larger than can be simulated."""
    asked = (written(chats), "--set", "policy=vllm-v1", *SMALL, "--find", "max_num_seqs")
    answer = found(*asked, "--slo", "ttft=9000", "--rate", "1", "--shuffles", "2")
    first = answer["arrivals"][0]
    assert (first["least"], first["open_ends"]) == (1, ["least", "most"])
    assert answer["estimates"] == {}
    assert len(first["shares"]) < 30


def test_bounds_that_no_request_meets_are_kept_at_no_rate() -> None:
    asked = (written(chats), "--set", "policy=vllm-v1", *SMALL, "--find", "max_rate")
    ran = lockstep("simulate", *asked, "--slo", "ttft=0.01", "--shuffles", "2")
    assert ran.code == 0
    assert "no value of max_rate is kept" in ran.out


def test_the_curve_is_drawn() -> None:
    asked = (written(chats), "--set", "policy=vllm-v1", *SMALL, "--find", "max_rate")
    answer = found(*asked, "--slo", "ttft=4", "--shuffles", "2", "--plot", "curve.svg")
    curve = dict(answer["curve"])
    assert len(curve) == 10
    assert all(len(shares) == 3 for shares in curve.values())
    assert curve[answer["arrivals"][0]["most"]][0] >= 0.99 > curve[max(curve)][0]
    drawn = Path("curve.svg").read_text()
    assert "max_rate" in drawn
    assert "arrivals of the file" in drawn


def test_requests_that_can_never_be_served_are_left_out_and_counted() -> None:
    rows = (f"2023-11-16 18:15:{row}.5000000,{9 * row},4\n" for row in range(10, 30))
    Path("w.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(rows))
    asked = ("w.csv", "--set", "policy=vllm-v1", "--set", "max_model_len=200")
    ran = lockstep("simulate", *asked, "--find", "max_rate", "--slo", "ttft=9", "--shuffles", "2")
    assert "read as azure: " in ran.out
    assert "8 requests left out: never servable, or without tokens" in ran.out
    assert " of 12 requests\n" in ran.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--find", "max_rate"), "together with --slo"),
        (("--find", "max_rate", "--slo", "ttft=1", "--rate", "2"), "not together with --rate"),
        (("--find", "max_rate", "--slo", "ttft=1", "--verify", "1"), "not together with --verify"),
        (("--find", "admission", "--slo", "ttft=1"), "allowed: max_rate, block_size, num_blocks"),
    ],
)
def test_a_question_without_sense_is_refused(words: tuple[str, ...], message: str) -> None:
    ran = lockstep("simulate", written(chats), "--set", "policy=vllm-v1", *words)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err


def test_requests_that_arrive_with_a_step_have_no_rate() -> None:
    Path("w.jsonl").write_text('{"id": "0", "arrival": 3, "prompt_len": 4, "max_tokens": 2}')
    ran = lockstep("simulate", "w.jsonl", "--find", "max_rate", "--slo", "ttft=1")
    assert ran.code == 2
    assert "w.jsonl, line 1: arrival: found 3; allowed: arrival_s" in ran.err


def test_an_interval_is_that_of_student() -> None:
    """Of 1, 2, 3: mean 2, deviation 1, t 4.303, so 2 - 4.303 / sqrt(3) and the other way round."""
    estimate = Estimate.of([1, 2, 3])
    assert estimate.mean == 2
    assert (round(estimate.low, 3), round(estimate.high, 3)) == (-0.484, 4.484)
