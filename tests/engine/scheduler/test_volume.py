"""The volume rule on arrays, and the rule that judges it, say what the specification says."""

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from engine.spyre.scheduler import admission
from engine.spyre.scheduler.requests import Batch, RequestState
from spec.spyre.admission import Member, exact_volume_holds, worst_case_volumes
from spec.spyre.rules.joining import worst_case_fits_by_ends
from spec.spyre.variants import Admission
from tests.engine.scenes import config
from tests.requests import request

Pair = tuple[int, int]
Holds = Callable[[Sequence[Pair], Pair, int, int], bool]
members = st.tuples(st.integers(1, 40), st.integers(1, 30))
batches = st.lists(members, max_size=8)


def on_arrays(decoding: Sequence[Pair], candidate: Pair, limit: int, block_size: int) -> bool:
    lengths, remaining = (
        np.array([member[index] for member in decoding], np.int64) for index in (0, 1)
    )
    return admission.exact_volume_holds(lengths, remaining, candidate, limit, block_size)


def as_specified(decoding: Sequence[Pair], candidate: Pair, limit: int, block_size: int) -> bool:
    everyone = [Member(*member) for member in decoding]
    return bool(exact_volume_holds(everyone, Member(*candidate), limit, block_size))


def peak_volume(decoding: Sequence[Pair], candidate: Pair, block_size: int) -> int:
    everyone = [Member(*member) for member in decoding]
    return int(max(worst_case_volumes(everyone, Member(*candidate), block_size)))


def of_the_rule(decoding: Sequence[Pair], candidate: Pair, limit: int, block_size: int) -> bool:
    length, remaining = candidate
    return worst_case_fits_by_ends([*decoding, (length, remaining - 1)], limit, block_size)


each_version = pytest.mark.parametrize(
    "holds", [on_arrays, of_the_rule], ids=["the engine's", "that of the rule that judges it"]
)


@each_version
@given(batches, members, st.integers(1, 9), st.integers(-2, 2))
def test_verdict_is_the_specified_one_around_the_tightest_limit(
    holds: Holds, decoding: list[Pair], candidate: Pair, block_size: int, off: int
) -> None:
    limit = peak_volume(decoding, candidate, block_size) + off
    assume(limit >= 0)  # where no row decodes the peak is 0

    verdict = holds(decoding, candidate, limit, block_size)

    assert verdict == as_specified(decoding, candidate, limit, block_size) == (off >= 0)


def test_large_batches_are_judged_alike() -> None:
    draw = np.random.default_rng(0)
    verdicts: Counter[bool] = Counter()
    for _ in range(6):
        decoding = [(int(a), int(b)) for a, b in draw.integers(1, 2_000, (60, 2))]
        tightest = peak_volume(decoding, (700, 900), 64)
        for limit in (tightest - 1, tightest):
            verdicts[on_arrays(decoding, (700, 900), limit, 64)] += 1

    assert verdicts == {False: 6, True: 6}


@given(batches, st.lists(members, min_size=1, max_size=5), st.integers(1, 9), st.integers(1, 400))
def test_candidate_that_surely_exceeds_is_refused(
    decoding: list[Pair], candidates: list[Pair], block_size: int, limit: int
) -> None:
    lengths, remaining = (
        np.array([member[index] for member in decoding], np.int64) for index in (0, 1)
    )

    surely = admission.surely_exceed(lengths, remaining, np.array(candidates), limit)

    for exceeds, candidate in zip(surely.tolist(), candidates, strict=True):
        assert not (exceeds and as_specified(decoding, candidate, limit, block_size))


@pytest.mark.parametrize(
    ("variant", "pausing", "refused"),
    [("exact", False, {(90, 20)}), ("exact", True, set()), ("shipped", False, set())],
)
def test_shapes_are_refused_for_certain_by_the_exact_rule_alone(
    variant: str, pausing: bool, refused: set[Pair]
) -> None:
    conditions = admission.LastChunk(
        config(max_batch_tkv_limit=100, admission=Admission(variant), pausing=pausing)
    )
    batch = Batch.empty().with_front(RequestState.of(request("a", 30, 20)))

    found = conditions.refused_shapes(batch, np.array([(90, 20), (5, 5)]))

    assert found == refused


