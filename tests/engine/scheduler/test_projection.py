"""The projection of 2.6.3 for many candidates is that for each of them."""

from hypothesis import example, given
from hypothesis import strategies as st

from engine.spyre.scheduler.admission import Projection
from engine.spyre.scheduler.requests import Batch, RequestState
from spec.spyre.admission import Member, shipped_volume_holds
from tests.requests import request

sizes = st.tuples(st.integers(1, 30), st.integers(2, 20))


def batch_of(rows: list[tuple[int, int]]) -> Batch:
    """Rows that have just got their first token."""
    batch = Batch.empty()
    for index, (length, tokens) in enumerate(rows):
        batch = batch.with_front(RequestState.of(request(str(index), length, tokens)))
    return batch


@given(
    st.lists(sizes, max_size=5),
    st.lists(sizes, min_size=1, max_size=8),
    st.integers(1, 8),
    st.integers(0, 40),
    st.integers(1, 300),
)
@example([(3, 5)], [(2, 5), (20, 5)], 2, 0, 25)  # a prompt longer than the batch's tkv
def test_candidates_are_judged_as_one_by_one(
    rows: list[tuple[int, int]],
    candidates: list[tuple[int, int]],
    block_size: int,
    last_tkv: int,
    limit: int,
) -> None:
    batch = batch_of(rows)
    projection = Projection(batch, last_tkv, block_size, limit)

    for candidate in (Member(*numbers) for numbers in candidates):
        expected = shipped_volume_holds(batch.as_members(), candidate, limit, block_size, last_tkv)
        assert projection.holds(candidate) == expected


def test_projection_is_of_one_moment() -> None:
    batch = batch_of([(3, 5), (4, 5)])
    projection = Projection(batch, 4, 4, 100)
    assert projection.is_of(batch, 4)

    assert not projection.is_of(batch, 5)
    assert not projection.is_of(batch_of([(3, 5), (4, 5)]), 4)
    batch.advance(5)
    assert not projection.is_of(batch, 4)
