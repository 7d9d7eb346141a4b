"""Obligations about the decode batch: its layout, and how a step moves each tkv.

Source: spyre, "Decode padding" and "tkv jumping". All are decided for every block size.

How they hold for every batch size: a row's padding depends on the other rows only through the
longest (PRV-DEC-1A, 1B), so what holds for a row next to any row that is at least as long holds
in every batch. The steps of an argument share a number and differ in their letter. What one
obligation proves, a later one may build on (`known`): the same function states it in both.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from checks.proofs.registry import Integer, Statement, obligation
from spec.core.arithmetic import (
    Number,
    Truth,
    every,
    implies,
    maximum,
    minimum,
    negate,
    select,
    some,
)
from spec.core.blocks import block_count
from spec.spyre.padding import (
    batch_width_blocks,
    last_block_offset,
    max_tkv,
    row_left_padding,
    row_tkv,
)

_ANY_BATCH = "every row of a batch of any size, every block size"
_ANY_STEP = "every step of a batch of any size, every block size"


# --- words of the claims; rows are given by their tokens without padding -------------------------


def padding_in(row: Number, batch: Sequence[Number], block_size: Number) -> Number:
    """Left padding of a row of this batch, in tokens."""
    return row_left_padding(row, batch_width_blocks(batch, block_size), block_size)


def tkv_in(row: Number, batch: Sequence[Number], block_size: Number) -> Number:
    """Tkv of a row of this batch."""
    return row_tkv(row, padding_in(row, batch, block_size))


def crosses(row: Number, block_size: Number) -> Truth:
    """True if the row's last block is full: its next token starts a new one."""
    return last_block_offset(row, block_size) == block_size


def width_is_that_of_the_widest(batch: Sequence[Number], block_size: Number) -> Truth:
    """The batch is as wide as the row with the most blocks."""
    widest = maximum(*(block_count(row, block_size) for row in batch))
    return batch_width_blocks(batch, block_size) == widest


def fits_its_blocks(row: Number, block_size: Number) -> Truth:
    """The row fills all of its blocks but the last, and that one not beyond its end."""
    blocks = block_count(row, block_size)
    return every([(blocks - 1) * block_size < row, row <= blocks * block_size])


def grows_by_a_block_if_it_crosses(row: Number, block_size: Number) -> Truth:
    """With its next token a row has one block more if it crosses, else as many as before."""
    more = select(crosses(row, block_size), 1, 0)
    return block_count(row + 1, block_size) == block_count(row, block_size) + more


def next_token(batch: Iterable[Number]) -> list[Number]:
    """The rows after one more token each."""
    return [row + 1 for row in batch]


def _row_and_longest(integer: Integer) -> tuple[Number, Number, Number]:
    return integer("row"), integer("longest"), integer("block_size")


def _in_any_batch(row: Number, longest: Number, block_size: Number) -> list[Truth]:
    """The row has a token, the longest row of the batch at least as many."""
    return [block_size >= 1, row >= 1, longest >= row]


# --- layout --------------------------------------------------------------------------------------


@obligation(
    "PRV-DEC-1A",
    "The longest row alone decides the width: with one more row a batch is as wide as it was, or "
    "as that row if it is wider (step of the induction over the rows).",
    bounds="every batch size, every block size",
    rules=["SPY-DEC-2"],
)
def longest_row_decides_the_width(integer: Integer) -> Statement:
    """`longest` stands for the batch so far, `other` and `newcomer` for the rows that come."""
    longest, other, newcomer = integer("longest"), integer("other"), integer("newcomer")
    block_size = integer("block_size")
    alone = batch_width_blocks([longest], block_size)
    wider = maximum(alone, block_count(newcomer, block_size))
    return Statement(
        given=[block_size >= 1, longest >= 1, newcomer >= 1],
        claim=every(
            [
                maximum(longest, other, newcomer) == maximum(maximum(longest, other), newcomer),
                batch_width_blocks([longest, newcomer], block_size) == wider,
            ]
        ),
    )