def surely_exceeds(decoding: Sequence[Pair], candidate: Pair, limit: int) -> bool:
    """At the end of a request those that live as long, times the longest of them, pass the limit.

    At its own end only a candidate that decodes is looked at.
    """
    own = candidate[0], candidate[1] - 1
    ends = [last for _, last in [*decoding, *([own] if own[1] else [])]]
    alive = [[length for length, last in [*decoding, own] if last >= end] for end in ends]
    pairs = zip(alive, ends, strict=True)
    return any(len(lengths) * (max(lengths) + end) > limit for lengths, end in pairs)


@given(batches, st.lists(members, min_size=1, max_size=5), st.integers(1, 400), st.integers(-1, 1))
def test_what_surely_exceeds_is_seen_at_each_end_and_nothing_else_is(
    decoding: list[Pair], candidates: list[Pair], limit: int, off: int
) -> None:
    lengths, remaining = (
        np.array([member[index] for member in decoding], np.int64) for index in (0, 1)
    )
    tightest = [
        next(most for most in range(10_000) if not surely_exceeds(decoding, candidate, most))
        for candidate in candidates[:1]
    ]
    for bound in (limit, max(tightest[0] + off, 0)):
        surely = admission.surely_exceed(lengths, remaining, np.array(candidates), bound)

        assert surely.tolist() == [
            surely_exceeds(decoding, candidate, bound) for candidate in candidates
        ]


@given(batches, members, st.integers(1, 9))
def test_candidate_that_just_fits_does_not_surely_exceed(
    decoding: list[Pair], candidate: Pair, block_size: int
) -> None:
    lengths, remaining = (
        np.array([member[index] for member in decoding], np.int64) for index in (0, 1)
    )
    limit = peak_volume(decoding, candidate, block_size)

    assert not admission.surely_exceed(lengths, remaining, np.array([candidate]), limit)[0]


def test_candidate_that_surely_exceeds_is_seen_at_every_end() -> None:
    lengths, remaining = np.array([10, 30]), np.array([20, 5])
    # Ends of the batch: 2 rows reach 35, 1 row 30; a candidate adds a row as long as it lives.
    shapes = np.array([(1, 2), (1, 6), (1, 21), (1, 40), (40, 2), (70, 2)])

    surely = admission.surely_exceed(lengths, remaining, shapes, limit=95)

    assert surely.tolist() == [False, True, True, True, True, True]
    assert admission.surely_exceed(lengths, remaining, shapes, limit=69).tolist() == [True] * 6
    none = np.empty(0, np.int64)
    assert (
        admission.surely_exceed(none, none, shapes, limit=40).tolist() == [False] * 4 + [True] * 2
    )


def verdicts_at_tightest_limits() -> tuple[set[bool], set[bool]]:
    """With just enough room, and with one token less."""
    batches = [[(length, 9), (5, 3)][:count] for length in range(1, 9) for count in (1, 2)]
    tightest = [(batch, peak_volume(batch, (4, 7), 4)) for batch in batches]
    enough = {on_arrays(batch, (4, 7), limit, 4) for batch, limit in tightest}
    return enough, {on_arrays(batch, (4, 7), limit - 1, 4) for batch, limit in tightest}


def test_tightest_limit_differs_from_one_token_less() -> None:
    assert verdicts_at_tightest_limits() == ({True}, {False})


@pytest.mark.parametrize("name", ["block_count", "last_block_offset", "reaches_block_end"])
def test_wrong_formula_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = getattr(admission, name)
    monkeypatch.setattr(admission, name, lambda *numbers: right(numbers[0] + 1, *numbers[1:]))

    assert verdicts_at_tightest_limits() != ({True}, {False})
