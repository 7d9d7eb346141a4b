"""The worked examples of the text on vLLM V0, out of `lockstep run` on the smallest workloads."""

import json
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from spec.vllm_v0.rules import REGISTRY
from tests.checks.command import lockstep, settings

Json: TypeAlias = dict[str, Any]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def asks(name: str, prompt_len: int, max_tokens: int = 2, arrival: int = 0, **more: Any) -> Json:
    request = {"id": name, "prompt_len": prompt_len, "max_tokens": max_tokens, "arrival": arrival}
    return request | more


def served(config: Json, *requests: Json) -> list[Json]:
    """The steps of a run in which every rule holds, as its trace has them."""
    ran, steps = attempted(config, *requests)
    assert ran == 0
    return steps


def attempted(config: Json, *requests: Json) -> tuple[int, list[Json]]:
    """Exit code and steps."""
    Path("w.jsonl").write_text("\n".join(map(json.dumps, requests)), encoding="utf-8")
    keys = {"policy": "vllm-v0", "block_size": 4, "max_model_len": 64, **config}
    pairs = [f"{key}={json.dumps(value).strip(chr(34))}" for key, value in keys.items()]
    ran = lockstep("run", "w.jsonl", *settings(*pairs), "--trace", "t", "--full")
    lines = [json.loads(line) for line in Path("t").read_text().splitlines()]
    return ran.code, [line for line in lines if "scheduled" in line]


def broken_by(config: Json, *requests: Json) -> set[str]:
    """The rules that a run breaks, as its report has them."""
    attempted(config, *requests)
    keys = {"policy": "vllm-v0", "block_size": 4, "max_model_len": 64, **config}
    pairs = [f"{key}={json.dumps(value).strip(chr(34))}" for key, value in keys.items()]
    lockstep("run", "w.jsonl", *settings(*pairs), "--json", "r")
    text = Path("r").read_text()
    return {rule for rule in REGISTRY if f'"{rule}"' in text}


def column(steps: list[Json], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(step[name] for name in names) for step in steps]


def running(step: Json) -> list[str]:
    return [group["id"] for group in step["state"]["after"]["running"]]


# --- priorities -----------------------------------------------------------------------------

URGENT = {"scheduling": "priority", "max_num_seqs": 2, "reading": "documented"}
A, B, C = asks("A", 4, 2, 1, priority=5), asks("B", 4, 4, priority=3), asks("C", 4, 4, priority=1)


def test_a_high_priority_request_takes_the_place_of_the_lowest() -> None:
    """Table "Handling High-Priority Requests": C is preempted, A is scheduled in its place."""
    _, steps = attempted(URGENT, B, C, A)

    assert column(steps[:4], "preempted", "admitted") == [
        ([], ["B", "C"]),
        (["C"], []),
        ([], ["A"]),
        ([], []),
    ]
    assert [group["id"] for group in steps[1]["state"]["after"]["waiting"]] == ["A", "C"]


def test_a_small_request_passes_a_more_urgent_one_and_gives_way_in_every_second_step() -> None:
    """The same three where memory is the limit: C passes B, which the priorities forbid."""
    long = [asks(name, 4, 24, at, priority=of) for name, at, of in (("B", 0, 3), ("C", 0, 1))]
    config = {"scheduling": "priority", "reading": "documented", "num_blocks": 8}

    ran, steps = attempted(config, *long, asks("A", 4, 24, 2, priority=5))

    assert ran == 1
    assert column(steps[14:21], "preempted", "admitted") == [
        (["B"], []),
        ([], ["C"]),
        (["C"], []),
        ([], ["C"]),
        (["C"], []),
        ([], ["C"]),
        (["C"], []),
    ]
    waits = [[group["id"] for group in step["state"]["after"]["waiting"]] for step in steps[14:21]]
    assert waits == [["B", "C"], ["B"], ["B", "C"], ["B"], ["B", "C"], ["B"], ["B", "C"]]
    assert broken_by(config, *long, asks("A", 4, 24, 2, priority=5)) >= {"V0-PRI-8", "V0-PRI-5"}


def test_the_release_serves_the_lower_number_first() -> None:
    steps = served(URGENT | {"reading": "repaired"}, B, C, A)

    assert not any(step["preempted"] for step in steps)


# --- prompts that are too long, and chunks ------------------------------------------------------


def test_x_fits_y_is_ignored_and_z_is_scheduled_partially() -> None:
    """Table "Managing Prompt Prefill Requests": prompts of 500, 10,000 and 3,000 tokens."""
    config = {"chunked_prefill": True, "max_model_len": 4096, "max_num_batched_tokens": 2048}

    steps = served(config, asks("X", 500), asks("Y", 10_000), asks("Z", 3_000))

    assert steps[0]["scheduled"] == {"X": 500, "Z": 1_548}
    assert column(steps, "ignored")[0] == (["Y"],)
    assert steps[1]["scheduled"] == {"Z": 1_452, "X": 1}


def test_a_decode_runs_first_and_two_long_prompts_are_cut() -> None:
    """Table "Optimized Prefill & Decode Scheduling": Y decodes, X and Z wait."""
    config = {
        **{"chunked_prefill": True, "max_model_len": 16_384, "max_num_batched_tokens": 2_049},
        **{"max_num_partial_prefills": 2, "max_long_partial_prefills": 2, "block_size": 64},
    }

    steps = served(config, asks("Y", 500, 9), asks("X", 3_000, 1, 1), asks("Z", 10_000, 1, 1))

    assert steps[1]["scheduled"] == {"X": 1_024, "Z": 1_024, "Y": 1}
    assert running(steps[1]) == ["Y", "X", "Z"]


