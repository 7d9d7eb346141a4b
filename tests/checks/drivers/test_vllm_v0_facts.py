"""What vLLM V0 does, each fact by an episode of its own: where the text is unclear or says else.

Run against the installed release (`lockstep driver install vllm-v0`); skipped where it is not.
"""

from collections.abc import Iterator

import pytest

from checks.releases.environments import command_of, environment_of
from checks.releases.recipes import recipe_of
from tests.checks.drivers.v0_episodes import Answer, Episode, Json, Live, asks, at_once

pytestmark = pytest.mark.thorough

SMALL: Json = {
    **{"block_size": 4, "num_gpu_blocks": 8, "num_cpu_blocks": 16, "max_num_seqs": 4},
    **{"max_model_len": 32, "max_num_batched_tokens": 32},
}
CHUNKED = SMALL | {"chunked_prefill": True, "max_num_batched_tokens": 8}

FOUR = [asks(name, 4, 9) for name in "abcd"]  # each needs another block in its first decode


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    recipe = recipe_of("vllm-v0")
    if recipe is None or not environment_of(recipe).is_complete:
        pytest.skip("not installed: vllm-v0")
    with Live(command_of("vllm-v0")) as driver:
        yield driver


def after(first: Json, *others: Json) -> list[Json]:
    """What is done around the first steps, and enough steps behind."""
    return [first, *others, *({} for _ in range(40))]


def column(answer: Answer, name: str, steps: int) -> list[object]:
    """A field of the first records."""
    return [record[name] for record in answer.records[:steps]]


def test_the_lower_number_is_the_higher_priority(live: Live) -> None:
    """The text's example says the opposite."""
    config = SMALL | {"scheduling": "priority", "max_num_seqs": 1}
    requests = (asks("a", 4, 3, priority=1), asks("b", 4, 3, priority=0))

    answer = live.serve(Episode(config, requests, after({"arrive": ["a"]}, {"arrive": ["b"]})))

    assert column(answer, "preempted", 2) == [[], ["a"]]
    assert column(answer, "admitted", 3) == [["a"], [], ["b"]]


def test_priority_preempts_nobody_in_chunked_mode(live: Live) -> None:
    config = CHUNKED | {"scheduling": "priority", "max_num_seqs": 1}
    requests = (asks("a", 4, 3, priority=1), asks("b", 4, 3, priority=0))

    answer = live.serve(Episode(config, requests, after({"arrive": ["a"]}, {"arrive": ["b"]})))

    assert not any(record["preempted"] for record in answer.records)


def test_priority_looks_at_the_head_of_a_queue_that_is_not_sorted_yet(live: Live) -> None:
    """The urgent one came last: whoever stands in front decides in this step, and it does not."""
    config = SMALL | {"scheduling": "priority", "max_num_seqs": 1}
    requests = (asks("a", 4, 9, priority=1), asks("b", 4, 1, priority=2), asks("c", 4, 1))

    answer = live.serve(Episode(config, requests, after({"arrive": ["a"]}, {"arrive": ["b", "c"]})))

    assert column(answer, "waiting", 3) == [[], ["c", "b"], ["c", "a", "b"]]
    assert column(answer, "preempted", 3) == [[], [], ["a"]]


def test_priority_preempts_nobody_in_a_step_with_a_prefill(live: Live) -> None:
    """A small request at the front is admitted; the urgent one behind it waits a step."""
    config = SMALL | {"scheduling": "priority", "max_num_seqs": 2}
    requests = (asks("a", 4, 9, priority=1), asks("b", 4, 9, priority=2), asks("c", 4, 1))

    answer = live.serve(Episode(config, requests, after({"arrive": ["a"]}, {"arrive": ["b", "c"]})))

    assert column(answer, "admitted", 2) == [["a"], ["b"]]
    assert column(answer, "preempted", 3) == [[], [], ["b"]]


