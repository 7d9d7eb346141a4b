"""Requests and their tokens: refusals, block keys, and what a request samples."""

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spec.core.errors import WorkloadError
from spec.core.requests import (
    POSITION_STEP,
    VOCABULARY,
    WORD,
    BlockKeys,
    Prompt,
    Request,
    attended_sum,
    cached_value,
    refuse_too_long,
    sampled_token,
    stream_tokens,
)
from spec.spyre.config import SpyreConfig, refuse_unservable
from tests.refusals import refusal
from tests.requests import request


def of_tokens(id_: str, tokens: list[int], max_tokens: int = 8, **more: Any) -> Request:
    return Request(id=id_, prompt=Prompt.of_tokens(tokens), max_tokens=max_tokens, **more)


# --- prompts --------------------------------------------------------------------------------------


def test_equal_names_give_equal_tokens_and_other_names_others() -> None:
    assert list(stream_tokens("system", 9))[:5] == list(stream_tokens("system", 5))
    assert stream_tokens("system", 1) != stream_tokens("user-7", 1)


def test_prompts_of_the_same_parts_begin_alike_as_far_as_these_go() -> None:
    one = Prompt.of_parts([("system", 4), ("user-7", 2)])
    other = Prompt.of_parts([("system", 4), ("user-8", 2)])

    assert [one.begins_like(other, count) for count in (0, 4, 5)] == [True, True, False]
    assert one.begins_like(one, 6)
    assert not one.begins_like(one, 7)
    assert not one.begins_like(Prompt.of_tokens(one.tokens()), 1)  # though the tokens are the same


parts = st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 2)), max_size=4)


@given(parts, parts, st.integers(0, 8))
def test_prompts_that_begin_alike_have_the_same_first_tokens(
    one: list[tuple[str, int]], other: list[tuple[str, int]], count: int
) -> None:
    prompts = [Prompt.of_parts(named) for named in (one, other)]

    if prompts[0].begins_like(prompts[1], count):
        assert prompts[0].tokens()[:count] == prompts[1].tokens()[:count]
        assert len(prompts[0].tokens()[:count]) == count


def test_prompt_is_its_parts_one_after_the_other() -> None:
    prompt = Prompt.of_parts([("system", 3), ("user-7", 2)])

    assert prompt.length == 5
    assert list(prompt.tokens()) == [*stream_tokens("system", 3), *stream_tokens("user-7", 2)]


def test_prompt_may_be_given_by_its_tokens() -> None:
    prompt = Prompt.of_tokens([17, 17, 4, 9])

    assert (prompt.length, list(prompt.tokens())) == (4, [17, 17, 4, 9])
    assert list(Prompt.of_tokens([5, 6]).tokens()) == [5, 6]  # two ids, not a name and a count


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


# --- what a request samples -----------------------------------------------------------------------

tokens = st.lists(st.integers(0, 3), min_size=1, max_size=9)


@given(tokens, st.integers(1, 6))
def test_sampling_is_deterministic_whatever_was_asked_first(prompt: list[int], count: int) -> None:
    forwards = of_tokens("a", prompt)
    backwards = of_tokens("b", prompt)

    there = [forwards.output_token(index) for index in range(count)]
    back = [backwards.output_token(index) for index in reversed(range(count))]

    assert there == back[::-1]
    assert all(0 <= token < VOCABULARY for token in there)


@given(
    st.integers(1, 70),
    st.integers(0, 90),
    st.none() | st.lists(st.integers(0, 9), min_size=1, max_size=40),
    st.data(),
)
def test_many_tokens_are_what_a_request_samples_if_each_of_them_is(
    prompt_len: int, length: int, output: list[int] | None, data: st.DataObject
) -> None:
    written = None if output is None else tuple(output)
    one, fresh = (request("a", prompt_len, 200, output=written) for _ in range(2))
    tokens = [fresh.output_token(place) for place in range(length + 1)]
    for place in data.draw(st.lists(st.integers(0, length), max_size=2)):
        one.output_token(place)  # known already, or partly

    assert one.samples(tokens[:-1])
    assert one.output_token(length) == tokens[-1]


