"""Decoding rows: their ends, and the removal of finished rows."""

from engine.core.decoding import DecodingRows, RequestState
from tests.requests import request


def joined(rows: DecodingRows[RequestState], name: str, end: int, most: int) -> RequestState:
    """A row whose prefill is computed and has yielded its first token."""
    row = RequestState.of(request(name, 3, most, output_len=end))
    row.computed = 3
    rows.join(row)
    return row


def test_row_ends_with_its_last_token_and_is_full_with_the_last_that_it_may_have() -> None:
    rows = DecodingRows[RequestState](4)
    rows.steps = 7
    row = joined(rows, "a", end=3, most=5)
    ending, full = [], []
    for token in range(2, 7):
        rows.steps += 1
        ending += [token for ended in rows.ending() if ended is row]
        full += [token for filled in rows.full() if filled is row]

    assert (ending, full) == ([3], [5])


def test_rows_that_left_are_kept_nowhere() -> None:
    rows = DecodingRows[RequestState](4)
    for number in range(20):
        row = joined(rows, str(number), end=2 + number % 3, most=9)
        rows.steps += 1
        rows.leave(row)

    assert (rows._ending, rows._full, rows._by_offset) == ({}, {}, [[], [], [], []])
