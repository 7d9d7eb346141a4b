"""Facts about vLLM V0 where the text is unclear or wrong, each shown by one episode.

Run against the installed release (`lockstep driver install vllm-v0`); skipped where it is not.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest
from attrs import asdict, frozen

from checks.harness.case import Case
from checks.harness.driver.client import Driver
from checks.harness.driver.system import DriverSystem
from checks.harness.system import Action, Failure, Taken
from checks.releases.environments import command_of, environment_of
from checks.releases.recipes import recipe_of
from spec.core.records import IDLE
from spec.core.requests import Prompt, Request
from spec.vllm_v0.config import VllmV0Config
from spec.vllm_v0.records import Group, Step
from tests.recorded.scenes import SCENES, asks

pytestmark = pytest.mark.thorough

Keys = dict[str, Any]

SMALL: Keys = {
    **{"block_size": 4, "num_blocks": 8, "num_cpu_blocks": 16, "max_num_seqs": 4},
    **{"max_model_len": 32, "max_num_batched_tokens": 32, "reading": "released"},
}
CHUNKED = SMALL | {"chunked_prefill": True, "max_num_batched_tokens": 8}
SWAP: Keys = {"preemption_mode": "swap"}
SWAPPING = SMALL | SWAP | {"num_blocks": 5}
CACHED: Keys = {"prefix_caching": True}
ONE_BY_PRIORITY = {"scheduling": "priority", "max_num_seqs": 1}

LATER_AND_URGENT = [asks("a", 4, 3, priority=1), asks("b", 4, 3, priority=0)]
A_THEN_B = (Action(arrive=("a",)), Action(arrive=("b",)))
A_THEN_OTHERS = (Action(arrive=("a",)), Action(arrive=("b", "c")))
BOTH = Action(arrive=("a", "b"))
FOUR = [asks(name, 4, 9) for name in "abcd"]  # each needs another block in its first decode


@frozen
class Answer:
    """The steps of an episode, and the error that ended it early, if any."""

    steps: Sequence[Step]
    failure: Failure | None

    def column(self, name: str, steps: int) -> list[object]:
        """The values of a field in the first steps."""
        return [getattr(step, name) for step in self.steps[:steps]]


Serve = Callable[..., Answer]


@pytest.fixture(scope="module")
def serve() -> Iterator[Serve]:
    """Serve requests that arrive together, or around the first steps as `actions` says."""
    recipe = recipe_of("vllm-v0")
    if recipe is None or not environment_of(recipe).is_complete:
        pytest.skip("not installed: vllm-v0")
    with closing(DriverSystem(lambda: Driver(command_of("vllm-v0")))) as release:

        def serve(keys: Keys, requests: Sequence[Request], *actions: Action) -> Answer:
            case = Case(VllmV0Config(**keys), tuple(requests))
            at_once = Action(arrive=tuple(request.id for request in requests))
            taken = [*release.play(case, [*(actions or [at_once]), *[Action()] * 60])]
            failures = [answer for answer in taken if isinstance(answer, Failure)]
            steps = [answer.step for answer in taken if isinstance(answer, Taken)]
            return Answer(steps, failures[0] if failures else None)

        yield serve


def twins(prompt_len: int) -> list[Request]:
    """Two requests with the same prompt and one token to sample."""
    same = Prompt.of_stream("same", prompt_len)
    return [asks("a", same, 1), asks("b", same, 1)]


def ids(queue: Sequence[Group]) -> list[str]:
    return [request.id for request in queue]


def waiting(answer: Answer, steps: int) -> list[list[str]]:
    return [ids(step.after.waiting) for step in answer.steps[:steps]]


def running(step: Step, request_id: str) -> Group:
    return next(request for request in step.planned.running if request.id == request_id)


def first_with(answer: Answer, shows: Callable[[Step], object]) -> int:
    """The first step with this property."""
    return next(step.index for step in answer.steps if shows(step))


# --- priorities -----------------------------------------------------------------------------------


def test_the_lower_number_is_the_higher_priority(serve: Serve) -> None:
    """The text's example says the opposite."""
    answer = serve(SMALL | ONE_BY_PRIORITY, LATER_AND_URGENT, *A_THEN_B)

    assert answer.column("preempted", 2) == [(), ("a",)]
    assert answer.column("by_priority", 2) == [(), ("a",)]
    assert answer.column("admitted", 3) == [("a",), (), ("b",)]