def test_many_tokens_are_worked_out_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = [request("a", 9, 100).output_token(place) for place in range(20)]
    monkeypatch.delattr(Request, "_sample_next")

    assert request("a", 9, 100).samples(tokens)


@given(st.integers(0, 3), st.integers(1, 40), st.data())
def test_one_other_token_among_many_is_found_wherever_it_stands(
    known: int, length: int, data: st.DataObject
) -> None:
    one, fresh = request("a", 9, 100), request("a", 9, 100)
    tokens = [fresh.output_token(place) for place in range(known + length)]
    one.samples(tokens[:known])
    other = data.draw(st.integers(0, known + length - 1))
    wrong = [
        *tokens[:other],
        data.draw(st.sampled_from([-1, tokens[other] ^ 1])),
        *tokens[other + 1 :],
    ]

    assert not one.samples(wrong)
    assert one.samples(tokens)


@given(tokens, st.integers(0, 6), st.integers(1, 4))
def test_request_that_goes_on_from_its_own_output_samples_the_same_tokens(
    prompt: list[int], known: int, more: int
) -> None:
    whole = of_tokens("whole", prompt, 10)
    outputs = [whole.output_token(index) for index in range(known + more)]

    rest = of_tokens("rest", prompt + outputs[:known], 10)

    assert [rest.output_token(index) for index in range(more)] == outputs[known:]


def test_first_tokens_are_those_of_the_prompt_and_then_of_the_output() -> None:
    one = of_tokens("a", [97, 98, 99], output=(1, 2, 3))

    assert [one.first_tokens(count) for count in (0, 2, 3, 5)] == [
        [],
        [97, 98],
        [97, 98, 99],
        [97, 98, 99, 1, 2],
    ]


@given(tokens, st.lists(st.integers(0, 3), min_size=1, max_size=4))
def test_written_output_is_sampled_first_and_counts_for_what_follows(
    prompt: list[int], output: list[int]
) -> None:
    written = of_tokens("written", prompt, 10, output=tuple(output))
    rest = of_tokens("rest", prompt + output, 10)

    assert [written.output_token(index) for index in range(len(output))] == output
    assert written.output_token(len(output)) == rest.output_token(0)


def test_one_other_token_anywhere_changes_what_is_sampled() -> None:
    prompt = [3, 1, 4, 1, 5]
    first = of_tokens("a", prompt).output_token(0)

    for place in range(len(prompt)):
        changed = [token + (index == place) for index, token in enumerate(prompt)]
        assert of_tokens("b", changed).output_token(0) != first
    assert of_tokens("c", [0, *prompt]).output_token(0) != first
    assert of_tokens("d", prompt[::-1]).output_token(0) != first


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


def test_no_two_tokens_and_positions_have_the_same_word() -> None:
    """Mixing can be undone; before it, positions lie further apart than the largest token id."""
    steps = np.arange(1, 2**21, dtype=np.uint64) * np.uint64(POSITION_STEP)

    assert min(steps.min(), (-steps).min()) > 2**31


@given(tokens, tokens)
def test_sum_goes_on_where_it_stopped(head: list[int], tail: list[int]) -> None:
    parts = attended_sum(head) + attended_sum(tail, start=len(head))

    assert parts & WORD == attended_sum(head + tail)


@given(st.lists(st.integers(0, 2**31 - 1), min_size=2, max_size=9), st.data())
def test_content_and_place_of_every_token_change_the_sum(
    prompt: list[int], data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(prompt) - 2))
    other = data.draw(st.integers(0, 2**31 - 1).filter(lambda token: token != prompt[place]))
    whole = attended_sum(prompt)

    assert attended_sum([*prompt[:place], other, *prompt[place + 1 :]]) != whole
    assert attended_sum([*prompt[:place], *prompt[place + 1 :]]) != whole
    assert attended_sum([*prompt[:place], 0, *prompt[place:]]) != whole
    assert attended_sum(prompt, start=1) != whole
    if prompt[place] != prompt[place + 1]:
        swapped = [prompt[place + 1], prompt[place]]
        assert attended_sum([*prompt[:place], *swapped, *prompt[place + 2 :]]) != whole


