"""What vLLM V0 does, each fact by an episode of its own: where the text is unclear or says else.

Run against the installed release (`lockstep driver install vllm-v0`); skipped where it is not.
"""

from collections.abc import Callable, Iterator, Sequence

import pytest

from tests.checks.drivers.v0_episodes import Answer, Episode, Json, asks, installed_release

pytestmark = pytest.mark.thorough

Serve = Callable[..., Answer]
SMALL: Json = {
    **{"block_size": 4, "num_gpu_blocks": 8, "num_cpu_blocks": 16, "max_num_seqs": 4},
    **{"max_model_len": 32, "max_num_batched_tokens": 32},
}
CHUNKED = SMALL | {"chunked_prefill": True, "max_num_batched_tokens": 8}
SWAP: Json = {"preemption_mode": "swap"}
SWAPPING = SMALL | SWAP | {"num_gpu_blocks": 5}
CACHED: Json = {"prefix_caching": True}
ONE_BY_PRIORITY = {"scheduling": "priority", "max_num_seqs": 1}

LATER_AND_URGENT = [asks("a", 4, 3, priority=1), asks("b", 4, 3, priority=0)]
A_THEN_B: Sequence[Json] = ({"arrive": ["a"]}, {"arrive": ["b"]})
A_THEN_OTHERS: Sequence[Json] = ({"arrive": ["a"]}, {"arrive": ["b", "c"]})
FOUR = [asks(name, 4, 9) for name in "abcd"]  # each needs another block in its first decode


@pytest.fixture(scope="module")
def serve() -> Iterator[Serve]:
    """Serves requests, all at once or around the first steps as the actions have it."""
    with installed_release() as live:

        def serve(config: Json, requests: Sequence[Json], *actions: Json) -> Answer:
            at_once = {"arrive": [request["id"] for request in requests]}
            idle: list[Json] = [{} for _ in range(40)]
            return live.serve(Episode(config, requests, [*(actions or [at_once]), *idle]))

        yield serve


def twins(prompt_len: int) -> list[Json]:
    """Two requests with the same prompt and one token to sample."""
    first = asks("a", prompt_len, 1)
    return [first, asks("b", prompt_len, 1) | {"prompt": first["prompt"]}]


def column(answer: Answer, name: str, steps: int) -> list[object]:
    """A field of the first records."""
    return [record[name] for record in answer.records[:steps]]


def test_the_lower_number_is_the_higher_priority(serve: Serve) -> None:
    """The text's example says the opposite."""
    answer = serve(SMALL | ONE_BY_PRIORITY, LATER_AND_URGENT, *A_THEN_B)

    assert column(answer, "preempted", 2) == [[], ["a"]]
    assert column(answer, "admitted", 3) == [["a"], [], ["b"]]


def test_priority_does_not_preempt_in_chunked_mode(serve: Serve) -> None:
    answer = serve(CHUNKED | ONE_BY_PRIORITY, LATER_AND_URGENT, *A_THEN_B)

    assert not any(record["preempted"] for record in answer.records)


def test_priority_looks_at_the_head_of_a_queue_that_is_not_sorted_yet(serve: Serve) -> None:
    """The urgent one came last: the request in front decides in this step, and it does not."""
    requests = (asks("a", 4, 9, priority=1), asks("b", 4, 1, priority=2), asks("c", 4, 1))

    answer = serve(SMALL | ONE_BY_PRIORITY, requests, *A_THEN_OTHERS)

    assert column(answer, "waiting", 3) == [[], ["c", "b"], ["c", "a", "b"]]
    assert column(answer, "preempted", 3) == [[], [], ["a"]]


def test_priority_does_not_preempt_in_a_step_with_a_prefill(serve: Serve) -> None:
    """A small request at the front is admitted; the urgent one behind it waits a step."""
    requests = (asks("a", 4, 9, priority=1), asks("b", 4, 9, priority=2), asks("c", 4, 1))

    answer = serve(SMALL | {"scheduling": "priority", "max_num_seqs": 2}, requests, *A_THEN_OTHERS)

    assert column(answer, "admitted", 2) == [["a"], ["b"]]
    assert column(answer, "preempted", 3) == [[], [], ["b"]]


def test_by_default_a_prefill_excludes_decodes(serve: Serve) -> None:
    """The text's example has both in one step, if there is space."""
    requests = (asks("a", 4, 4), asks("b", 4, 4))

    answer = serve(SMALL, requests, *A_THEN_B)

    assert column(answer, "scheduled", 3) == [{"a": 4}, {"b": 4}, {"a": 1, "b": 1}]


def test_by_default_a_swapped_request_excludes_prefills(serve: Serve) -> None:
    requests = (asks("a", 8, 9), asks("b", 8, 9), asks("c", 1, 1))

    answer = serve(SWAPPING, requests, {"arrive": ["a", "b"]}, {}, {"arrive": ["c"]})
    out = next(i for i, one in enumerate(answer.records) if one["swapped"])
    back = next(i for i, one in enumerate(answer.records) if one["swapped_in"])

    assert all("c" in one["waiting"] for one in answer.records[out + 1 : back + 1])
    assert back - out > 2


