"""Every formula gives the same value on integers and on solver terms."""

import inspect
from collections.abc import Callable
from itertools import count, product
from types import ModuleType
from typing import Any

import pytest
import z3
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, composite

from spec.core import arithmetic, blocks
from spec.core.arithmetic import (
    cdiv,
    every,
    floor_div,
    implies,
    maximum,
    minimum,
    negate,
    round_up,
    select,
)
from spec.spyre import admission, padding, reservation
from spec.spyre.admission import Member

Arguments = tuple[Any, ...]

# --- worked by hand -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dividend", "divisor", "down", "up"),
    [(0, 4, 0, 0), (1, 4, 0, 1), (4, 4, 1, 1), (5, 4, 1, 2), (-1, 4, -1, 0), (-4, 4, -1, -1)],
)
def test_division_rounds_to_the_floor_or_the_ceiling(
    dividend: int, divisor: int, down: int, up: int
) -> None:
    assert floor_div(dividend, divisor) == down
    assert cdiv(dividend, divisor) == up
    assert round_up(dividend, divisor) == up * divisor


def test_the_other_functions_on_plain_values() -> None:
    assert select(True, 1, 2) == 1
    assert select(False, 1, 2) == 2
    assert (maximum(3, 9, 5), minimum(3, 9, 5)) == (9, 3)
    assert (maximum(7), minimum(7)) == (7, 7)
    assert every([True, True]) is True
    assert every([True, False]) is False
    assert every([]) is True
    assert (negate(True), negate(False)) == (False, True)
    assert [implies(a, b) for a, b in product((True, False), repeat=2)] == [True, False, True, True]


def test_one_term_among_numbers_makes_a_term() -> None:
    x = z3.Int("x")

    assert z3.is_int(maximum(3, x))
    assert z3.is_int(floor_div(7, x))
    assert z3.is_bool(every([True, x > 3]))


# --- the same on terms, for every formula there is ------------------------------------------------

BLOCK_SIZES = st.integers(1, 5)
ANY = st.integers(-40, 40)


@composite
def lengths(draw: DrawFn, block_size: int, least: int = 1) -> int:
    """Around the boundaries of a block, where formulas go wrong."""
    return max(least, draw(st.integers(0, 4)) * block_size + draw(st.integers(-1, 1)))


@composite
def with_block(draw: DrawFn, least: int = 1) -> Arguments:
    size = draw(BLOCK_SIZES)
    return draw(lengths(size, least)), size


@composite
def with_chunk(draw: DrawFn) -> Arguments:
    """A prompt, a block, and a chunk of one to three such blocks."""
    length, size = draw(with_block())
    return length, size, size * draw(st.integers(1, 3))


@composite
def with_chunk_index(draw: DrawFn) -> Arguments:
    """One of the prompt's chunks, its left padding, the chunk size and the prompt."""
    length, size, chunk = draw(with_chunk())
    index = draw(st.integers(0, padding.chunk_count(length, chunk) - 1))
    return index, padding.left_padding(length, size, chunk), chunk, length