def test_sampled_token_is_in_the_vocabulary() -> None:
    assert sampled_token(VOCABULARY) == 0
    assert sampled_token(VOCABULARY - 1) == VOCABULARY - 1


@pytest.mark.parametrize(
    ("asked", "allowed"),
    [
        ({"n": 2}, "1 under policy spyre"),
        ({"right_drafts": "10"}, "no such key under policy spyre"),
    ],
)
def test_what_a_scheduler_does_not_serve_is_refused_with_what_it_serves(
    asked: dict[str, Any], allowed: str
) -> None:
    with pytest.raises(WorkloadError) as refused:
        refuse_too_long(request("a", 3, **asked), SpyreConfig())

    assert (refused.value.field, refused.value.allowed) == (*asked, allowed)


# --- block keys -----------------------------------------------------------------------------------


def keys_of(one: Request, blocks: int, block_size: int) -> list[bytes]:
    return list(BlockKeys({one.id: one}, block_size).of(one.id, blocks))


bits = st.lists(st.integers(0, 1), min_size=8, max_size=12)


@given(bits, bits, st.integers(0, 8), st.integers(1, 4))
def test_keys_are_equal_exactly_as_far_as_the_prompts_are(
    one: list[int], other: list[int], common: int, block_size: int
) -> None:
    other = one[:common] + other[common:]
    blocks = min(len(one), len(other)) // block_size

    pairs = zip(
        keys_of(of_tokens("a", one), blocks, block_size),
        keys_of(of_tokens("b", other), blocks, block_size),
        strict=True,
    )

    for index, (ours, theirs) in enumerate(pairs):
        end = (index + 1) * block_size
        assert (ours == theirs) == (one[:end] == other[:end])


def test_a_key_has_sixteen_bytes_however_long_its_block_is() -> None:
    keys = [*keys_of(of_tokens("a", [7] * 8), 4, 2), *keys_of(of_tokens("a", [7] * 8), 1, 8)]

    assert {len(key) for key in keys} == {16}


def test_equal_blocks_after_different_ones_have_different_keys() -> None:
    first, second = (keys_of(of_tokens("a", [*own, 9, 9]), 2, 2) for own in ([1, 2], [3, 4]))

    assert first[1] != second[1]


def test_blocks_of_one_request_differ_even_if_their_tokens_do_not() -> None:
    assert len(set(keys_of(of_tokens("a", [7] * 8), 4, 2))) == 4


@given(st.lists(st.integers(0, 1), min_size=1, max_size=9), st.integers(1, 4), st.data())
def test_keys_go_on_over_sampled_tokens(prompt: list[int], size: int, data: st.DataObject) -> None:
    """As if prompt and output were one long prompt, in whatever portions they are asked for."""
    asked = of_tokens("a", prompt, 12)
    whole = prompt + [asked.output_token(index) for index in range(12)]
    blocks = len(whole) // size
    portions = sorted(data.draw(st.lists(st.integers(0, blocks), max_size=3)))

    keys = BlockKeys({"a": asked}, size)
    for portion in portions:
        keys.of("a", portion)

    assert list(keys.of("a", blocks)) == keys_of(of_tokens("long", whole), blocks, size)
    assert list(keys.of("a", 1)) == list(keys.of("a", blocks))[:1]


def test_keys_that_were_forgotten_are_worked_out_again() -> None:
    keys = BlockKeys({"a": of_tokens("a", [1, 2, 3, 4])}, 2)
    before = list(keys.of("a", 2))

    keys.forget("a")
    keys.forget("a")

    assert list(keys.of("a", 2)) == before


def test_little_is_left_of_what_was_worked_out_of_a_request_that_has_left() -> None:
    requests = [
        Request(id=str(index), prompt=Prompt.of_stream(str(index), 9), max_tokens=50)
        for index in range(1_000)
    ]
    tracemalloc.start()
    for served in requests:
        assert served.output_token(49) >= 0
        assert served.end == 50
        served.forget_sampled()
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()

    assert kept / len(requests) < 250  # bytes; a dictionary for each would be 700