def test_a_long_request_blocks_small_ones_behind_it(serve: Serve) -> None:
    """The text says that long sequences do not block smaller ones."""
    requests = (asks("a", 16, 9), asks("long", 20, 1), asks("c", 1, 1))

    answer = serve(SMALL, requests)
    first = next(i for i, one in enumerate(answer.records) if "c" in one["admitted"])

    assert answer.records[0]["waiting"] == ["long", "c"]
    assert answer.records[0]["blocks"]["free"] == 4
    assert "long" in answer.records[first]["admitted"]


@pytest.mark.parametrize(("blocks", "ignored"), [(6, []), (7, ["a"])])
def test_a_prompt_of_more_than_all_but_the_watermark_is_ignored(
    serve: Serve, blocks: int, ignored: list[str]
) -> None:
    answer = serve(SMALL | {"watermark": 0.25}, [asks("a", 4 * blocks, 1)])

    assert answer.records[0]["ignored"] == ignored


def test_with_no_free_block_even_a_decode_inside_a_block_preempts(serve: Serve) -> None:
    answer = serve(SMALL | {"num_gpu_blocks": 4}, [asks("a", 5, 3), asks("b", 5, 3)])

    assert answer.records[0]["blocks"]["free"] == 0
    assert answer.records[1]["preempted"] == ["b"]
    assert answer.records[1]["block_tables"]["a"] == answer.records[0]["block_tables"]["a"]


def test_recomputed_requests_return_to_the_front_in_their_order(serve: Serve) -> None:
    answer = serve(SMALL | {"num_gpu_blocks": 5, "preemption_mode": "recompute"}, FOUR)

    assert answer.records[1]["preempted"] == ["d", "c"]
    assert answer.records[1]["waiting"] == ["c", "d"]


def test_swapped_requests_queue_up_with_the_last_victim_first(serve: Serve) -> None:
    answer = serve(SWAPPING, FOUR)

    assert answer.records[1]["swapped_out"] == ["d", "c"]
    assert answer.records[1]["swapped"] == ["d", "c"]


def test_chunked_a_step_that_preempts_admits_others(serve: Serve) -> None:
    config = CHUNKED | {"num_gpu_blocks": 6, "max_num_batched_tokens": 16}
    requests = (asks("a", 8, 9), asks("b", 8, 9), asks("c", 1, 1))

    answer = serve(config, requests, {"arrive": ["a", "b"]}, {}, {"arrive": ["c"]})
    both = [one for one in answer.records if one["preempted"] and one["admitted"]]

    assert [(one["preempted"], one["admitted"]) for one in both] == [(["b"], ["c"])]


def test_finishing_first_reorders_continuing_prefills_only(serve: Serve) -> None:
    """Of two new prompts the short one ends in this step, and still runs behind the long one."""
    config = CHUNKED | {"max_num_partial_prefills": 2, "max_long_partial_prefills": 2}

    answer = serve(config, [asks("a", 12, 2), asks("b", 3, 2), asks("c", 1, 1)])
    continued = serve(config, [asks("a", 12, 2), asks("b", 7, 2)])

    assert answer.records[0]["scheduled"] == {"a": 4, "b": 3, "c": 1}
    assert answer.records[0]["running"] == ["a", "b"]
    assert continued.records[1]["scheduled"] == {"a": 4, "b": 3}
    assert continued.records[1]["running"] == ["b", "a"]


def test_with_caching_the_budget_is_rounded_down_to_whole_blocks(serve: Serve) -> None:
    answer = serve(CHUNKED | CACHED | {"max_num_batched_tokens": 10}, [asks("a", 13, 2)])

    assert column(answer, "scheduled", 2) == [{"a": 8}, {"a": 5}]


def test_a_fully_cached_prompt_counts_one_token_of_the_budget(serve: Serve) -> None:
    """Eight of its tokens are cached; both fit a budget of nine."""
    config = SMALL | CACHED | {"max_num_batched_tokens": 9, "max_model_len": 9}

    answer = serve(config, [*twins(8), asks("c", 8, 1)], *A_THEN_OTHERS)

    assert answer.records[1]["scheduled"] == {"b": 8, "c": 8}
    assert answer.records[1]["cached_blocks"] == {"b": 2, "c": 0}


def test_an_unfinished_first_chunk_does_not_sample(serve: Serve) -> None:
    """The text says that sampling is enabled in a first prefill."""
    answer = serve(CHUNKED, [asks("a", 12, 2)])

    assert column(answer, "sampling", 2) == [[], ["a"]]


# --- what serving stacks die of or hang in, met by random episodes --------------------------------