@obligation(
    "PRV-DEC-1B",
    "No row has more blocks than the batch is wide, and a batch is as wide as its longest row "
    "alone (so a row and the longest one tell all).",
    bounds=_ANY_BATCH,
    rules=["SPY-DEC-2", "SPY-DEC-4"],
)
def no_row_is_wider_than_the_batch(integer: Integer) -> Statement:
    """Blocks never get fewer with more tokens."""
    row, longest, block_size = _row_and_longest(integer)
    width = batch_width_blocks([row, longest], block_size)
    alone = batch_width_blocks([longest], block_size)
    return Statement(
        given=_in_any_batch(row, longest, block_size),
        claim=every([block_count(row, block_size) <= width, width == alone]),
    )


@obligation(
    "PRV-DEC-2",
    "After padding every row of a decode batch has equally many blocks.",
    bounds=_ANY_BATCH,
    rules=["SPY-DEC-2"],
)
def rows_have_equally_many_blocks(integer: Integer) -> Statement:
    """Left padding and own blocks of a row add up to the blocks of the longest."""
    row, longest, block_size = _row_and_longest(integer)
    padding = padding_in(row, [row, longest], block_size)
    own = block_count(row, block_size) * block_size
    return Statement(
        given=_in_any_batch(row, longest, block_size),
        claim=padding + own == block_count(longest, block_size) * block_size,
    )


@obligation(
    "PRV-DEC-3",
    "The longest row has no left padding: padding is the least that makes the table rectangular.",
    bounds="every batch size, every block size",
    rules=["SPY-DEC-3"],
)
def longest_row_has_no_padding(integer: Integer) -> Statement:
    """Nor has any row of as many blocks."""
    row, longest, block_size = _row_and_longest(integer)
    batch = [row, longest]
    as_wide = block_count(row, block_size) == block_count(longest, block_size)
    unpadded = padding_in(row, batch, block_size) == 0
    return Statement(
        given=_in_any_batch(row, longest, block_size),
        claim=every([padding_in(longest, batch, block_size) == 0, implies(as_wide, unpadded)]),
    )


@obligation(
    "PRV-DEC-4",
    "Left padding of a row is never negative and always whole blocks, fewer than the width.",
    bounds=_ANY_BATCH,
    rules=["SPY-DEC-4"],
)
def row_padding_is_whole_blocks(integer: Integer) -> Statement:
    """It is the block size times the number of blocks that the row lacks."""
    row, longest, block_size = _row_and_longest(integer)
    width = batch_width_blocks([row, longest], block_size)
    lacking = width - block_count(row, block_size)
    padding = padding_in(row, [row, longest], block_size)
    return Statement(
        given=_in_any_batch(row, longest, block_size),
        claim=every([padding == lacking * block_size, lacking >= 0, lacking < width]),
    )


@obligation(
    "PRV-DEC-5",
    "A row's newest token lies in its last block, and less than a block of room is behind it.",
    bounds=_ANY_BATCH,
    rules=["SPY-DEC-5"],
)
def newest_token_lies_in_the_last_block(integer: Integer) -> Statement:
    """Its offset into that block is 1 to the block size."""
    row, block_size = integer("row"), integer("block_size")
    offset = last_block_offset(row, block_size)
    return Statement(
        given=[block_size >= 1, row >= 1],
        claim=every([fits_its_blocks(row, block_size), offset >= 1, offset <= block_size]),
    )


@obligation(
    "PRV-DEC-6",
    "The tkv of all rows lie in the same block, the last one of the batch.",
    bounds=_ANY_BATCH,
    rules=["SPY-DEC-6"],
)
def all_tkv_lie_in_the_last_block(integer: Integer) -> Statement:
    """Beyond the last but one block, not beyond the width."""
    row, longest, block_size = _row_and_longest(integer)
    width = batch_width_blocks([longest], block_size)
    tkv = tkv_in(row, [row, longest], block_size)
    return Statement(
        given=_in_any_batch(row, longest, block_size),
        claim=every([(width - 1) * block_size < tkv, tkv <= width * block_size]),
    )


