"""The published figures come out of the reference, line by line."""

import json
from collections.abc import Callable
from itertools import chain, takewhile
from pathlib import Path
from typing import Any

import pytest

from checks.export.figures import PublishedFigure
from checks.policies.spyre.plot import plot_lines
from checks.policies.spyre.published import FIGURES, decode_lines, ends, jumps
from spec.core.errors import WorkloadError
from spec.core.records import DECODE
from spec.core.requests import Prompt, Request
from spec.spyre.config import refuse_unservable
from tests.checks.export.figures_data import (
    TKV_JUMP_ENDS,
    TKV_JUMP_FIRST,
    TKV_JUMP_LAST,
    TKV_JUMP_LINES,
    TKV_JUMPS,
    answer_figure,
    prefill_figure,
    prefix_figure,
    small_config,
    tkv_jump_figure,
    whole_prompt_figure,
)
from tests.checks.export.runs import Run, configured, run_of
from tests.requests import request

PUBLISHED = Path(__file__).parents[3].parent / "shared" / "figures"

Line = dict[str, Any]


def published(name: str) -> list[Line]:
    path = PUBLISHED / name
    if not path.exists():
        pytest.skip("the published figures are not here")
    return [json.loads(line) for line in path.read_text().splitlines()]


def drawn(run: Run) -> list[Line]:
    return list(plot_lines(run.config, run.by_id, run.steps))


def drawn_pair(run: Run) -> list[Line]:
    """The prefix-caching figure: the prefill of the second request, which reuses from the first.

    A line that describes the pair follows the header, and the prefill lines leave out what that
    line says already, `max_tokens`.
    """
    first, second = run.requests
    header, *lines = drawn(run)
    prefills = [
        line | {"prefilling": {key: row[key] for key in row if key != "max_tokens"}}
        for line in lines
        if line["step_type"] == "prefill" and (row := line["prefilling"])["id"] == second.id
    ]
    return [header, pair(first, second), *prefills]


def pair(first: Request, second: Request) -> Line:
    """What two requests have in common, in tokens; `prefix_output_tokens`: beyond the prompt."""
    output = [first.output_token(index) for index in range(first.end)]
    both = zip(chain(first.prompt.tokens(), output), second.prompt.tokens(), strict=False)
    shared = sum(1 for _ in takewhile(lambda tokens: tokens[0] == tokens[1], both))
    in_prompt = min(shared, first.prompt_len)
    return {
        "req1_id": first.id,
        "common_prompt_tokens": in_prompt,
        "req1_diff_prompt": first.prompt_len - in_prompt,
        "prefix_output_tokens": shared - in_prompt,
        "req1_output": first.end,
        "req2_id": second.id,
        "req2_diff_prompt": second.prompt_len - shared,
        "req2_max_output": second.max_tokens,
    }


# --- against the published files --------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "prompt_len"),
    [("prefill_single_chunks.jsonl", 15), ("prefill_three_chunks.jsonl", 302)],
)
def test_prefill_figure_is_the_beginning_of_our_run(name: str, prompt_len: int) -> None:
    lines = published(name)

    assert drawn(prefill_figure(prompt_len))[: len(lines)] == lines


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("prefix_caching_1.jsonl", lambda: drawn_pair(prefix_figure())),
        ("scheduling_padding_tkv_jump.jsonl", lambda: drawn(tkv_jump_figure())),
    ],
)
def test_figure_is_the_end_of_our_run_but_for_the_limit_of_its_header(
    name: str, ours: Callable[[], list[Line]]
) -> None:
    header, *lines = published(name)

    our_header, *our_lines = ours()

    assert our_lines[-len(lines) :] == lines
    assert our_header | {"max_batch_tkv_limit": header["max_batch_tkv_limit"]} == header


# Ours first. The second figure takes the block of the last token from the cache, too, and counts
# one chunk; the third begins at the first token that is written, the first figure one before.
OTHERWISE_DRAWN = {
    "prefix_caching_2.jsonl": {
        "cached_tokens": (192, 191),
        "chunks_total": (2, 1),
        "chunks_done": (1, 0),
        "chunk_prompt_token_start": (383, 447),
        "inner_padding": (192, 256),
    },
    "prefix_caching_3.jsonl": {"chunk_prompt_token_start": (1023, 1024)},
}


@pytest.mark.parametrize(
    ("name", "run"),
    [
        ("prefix_caching_2.jsonl", whole_prompt_figure),
        ("prefix_caching_3.jsonl", answer_figure),
    ],
)
def test_prefix_caching_figure_differs_from_our_run_in_these_numbers_only(
    name: str, run: Callable[[], Run]
) -> None:
    *_, theirs = published(name)

    *_, ours = drawn_pair(run())

    pairs = {key: (ours["prefilling"][key], value) for key, value in theirs["prefilling"].items()}
    assert {key: pair for key, pair in pairs.items() if len({*pair}) > 1} == OTHERWISE_DRAWN[name]
    assert ours["prefilling"].keys() == theirs["prefilling"].keys()


def test_a_whole_prompt_in_the_cache_has_its_last_block_duplicated_and_is_never_one_chunk() -> None:
    run = whole_prompt_figure()

    chunks = [step.chunk for step in run.steps if step.chunk]
    (chunk,) = [chunk for chunk in chunks if chunk.id == "New Request"]

    assert (chunk.chunk, chunk.chunks, chunk.start, chunk.end) == (1, 2, 192, 448)
    assert (chunk.cached_tokens, chunk.inner_padding) == (3 * 64, 3 * 64)  # of 7 blocks 6 are hits
    assert [block == 0 for block in chunk.writes] == [True, True, True, False]


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)
def test_what_the_book_says_of_a_figure_was_read_off_it(figure: PublishedFigure) -> None:
    assert figure.read(published(figure.file)) == figure.published