def test_priority_does_not_preempt_in_chunked_mode(serve: Serve) -> None:
    answer = serve(CHUNKED | ONE_BY_PRIORITY, LATER_AND_URGENT, *A_THEN_B)

    assert not any(step.preempted for step in answer.steps)


def test_priority_looks_at_the_head_of_a_queue_that_is_not_sorted_yet(serve: Serve) -> None:
    """The urgent one came last: the request in front decides in this step, and it does not."""
    requests = (asks("a", 4, 9, priority=1), asks("b", 4, 1, priority=2), asks("c", 4, 1))

    answer = serve(SMALL | ONE_BY_PRIORITY, requests, *A_THEN_OTHERS)

    assert waiting(answer, 3) == [[], ["c", "b"], ["c", "a", "b"]]
    assert answer.column("preempted", 3) == [(), (), ("a",)]


def test_priority_does_not_preempt_in_a_step_with_a_prefill(serve: Serve) -> None:
    """A small request at the front is admitted; the urgent one behind it waits a step."""
    requests = (asks("a", 4, 9, priority=1), asks("b", 4, 9, priority=2), asks("c", 4, 1))

    answer = serve(SMALL | {"scheduling": "priority", "max_num_seqs": 2}, requests, *A_THEN_OTHERS)

    assert answer.column("admitted", 2) == [("a",), ("b",)]
    assert answer.column("preempted", 3) == [(), (), ("b",)]


# --- what a step holds ----------------------------------------------------------------------------


def test_by_default_a_prefill_excludes_decodes(serve: Serve) -> None:
    """The text's example has both in one step, if there is space."""
    answer = serve(SMALL, (asks("a", 4, 4), asks("b", 4, 4)), *A_THEN_B)

    assert answer.column("scheduled", 3) == [{"a": 4}, {"b": 4}, {"a": 1, "b": 1}]


def test_by_default_a_swapped_request_excludes_prefills(serve: Serve) -> None:
    requests = (asks("a", 8, 9), asks("b", 8, 9), asks("c", 1, 1))

    answer = serve(SWAPPING, requests, BOTH, Action(), Action(arrive=("c",)))
    out = first_with(answer, lambda step: step.after.swapped)
    back = first_with(answer, lambda step: step.swapped_in)

    assert all("c" in ids(step.after.waiting) for step in answer.steps[out + 1 : back + 1])
    assert back - out > 2


def test_a_long_request_blocks_small_ones_behind_it(serve: Serve) -> None:
    """The text says that long sequences do not block smaller ones."""
    answer = serve(SMALL, (asks("a", 16, 9), asks("long", 20, 1), asks("c", 1, 1)))
    first = first_with(answer, lambda step: "c" in step.admitted)

    assert waiting(answer, 1) == [["long", "c"]]
    assert len(answer.steps[0].after.pool.free) == 4
    assert "long" in answer.steps[first].admitted


@pytest.mark.parametrize(("blocks", "ignored"), [(6, ()), (7, ("a",))])
def test_a_prompt_of_more_than_all_but_the_watermark_is_ignored(
    serve: Serve, blocks: int, ignored: tuple[str, ...]
) -> None:
    answer = serve(SMALL | {"watermark_blocks": 2}, [asks("a", 4 * blocks, 1)])

    assert answer.steps[0].ignored == ignored
    assert answer.steps[0].after.ignored == {*ignored}


def test_with_no_free_block_even_a_decode_inside_a_block_preempts(serve: Serve) -> None:
    answer = serve(SMALL | {"num_blocks": 4}, [asks("a", 5, 3), asks("b", 5, 3)])

    assert not answer.steps[0].after.pool.free
    assert answer.steps[1].preempted == ("b",)
    assert running(answer.steps[1], "a").blocks == running(answer.steps[0], "a").blocks


