"""Admission against an oracle that decodes the worst case step by step, cell by cell."""

import random
from collections.abc import Iterator, Sequence
from itertools import product

import pytest
from attrs import frozen
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, composite

from spec.spyre.admission import (
    Member,
    documented_volume_holds,
    exact_volume_holds,
    joined_tkvs,
    model_length_holds,
    projected_volumes,
    shipped_volume_holds,
)
from spec.spyre.padding import max_tkv
from tests.spec.drawn import drawn_tkvs

# --- the oracle: it knows nothing of the formulas -------------------------------------------------


@frozen
class Case:
    """A decode batch, a request that may join it, and the size of a block."""

    decoding: tuple[Member, ...]
    candidate: Member
    block_size: int


def worst_case(case: Case) -> Iterator[tuple[int, list[int]]]:
    """Each step's volume and tkvs if the candidate joins, no other does, and all go on."""
    rows = [(member.length, member.remaining) for member in case.decoding]
    # The last chunk of the candidate already gave it one of its tokens.
    rows.append((case.candidate.length, case.candidate.remaining - 1))
    while rows := [(length, to_come) for length, to_come in rows if to_come > 0]:
        rows = [(length + 1, to_come - 1) for length, to_come in rows]
        tkvs = drawn_tkvs([length for length, _ in rows], case.block_size)
        yield len(rows) * max(tkvs), tkvs


def peak_volume(case: Case) -> int:
    return max((volume for volume, _ in worst_case(case)), default=0)


def is_safe(case: Case, limit: int) -> bool:
    return all(volume <= limit for volume, _ in worst_case(case))


def is_safe_without_candidate(case: Case, limit: int) -> bool:
    """True if the decode batch alone keeps the limit, as every rule assumes."""
    return is_safe(Case(case.decoding, Member(1, 1), case.block_size), limit)


def exact(case: Case, limit: int) -> bool:
    return bool(exact_volume_holds(case.decoding, case.candidate, limit, case.block_size))


def documented(case: Case, limit: int) -> bool:
    return bool(documented_volume_holds(case.decoding, case.candidate, limit, case.block_size))


def shipped(case: Case, limit: int, last_tkv: int) -> bool:
    return bool(
        shipped_volume_holds(case.decoding, case.candidate, limit, case.block_size, last_tkv)
    )


@composite
def cases(draw: DrawFn, most_decoding: int = 5) -> Case:
    member = st.builds(Member, st.integers(1, 14), st.integers(1, 9))
    return Case(
        decoding=tuple(draw(st.lists(member, max_size=most_decoding))),
        candidate=draw(member),
        block_size=draw(st.integers(1, 5)),
    )


def case(block_size: int, decoding: Sequence[tuple[int, int]], candidate: tuple[int, int]) -> Case:
    return Case(tuple(Member(*member) for member in decoding), Member(*candidate), block_size)


# --- exact ----------------------------------------------------------------------------------------


@given(cases())
@example(case(4, [(4, 3)], (2, 4)))  # the peak is in the middle: the candidate fills its block
@example(case(4, [(4, 3), (4, 3)], (4, 4)))  # all alike, all ending together
@example(case(3, [], (5, 1)))  # the candidate ends with its prefill: there is no decode step
def test_exact_admits_up_to_the_peak_of_the_worst_case_and_not_one_below(case: Case) -> None:
    peak = peak_volume(case)

    assert exact(case, peak)
    assert peak == 0 or not exact(case, peak - 1)


@pytest.mark.parametrize(
    ("longest", "most"), [(4, 3), pytest.param(6, 5, marks=pytest.mark.thorough)]
)
def test_exact_is_the_oracle_on_every_small_batch(longest: int, most: int) -> None:
    """Blocks of 1 to 4, none to two decoding requests, lengths and outputs up to these."""
    judged = 0
    for case in small_cases(longest, most):
        peak = peak_volume(case)
        assert exact(case, peak), case
        assert peak == 0 or not exact(case, peak - 1), case
        judged += 1
    members = longest * most
    assert judged == 4 * (1 + members + members**2) * members


def small_cases(longest: int, most: int) -> Iterator[Case]:
    members = list(product(range(1, longest + 1), range(1, most + 1)))
    batches = [batch for rows in range(3) for batch in product(members, repeat=rows)]
    for size, batch, candidate in product(range(1, 5), batches, members):
        yield case(size, batch, candidate)


# --- documented -----------------------------------------------------------------------------------


def volume_of_the_text(future_tkvs: Sequence[int], candidate_tkv: int) -> int:
    """The text's projection as it reads: in increasing order, the batch shrinking by one each."""
    greatest, batch_size = 0, len(future_tkvs) + 1
    for tkv in sorted(future_tkvs):
        if candidate_tkv <= tkv:
            return max(greatest, batch_size * candidate_tkv)
        greatest = max(greatest, batch_size * tkv)
        batch_size -= 1
    return greatest


@given(st.lists(st.integers(1, 12), max_size=6), st.integers(1, 12))
@example([5, 5], 5)
@example([5, 5, 7], 7)
@example([3, 3], 9)
def test_projection_without_sorting_is_that_with_sorting(future: list[int], own: int) -> None:
    assert max(projected_volumes(future, own)) == volume_of_the_text(future, own)


