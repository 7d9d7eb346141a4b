"""Requests and their tokens: refusals, block keys, and what a request samples."""

from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from spec.core.errors import WorkloadError
from spec.core.requests import (
    BlockKeys,
    Prompt,
    Request,
    cached_value,
)
from spec.spyre.config import SpyreConfig, refuse_unservable
from spec.spyre.variants import Queue
from tests.refusals import refusal
from tests.requests import request


def of_tokens(id_: str, tokens: list[int], max_tokens: int = 8, **more: Any) -> Request:
    return Request(id=id_, prompt=Prompt.of_tokens(tokens), max_tokens=max_tokens, **more)


# --- what a request may be ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt": Prompt.of_tokens([])}, "prompt_len: found 0; allowed: 1 or more tokens"),
        ({"max_tokens": 0}, "max_tokens: found 0; allowed: 1 or more tokens"),
        ({"output_len": 0}, "output_len: found 0; allowed: 1 to max_tokens (4)"),
        ({"output_len": 5}, "output_len: found 5; allowed: 1 to max_tokens (4)"),
        ({"output": ()}, "output: found []; allowed: 1 to max_tokens (4) token ids"),
        (
            {"output": (1, 2, 3, 4, 5)},
            "output: found [1, 2, 3, 4, 5]; allowed: 1 to max_tokens (4) token ids",
        ),
    ],
)
def test_malformed_request_is_refused(changes: dict[str, Any], message: str) -> None:
    values: dict[str, Any] = {"id": "0", "prompt": Prompt.of_tokens([1]), "max_tokens": 4}

    assert refusal(WorkloadError, Request, **(values | changes)) == message


@pytest.mark.parametrize(
    ("says", "end"),
    [
        ({}, 4),
        ({"output_len": 1}, 1),
        ({"output_len": 4}, 4),
        ({"output": (9,)}, 1),
        ({"output": (7, 7, 7)}, 3),
        ({"output": (9, 9, 9, 9)}, 4),
        ({"output": (7, 7, 7), "output_len": 2}, 2),
    ],
)
def test_request_runs_to_max_tokens_unless_it_says_otherwise(
    says: dict[str, Any], end: int
) -> None:
    assert of_tokens("0", [1], 4, **says).end == end


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"max_model_len": 19},
            "prompt_len + max_tokens: found 20; allowed: at most max_model_len (19)",
        ),
        (
            {"max_batch_tkv_limit": 18},
            "prompt_len + max_tokens - 1 (its largest tkv): found 19; allowed: at most "
            "max_batch_tkv_limit (18)",
        ),
        (
            {"num_blocks": 4},
            "blocks of prompt_len + max_tokens: found 5; allowed: at most num_blocks (4)",
        ),
    ],
)
def test_request_that_could_never_be_served_is_refused(
    config: dict[str, int], message: str
) -> None:
    """12 tokens of prompt and 8 to generate, blocks of 4; with one more of each it is served."""
    small = {"block_size": 4, "chunk_size": 4, "max_model_len": 20}
    enough = {name: allowed + 1 for name, allowed in config.items()}

    refuse_unservable(request("0", 12, 8), SpyreConfig(**(small | enough)))  # type: ignore[arg-type]
    too_small = SpyreConfig(**(small | config))  # type: ignore[arg-type]
    assert refusal(WorkloadError, refuse_unservable, request("0", 12, 8), too_small) == message


@pytest.mark.parametrize("name", ["grammar", "has_images"])
def test_what_takes_time_is_refused_where_others_would_wait_for_it(name: str) -> None:
    awaited: dict[str, Any] = {name: True}
    asked = evolve(request("0", 12, 8), **awaited)

    refuse_unservable(asked, SpyreConfig(queue=Queue.FCFS))
    aligned = SpyreConfig(queue=Queue.ALIGNED)
    message = f"{name}: found True; allowed: false with queue = aligned"
    assert refusal(WorkloadError, refuse_unservable, asked, aligned) == message


# --- what a request samples -----------------------------------------------------------------------

tokens = st.lists(st.integers(0, 3), min_size=1, max_size=9)


@given(tokens, st.integers(0, 6), st.integers(1, 4))
def test_request_that_goes_on_from_its_own_output_samples_the_same_tokens(
    prompt: list[int], known: int, more: int
) -> None:
    whole = of_tokens("whole", prompt, 10)
    outputs = [whole.output_token(index) for index in range(known + more)]

    rest = of_tokens("rest", prompt + outputs[:known], 10)

    assert [rest.output_token(index) for index in range(more)] == outputs[known:]


@given(tokens, st.lists(st.integers(0, 3), min_size=1, max_size=4))
def test_written_output_is_sampled_first_and_counts_for_what_follows(
    prompt: list[int], output: list[int]
) -> None:
    written = of_tokens("written", prompt, 10, output=tuple(output))
    rest = of_tokens("rest", prompt + output, 10)

    assert [written.output_token(index) for index in range(len(output))] == output
    assert written.output_token(len(output)) == rest.output_token(0)


def test_first_sampled_token_follows_from_the_words_of_the_prompt() -> None:
    """Written out with other means: exact integers, reduced only in the end."""
    words = []
    for place, token in enumerate([3, 1, 4], start=1):
        mixed = (token + place * 0x9E3779B97F4A7C15) % 2**64
        mixed = (mixed ^ mixed // 2**30) * 0xBF58476D1CE4E5B9 % 2**64
        mixed = (mixed ^ mixed // 2**27) * 0x94D049BB133111EB % 2**64
        words.append(mixed ^ mixed // 2**31)

    first = of_tokens("a", [3, 1, 4]).output_token(0)

    assert first == sum(words) % 2**64 % 50_000


def test_mixing_is_that_of_splitmix64() -> None:
    """The first outputs of the published generator for seed 0, whose state grows by the step."""
    published = [0xE220_A839_7B1D_CDAF, 0x6E78_9E6A_A1B9_65F4, 0x06C4_5D18_8009_454F]

    assert [cached_value(0, position) for position in range(3)] == published


# --- block keys -----------------------------------------------------------------------------------


def block_keys(asked: Request, blocks: int, block_size: int) -> list[bytes]:
    return list(BlockKeys({asked.id: asked}, block_size).of(asked.id, blocks))


bits = st.lists(st.integers(0, 1), min_size=8, max_size=12)


@given(bits, bits, st.integers(0, 8), st.integers(1, 4))
def test_keys_are_equal_exactly_as_far_as_the_prompts_are(
    tokens: list[int], other: list[int], common: int, block_size: int
) -> None:
    other = tokens[:common] + other[common:]
    blocks = min(len(tokens), len(other)) // block_size

    pairs = zip(
        block_keys(of_tokens("a", tokens), blocks, block_size),
        block_keys(of_tokens("b", other), blocks, block_size),
        strict=True,
    )

    for index, (ours, theirs) in enumerate(pairs):
        end = (index + 1) * block_size
        assert (ours == theirs) == (tokens[:end] == other[:end])


@given(st.lists(st.integers(0, 1), min_size=1, max_size=9), st.integers(1, 4))
def test_keys_go_on_over_sampled_tokens(prompt: list[int], size: int) -> None:
    """As if prompt and output were one long prompt."""
    asked = of_tokens("a", prompt, 12)
    whole = prompt + asked.output_tokens(12)
    blocks = len(whole) // size

    assert block_keys(asked, blocks, size) == block_keys(of_tokens("long", whole), blocks, size)