def test_recomputed_requests_return_to_the_front_in_their_order(serve: Serve) -> None:
    answer = serve(SMALL | {"num_blocks": 5, "preemption_mode": "recompute"}, FOUR)

    assert answer.steps[1].preempted == ("d", "c")
    assert waiting(answer, 2)[1] == ["c", "d"]


def test_swapped_requests_queue_up_with_the_last_victim_first(serve: Serve) -> None:
    answer = serve(SWAPPING, FOUR)

    assert answer.steps[1].swapped_out == ("d", "c")
    assert ids(answer.steps[1].after.swapped) == ["d", "c"]


def test_chunked_a_step_that_preempts_admits_others(serve: Serve) -> None:
    config = CHUNKED | {"num_blocks": 6, "max_num_batched_tokens": 16}
    requests = (asks("a", 8, 9), asks("b", 8, 9), asks("c", 1, 1))

    answer = serve(config, requests, BOTH, Action(), Action(arrive=("c",)))
    both = [step for step in answer.steps if step.preempted and step.admitted]

    assert [(step.preempted, step.admitted) for step in both] == [(("b",), ("c",))]


def test_finishing_first_reorders_continuing_prefills_only(serve: Serve) -> None:
    """Of two new prompts the short one ends in this step, and still runs behind the long one."""
    config = CHUNKED | {"max_num_partial_prefills": 2, "max_long_partial_prefills": 2}

    answer = serve(config, [asks("a", 12, 2), asks("b", 3, 2), asks("c", 1, 1)])
    continued = serve(config, [asks("a", 12, 2), asks("b", 7, 2)])

    assert answer.steps[0].scheduled == {"a": 4, "b": 3, "c": 1}
    assert ids(answer.steps[0].after.running) == ["a", "b"]
    assert continued.steps[1].scheduled == {"a": 4, "b": 3}
    assert ids(continued.steps[1].after.running) == ["b", "a"]


def test_chunked_the_limit_on_prompts_under_way_only_divides_the_budget(serve: Serve) -> None:
    """A third one is admitted with what the shares of two leave."""
    shares = {"max_num_partial_prefills": 2, "long_prefill_token_threshold": 20}

    answer = serve(
        CHUNKED | shares | {"max_num_batched_tokens": 9}, [asks(name, 8, 2) for name in "abc"]
    )

    assert answer.steps[0].scheduled == {"a": 4, "b": 4, "c": 1}


def test_prompts_are_held_back_until_one_has_waited_for_the_delay(serve: Serve) -> None:
    """A prefill takes 8, a decode 1: with half of that as delay, the step after the fourth."""
    requests = (asks("a", 4, 12), asks("b", 4, 2))

    answer = serve(SMALL | {"delay_factor": 0.5}, requests, *A_THEN_B)

    assert first_with(answer, lambda step: step.admitted == ("b",)) == 6


# --- prefix caching -------------------------------------------------------------------------------


def test_with_caching_the_budget_is_rounded_down_to_whole_blocks(serve: Serve) -> None:
    answer = serve(CHUNKED | CACHED | {"max_num_batched_tokens": 10}, [asks("a", 13, 2)])

    assert answer.column("scheduled", 2) == [{"a": 8}, {"a": 5}]


def test_a_fully_cached_prompt_counts_one_token_of_the_budget(serve: Serve) -> None:
    """Eight of its tokens are cached; both fit a budget of nine."""
    config = SMALL | CACHED | {"max_num_batched_tokens": 9, "max_model_len": 9}

    answer = serve(config, [*twins(8), asks("c", 8, 1)], *A_THEN_OTHERS)

    assert answer.steps[1].scheduled == {"b": 8, "c": 8}
    assert answer.steps[1].budget.batched == {"b": 1, "c": 8}
    assert [running(answer.steps[1], name).cached for name in "bc"] == [8, 0]


def test_an_unfinished_first_chunk_does_not_sample(serve: Serve) -> None:
    """The text says that sampling is enabled in a first prefill."""
    answer = serve(CHUNKED, [asks("a", 12, 2)])

    assert answer.column("sampling", 2) == [(), ("a",)]