@obligation(
    "PRV-DEC-7A",
    "A row's tkv is the width less one block, plus how far the row reaches into its last block.",
    bounds=_ANY_BATCH,
    rules=["SPY-TKV-2"],
)
def tkv_is_the_width_less_a_block_plus_the_offset(integer: Integer) -> Statement:
    """So the row that reaches furthest has the largest tkv."""
    row, longest, block_size = _row_and_longest(integer)
    before_last = (batch_width_blocks([longest], block_size) - 1) * block_size
    return Statement(
        given=_in_any_batch(row, longest, block_size),
        claim=tkv_in(row, [row, longest], block_size)
        == before_last + last_block_offset(row, block_size),
    )


@obligation(
    "PRV-DEC-7B",
    "Max-tkv of the longest row and one more is the larger of their two tkv (first step of the "
    "induction over the rows, the longest first).",
    bounds="every pair of rows, every block size",
    rules=["SPY-TKV-2"],
)
def max_tkv_of_two_rows_is_the_larger(integer: Integer) -> Statement:
    """And max-tkv of the longest alone is its own."""
    row, longest, block_size = _row_and_longest(integer)
    batch = [longest, row]
    tkvs = [tkv_in(one, batch, block_size) for one in batch]
    return Statement(
        given=_in_any_batch(row, longest, block_size),
        claim=every(
            [
                max_tkv([longest], block_size) == longest,
                max_tkv(batch, block_size) == maximum(*tkvs),
            ]
        ),
    )


@obligation(
    "PRV-DEC-7C",
    "With one more row max-tkv is what it was, or that row's tkv if it is larger (the induction's "
    "next steps; the longest row and the one that reaches furthest stand for the batch so far).",
    bounds="every batch size, every block size",
    rules=["SPY-TKV-2"],
)
def one_more_row_adds_its_tkv(integer: Integer) -> Statement:
    """The newcomer is no longer than the longest, which came first."""
    newcomer, furthest = integer("newcomer"), integer("furthest")
    longest, block_size = integer("longest"), integer("block_size")
    batch = [longest, furthest]
    tkv = tkv_in(newcomer, [*batch, newcomer], block_size)
    return Statement(
        given=[
            *_in_any_batch(furthest, longest, block_size),
            newcomer >= 1,
            newcomer <= longest,
        ],
        claim=max_tkv([*batch, newcomer], block_size) == maximum(max_tkv(batch, block_size), tkv),
    )


def _layout(integer: Integer, rows: int) -> Statement:
    """Everything about the layout, of all rows of a batch, in any order."""
    block_size = integer("block_size")
    batch = [integer(f"row_{index}") for index in range(rows)]
    width = batch_width_blocks(batch, block_size)
    paddings = [padding_in(row, batch, block_size) for row in batch]
    tkvs = [tkv_in(row, batch, block_size) for row in batch]
    largest_offset = maximum(*(last_block_offset(row, block_size) for row in batch))

    def claims() -> Iterator[Truth]:
        for row, padding, tkv in zip(batch, paddings, tkvs, strict=True):
            yield padding + block_count(row, block_size) * block_size == width * block_size
            yield every([padding >= 0, (width - 1) * block_size < tkv, tkv <= width * block_size])
        yield minimum(*paddings) == 0
        yield max_tkv(batch, block_size) == (width - 1) * block_size + largest_offset
        yield max_tkv(batch, block_size) == maximum(*tkvs)

    return Statement(
        given=[block_size >= 1, *(row >= 1 for row in batch)],
        known=[
            *(fits_its_blocks(row, block_size) for row in batch),  # PRV-DEC-5
            width_is_that_of_the_widest(batch, block_size),
        ],
        claim=every(claims()),
    )


# --- jumps: the rows are those of the batch before the step, each computes one token -------------


def _moved(
    row: Number, before: Sequence[Number], after: Sequence[Number], block_size: Number
) -> Number:
    """How far a step moves the row's tkv; `before` and `after` are the batch on either side."""
    return tkv_in(row + 1, after, block_size) - tkv_in(row, before, block_size)