@composite
def with_hit(draw: DrawFn) -> Arguments:
    """Cached blocks of a prompt, all but the block of its last token at most."""
    length, size, chunk = draw(with_chunk())
    hit = draw(st.integers(0, (length - 1) // size))
    chunks = padding.chunk_count(length, chunk)
    return hit, padding.left_padding(length, size, chunk) // size, chunk // size, chunks


@composite
def with_rows(draw: DrawFn) -> Arguments:
    size = draw(BLOCK_SIZES)
    return tuple(draw(st.lists(lengths(size), min_size=1, max_size=3))), size


@composite
def with_rows_and_steps(draw: DrawFn) -> Arguments:
    rows, size = draw(with_rows())
    return rows, draw(st.integers(1, 9)), size


@composite
def with_span(draw: DrawFn) -> Arguments:
    first, size = draw(with_block())
    return first, first + draw(st.integers(0, 6)), size


@composite
def with_batch(draw: DrawFn) -> Arguments:
    """Up to three decoding requests and the candidate."""
    size = draw(BLOCK_SIZES)
    member = st.builds(Member, lengths(size), st.integers(1, 6))
    return tuple(draw(st.lists(member, max_size=3))), draw(member), size


@composite
def with_lives(draw: DrawFn) -> Arguments:
    """Up to four requests as tokens and decode steps, the end of one of them, and the block."""
    size = draw(BLOCK_SIZES)
    life = st.builds(admission.Life, lengths(size), st.integers(1, 6))
    lives = draw(st.lists(life, min_size=1, max_size=4))
    return tuple(lives), draw(st.sampled_from(lives)).steps, size


@composite
def with_limit(draw: DrawFn) -> Arguments:
    """A limit at, below or above what some formula compares it with."""
    decoding, candidate, size = draw(with_batch())
    volumes = admission.worst_case_volumes(decoding, candidate, size)
    limit = draw(st.sampled_from(volumes)) + draw(st.integers(-1, 4 * size))
    return decoding, candidate, limit, size


@composite
def with_last_tkv(draw: DrawFn) -> Arguments:
    return (*draw(with_limit()), draw(st.integers(0, 20)))


@composite
def with_row(draw: DrawFn) -> Arguments:
    length, size = draw(with_block())
    return length, blocks.block_count(length, size) + draw(st.integers(0, 2)), size


PAIRS = st.tuples(ANY, ANY)
FORMULAS: dict[Callable[..., Any], st.SearchStrategy[Arguments]] = {
    arithmetic.floor_div: st.tuples(ANY, BLOCK_SIZES),
    arithmetic.cdiv: st.tuples(ANY, BLOCK_SIZES),
    arithmetic.round_up: st.tuples(ANY, BLOCK_SIZES),
    arithmetic.select: st.tuples(st.booleans(), ANY, ANY),
    arithmetic.maximum: st.lists(ANY, min_size=1, max_size=4).map(tuple),
    arithmetic.minimum: st.lists(ANY, min_size=1, max_size=4).map(tuple),
    arithmetic.every: st.tuples(st.lists(st.booleans(), max_size=4).map(tuple)),
    arithmetic.some: st.tuples(st.lists(st.booleans(), max_size=4).map(tuple)),
    arithmetic.negate: st.tuples(st.booleans()),
    arithmetic.implies: st.tuples(st.booleans(), st.booleans()),
    padding.right_padding: with_block(),
    padding.chunk_count: with_block(),
    padding.padded_length: with_block(),
    padding.left_padding: with_chunk(),
    padding.active_chunk: with_chunk_index().map(lambda drawn: (drawn[3], *drawn[1:3])),
    padding.chunk_start: with_chunk_index().map(lambda drawn: drawn[:3]),
    padding.chunk_end: with_chunk_index(),
    padding.counted_end: st.builds(lambda had, of: (had, *of), ANY, with_chunk_index()),
    padding.skipped_chunks: with_hit(),
    padding.reused_blocks: with_hit(),
    padding.redirected_blocks: with_hit(),
    blocks.block_count: with_block(least=0),
    padding.longest: with_rows().map(lambda drawn: drawn[:1]),
    padding.batch_width_blocks: with_rows(),
    padding.row_left_padding: with_row(),
    padding.row_tkv: PAIRS,
    padding.last_block_offset: with_block(),
    padding.is_kept_length: with_block(),
    padding.max_tkv: with_rows(),
    padding.volume: PAIRS,
    padding.reaches_block_end: with_span(),
    padding.peak_tkv: with_rows_and_steps(),
    admission.joined_tkvs: with_batch(),
    admission.projected_volumes: st.tuples(st.lists(ANY, max_size=4).map(tuple), ANY),
    admission.documented_volume_holds: with_limit(),
    admission.shipped_volume_holds: with_last_tkv(),
    admission.shipped_row_futures: with_last_tkv().map(lambda drawn: (*drawn[:2], *drawn[3:])),
    admission.shipped_candidate_future: with_last_tkv().map(lambda drawn: (drawn[1], *drawn[3:])),
    admission.worst_case_volumes: with_batch(),
    admission.decode_lives: with_batch().map(lambda drawn: drawn[:2]),
    admission.peak_volume_until: with_lives(),
    admission.rows_until: st.tuples(
        st.lists(st.builds(admission.Life, ANY, ANY), min_size=1, max_size=4).map(tuple), ANY
    ),
    admission.exact_volume_holds: with_limit(),
    admission.model_length_holds: with_limit(),
    reservation.worst_case_blocks: with_span(),
    reservation.released_pool_blocks: st.tuples(*[st.integers(1, 9)] * 3),
    reservation.may_reserve: st.tuples(*[st.integers(0, 9)] * 4),
    reservation.promised_blocks: PAIRS,
    reservation.still_promised: PAIRS,
}


class Terms:
    """Puts solver constants in the place of numbers and knows which number each stands for."""

    def __init__(self, draw_is_term: Callable[[], bool]) -> None:
        self._draw_is_term = draw_is_term
        self._fresh = count()
        self.values: list[tuple[Any, Any]] = []

    def of(self, value: Any) -> Any:
        if isinstance(value, admission.Life):
            return admission.Life(*map(self.of, value))
        if isinstance(value, tuple):
            return tuple(self.of(item) for item in value)
        if isinstance(value, Member):
            return Member(self.of(value.length), self.of(value.remaining))
        if not self._draw_is_term():
            return value
        sort = z3.Bool if isinstance(value, bool) else z3.Int
        constant = sort(f"value{next(self._fresh)}")
        self.values.append((constant, _constant(value)))
        return constant

    def evaluated(self, result: Any) -> Any:
        """The result with every constant replaced by its number, as a plain value."""
        if isinstance(result, list | tuple):
            return [self.evaluated(item) for item in result]
        if not z3.is_expr(result):
            return result
        simplified = z3.simplify(z3.substitute(result, *self.values))
        return z3.is_true(simplified) if z3.is_bool(simplified) else simplified.as_long()


def _constant(value: int) -> Any:
    return z3.BoolVal(value) if isinstance(value, bool) else z3.IntVal(value)


def check_on_terms(formula: Callable[..., Any], arguments: Arguments, draw: Any) -> None:
    """All arguments as terms, and a drawn mixture of terms and numbers."""
    expected = formula(*arguments)
    for draw_is_term in (lambda: True, draw):
        terms = Terms(draw_is_term)
        assert terms.evaluated(formula(*terms.of(arguments))) == terms.evaluated(expected), (
            arguments
        )


@pytest.mark.parametrize("formula", FORMULAS, ids=lambda formula: formula.__name__)
@settings(max_examples=12)
@given(data=st.data())
def test_formula_gives_the_same_on_numbers_and_on_terms(
    formula: Callable[..., Any], data: st.DataObject
) -> None:
    arguments = data.draw(FORMULAS[formula])
    check_on_terms(formula, arguments, lambda: data.draw(st.booleans()))


def test_a_formula_that_forgets_terms_would_be_noticed() -> None:
    def rounded_wrongly(value: Any, multiple: Any) -> Any:
        return value if z3.is_expr(value) else round_up(value, multiple)

    with pytest.raises(AssertionError):
        check_on_terms(rounded_wrongly, (5, 4), lambda: True)


@pytest.mark.parametrize("module", [arithmetic, padding, admission, reservation])
def test_every_formula_is_compared(module: ModuleType) -> None:
    public = {
        value
        for name, value in inspect.getmembers(module, inspect.isfunction)
        if value.__module__ == module.__name__ and not name.startswith("_")
    }

    assert public
    assert public <= FORMULAS.keys()