def test_priority_with_swapping_ends_the_engine(serve: Serve) -> None:
    """A request swapped out for another stands among the waiting, which have no blocks to bring."""
    answer = serve(SMALL | SWAP | ONE_BY_PRIORITY, LATER_AND_URGENT, *A_THEN_B)

    assert answer.failure["type"] == "AssertionError"
    assert answer.records[-1]["swapped_out"] == ["a"]
    assert answer.records[-1]["waiting"] == ["b", "a"]
    assert answer.records[-1]["swaps_out"] == []


def test_with_caching_the_abort_of_a_swapped_request_ends_the_engine(serve: Serve) -> None:
    requests = (asks("a", 8, 9), asks("b", 8, 9))

    answer = serve(SWAPPING | CACHED, requests, {"arrive": ["a", "b"]}, {}, {"abort": ["b"]})

    assert answer.records[-1]["swapped"] == ["b"]
    assert answer.failure["type"] == "KeyError"
    assert answer.failure["at"] == "prefix_caching_block.py:573 mark_blocks_as_accessed"


def test_a_swapped_request_that_needs_the_watermark_never_returns(serve: Serve) -> None:
    """Alone, with every block free: to come back takes its blocks and the watermark."""
    answer = serve(SMALL | SWAP | {"num_gpu_blocks": 4, "watermark": 0.25}, [asks("a", 11, 9)])
    last = answer.records[-1]

    assert (last["kind"], last["swapped"], last["blocks"]["free"]) == ("idle", ["a"], 4)
    assert sum(record["kind"] == "idle" for record in answer.records) > 20


def test_chunked_a_request_in_every_block_is_preempted_and_admitted_for_ever(serve: Serve) -> None:
    """A chunk that needs no further block still counts the last one as touched."""
    answer = serve(CHUNKED | {"num_gpu_blocks": 4}, [asks("a", 14, 1)])
    last = answer.records[-2:]

    assert sorted((one["admitted"], one["preempted"]) for one in last) == [([], ["a"]), (["a"], [])]
    assert not any(record["outputs"] for record in answer.records)


def test_a_swapped_request_that_outgrew_the_gpu_is_ignored_and_keeps_its_cpu_blocks(
    serve: Serve,
) -> None:
    answer = serve(SMALL | SWAP | {"num_gpu_blocks": 4}, [asks("a", 14, 9)])
    last = answer.records[-1]

    assert [one["ignored"] for one in answer.records if one["ignored"]] == [["a"]]
    assert (last["swapped"], len(last["cpu_blocks"]["references"])) == ([], 4)


def test_swapping_without_space_on_the_cpu_ends_the_engine(serve: Serve) -> None:
    answer = serve(SWAPPING | {"num_cpu_blocks": 1}, [asks("a", 8, 9), asks("b", 8, 9)])

    assert answer.failure["message"].startswith("Aborted due to the lack of CPU swap space.")


def test_chunked_a_prompt_that_was_swapped_out_half_done_hangs(serve: Serve) -> None:
    """What is left of it must fit one step to come back."""
    requests = (asks("a", 4, 20), asks("b", 24, 1))

    answer = serve(CHUNKED | SWAP | {"num_gpu_blocks": 8}, requests, *A_THEN_B)

    assert answer.records[-1]["swapped"] == ["b"]
    assert answer.records[-1]["kind"] == "idle"


def test_chunked_with_caching_blocks_count_as_computed_before_they_are(serve: Serve) -> None:
    """Eight tokens of the prompt were computed when its client left; the next hits them all."""
    a_then_b_alone = ({"arrive": ["a"]}, {"abort": ["a"], "arrive": ["b"]})

    answer = serve(CHUNKED | CACHED, twins(25), *a_then_b_alone)

    assert column(answer, "scheduled", 2) == [{"a": 8}, {"b": 25}]
    assert answer.records[1]["cached_blocks"] == {"b": 6}


def test_chunked_with_caching_a_preempted_prompt_hits_what_it_never_computed(serve: Serve) -> None:
    """Four tokens were computed; when it is back it samples as if all 24 had been."""
    answer = serve(CHUNKED | CACHED, (asks("a", 4, 8), asks("b", 24, 1)), *A_THEN_B)

    tokens = [{"a": 4}, {"b": 4, "a": 1}, {"a": 1}, {"b": 24, "a": 1}]
    assert column(answer, "scheduled", 4) == tokens
    assert answer.records[2]["preempted"] == ["b"]
    assert answer.records[3]["cached_blocks"]["b"] == 6
    assert list(answer.records[3]["outputs"]) == ["b", "a"]


def test_chunked_with_caching_and_swapping_a_prompt_half_done_ends_the_engine(serve: Serve) -> None:
    config = CHUNKED | SWAP | CACHED | {"num_gpu_blocks": 8}

    answer = serve(config, (asks("a", 4, 20), asks("b", 24, 1)), *A_THEN_B)

    assert answer.failure["message"].startswith("Number of cached tokens should not be less than")