def test_by_default_a_prefill_excludes_decodes(live: Live) -> None:
    """The text's example has both in one step, if there is space."""
    requests = (asks("a", 4, 4), asks("b", 4, 4))

    answer = live.serve(Episode(SMALL, requests, after({"arrive": ["a"]}, {"arrive": ["b"]})))

    assert column(answer, "scheduled", 3) == [{"a": 4}, {"b": 4}, {"a": 1, "b": 1}]


def test_by_default_who_is_swapped_excludes_prefills(live: Live) -> None:
    config = SMALL | {"preemption_mode": "swap", "num_gpu_blocks": 5}
    requests = (asks("a", 8, 9), asks("b", 8, 9), asks("c", 1, 1))
    actions = after({"arrive": ["a", "b"]}, {}, {"arrive": ["c"]})

    answer = live.serve(Episode(config, requests, actions))
    out = next(i for i, one in enumerate(answer.records) if one["swapped"])
    back = next(i for i, one in enumerate(answer.records) if one["swapped_in"])

    assert all("c" in one["waiting"] for one in answer.records[out + 1 : back + 1])
    assert back - out > 2


def test_a_long_request_blocks_small_ones_behind_it(live: Live) -> None:
    """The text says that long sequences do not block smaller ones."""
    requests = (asks("a", 16, 9), asks("long", 20, 1), asks("c", 1, 1))

    answer = live.serve(at_once(SMALL, *requests))
    first = next(i for i, one in enumerate(answer.records) if "c" in one["admitted"])

    assert answer.records[0]["waiting"] == ["long", "c"]
    assert answer.records[0]["blocks"]["free"] == 4
    assert "long" in answer.records[first]["admitted"]


@pytest.mark.parametrize(("blocks", "ignored"), [(6, []), (7, ["a"])])
def test_who_needs_more_than_all_but_the_watermark_is_ignored(
    live: Live, blocks: int, ignored: list[str]
) -> None:
    config = SMALL | {"watermark": 0.25}

    answer = live.serve(at_once(config, asks("a", 4 * blocks, 1)))

    assert answer.records[0]["ignored"] == ignored


def test_with_no_free_block_even_a_decode_inside_a_block_preempts(live: Live) -> None:
    config = SMALL | {"num_gpu_blocks": 4}

    answer = live.serve(at_once(config, asks("a", 5, 3), asks("b", 5, 3)))

    assert answer.records[0]["blocks"]["free"] == 0
    assert answer.records[1]["preempted"] == ["b"]
    assert answer.records[1]["block_tables"]["a"] == answer.records[0]["block_tables"]["a"]


def test_recomputed_requests_return_to_the_front_in_their_order(live: Live) -> None:
    config = SMALL | {"num_gpu_blocks": 5, "preemption_mode": "recompute"}

    answer = live.serve(at_once(config, *FOUR))

    assert answer.records[1]["preempted"] == ["d", "c"]
    assert answer.records[1]["waiting"] == ["c", "d"]


def test_swapped_requests_queue_up_with_the_last_victim_first(live: Live) -> None:
    config = SMALL | {"num_gpu_blocks": 5, "preemption_mode": "swap"}

    answer = live.serve(at_once(config, *FOUR))

    assert answer.records[1]["swapped_out"] == ["d", "c"]
    assert answer.records[1]["swapped"] == ["d", "c"]


def test_chunked_a_step_that_preempts_admits_others(live: Live) -> None:
    config = CHUNKED | {"num_gpu_blocks": 6, "max_num_batched_tokens": 16}
    requests = (asks("a", 8, 9), asks("b", 8, 9), asks("c", 1, 1))
    actions = after({"arrive": ["a", "b"]}, {}, {"arrive": ["c"]})

    answer = live.serve(Episode(config, requests, actions))
    both = [one for one in answer.records if one["preempted"] and one["admitted"]]

    assert [(one["preempted"], one["admitted"]) for one in both] == [(["b"], ["c"])]