def test_the_same_prompt_for_another_adapter_is_not_shared(serve: Serve) -> None:
    config = SMALL | CACHED | {"max_loras": 2}
    first, second = twins(9)
    requests = [first, second, asks("c", second.prompt, 1, lora=1)]

    answer = serve(config, requests, *A_THEN_OTHERS)

    assert [running(answer.steps[1], name).cached for name in "bc"] == [8, 0]


def test_requests_for_adapters_are_batched_in_their_order(serve: Serve) -> None:
    """One whose adapter is one too many is passed over."""
    requests = [asks("a", 4, 2, lora=2), asks("b", 4, 2, lora=3), asks("c", 4, 2), asks("d", 4, 2)]

    answer = serve(SMALL | {"max_loras": 1}, requests)

    assert answer.steps[0].admitted == ("a", "c", "d")
    assert answer.steps[0].prefills == ("c", "d", "a")
    assert waiting(answer, 1) == [["b"]]


# --- several sequences, several tokens, encoders --------------------------------------------------


def test_a_group_forks_with_its_first_token_and_copies_its_last_block(serve: Serve) -> None:
    """The prompt's blocks are shared; the first that writes takes a block of its own."""
    answer = serve(SMALL, [asks("a", 6, 3, n=3)])
    prompt, decode, end = answer.steps[:3]

    assert prompt.forked == {"a/1": "a", "a/2": "a"}
    assert [len(prompt.sampled[name]) for name in ("a", "a/1", "a/2")] == [1, 1, 1]
    assert prompt.after.pool.references == {1: 3, 2: 3}
    assert decode.copies == ((2, 3), (2, 4))
    assert [sequence.blocks for sequence in decode.after.running[0].sequences] == [
        (1, 3),
        (1, 4),
        (1, 2),
    ]
    assert decode.scheduled == {"a": 3}
    assert (end.finished, end.after.pool.references) == (("a",), {})


def test_a_sequence_that_ends_leaves_the_others(serve: Serve) -> None:
    ends = Action(ends=("a/1",))

    answer = serve(SMALL, [asks("a", 6, 4, n=2)], Action(arrive=("a",)), ends)
    group = answer.steps[1].after.running[0]

    assert [
        (sequence.id, sequence.is_finished, bool(sequence.blocks)) for sequence in group.sequences
    ] == [
        ("a", False, True),
        ("a/1", True, False),
    ]
    assert answer.steps[2].sampled.keys() == {"a"}


def test_several_sequences_are_swapped_one_after_the_other(serve: Serve) -> None:
    """What they shared is on the CPU twice, and not shared any more when they are back."""
    config = SMALL | {"num_blocks": 5}

    answer = serve(config, [asks("a", 7, 6), asks("b", 6, 4, n=2)])
    out = next(step for step in answer.steps if step.swapped_out)
    back = next(step for step in answer.steps if step.swapped_in)

    assert (out.swapped_out, out.preempted) == (("b",), ())
    assert len({source for source, _ in out.swaps_out}) < len(out.swaps_out)
    assert max(back.after.pool.references.values()) == 1


def test_seven_lookahead_slots_of_a_decode_of_eight_steps(serve: Serve) -> None:
    config = SMALL | {"num_scheduler_steps": 8, "num_lookahead_slots": 7}

    answer = serve(config, [asks("a", 4, 12)])

    assert answer.column("lookahead_slots", 3) == [0, 7, 7]
    assert [len(step.sampled["a"]) for step in answer.steps[:3]] == [1, 8, 3]
    assert [running(step, "a").blocks for step in answer.steps[:2]] == [(1,), (1, 2, 3)]


def test_tokens_that_are_speculated_on_take_slots_that_are_there(serve: Serve) -> None:
    """Two of three are right; the fourth token is the model's own."""
    right = Action(accepted={"a": 2})

    answer = serve(SMALL | {"num_lookahead_slots": 3}, [asks("a", 4, 9)], A_THEN_B[0], right)

    assert [len(step.sampled["a"]) for step in answer.steps[:3]] == [1, 3, 1]
    assert [running(step, "a").sequences[0].slots for step in answer.steps[:3]] == [4, 5, 8]