def test_tkv_jump_figure_begins_when_all_three_decode() -> None:
    lines = published("scheduling_padding_tkv_jump.jsonl")[1:]

    before = drawn(tkv_jump_figure())[1 : -len(lines)]

    assert [line["step_type"] for line in before[-3:]] == ["prefill", "decode", "prefill"]


def test_tkv_jump_figure_exceeds_the_limit_of_its_own_header() -> None:
    header, *lines = published("scheduling_padding_tkv_jump.jsonl")

    volumes = [
        len(line["decoding"]) * max(row["tkv"] for row in line["decoding"]) for line in lines[:-1]
    ]

    assert max(volumes) == 3 * 367
    assert header["max_batch_tkv_limit"] == 1024


def test_second_request_of_the_prefix_figure_is_refused_under_the_limit_of_its_header() -> None:
    _, request = prefix_figure().requests
    config = configured(64, 256, 2048, max_batch_tkv_limit=1024)

    with pytest.raises(WorkloadError, match="found 1818; allowed: at most max_batch_tkv_limit"):
        refuse_unservable(request, config)


# --- against our own numbers, where the published files are not -------------------------------


def test_jumps_ends_and_edges_of_the_tkv_jump_figure() -> None:
    lines = decode_lines(drawn(tkv_jump_figure()))

    assert len(lines) == TKV_JUMP_LINES
    assert jumps(lines) == TKV_JUMPS
    assert ends(lines) == TKV_JUMP_ENDS
    assert [(row["tkv"], row["padding"]) for row in lines[0]["decoding"]] == TKV_JUMP_FIRST
    assert [(row["tkv"], row["padding"]) for row in lines[-1]["decoding"]] == TKV_JUMP_LAST


def test_chunks_of_the_prefix_figure_begin_one_token_before_what_is_not_cached() -> None:
    _, pair, *lines = drawn_pair(prefix_figure())

    assert pair["common_prompt_tokens"] == 921  # 14 full blocks, 896 tokens
    assert [
        (
            line["prefilling"]["chunks_done"],
            line["prefilling"]["cached_tokens"],
            line["prefilling"]["inner_padding"],
            line["prefilling"]["chunk_prompt_token_start"],
            line["prefilling"]["chunk_prompt_token_end"],
        )
        for line in lines
    ] == [(4, 832, 64, 895, 1088), (5, 832, 64, 1088, 1319)]


# --- conventions ------------------------------------------------------------------------------


def test_drawn_tkv_is_one_more_than_that_of_the_device_and_jumps_one_step_before_it() -> None:
    run = tkv_jump_figure()
    lines = decode_lines(drawn(run))
    steps = [step for step in run.steps if step.kind == DECODE][-len(lines) :]

    ahead = [
        max(row["tkv"] for row in line["decoding"]) - step.tkv
        for line, step in zip(lines, steps, strict=True)
    ]

    # The jumps at 59 and 66 follow an end, in which figure and device are at one.
    assert {line: by for line, by in enumerate(ahead) if by != 1} == {12: -4, 17: -35, 53: 42}


def held_prefill() -> Run:
    """The second request's last chunk waits until the first has left."""
    return run_of(small_config(250), request("0", 20, 4), request("1", 200, 5))


def test_prefill_under_way_is_drawn_between_its_chunks_with_an_empty_range() -> None:
    lines = drawn(held_prefill())[1:]

    assert [line["step_type"] for line in lines[3:6]] == ["decode", "decode", "prefill"]
    assert [row["id"] for row in lines[4]["decoding"]] == ["0"]
    assert lines[3]["prefilling"] == lines[4]["prefilling"]
    assert lines[4]["prefilling"] == {
        "id": "1",
        "prompt_len": 200,
        "max_tokens": 5,
        "chunks_total": 2,
        "chunks_done": 1,
        "chunk_prompt_token_start": 128,
        "chunk_prompt_token_end": 128,
        "left_padding": 0,
        "right_padding": 56,
    }


def test_paused_request_is_listed_and_out_of_the_batch() -> None:
    config = configured(4, 4, 16, max_num_seqs=2, max_batch_tkv_limit=12, pausing=True)
    run = run_of(config, request("a", 4, 8), request("b", 4, 8))

    paused = next(line for line in drawn(run)[1:] if "paused" in line)

    assert paused["paused"] == [{"id": "a", "prompt_len": 4, "max_tokens": 8, "decoded": 3}]
    assert [row["id"] for row in paused["decoding"]] == ["b"]


def test_pair_whose_second_prompt_goes_on_with_what_the_first_generated() -> None:
    config = small_config(2048)
    first = Request(id="first", prompt=Prompt.of_tokens([1] * 70), max_tokens=60, output=(2,) * 60)
    second = Request(
        id="second",
        prompt=Prompt.of_tokens([1] * 70 + [2] * 60 + [3] * 20),
        max_tokens=5,
        arrival=100,
    )

    _, pair, line, *_ = drawn_pair(run_of(config, first, second))

    assert pair == {
        "req1_id": "first",
        "common_prompt_tokens": 70,
        "req1_diff_prompt": 0,
        "prefix_output_tokens": 60,
        "req1_output": 60,
        "req2_id": "second",
        "req2_diff_prompt": 20,
        "req2_max_output": 5,
    }
    # 129 of the 130 common tokens were computed: two full blocks.
    assert (line["prefilling"]["cached_tokens"], line["prefilling"]["inner_padding"]) == (64, 64)