def _unchanged(
    integer: Integer, claim: Callable[[Number, Number, Number, Number], Truth]
) -> Statement:
    """A claim about the move of a row and the longest's, in a batch that nobody joins or leaves."""
    row, longest, block_size = _row_and_longest(integer)
    before = [row, longest]
    moved = _moved(row, before, next_token(before), block_size)
    return Statement(
        given=_in_any_batch(row, longest, block_size),
        known=_growth(before, block_size),
        claim=claim(row, longest, moved, block_size),
    )


def _growth(rows: Iterable[Number], block_size: Number) -> list[Truth]:
    """PRV-TKV-1A of each row."""
    return [grows_by_a_block_if_it_crosses(row, block_size) for row in rows]


@obligation(
    "PRV-TKV-1A",
    "A row gets a new block with its next token if and only if its last block is full.",
    bounds=_ANY_STEP,
    rules=["SPY-TKV-3", "SPY-TKV-4"],
)
def full_row_gets_a_block(integer: Integer) -> Statement:
    """One block, never more."""
    row, block_size = integer("row"), integer("block_size")
    return Statement(
        given=[block_size >= 1, row >= 1],
        claim=grows_by_a_block_if_it_crosses(row, block_size),
    )


@obligation(
    "PRV-TKV-1B",
    "An unpadded row crosses into a new block only if the longest does (so whether the batch "
    "grows can be told from the longest row).",
    bounds=_ANY_STEP,
    rules=["SPY-TKV-3", "SPY-TKV-4"],
)
def unpadded_row_crosses_with_the_longest(integer: Integer) -> Statement:
    """The batch then gets one block wider, else it stays as wide."""

    def claim(row: Number, longest: Number, _moved: Number, block_size: Number) -> Truth:
        batch = [row, longest]
        unpadded = padding_in(row, batch, block_size) == 0
        width = batch_width_blocks(batch, block_size)
        wider = batch_width_blocks(next_token(batch), block_size)
        grows = crosses(longest, block_size)
        return every(
            [
                implies(every([unpadded, crosses(row, block_size)]), grows),
                wider == width + select(grows, 1, 0),
            ]
        )

    return _unchanged(integer, claim)


@obligation(
    "PRV-TKV-2",
    "Whoever joins or leaves, a step moves a tkv by one, plus what the batch gets wider, less a "
    "block if the row crosses: one plus whole blocks.",
    bounds=_ANY_STEP,
    rules=["SPY-TKV-6"],
)
def tkv_moves_by_one_and_whole_blocks(integer: Integer) -> Statement:
    """`longest` is the longest row before the step, `next_longest` the one that decodes in it."""
    row, longest, block_size = _row_and_longest(integer)
    next_longest = integer("next_longest")
    before, after = [row, longest], next_token([row, next_longest])
    wider = batch_width_blocks(after, block_size) - batch_width_blocks(before, block_size)
    blocks = wider - select(crosses(row, block_size), 1, 0)
    return Statement(
        given=[*_in_any_batch(row, longest, block_size), next_longest >= row],
        claim=_moved(row, before, after, block_size) == 1 + blocks * block_size,
    )


@obligation(
    "PRV-TKV-3",
    "A padded row that crosses gives up one padding block: its tkv jumps back, unless an "
    "unpadded row crosses too.",
    bounds=_ANY_STEP,
    rules=["SPY-TKV-3"],
)
def padded_row_jumps_back(integer: Integer) -> Statement:
    """By one block, less the token that it computes."""

    def claim(row: Number, longest: Number, moved: Number, block_size: Number) -> Truth:
        alone = every([crosses(row, block_size), negate(crosses(longest, block_size))])
        padded = padding_in(row, [row, longest], block_size) > 0
        return implies(alone, every([padded, moved == 1 - block_size]))

    return _unchanged(integer, claim)


@obligation(
    "PRV-TKV-4",
    "When an unpadded row crosses, all rows that do not cross get one more padding block: their "
    "tkv jump forward, the crossing ones move by one.",
    bounds=_ANY_STEP,
    rules=["SPY-TKV-4"],
)
def others_jump_forward(integer: Integer) -> Statement:
    """By one block and the token that they compute."""

    def claim(row: Number, longest: Number, moved: Number, block_size: Number) -> Truth:
        expected = select(crosses(row, block_size), 1, 1 + block_size)
        return implies(crosses(longest, block_size), moved == expected)

    return _unchanged(integer, claim)