def test_prompts_that_end_in_this_step_go_first() -> None:
    """Table "Prioritizing Prefill Completion": [B, A, C] becomes [A, C, B]."""
    config = {
        **{"chunked_prefill": True, "max_num_batched_tokens": 15},
        **{"max_num_partial_prefills": 3, "max_long_partial_prefills": 3},
    }

    steps = served(config, asks("B", 15), asks("A", 10), asks("C", 7))

    assert running(steps[0]) == ["B", "A", "C"]
    assert steps[1]["scheduled"] == {"B": 5, "A": 5, "C": 2}
    assert running(steps[1]) == ["A", "C", "B"]


# --- the default strategy -------------------------------------------------------------------

SWAPPING = {"preemption_mode": "swap", "num_blocks": 5, "num_cpu_blocks": 8}
THREE = (asks("B", 8, 8), asks("C", 8, 6), asks("A", 1, 1, 5))


def test_in_one_step_a_is_prefilled_b_decodes_and_c_is_restored() -> None:
    """Table "General Scheduling Strategy", as its example has it."""
    steps = served(SWAPPING | {"strategy": "combined"}, *THREE)

    out = next(step for step in steps if step["swapped_out"])
    back = next(step for step in steps if step["swapped_in"])
    assert (out["swapped_out"], back["swapped_in"]) == (["C"], ["C"])
    assert {"A", "B"} <= {request_id for step in steps[5:6] for request_id in step["scheduled"]}


def test_by_the_cases_above_the_example_a_waits_for_c() -> None:
    steps = served(SWAPPING, *THREE)

    admitted = next(i for i, step in enumerate(steps) if "A" in step["admitted"])
    back = next(i for i, step in enumerate(steps) if step["swapped_in"])
    assert back < admitted


# --- slots ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("slots", "preempted"), [(50, []), (95, ["A"])])
def test_ten_slots_can_be_appended_to_50_of_100_and_not_to_95(
    slots: int, preempted: list[str]
) -> None:
    """Table "Checking if More Slots Can Be Added": one token and nine lookahead slots."""
    config = {"block_size": 1, "num_blocks": 100, "max_model_len": 128, "num_lookahead_slots": 9}

    _, steps = attempted(config, asks("A", slots))

    assert steps[1]["preempted"] == preempted


def test_an_eight_step_decode_has_seven_lookahead_slots() -> None:
    """ "How Does Lookahead Work?": one token as usual and seven more."""
    config = {"num_scheduler_steps": 8, "num_lookahead_slots": 7, "block_size": 1}

    steps = served(config, asks("A", 5, 9))

    assert column(steps, "lookahead_slots") == [(0,), (7,)]
    assert [len(step["outputs"]["A"]) for step in steps] == [1, 8]
    tables = [step["state"]["planned"]["running"][0]["sequences"][0]["blocks"] for step in steps]
    assert [len(table) for table in tables] == [5, 13]


# --- cached tokens, chunks ------------------------------------------------------------------------


def test_cached_tokens_of_a_new_a_partly_and_a_fully_cached_prompt() -> None:
    """Table "Calculating New Cached & Uncached Tokens"."""
    whole = [["shared", 8]]
    new = asks("new", 0) | {"prompt_parts": whole}
    partly = asks("partly", 0, 2, 1) | {"prompt_parts": [["shared", 4], ["own", 4]]}
    fully = asks("fully", 0, 2, 1) | {"prompt_parts": whole}
    requests = [
        {k: v for k, v in request.items() if k != "prompt_len"} for request in (new, partly, fully)
    ]

    steps = served({"prefix_caching": True}, *requests)

    assert steps[0]["scheduled"] == {"new": 8}
    budgets = [step["budget"] for step in steps[:2]]
    counted = {**budgets[0]["batched"], **budgets[1]["batched"]}
    cached = {**budgets[0]["cached"], **budgets[1]["cached"]}
    assert {
        request_id: (counted[request_id], cached[request_id]) for request_id in ("partly", "fully")
    } == {
        "partly": (4, 4),
        "fully": (1, 7),
    }


@pytest.mark.parametrize(
    ("budget", "caching", "chunk"), [(100, False, 100), (50, False, 50), (99, True, 64)]
)
def test_a_hundred_tokens_as_far_as_the_budget_goes(budget: int, caching: bool, chunk: int) -> None:
    """Table "Chunking New Tokens Based on Budget"."""
    config = {"block_size": 64, "max_model_len": 128, "chunked_prefill": True}

    steps = served(
        config | {"max_num_batched_tokens": budget, "prefix_caching": caching}, asks("A", 100)
    )

    assert steps[0]["scheduled"] == {"A": chunk}


# --- what else the tables say ---------------------------------------------------------------------


def test_output_is_processed_asynchronously_unless_a_group_has_several_sequences() -> None:
    """Table "Allowing Asynchronous Postprocessing": n of 1 and n of 5."""
    steps = served({"async_output": True}, asks("Y", 4, 2), asks("Z", 4, 2, 2, n=5))

    assert [step["is_async"] for step in steps if step["scheduled"]] == [True, True, False, False]


def test_five_sequences_are_swapped_out_and_one_is_recomputed() -> None:
    """Table "Preempting Sequences", "Decision Logic"."""
    config = {"num_blocks": 8, "num_cpu_blocks": 20, "max_num_seqs": 6}

    single = served(config, asks("first", 12, 12), asks("last", 12, 6))
    several = served(config, asks("first", 12, 12), asks("last", 9, 6, n=5))

    assert [step["preempted"] for step in single if step["preempted"]] == [["last"]]
    assert any(step["swapped_out"] == ["last"] for step in several)