def volume_of_the_documentation(case: Case) -> int:
    """One block of slack for each row, none for the new request."""
    lengths = [member.length for member in (*case.decoding, case.candidate)]
    *tkvs, own = drawn_tkvs(lengths, case.block_size)
    future = [
        tkv + member.remaining + case.block_size
        for tkv, member in zip(tkvs, case.decoding, strict=True)
    ]
    return volume_of_the_text(future, own + case.candidate.remaining)


@given(cases())
def test_documented_is_the_text_word_by_word(case: Case) -> None:
    volume = volume_of_the_documentation(case)

    assert documented(case, volume)
    assert not case.decoding or not documented(case, volume - 1)


def test_documented_admits_a_batch_that_exceeds_the_limit_in_its_first_step() -> None:
    """Blocks of 2, limit 6. A: prompt 1, 4 to generate, decoded once; B: prompt 1, 2 to come."""
    unsafe = case(2, [(2, 2)], (1, 2))

    assert documented(unsafe, 6)
    assert [volume for volume, _ in worst_case(unsafe)] == [8, 4]
    assert not exact(unsafe, 6)
    assert is_safe_without_candidate(unsafe, 6)


# --- shipped --------------------------------------------------------------------------------------


def ceiling(value: int, block_size: int) -> int:
    while value % block_size:
        value += 1
    return value


def volume_of_the_release(case: Case, last_tkv: int) -> int:
    """2.6.3: every end rounded up to a block, one block more for each, then sorted."""
    size, prompt_len = case.block_size, case.candidate.length
    batch_tkv = max(last_tkv, prompt_len)
    own = batch_tkv // size * size + prompt_len % size
    own_end = ceiling(own + case.candidate.remaining - 1, size) + size
    # The release takes a token for generated when its key and value are in the cache.
    ends = [
        ceiling(batch_tkv + (member.remaining + 1) - 1, size) + size for member in case.decoding
    ]
    return volume_of_the_text(ends, own_end)


@given(cases(), st.integers(0, 20))
def test_shipped_is_the_algorithm_of_the_release(case: Case, last_tkv: int) -> None:
    volume = volume_of_the_release(case, last_tkv)

    assert shipped(case, volume, last_tkv)
    assert not case.decoding or not shipped(case, volume - 1, last_tkv)


def largest_tkv(case: Case) -> int:
    """What the last decode step returned if the batch has not changed since."""
    lengths = [member.length for member in case.decoding]
    return int(max_tkv(lengths, case.block_size)) if lengths else 0


def may_be_served_alone(case: Case, limit: int) -> bool:
    return int(case.candidate.length + case.candidate.remaining - 1) <= limit


def breaks_shipped(case: Case, limit: int) -> bool:
    """The batch was safe, the request can be served, the release admits it, and the limit goes."""
    return (
        shipped(case, limit, largest_tkv(case))
        and not is_safe(case, limit)
        and is_safe_without_candidate(case, limit)
        and may_be_served_alone(case, limit)
    )


@given(cases(), st.integers(1, 4))
def test_shipped_admits_no_unsafe_batch_after_a_decode_step_of_it(case: Case, below: int) -> None:
    assert not breaks_shipped(case, peak_volume(case) - below)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(4))
def test_shipped_admits_no_unsafe_batch_in_a_random_search(seed: int) -> None:
    """Limits at and below the peak, where a rule that is a little too generous shows."""
    numbers = random.Random(seed)
    admitted = 0
    for _ in range(50_000):
        case = random_case(numbers)
        limit = peak_volume(case) - numbers.randint(1, 3 * case.block_size)
        assert not breaks_shipped(case, limit), (case, limit)
        admitted += shipped(
            case, limit + numbers.randint(0, 12 * case.block_size), largest_tkv(case)
        )
    assert admitted > 5_000


def random_case(numbers: random.Random) -> Case:
    def member() -> tuple[int, int]:
        return numbers.randint(1, 16), numbers.randint(1, 12)

    batch = [member() for _ in range(numbers.randint(1, 5))]
    return case(numbers.randint(1, 6), batch, member())


# --- the maximum-length constraint ----------------------------------------------------------------


@given(cases())
def test_model_length_holds_up_to_the_longest_end_and_not_one_below(case: Case) -> None:
    """Every tkv at the moment of joining, plus the steps that the request still decodes."""
    lengths = [member.length for member in (*case.decoding, case.candidate)]
    steps = [*(member.remaining for member in case.decoding), case.candidate.remaining - 1]
    ends = [
        tkv + to_come
        for tkv, to_come in zip(drawn_tkvs(lengths, case.block_size), steps, strict=True)
    ]

    def holds(max_model_len: int) -> bool:
        return bool(
            model_length_holds(case.decoding, case.candidate, max_model_len, case.block_size)
        )

    assert holds(max(ends))
    assert not holds(max(ends) - 1)


@given(cases())
def test_joined_tkvs_are_those_of_the_drawn_batch_the_candidate_last(case: Case) -> None:
    lengths = [member.length for member in (*case.decoding, case.candidate)]

    tkvs = joined_tkvs(case.decoding, case.candidate, case.block_size)

    assert tkvs == drawn_tkvs(lengths, case.block_size)