@obligation(
    "PRV-TKV-5A",
    "When the longest request leaves, the others jump back by the padding that the longest of "
    "them had, if none of them crosses.",
    bounds=_ANY_STEP,
    rules=["SPY-TKV-5"],
)
def rows_jump_back_when_the_longest_leaves(integer: Integer) -> Statement:
    """`next_longest` is the longest row that stays."""
    row, longest, block_size = _row_and_longest(integer)
    next_longest = integer("next_longest")
    before, stay = [row, next_longest, longest], [row, next_longest]
    removed = padding_in(next_longest, before, block_size)
    calm = every(negate(crosses(one, block_size)) for one in stay)
    moved = _moved(row, before, next_token(stay), block_size)
    return Statement(
        given=[*_in_any_batch(row, next_longest, block_size), longest >= next_longest],
        known=_growth(stay, block_size),
        claim=implies(calm, moved == 1 - removed),
    )


@obligation(
    "PRV-TKV-5B",
    "Of all rows that stay, the longest has the least padding (so what it had is what only the "
    "one that left had caused).",
    bounds=_ANY_STEP,
    rules=["SPY-TKV-5"],
)
def longest_that_stays_has_the_least_padding(integer: Integer) -> Statement:
    """More tokens never mean more padding."""
    row, longest, block_size = _row_and_longest(integer)
    next_longest = integer("next_longest")
    before = [row, next_longest, longest]
    least = padding_in(next_longest, before, block_size)
    return Statement(
        given=[*_in_any_batch(row, next_longest, block_size), longest >= next_longest],
        claim=padding_in(row, before, block_size) >= least,
    )


@obligation(
    "PRV-TKV-6",
    "As long as nobody crosses, joins or leaves, every tkv moves by exactly one.",
    bounds=_ANY_STEP,
    rules=["SPY-TKV-6"],
)
def tkv_moves_by_one(integer: Integer) -> Statement:
    """Of the others only the longest matters: a padded row that crosses moves nobody else."""

    def claim(row: Number, longest: Number, moved: Number, block_size: Number) -> Truth:
        calm = every(negate(crosses(one, block_size)) for one in (row, longest))
        return implies(calm, moved == 1)

    return _unchanged(integer, claim)


@obligation(
    "PRV-TKV-7",
    "When a request joins, the others jump forward by the blocks that it is wider than the batch "
    "was, by none if it is not, as long as none of them crosses.",
    bounds=_ANY_STEP,
    rules=["SPY-TKV-7"],
)
def rows_jump_forward_when_a_wider_one_joins(integer: Integer) -> Statement:
    """`newcomer`: tokens of the longest request that is new, its first decoded one included."""
    row, longest, block_size = _row_and_longest(integer)
    newcomer = integer("newcomer")
    before = [row, longest]
    calm = every(negate(crosses(one, block_size)) for one in before)
    moved = _moved(row, before, [*next_token(before), newcomer], block_size)
    wider = block_count(newcomer, block_size) - batch_width_blocks(before, block_size)
    return Statement(
        given=[*_in_any_batch(row, longest, block_size), newcomer >= 1],
        known=_growth(before, block_size),
        claim=implies(calm, moved == 1 + maximum(wider, 0) * block_size),
    )


def _rows_before_a_step(integer: Integer, rows: int) -> tuple[list[Number], Number]:
    """A batch of so many rows in any order, and the block size."""
    return [integer(f"row_{index}") for index in range(rows)], integer("block_size")


def _head_on(
    batch: Sequence[Number], block_size: Number, claim: Truth, newcomers: Sequence[Number] = ()
) -> Statement:
    """A claim about a step of this batch."""
    everyone = [*batch, *newcomers]
    fits = [fits_its_blocks(row, block_size) for row in everyone]  # PRV-DEC-5
    return Statement(
        given=[block_size >= 1, *(row >= 1 for row in everyone)],
        known=[*fits, *_growth(batch, block_size)],
        claim=claim,
    )


