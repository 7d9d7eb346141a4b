"""The order by width, with known numbers: `spec/chapters/aligned.md`, "The rule"."""

import pytest

from spec.spyre.queue import (
    admissions_left,
    alike_width,
    chosen_from,
    overtakes_left,
    row_width,
    waits_for_rows,
)


def test_slot_s_share_of_the_plugin_s_limit_and_a_chunk_is_4608_tokens() -> None:
    assert alike_width(131_072, 32, 512) == 4_096 + 512


@pytest.mark.parametrize(
    ("prompt_len", "max_tokens", "width"),
    [(100, 50, 4_608), (4_000, 608, 4_608), (4_000, 609, 4_609)],
)
def test_rows_up_to_the_share_are_alike(prompt_len: int, max_tokens: int, width: int) -> None:
    assert row_width(prompt_len, max_tokens, 4_608) == width


@pytest.mark.parametrize(
    ("cohort", "waiting", "chosen"),
    [(0, 2, 2), (0, 4, 4), (0, 9, 4), (1, 9, 1), (3, 9, 3)],
    ids=[
        "few wait",
        "as many as may be",
        "more",
        "the last of a cohort",
        "a cohort that has begun",
    ],
)
def test_of_nine_the_first_four_come_before_the_fifth(
    cohort: int, waiting: int, chosen: int
) -> None:
    assert chosen_from(cohort, waiting, max_overtakes=3) == chosen


def test_first_of_a_cohort_may_be_overtaken_by_the_others_and_its_last_by_none() -> None:
    assert [overtakes_left(ahead, 4, 3) for ahead in range(4)] == [3, 2, 1, 0]
    assert [admissions_left(ahead, 4, 3) for ahead in range(4)] == [3, 3, 3, 3]


def test_request_behind_the_cohort_waits_for_those_ahead_and_its_own_cohort() -> None:
    assert (overtakes_left(6, 4, 3), admissions_left(6, 4, 3)) == (3, 9)


@pytest.mark.parametrize(
    ("width", "decoding", "held"), [(4_608, 9, False), (4_609, 3, True), (4_609, 2, False)]
)
def test_wide_request_that_waits_alone_lets_three_rows_decode(
    width: int, decoding: int, held: bool
) -> None:
    assert waits_for_rows(width, 4_608, decoding, waiting=1) == held