def test_the_blocks_of_an_encoder_are_a_table_of_their_own(serve: Serve) -> None:
    answer = serve(SMALL, [asks("a", 4, 2, encoder_len=6)])
    group = answer.steps[0].after.running[0]

    assert (group.sequences[0].blocks, group.cross) == ((1,), (2, 3))
    assert answer.steps[1].after.pool.references == {}


# --- what serving stacks die of or hang in, met by random episodes --------------------------------


def outcome(answer: Answer) -> str:
    """The error that ended the engine, and its place."""
    assert answer.failure is not None
    return answer.failure.cause


def test_priority_with_swapping_ends_the_engine(serve: Serve) -> None:
    """A request swapped out for another stands among the waiting, which have no blocks to bring."""
    answer = serve(SMALL | SWAP | ONE_BY_PRIORITY, LATER_AND_URGENT, *A_THEN_B)

    assert outcome(answer) == "AssertionError _schedule_prefills"
    assert answer.steps[-1].swapped_out == ("a",)
    assert ids(answer.steps[-1].after.waiting) == ["b", "a"]
    assert answer.steps[-1].swaps_out == ()


def test_with_caching_the_abort_of_a_swapped_request_ends_the_engine(serve: Serve) -> None:
    requests = (asks("a", 8, 9), asks("b", 8, 9))

    answer = serve(SWAPPING | CACHED, requests, BOTH, Action(), Action(abort=("b",)))

    assert ids(answer.steps[-1].after.swapped) == ["b"]
    assert outcome(answer) == "KeyError mark_blocks_as_accessed"


def test_a_swapped_request_that_needs_the_watermark_never_returns(serve: Serve) -> None:
    """Alone, with every block free: to come back takes its blocks and the watermark."""
    answer = serve(SMALL | SWAP | {"num_blocks": 4, "watermark_blocks": 1}, [asks("a", 11, 9)])
    last = answer.steps[-1]

    assert (last.kind, ids(last.after.swapped), len(last.after.pool.free)) == (IDLE, ["a"], 4)
    assert sum(step.kind == IDLE for step in answer.steps) > 20


def test_chunked_a_request_in_every_block_is_preempted_and_admitted_for_ever(serve: Serve) -> None:
    """A chunk that needs no further block still counts the last one as touched."""
    answer = serve(CHUNKED | {"num_blocks": 4}, [asks("a", 14, 1)])
    last = answer.steps[-2:]

    assert sorted((step.admitted, step.preempted) for step in last) == [((), ("a",)), (("a",), ())]
    assert not any(step.outputs for step in answer.steps)


def test_a_swapped_request_that_outgrew_the_gpu_is_ignored_and_keeps_its_cpu_blocks(
    serve: Serve,
) -> None:
    answer = serve(SMALL | SWAP | {"num_blocks": 4}, [asks("a", 14, 9)])
    last = answer.steps[-1].after

    assert [step.ignored for step in answer.steps if step.ignored] == [("a",)]
    assert (last.swapped, len(last.cpu.references)) == ((), 4)


def test_swapping_without_space_on_the_cpu_ends_the_engine(serve: Serve) -> None:
    answer = serve(SWAPPING | {"num_cpu_blocks": 1}, [asks("a", 8, 9), asks("b", 8, 9)])

    assert outcome(answer) == "RuntimeError _swap_out"


def test_chunked_a_prompt_that_was_swapped_out_half_done_hangs(serve: Serve) -> None:
    """What is left of it must fit one step to come back."""
    answer = serve(CHUNKED | SWAP, (asks("a", 4, 20), asks("b", 24, 1)), *A_THEN_B)

    assert ids(answer.steps[-1].after.swapped) == ["b"]
    assert answer.steps[-1].kind == IDLE


def test_chunked_with_caching_blocks_count_as_computed_before_they_are(serve: Serve) -> None:
    """Eight tokens of the prompt were computed when its client left; the next hits them all."""
    a_then_b_alone = (Action(arrive=("a",)), Action(abort=("a",), arrive=("b",)))

    answer = serve(CHUNKED | CACHED, twins(25), *a_then_b_alone)

    assert answer.column("scheduled", 2) == [{"a": 8}, {"b": 25}]
    assert answer.steps[1].budget.cached == {"b": 24}