def test_finishing_first_reorders_continuing_prefills_only(live: Live) -> None:
    """Of two new prompts the short one ends in this step, and still runs behind the long one."""
    config = CHUNKED | {"max_num_partial_prefills": 2, "max_long_partial_prefills": 2}

    answer = live.serve(at_once(config, asks("a", 12, 2), asks("b", 3, 2), asks("c", 1, 1)))
    continued = live.serve(at_once(config, asks("a", 12, 2), asks("b", 7, 2)))

    assert answer.records[0]["scheduled"] == {"a": 4, "b": 3, "c": 1}
    assert answer.records[0]["running"] == ["a", "b"]
    assert continued.records[1]["scheduled"] == {"a": 4, "b": 3}
    assert continued.records[1]["running"] == ["b", "a"]


def test_with_caching_the_budget_is_rounded_down_to_whole_blocks(live: Live) -> None:
    config = CHUNKED | {"prefix_caching": True, "max_num_batched_tokens": 10}

    answer = live.serve(at_once(config, asks("a", 13, 2)))

    assert column(answer, "scheduled", 2) == [{"a": 8}, {"a": 5}]


def test_a_fully_cached_prompt_counts_one_token_of_the_budget(live: Live) -> None:
    """Eight of its tokens are cached; both fit a budget of nine."""
    config = SMALL | {"prefix_caching": True, "max_num_batched_tokens": 9, "max_model_len": 9}
    a = asks("a", 8, 1)
    b = asks("b", 8, 1) | {"prompt": a["prompt"]}
    actions = after({"arrive": ["a"]}, {"arrive": ["b", "c"]})

    answer = live.serve(Episode(config, (a, b, asks("c", 8, 1)), actions))

    assert answer.records[1]["scheduled"] == {"b": 8, "c": 8}
    assert answer.records[1]["cached_blocks"] == {"b": 2, "c": 0}


def test_an_unfinished_first_chunk_does_not_sample(live: Live) -> None:
    """The text says that sampling is enabled in a first prefill."""
    answer = live.serve(at_once(CHUNKED, asks("a", 12, 2)))

    assert column(answer, "sampling", 2) == [[], ["a"]]


# --- what serving stacks die of or hang in, met by random episodes --------------------------------


def test_priority_with_swapping_ends_the_engine(live: Live) -> None:
    """Who is swapped out for another stands among the waiting, which have no blocks to bring."""
    config = SMALL | {"scheduling": "priority", "preemption_mode": "swap", "max_num_seqs": 1}
    requests = (asks("a", 4, 3, priority=1), asks("b", 4, 3, priority=0))

    answer = live.serve(Episode(config, requests, after({"arrive": ["a"]}, {"arrive": ["b"]})))

    assert answer.failure is not None
    assert answer.failure["type"] == "AssertionError"
    assert answer.records[-1]["swapped_out"] == ["a"]
    assert answer.records[-1]["waiting"] == ["b", "a"]
    assert answer.records[-1]["swaps_out"] == []


def test_with_caching_the_abort_of_a_swapped_request_ends_the_engine(live: Live) -> None:
    config = SMALL | {"preemption_mode": "swap", "num_gpu_blocks": 5, "prefix_caching": True}
    requests = (asks("a", 8, 9), asks("b", 8, 9))
    actions = after({"arrive": ["a", "b"]}, {}, {"abort": ["b"]})

    answer = live.serve(Episode(config, requests, actions))

    assert answer.records[-1]["swapped"] == ["b"]
    assert answer.failure is not None
    assert (answer.failure["type"], answer.failure["at"]) == (
        "KeyError",
        "prefix_caching_block.py:573 mark_blocks_as_accessed",
    )


def test_who_was_swapped_out_and_needs_the_watermark_never_returns(live: Live) -> None:
    """Alone, with every block free: to come back takes its blocks and the watermark."""
    config = SMALL | {"preemption_mode": "swap", "num_gpu_blocks": 4, "watermark": 0.25}

    answer = live.serve(at_once(config, asks("a", 11, 9)))
    last = answer.records[-1]

    assert (last["kind"], last["swapped"], last["blocks"]["free"]) == ("idle", ["a"], 4)
    assert sum(record["kind"] == "idle" for record in answer.records) > 20


