"""The numbers that the texts on nano-vLLM and vLLM V1 work out, through `lockstep run`.

Each workload is a file as anybody would write it, served with every rule judged in every step and
the tokens held against serving alone. What is looked at is the trace.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from spec.core.blocks import block_index, slot
from tests.checks import command
from tests.checks.command import Ran, lockstep

Line = dict[str, Any]


def run(requests: list[Line], **settings: object) -> Ran:
    """`lockstep run` on these requests, the trace in `trace.jsonl`."""
    lines = "".join(f"{json.dumps(one)}\n" for one in requests)
    Path("workload.jsonl").write_text(lines, encoding="utf-8")
    chosen = command.settings(*(f"{key}={value}" for key, value in settings.items()))
    return lockstep("run", "workload.jsonl", "--trace", "trace.jsonl", *chosen)


def steps_of(requests: list[Line], **settings: object) -> list[Line]:
    """The steps of the trace; no rule is broken, no token wrong."""
    ran = run(requests, **settings)
    assert ran.code == 0, ran.out + ran.err
    assert "every rule holds" in ran.out
    assert "none wrong" in ran.out
    _head, *steps = Path("trace.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(step) for step in steps]


def own(id_: str, prompt_len: int, max_tokens: int = 1, arrival: int = 0) -> Line:
    """A request whose prompt nobody shares."""
    return {"id": id_, "arrival": arrival, "prompt_len": prompt_len, "max_tokens": max_tokens}


def of_parts(id_: str, *parts: tuple[str, int], max_tokens: int = 1, arrival: int = 0) -> Line:
    """A request whose prompt begins with token streams that others may share."""
    there = [part for part in parts if part[1]]
    return {"id": id_, "arrival": arrival, "prompt_parts": there, "max_tokens": max_tokens}


def events(step: Line, *transitions: str) -> list[tuple[str, str]]:
    """What happened to whom, of these transitions."""
    return [
        (event["transition"], event["id"])
        for event in step["events"]
        if event["transition"] in transitions
    ]


# --- vLLM V1: the budget --------------------------------------------------------------------------

V1: dict[str, object] = {
    "policy": "vllm-v1",
    "block_size": 16,
    "max_num_batched_tokens": 8_192,
    "max_model_len": 32_768,
    "max_num_seqs": 2_000,
    "num_blocks": 10_000,
}


def test_four_prompts_of_2000_tokens_fit_the_budget_uncut_and_hold_500_blocks() -> None:
    """ "What Counts", scenario 1, and "Example Scenario", step 1."""
    prompts = [own(name, 2_000, max_tokens=2) for name in "ABCDE"]
    first, *_ = steps_of(prompts, **V1, chunked_prefill="false")
    assert first["scheduled"] == dict.fromkeys("ABCD", 2_000)
    assert (first["blocks"]["used"], first["budget_left"]) == (500, 192)
    assert first["refusal"] == "V1-CHK-2"


def test_the_fifth_prompt_is_cut_to_what_is_left_where_prompts_come_in_chunks() -> None:
    """So the text's four are five."""
    first, second, *_ = steps_of([own(name, 2_000) for name in "ABCDE"], **V1)
    assert first["scheduled"] == {**dict.fromkeys("ABCD", 2_000), "E": 192}
    assert second["scheduled"] == {"E": 1_808}


# Cached tokens of nine prompts of 2,000, as in the text; all are multiples of a block of 100.
CACHED = {
    "A": 1_200,
    "B": 1_500,
    "C": 1_800,
    "D": 1_900,
    "E": 0,
    "F": 500,
    "G": 1_000,
    "H": 800,
    "I": 1_700,
}


def nine_prompts() -> list[Line]:
    """First what they share with the cache, then the nine at once."""
    seeds = [of_parts(f"seed {name}", (name, count)) for name, count in CACHED.items() if count]
    return seeds + [
        of_parts(name, (name, count), (f"rest {name}", 2_000 - count), arrival=2)
        for name, count in CACHED.items()
    ]