def test_chunked_with_caching_a_preempted_prompt_hits_what_it_never_computed(serve: Serve) -> None:
    """Four tokens were computed; when it is back it samples as if all 24 had been."""
    answer = serve(CHUNKED | CACHED, (asks("a", 4, 8), asks("b", 24, 1)), *A_THEN_B)

    tokens = [{"a": 4}, {"b": 4, "a": 1}, {"a": 1}, {"b": 24, "a": 1}]
    assert answer.column("scheduled", 4) == tokens
    assert answer.steps[2].preempted == ("b",)
    assert running(answer.steps[3], "b").cached == 24
    assert list(answer.steps[3].outputs) == ["b", "a"]


def test_chunked_with_caching_and_swapping_a_prompt_half_done_ends_the_engine(serve: Serve) -> None:
    answer = serve(CHUNKED | SWAP | CACHED, (asks("a", 4, 20), asks("b", 24, 1)), *A_THEN_B)

    assert outcome(answer) == "AssertionError _get_num_new_uncached_and_cached_tokens"


def test_chunked_with_caching_a_budget_of_less_than_a_block_computes_nothing(serve: Serve) -> None:
    config = CHUNKED | CACHED | {"max_num_batched_tokens": 3, "max_num_seqs": 3}

    answer = serve(config, [asks("a", 2, 1)])

    assert {step.kind for step in answer.steps} == {IDLE}


def test_chunked_a_victim_of_its_own_frees_the_adapter_of_others(serve: Serve) -> None:
    """One adapter is allowed, and two are in the batch."""
    config = CHUNKED | {"max_loras": 1, "num_blocks": 5, "max_num_batched_tokens": 16}
    requests = (asks("a", 4, 9, lora=1), asks("b", 4, 9, lora=1), asks("c", 1, 1, lora=2))

    answer = serve(config, requests, BOTH, Action(), Action(arrive=("c",)))
    step = answer.steps[first_with(answer, lambda step: "c" in step.scheduled)]

    assert (step.preempted, step.scheduled) == (("b",), {"c": 1, "a": 1})


def test_with_caching_a_swapped_request_that_finds_no_place_twice_ends_the_engine(
    serve: Serve,
) -> None:
    case = SCENES["dropped_twice"].case

    answer = serve(case.config.as_mapping(), case.requests)

    assert [ids(step.after.swapped)[0] for step in answer.steps[-2:]] == ["b", "b"]
    assert outcome(answer) == "AssertionError remove_seq"


# --- the same of groups of several sequences ------------------------------------------------------


@pytest.mark.parametrize(
    ("chunked", "function"), [(False, "_schedule_default"), (True, "_schedule_chunked_prefill")]
)
def test_more_sequences_than_may_run_end_the_engine(
    serve: Serve, chunked: bool, function: str
) -> None:
    """A group counts for one until its prompt is computed."""
    config = SMALL | {"max_num_seqs": 2, "chunked_prefill": chunked}

    answer = serve(config, [asks("a", 4, 3, n=2), asks("b", 4, 3)])

    assert answer.steps[0].admitted == ("a", "b")
    assert outcome(answer) == f"AssertionError {function}"


def test_several_sequences_that_are_to_be_recomputed_end_the_engine(serve: Serve) -> None:
    config = SMALL | {"num_blocks": 4, "preemption_mode": "recompute"}

    answer = serve(config, [asks("a", 7, 6), asks("b", 6, 4, n=2)])

    assert outcome(answer) == "AssertionError _preempt_by_recompute"


def test_with_caching_a_fork_that_ends_with_its_first_token_ends_the_engine(serve: Serve) -> None:
    answer = serve(SMALL | CACHED, [asks("a", 6, 1, n=2)])

    assert outcome(answer) == "AssertionError remove_seq"


def test_an_eviction_for_what_a_block_held_before_ends_the_engine(serve: Serve) -> None:
    """On the CPU no use is noted, so that an entry of the evictor is never outdated by time."""
    case = SCENES["evicted_for_old_contents"].case

    answer = serve(asdict(case.config), case.requests)

    assert outcome(answer) == "AssertionError _maybe_allocate_evicted_block_id"
