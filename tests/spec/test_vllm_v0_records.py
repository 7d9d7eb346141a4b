"""vLLM V0's configuration, groups and sequences, by known numbers."""

from typing import Any

import pytest

from reference.core.block_pool import empty_pool
from reference.core.frozen_map import FrozenMap
from spec.core.blocks import missing_blocks
from spec.core.errors import ConfigError, WorkloadError
from spec.core.requests import VOCABULARY
from spec.vllm_v0.config import VllmV0Config, refuse_unservable
from spec.vllm_v0.records import Group, Sequence, State, sequence_names, sequences_of
from tests.requests import request

# --- configuration --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model_len", "partial", "given", "threshold"),
    [
        pytest.param(1_000, 1, 0, 40, id="a twenty-fifth of the model's length"),
        pytest.param(1_000, 3, 0, 40, id="however many prompts there may be"),
        pytest.param(1_000, 2, 7, 7, id="what is given counts"),
        pytest.param(1_000, 1, 7, 7, id="also for one prompt at a time"),
    ],
)
def test_a_prompt_is_long_above_a_part_of_the_model_length_unless_it_is_given(
    model_len: int, partial: int, given: int, threshold: int
) -> None:
    config = VllmV0Config(
        max_model_len=model_len,
        chunked_prefill=True,
        max_num_partial_prefills=partial,
        long_prefill_token_threshold=given,
    )

    assert config.long_threshold == threshold


@pytest.mark.parametrize(("model_len", "budget"), [(100, 2_048), (2_048, 2_048), (4_000, 4_000)])
def test_the_budget_is_the_model_length_and_no_less_than_2048(model_len: int, budget: int) -> None:
    assert VllmV0Config(max_model_len=model_len).token_budget == budget
    assert VllmV0Config(max_model_len=100, max_num_batched_tokens=300).token_budget == 300


def test_a_whole_number_is_a_number_of_a_key_that_need_not_be_whole() -> None:
    assert VllmV0Config(delay_factor=1).delay_factor == 1
    with pytest.raises(ConfigError, match="a number"):
        VllmV0Config(delay_factor=True)


@pytest.mark.parametrize(("end", "held", "missing"), [(4, 2, 0), (5, 2, 1), (5, 0, 3), (4, 4, 0)])
def test_a_table_lacks_the_blocks_beyond_those_that_it_holds(
    end: int, held: int, missing: int
) -> None:
    assert missing_blocks(end, held, block_size=2) == missing


@pytest.mark.parametrize(
    ("sequences", "ahead", "max_tokens", "refused"),
    [
        pytest.param(2, 0, 4, None, id="two sequences"),
        pytest.param(2, 1, 4, "n", id="two sequences, each with slots for more tokens a step"),
        pytest.param(1, 1, 4, None, id="one sequence with such slots"),
        pytest.param(1, 0, 97, None, id="as long as the model allows"),
        pytest.param(1, 0, 98, "prompt_len + max_tokens", id="longer than that"),
    ],
)
def test_what_could_not_be_served_is_refused(
    sequences: int, ahead: int, max_tokens: int, refused: str | None
) -> None:
    config = VllmV0Config(max_model_len=100, num_lookahead_slots=ahead)
    try:
        refuse_unservable(request("a", 3, max_tokens, n=sequences), config)
        found = None
    except WorkloadError as error:
        found = error.field

    assert found == refused


@pytest.mark.parametrize("keys", [{"grammar": True}, {"external": 2}, {"right_drafts": "1"}])
def test_keys_of_newer_schedulers_are_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(WorkloadError, match="under policy vllm-v0"):
        refuse_unservable(request("a", 3, 4, **keys), VllmV0Config())


# --- records --------------------------------------------------------------------------------------


def group(name: str = "a", *generated: int) -> Group:
    of = tuple(
        Sequence(f"{name}/{index}", generated=count) for index, count in enumerate(generated)
    )
    return Group(name, prompt_len=3, sequences=of)


def test_a_group_has_generated_what_the_longest_of_its_sequences_has() -> None:
    assert group("a", 1, 4, 2).generated == 4


def test_those_that_wait_are_named_before_those_that_run_and_these_before_the_swapped() -> None:
    waiting, running, swapped = (group(name, 0) for name in "wrs")
    pool = empty_pool([])
    state = State(
        pool, pool, marks=FrozenMap(), waiting=(waiting,), running=(running,), swapped=(swapped,)
    )

    assert state.present == (waiting, running, swapped)


def test_the_sequences_of_a_request_sample_what_it_does_but_for_their_first_token() -> None:
    three = request("a", 2, 4, n=3, output=(5, 6, 7))

    first, second, third = sequences_of(three, ("a", "a/1", "a/2")).values()

    assert first == three
    assert [sequence.id for sequence in (second, third)] == ["a/1", "a/2"]
    assert (second.n, second.output, second.end) == (1, (6, 6, 7), 3)
    assert (third.n, third.output, third.end) == (1, (7, 6, 7), 3)


def test_no_two_sequences_have_one_name_whatever_the_requests_are_called() -> None:
    requests = [request(name, 2, 4, n=3) for name in ("a", "a/1", "a//1", "a/", "b c:#2", "")]

    names = sequence_names(requests)

    assert names["a"] == ("a", "a///1", "a/2")
    every = [name for own in names.values() for name in own]
    assert len({*every}) == len(every) == 18


def test_a_first_token_is_one_of_the_vocabulary_and_sequences_end_where_the_request_does() -> None:
    last = VOCABULARY - 1

    short = request("a", 2, 4, n=2, output=(last,), output_len=2)
    _, other = sequences_of(short, ("a", "a/1")).values()
    *_, free = sequences_of(request("b", 2, 4, n=2), ("b", "b/1")).values()

    assert (other.output, other.end) == ((0,), 2)
    assert (free.output, free.end) == (((request("b", 2, 4).output_token(0) + 1) % VOCABULARY,), 4)