def test_with_their_prefixes_cached_nine_prompts_are_7600_new_tokens_and_fit_one_step() -> None:
    """ "What Counts", scenario 2."""
    *_, third = steps_of(nine_prompts(), **V1 | {"block_size": 100})
    new = [800, 500, 200, 100, 2_000, 1_500, 1_000, 1_200, 300]
    assert third["scheduled"] == dict(zip(CACHED, new, strict=True))
    assert (sum(new), third["budget_left"]) == (7_600, 592)


def test_without_caching_four_of_the_nine_fit() -> None:
    settings = {"block_size": 100, "prefix_caching": "false", "chunked_prefill": "false"}
    third = steps_of(nine_prompts(), **V1 | settings)[2]
    assert third["scheduled"] == dict.fromkeys("ABCD", 2_000)


def test_a_prompt_of_10000_tokens_comes_in_chunks_and_decodes_run_beside_it() -> None:
    """ "Interaction with Chunked Prefill"; the text's last chunk of 1,904 is one of 1,808."""
    steps = steps_of(
        [own("decodes", 16, max_tokens=7), own("long", 10_000, arrival=1)],
        **V1,
        long_prefill_token_threshold=2_048,
    )
    assert [step["scheduled"].get("long") for step in steps[1:6]] == [*[2_048] * 4, 1_808]
    assert [step["scheduled"].get("decodes") for step in steps] == [16, *[1] * 6]
    assert [list(step["outputs"]) for step in steps[1:6]] == [
        *[["decodes"]] * 4,
        ["decodes", "long"],
    ]


def test_without_chunks_a_prompt_beyond_the_budget_is_refused_before_anything_runs() -> None:
    ran = run([own("long", 10_000)], **V1, chunked_prefill="false")
    assert ran.code == 2
    assert "at most max_num_batched_tokens (8192) without chunked prefill" in ran.err


# --- vLLM V1: two limits --------------------------------------------------------------------------


def test_a_compute_bound_step_has_budget_for_40_whole_prompts_beside_4_decodes() -> None:
    """ "Example Scenario", steps 2 and 3: the budget ends it, not the blocks."""
    long = [own(name, 2_000, max_tokens=102) for name in "ABCD"]
    short = [own(f"short {index}", 200, arrival=101) for index in range(46)]
    steps = steps_of([*long, *short], **V1)
    decoding, mixed = steps[100], steps[101]
    assert decoding["scheduled"] == dict.fromkeys("ABCD", 1)
    assert decoding["blocks"]["used"] == 4 * 132  # the text: 131 for 2,100 tokens, 2,096 slots
    given = [mixed["scheduled"].get(one["id"], 0) for one in short]
    assert given == [*[200] * 40, 188, *[0] * 5]
    assert (mixed["budget_left"], mixed["preempted"]) == (0, [])
    assert mixed["blocks"]["free"] > 8_000


def test_a_memory_bound_step_preempts_the_last_with_most_of_its_budget_left() -> None:
    """ "Example Scenario", step 4, a twentieth of it: 50 requests of 250 tokens, 500 blocks."""
    requests = [own(str(index), 200, max_tokens=50) for index in range(50)]
    steps = steps_of(requests, **V1 | {"num_blocks": 500})
    preempting = [step for step in steps if step["preempted"]]
    assert len(steps[0]["admitted"]) == 38  # of 13 blocks each
    assert preempting[0]["preempted"][0] == "37"
    assert all(step["budget_left"] > 8_000 for step in preempting)
    assert steps[-1]["blocks"] == {"used": 0, "reserved": 0, "free": 500}


@pytest.mark.thorough
def test_the_memory_bound_step_at_the_size_of_the_text() -> None:
    """ "Example Scenario", step 4: a thousand requests of 250 tokens, 10,000 blocks."""
    requests = [own(str(index), 200, max_tokens=50) for index in range(1_000)]
    steps = steps_of(requests, **V1)
    preempting = [step for step in steps if step["preempted"]]
    assert preempting[0]["preempted"][0] == "737"  # of 738 that were admitted by then
    assert all(step["budget_left"] > 7_000 for step in preempting)
    assert steps[-1]["blocks"] == {"used": 0, "reserved": 0, "free": 10_000}