def test_chunked_who_fills_every_block_is_preempted_and_admitted_for_ever(live: Live) -> None:
    """A chunk that needs no further block still counts the last one as touched."""
    config = CHUNKED | {"num_gpu_blocks": 4}

    answer = live.serve(at_once(config, asks("a", 14, 1), steps=40))
    last = answer.records[-2:]

    assert sorted((one["admitted"], one["preempted"]) for one in last) == [([], ["a"]), (["a"], [])]
    assert not any(record["outputs"] for record in answer.records)


def test_a_swapped_request_that_outgrew_the_gpu_is_ignored_and_keeps_its_cpu_blocks(
    live: Live,
) -> None:
    config = SMALL | {"preemption_mode": "swap", "num_gpu_blocks": 4}

    answer = live.serve(at_once(config, asks("a", 14, 9)))
    last = answer.records[-1]

    assert [one["ignored"] for one in answer.records if one["ignored"]] == [["a"]]
    assert (last["swapped"], len(last["cpu_blocks"]["references"])) == ([], 4)


def test_swapping_without_space_on_the_cpu_ends_the_engine(live: Live) -> None:
    config = SMALL | {"preemption_mode": "swap", "num_gpu_blocks": 5, "num_cpu_blocks": 1}

    answer = live.serve(at_once(config, asks("a", 8, 9), asks("b", 8, 9)))

    assert answer.failure is not None
    assert answer.failure["message"].startswith("Aborted due to the lack of CPU swap space.")


def test_chunked_a_prompt_that_was_swapped_out_half_done_hangs(live: Live) -> None:
    """What is left of it must fit one step to come back."""
    config = CHUNKED | {"preemption_mode": "swap", "num_gpu_blocks": 8}
    requests = (asks("a", 4, 20), asks("b", 24, 1))
    actions = after({"arrive": ["a"]}, {"arrive": ["b"]})

    answer = live.serve(Episode(config, requests, actions))

    assert answer.records[-1]["swapped"] == ["b"]
    assert answer.records[-1]["kind"] == "idle"


def test_chunked_with_caching_blocks_count_as_computed_before_they_are(live: Live) -> None:
    """Eight tokens of the prompt were computed when its client left; the next hits them all."""
    config = CHUNKED | {"prefix_caching": True}
    a = asks("a", 25, 1)
    actions = after({"arrive": ["a"]}, {"abort": ["a"], "arrive": ["b"]})

    answer = live.serve(Episode(config, (a, asks("b", 25, 1) | {"prompt": a["prompt"]}), actions))

    assert column(answer, "scheduled", 2) == [{"a": 8}, {"b": 25}]
    assert answer.records[1]["cached_blocks"] == {"b": 6}


def test_chunked_with_caching_a_preempted_prompt_hits_what_it_never_computed(live: Live) -> None:
    """Four tokens were computed; when it is back it samples as if all 24 had been."""
    config = CHUNKED | {"prefix_caching": True}
    actions = after({"arrive": ["a"]}, {"arrive": ["b"]})

    answer = live.serve(Episode(config, (asks("a", 4, 8), asks("b", 24, 1)), actions))

    assert column(answer, "scheduled", 4) == [
        {"a": 4},
        {"b": 4, "a": 1},
        {"a": 1},
        {"b": 24, "a": 1},
    ]
    assert answer.records[2]["preempted"] == ["b"]
    assert answer.records[3]["cached_blocks"]["b"] == 6
    assert list(answer.records[3]["outputs"]) == ["b", "a"]


def test_chunked_with_caching_and_swapping_a_prompt_half_done_ends_the_engine(live: Live) -> None:
    config = CHUNKED | {"preemption_mode": "swap", "prefix_caching": True, "num_gpu_blocks": 8}
    actions = after({"arrive": ["a"]}, {"arrive": ["b"]})

    answer = live.serve(Episode(config, (asks("a", 4, 20), asks("b", 24, 1)), actions))

    assert answer.failure is not None
    assert answer.failure["message"].startswith("Number of cached tokens should not be less than")