def _calm(rows: Sequence[Number], block_size: Number) -> Truth:
    """None of the rows crosses."""
    return every(negate(crosses(row, block_size)) for row in rows)


def _moves_of_an_unchanged_batch(integer: Integer, rows: int) -> Statement:
    """The batch grows if some unpadded row crosses."""
    batch, block_size = _rows_before_a_step(integer, rows)
    grows = some(
        every([crosses(row, block_size), padding_in(row, batch, block_size) == 0]) for row in batch
    )

    def claims() -> Iterator[Truth]:
        for row in batch:
            moved = _moved(row, batch, next_token(batch), block_size)
            crossing = crosses(row, block_size)
            yield implies(grows, moved == select(crossing, 1, 1 + block_size))
            yield implies(negate(grows), moved == select(crossing, 1 - block_size, 1))

    return _head_on(batch, block_size, every(claims()))


def _moves_when_a_row_leaves(integer: Integer, rows: int) -> Statement:
    """The last of the batch leaves; the least padding of the others goes."""
    batch, block_size = _rows_before_a_step(integer, rows)
    *stay, _leaver = batch
    left_by = minimum(*(padding_in(row, batch, block_size) for row in stay))
    moves = [_moved(row, batch, next_token(stay), block_size) for row in stay]
    as_told = every(moved == 1 - left_by for moved in moves)
    return _head_on(batch, block_size, implies(_calm(stay, block_size), as_told))


def _moves_when_a_row_joins(integer: Integer, rows: int) -> Statement:
    """`newcomer`: tokens of the request that is new, its first decoded one included."""
    batch, block_size = _rows_before_a_step(integer, rows)
    newcomer = integer("newcomer")
    wider = block_count(newcomer, block_size) - batch_width_blocks(batch, block_size)
    moves = [_moved(row, batch, [*next_token(batch), newcomer], block_size) for row in batch]
    as_told = every(moved == 1 + maximum(wider, 0) * block_size for moved in moves)
    return _head_on(batch, block_size, implies(_calm(batch, block_size), as_told), [newcomer])


# --- head-on, without the argument: all rows of a batch at once ----------------------------------

for _letter, _rows in (("A", 2), ("B", 3), ("C", 4)):
    obligation(
        f"PRV-DEC-8{_letter}",
        f"Head-on for {_rows} rows: equally many blocks, all tkv in the last, one row unpadded, "
        "max-tkv the width less a block plus the largest offset, and the largest tkv.",
        bounds=f"every batch of {_rows} rows, every block size",
        rules=["SPY-DEC-2", "SPY-DEC-3", "SPY-DEC-4", "SPY-DEC-6", "SPY-TKV-2"],
    )(partial(_layout, rows=_rows))

_STAYING = (
    _moves_of_an_unchanged_batch,
    "while nobody joins or leaves every tkv moves as the jump rules say.",
    ["SPY-TKV-3", "SPY-TKV-4", "SPY-TKV-6"],
)
_LEAVING = (
    _moves_when_a_row_leaves,
    "when one leaves and no other crosses, the others jump back by the least padding among them.",
    ["SPY-TKV-5"],
)
_JOINING = (
    _moves_when_a_row_joins,
    "when one joins and nobody crosses, the others jump forward by the blocks that it is wider.",
    ["SPY-TKV-7"],
)
for _letter, _rows, (_statement, _sentence, _rules) in (
    ("A", 2, _STAYING),
    ("B", 3, _STAYING),
    ("C", 2, _LEAVING),
    ("D", 3, _LEAVING),
    ("E", 2, _JOINING),
    ("F", 3, _JOINING),
):
    obligation(
        f"PRV-TKV-8{_letter}",
        f"Head-on for {_rows} rows: {_sentence}",
        bounds=f"every step of a batch of {_rows} rows, every block size",
        rules=_rules,
    )(partial(_statement, rows=_rows))