# --- vLLM V1: drafts ------------------------------------------------------------------------------


def test_two_of_five_drafts_are_rejected_and_rolled_back() -> None:
    """ "Rollback Logic": drafts A to E, three are accepted, and a token of the model's own."""
    first, second, third, *_ = steps_of(
        [own("0", 10, max_tokens=12)], **V1, num_speculative_tokens=5, accepted_drafts=3
    )
    assert len(first["outputs"]["0"]) == 1
    assert (second["scheduled"], second["drafts"]) == ({"0": 6}, {"0": 5})
    assert (second["accepted"], len(second["outputs"]["0"])) == ({"0": 3}, 4)
    (before,), (after,) = first["decoding"], second["decoding"]
    assert after["computed"] == before["computed"] + 6 - 2
    assert events(second, "rollback") == [("rollback", "0")]
    assert third["scheduled"] == {"0": 6}


# --- nano-vLLM ------------------------------------------------------------------------------------

NANO: dict[str, object] = {
    "policy": "nano-vllm",
    "block_size": 4,
    "max_num_batched_tokens": 64,
    "max_model_len": 64,
    "max_num_seqs": 4,
}


def test_preemption_walk_through() -> None:
    """ "Preemption Walkthrough": A needs a block, D gives two back and is first afterwards."""
    prompts = [own("A", 8, 3), own("B", 6, 2), own("C", 6, 2), own("D", 5, 3)]
    full, preempting, next_one, *_ = steps_of(prompts, **NANO, num_blocks=8)
    assert (full["running"], full["blocks"]["free"]) == ([*"ABCD"], 0)
    assert len(full["block_tables"]["D"]) == 2
    assert events(preempting, "preempt", "allocate") == [("preempt", "D"), ("allocate", "A")]
    assert preempting["scheduled"] == {"A": 1, "B": 1, "C": 1}
    assert preempting["waiting"] == ["D"]
    assert (next_one["kind"], next_one["scheduled"]) == ("prefill", {"D": 2})  # 4 of 6 are cached


def test_reference_counts_of_a_shared_block_over_time() -> None:
    """ "Reference Counting": 1 from step 0, 2 from 5, 1 from 12, none from 18."""
    shared = ("system", 4)
    steps = steps_of(
        [
            of_parts("A", shared, ("A", 1), max_tokens=12),
            of_parts("B", shared, ("B", 1), max_tokens=14, arrival=5),
        ],
        **NANO,
        num_blocks=16,
    )
    (block, *_) = steps[0]["block_tables"]["A"]
    holders = [sum(block in table for table in step["block_tables"].values()) for step in steps]
    assert holders == [*[1] * 5, *[2] * 7, *[1] * 6, 0]
    assert len(steps) == 19


def test_a_shared_prefix_is_computed_once_9_tokens_instead_of_13() -> None:
    """ "With Prefix Cache": A has 7 tokens, B shares 4 of its 6."""
    system = ("system", 4)
    prompts = [of_parts("A", system, ("A", 3)), of_parts("B", system, ("B", 2), arrival=1)]
    steps = steps_of(prompts, **NANO, num_blocks=16)
    assert [step["scheduled"] for step in steps] == [{"A": 7}, {"B": 2}]


def test_the_token_at_position_775_of_table_3_7_12_2_goes_to_slot_519() -> None:
    """ "Block Tables": blocks 3, 7, 12 and 2 are given back first, and handed out in that order."""
    ends = {"3": 1, "7": 2, "12": 3, "2": 4}
    holders = [own(str(index), 1, max_tokens=ends.get(str(index), 8)) for index in range(16)]
    steps = steps_of(
        [*holders, own("A", 775, max_tokens=3, arrival=4)], policy="nano-vllm", num_blocks=16
    )
    prefill, decode = steps[4], steps[5]
    assert prefill["scheduled"] == {"A": 775}
    table = decode["block_tables"]["A"]
    assert table == [3, 7, 12, 2]
    computed = next(row["computed"] for row in decode["decoding"] if row["id"] == "A")
    assert computed == 776  # position 775 was computed in this step
    assert slot(table[block_index(775, 256)], 775, 256) == 519
