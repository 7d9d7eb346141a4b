"""Obligations about the decode batch: its layout, and how a step changes each tkv.

Source: spyre, "Decode padding" and "tkv jumping". All are decided for every block size.

How they hold for every batch size: a row's padding depends on the other rows only through the
longest (PRV-DEC-1A, 1B), so what holds for a row next to any row that is at least as long holds
in every batch. The steps of an argument share a number and differ in their letter. What one
obligation proves, a later one may build on (`cite`).
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from checks.proofs.registry import Fact, Integer, Positive, Statement, cite
from checks.proofs.spyre.scope import obligation
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

# --- words of the claims; rows are given by their tokens without padding -------------------------


def padding_tokens(row: Number, batch: Sequence[Number], block_size: Number) -> Number:
    """Left padding of a row of this batch, in tokens."""
    return row_left_padding(row, batch_width_blocks(batch, block_size), block_size)


def padded_tkv(row: Number, batch: Sequence[Number], block_size: Number) -> Number:
    """Tkv of a row of this batch."""
    return row_tkv(row, padding_tokens(row, batch, block_size))


def crosses(row: Number, block_size: Number) -> Truth:
    """True if the row's last block is full: its next token starts a new one."""
    return last_block_offset(row, block_size) == block_size


def fits_its_blocks(row: Number, block_size: Number) -> Truth:
    """True if the row fills all of its blocks but the last, and fits into the last."""
    blocks = block_count(row, block_size)
    return every([(blocks - 1) * block_size < row, row <= blocks * block_size])


def grows_by_a_block_if_it_crosses(row: Number, block_size: Number) -> Truth:
    """True if the row's next token adds a block exactly if the row crosses."""
    more = select(crosses(row, block_size), 1, 0)
    return block_count(row + 1, block_size) == block_count(row, block_size) + more


def next_token(batch: Iterable[Number]) -> list[Number]:
    """The rows with one more token each."""
    return [row + 1 for row in batch]


def _in_any_batch(row: Positive, longest: Number, block_size: Positive) -> list[Truth]:
    """Conditions: the row has a token, and the longest row at least as many."""
    return [longest >= row]


# --- layout --------------------------------------------------------------------------------------

_ANY_SIZE = "every batch size, every block size"
_of_a_row = partial(
    obligation, given=_in_any_batch, bounds="every row of a batch of any size, every block size"
)


@obligation("PRV-DEC-1A", bounds=_ANY_SIZE, rules=["SPY-DEC-2"], is_step=True)
def longest_row_decides_the_width(
    longest: Positive, other: Number, newcomer: Positive, block_size: Positive
) -> Statement:
    """The longest row alone decides the width: with one more row a batch is as wide as it was, or
    as that row if it is wider (step of the induction over the rows).
    """
    # `longest` stands for the batch so far, `other` and `newcomer` for the rows that come.
    alone = batch_width_blocks([longest], block_size)
    wider = maximum(alone, block_count(newcomer, block_size))
    return Statement(
        [
            maximum(longest, other, newcomer) == maximum(maximum(longest, other), newcomer),
            batch_width_blocks([longest, newcomer], block_size) == wider,
        ]
    )


@_of_a_row("PRV-DEC-1B", rules=["SPY-DEC-2", "SPY-DEC-4"], is_step=True)
def no_row_is_wider_than_the_batch(row: Number, longest: Number, block_size: Number) -> Statement:
    """No row has more blocks than the batch is wide, and a batch is as wide as its longest row
    alone (so a row and the longest one tell all).
    """
    width = batch_width_blocks([row, longest], block_size)
    alone = batch_width_blocks([longest], block_size)
    return Statement([block_count(row, block_size) <= width, width == alone])


@_of_a_row("PRV-DEC-2", rules=["SPY-DEC-2"])
def rows_have_equally_many_blocks(row: Number, longest: Number, block_size: Number) -> Statement:
    """After padding every row of a decode batch has equally many blocks."""
    padding = padding_tokens(row, [row, longest], block_size)
    own = block_count(row, block_size) * block_size
    return Statement(padding + own == block_count(longest, block_size) * block_size)


@_of_a_row("PRV-DEC-3", bounds=_ANY_SIZE, rules=["SPY-DEC-3"])
def longest_row_has_no_padding(row: Number, longest: Number, block_size: Number) -> Statement:
    """The longest row has no left padding: padding is the least that makes the table
    rectangular.
    """
    batch = [row, longest]
    as_wide = block_count(row, block_size) == block_count(longest, block_size)
    unpadded = padding_tokens(row, batch, block_size) == 0
    return Statement([padding_tokens(longest, batch, block_size) == 0, implies(as_wide, unpadded)])


@_of_a_row("PRV-DEC-4", rules=["SPY-DEC-4"])
def row_padding_is_whole_blocks(row: Number, longest: Number, block_size: Number) -> Statement:
    """Left padding of a row is never negative and always whole blocks, fewer than the width."""
    width = batch_width_blocks([row, longest], block_size)
    lacking = width - block_count(row, block_size)
    padding = padding_tokens(row, [row, longest], block_size)
    return Statement([padding == lacking * block_size, lacking >= 0, lacking < width])


@_of_a_row("PRV-DEC-5", given=None, rules=["SPY-DEC-5"])
def newest_token_lies_in_the_last_block(row: Positive, block_size: Positive) -> Statement:
    """A row's newest token lies in its last block, and less than a block of room is behind it."""
    offset = last_block_offset(row, block_size)
    return Statement([fits_its_blocks(row, block_size), offset >= 1, offset <= block_size])


@_of_a_row("PRV-DEC-6", rules=["SPY-DEC-6"])
def all_tkv_lie_in_the_last_block(row: Number, longest: Number, block_size: Number) -> Statement:
    """The tkv of all rows lie in the same block, the last one of the batch."""
    width = batch_width_blocks([longest], block_size)
    tkv = padded_tkv(row, [row, longest], block_size)
    return Statement([(width - 1) * block_size < tkv, tkv <= width * block_size])


@_of_a_row("PRV-DEC-7A", rules=["SPY-TKV-2"])
def tkv_reaches_into_the_last_block(row: Number, longest: Number, block_size: Number) -> Statement:
    """A row's tkv is the width less one block, plus how far the row reaches into its last block."""
    # So the row that reaches furthest has the largest tkv.
    before_last = (batch_width_blocks([longest], block_size) - 1) * block_size
    tkv = padded_tkv(row, [row, longest], block_size)
    return Statement(tkv == before_last + last_block_offset(row, block_size))


@_of_a_row("PRV-DEC-7B", bounds="every pair of rows, every block size", rules=["SPY-TKV-2"])
def max_tkv_of_two_is_the_larger(row: Number, longest: Number, block_size: Number) -> Statement:
    """Max-tkv of the longest row and one more is the larger of their two tkv (first step of the
    induction over the rows, the longest first).
    """
    batch = [longest, row]
    tkvs = [padded_tkv(row_tokens, batch, block_size) for row_tokens in batch]
    alone = max_tkv([longest], block_size) == longest
    return Statement([alone, max_tkv(batch, block_size) == maximum(*tkvs)])


@obligation("PRV-DEC-7C", bounds=_ANY_SIZE, rules=["SPY-TKV-2"])
def one_more_row_adds_its_tkv(
    newcomer: Positive, furthest: Positive, longest: Number, block_size: Positive
) -> Statement:
    """With one more row max-tkv is what it was, or that row's tkv if it is larger (the induction's
    next steps; the longest row and the one that reaches furthest stand for the batch so far).
    """
    # The newcomer is no longer than the longest, which came first.
    batch = [longest, furthest]
    tkv = padded_tkv(newcomer, [*batch, newcomer], block_size)
    return Statement(
        max_tkv([*batch, newcomer], block_size) == maximum(max_tkv(batch, block_size), tkv),
        given=[longest >= furthest, newcomer <= longest],
    )


def _rows(integer: Integer, count: int) -> list[Number]:
    return [integer(f"row_{index}") for index in range(count)]


def _layout(integer: Integer, rows: int, block_size: Positive) -> Statement:
    """Head-on for {rows} rows: equally many blocks, all tkv in the last, one row unpadded, max-tkv
    the width less a block plus the largest offset, and the largest tkv.
    """
    batch = _rows(integer, rows)
    width = batch_width_blocks(batch, block_size)
    paddings = [padding_tokens(row, batch, block_size) for row in batch]
    tkvs = [padded_tkv(row, batch, block_size) for row in batch]
    largest_offset = maximum(*(last_block_offset(row, block_size) for row in batch))

    def claims() -> Iterator[Truth]:
        for row, padding, tkv in zip(batch, paddings, tkvs, strict=True):
            yield padding + block_count(row, block_size) * block_size == width * block_size
            yield every([padding >= 0, (width - 1) * block_size < tkv, tkv <= width * block_size])
        yield minimum(*paddings) == 0
        yield max_tkv(batch, block_size) == (width - 1) * block_size + largest_offset
        yield max_tkv(batch, block_size) == maximum(*tkvs)

    known = [cite("PRV-DEC-5", row=row, block_size=block_size) for row in batch]
    for index in range(1, rows):  # the longest of the rows so far, and one more
        so_far = {"longest": maximum(*batch[:index]), "other": batch[0]}
        known.append(cite("PRV-DEC-1A", newcomer=batch[index], block_size=block_size, **so_far))
    return Statement(claims(), [row >= 1 for row in batch], known)


# --- jumps: the rows are those of the batch before the step, each computes one token -------------

_of_a_step = partial(
    obligation, given=_in_any_batch, bounds="every step of a batch of any size, every block size"
)


def _change(
    row: Number, before: Sequence[Number], after: Sequence[Number], block_size: Number
) -> Number:
    """The change of the row's tkv in a step; `before` and `after`: the batch around the step."""
    return padded_tkv(row + 1, after, block_size) - padded_tkv(row, before, block_size)


def _change_in_an_unchanged_batch(row: Number, longest: Number, block_size: Number) -> Number:
    """The change of the row's tkv in a step in which no row joins or leaves."""
    before = [row, longest]
    return _change(row, before, next_token(before), block_size)


def _growth(rows: Iterable[Number], block_size: Number) -> list[Fact]:
    """PRV-TKV-1A for each row."""
    return [cite("PRV-TKV-1A", row=row, block_size=block_size) for row in rows]


def _is_calm(rows: Sequence[Number], block_size: Number) -> Truth:
    """True if none of the rows crosses."""
    return every(negate(crosses(row, block_size)) for row in rows)


@_of_a_step("PRV-TKV-1A", given=None, rules=["SPY-TKV-3", "SPY-TKV-4"], is_step=True)
def full_row_gets_a_block(row: Positive, block_size: Positive) -> Statement:
    """A row gets a new block with its next token if and only if its last block is full."""
    return Statement(grows_by_a_block_if_it_crosses(row, block_size))


@_of_a_step("PRV-TKV-1B", rules=["SPY-TKV-3", "SPY-TKV-4"], is_step=True)
def unpadded_row_crosses_with_the_longest(
    row: Number, longest: Number, block_size: Number
) -> Statement:
    """An unpadded row crosses into a new block only if the longest does (so whether the batch grows
    can be told from the longest row).
    """
    # The batch then gets one block wider, else it stays as wide.
    batch = [row, longest]
    unpadded = padding_tokens(row, batch, block_size) == 0
    width = batch_width_blocks(batch, block_size)
    wider = batch_width_blocks(next_token(batch), block_size)
    grows = crosses(longest, block_size)
    return Statement(
        [
            implies(every([unpadded, crosses(row, block_size)]), grows),
            wider == width + select(grows, 1, 0),
        ]
    )


@_of_a_step("PRV-TKV-2", rules=["SPY-TKV-6"], is_step=True)
def tkv_changes_by_one_and_whole_blocks(
    row: Number, longest: Number, block_size: Number, next_longest: Number
) -> Statement:
    """Whichever rows join or leave, a step moves a tkv by one, plus what the batch gets wider, less
    a block if the row crosses: one plus whole blocks.
    """
    # `longest` is the longest row before the step, `next_longest` the one that decodes in it.
    before, after = [row, longest], next_token([row, next_longest])
    wider = batch_width_blocks(after, block_size) - batch_width_blocks(before, block_size)
    blocks = wider - select(crosses(row, block_size), 1, 0)
    return Statement(
        _change(row, before, after, block_size) == 1 + blocks * block_size,
        given=[next_longest >= row],
    )


@_of_a_step("PRV-TKV-3", rules=["SPY-TKV-3"])
def padded_row_jumps_back(row: Number, longest: Number, block_size: Number) -> Statement:
    """A padded row that crosses gives up one padding block: its tkv jumps back, unless an unpadded
    row crosses too.
    """
    # By one block, less the token that it computes.
    change = _change_in_an_unchanged_batch(row, longest, block_size)
    alone = every([crosses(row, block_size), negate(crosses(longest, block_size))])
    padded = padding_tokens(row, [row, longest], block_size) > 0
    claim = implies(alone, every([padded, change == 1 - block_size]))
    return Statement(claim, known=_growth([row, longest], block_size))


@_of_a_step("PRV-TKV-4", rules=["SPY-TKV-4"])
def others_jump_forward(row: Number, longest: Number, block_size: Number) -> Statement:
    """When an unpadded row crosses, all rows that do not cross get one more padding block: their
    tkv jump forward, the crossing ones move by one.
    """
    # By one block and the token that they compute.
    change = _change_in_an_unchanged_batch(row, longest, block_size)
    expected = select(crosses(row, block_size), 1, 1 + block_size)
    claim = implies(crosses(longest, block_size), change == expected)
    return Statement(claim, known=_growth([row, longest], block_size))


def _around_the_leaver(
    row: Positive, next_longest: Number, longest: Number, block_size: Positive
) -> list[Truth]:
    """Conditions: the longest row leaves; `next_longest` is the longest that stays."""
    return [next_longest >= row, longest >= next_longest]


_of_leaving = partial(_of_a_step, given=_around_the_leaver, rules=["SPY-TKV-5"])


@_of_leaving("PRV-TKV-5A")
def rows_jump_back_when_the_longest_leaves(
    row: Number, longest: Number, block_size: Number, next_longest: Number
) -> Statement:
    """When the longest request leaves, the others jump back by the padding that the longest of them
    had, if none of them crosses.
    """
    before, stay = [row, next_longest, longest], [row, next_longest]
    removed = padding_tokens(next_longest, before, block_size)
    change = _change(row, before, next_token(stay), block_size)
    return Statement(implies(_is_calm(stay, block_size), change == 1 - removed))


@_of_leaving("PRV-TKV-5B", is_step=True)
def longest_that_stays_has_the_least_padding(
    row: Number, longest: Number, block_size: Number, next_longest: Number
) -> Statement:
    """Of all rows that stay, the longest has the least padding (so what it had is what only the one
    that left had caused).
    """
    before = [row, next_longest, longest]
    least = padding_tokens(next_longest, before, block_size)
    return Statement(padding_tokens(row, before, block_size) >= least)


@_of_a_step("PRV-TKV-6", rules=["SPY-TKV-6"])
def tkv_changes_by_one(row: Number, longest: Number, block_size: Number) -> Statement:
    """As long as no row crosses, joins or leaves, every tkv moves by exactly one."""
    # Of the others only the longest matters: a padded row that crosses changes no other tkv.
    change = _change_in_an_unchanged_batch(row, longest, block_size)
    return Statement(implies(_is_calm([row, longest], block_size), change == 1))


@_of_a_step("PRV-TKV-7", rules=["SPY-TKV-7"])
def rows_jump_forward_when_a_wider_one_joins(
    row: Number, longest: Number, block_size: Number, newcomer: Positive
) -> Statement:
    """When a request joins, the others jump forward by the blocks that it is wider than the batch
    was, by none if it is not, as long as none of them crosses.
    """
    # `newcomer`: tokens of the longest request that is new, its first decoded one included.
    before = [row, longest]
    change = _change(row, before, [*next_token(before), newcomer], block_size)
    wider = block_count(newcomer, block_size) - batch_width_blocks(before, block_size)
    jumps = change == 1 + maximum(wider, 0) * block_size
    return Statement(implies(_is_calm(before, block_size), jumps))


# --- direct statements about all rows of a batch, without the argument ----------------------------


def _direct_statement(
    batch: Sequence[Number], block_size: Number, claim: Truth, newcomers: Sequence[Number] = ()
) -> Statement:
    """A claim about a step of this batch."""
    everyone = [*batch, *newcomers]
    fits = [cite("PRV-DEC-5", row=row, block_size=block_size) for row in everyone]
    known = [*fits, *_growth(batch, block_size)]
    return Statement(claim, [row >= 1 for row in everyone], known)


def _changes_of_an_unchanged_batch(integer: Integer, rows: int, block_size: Positive) -> Statement:
    """Head-on for {rows} rows: while no row joins or leaves every tkv moves as the jump rules
    say.
    """
    # The batch grows if some unpadded row crosses.
    batch = _rows(integer, rows)
    grows = some(
        every([crosses(row, block_size), padding_tokens(row, batch, block_size) == 0])
        for row in batch
    )

    def claims() -> Iterator[Truth]:
        for row in batch:
            change = _change(row, batch, next_token(batch), block_size)
            crossing = crosses(row, block_size)
            yield implies(grows, change == select(crossing, 1, 1 + block_size))
            yield implies(negate(grows), change == select(crossing, 1 - block_size, 1))

    return _direct_statement(batch, block_size, every(claims()))


def _changes_when_a_row_leaves(integer: Integer, rows: int, block_size: Positive) -> Statement:
    """Head-on for {rows} rows: when one leaves and no other crosses, the others jump back by the
    least padding among them.
    """
    batch = _rows(integer, rows)
    *stay, _leaver = batch
    jump_back = minimum(*(padding_tokens(row, batch, block_size) for row in stay))
    changes = [_change(row, batch, next_token(stay), block_size) for row in stay]
    jump = every(change == 1 - jump_back for change in changes)
    return _direct_statement(batch, block_size, implies(_is_calm(stay, block_size), jump))


def _changes_when_a_row_joins(
    integer: Integer, rows: int, newcomer: Number, block_size: Positive
) -> Statement:
    """Head-on for {rows} rows: when one joins and no row crosses, the others jump forward by the
    blocks that it is wider.
    """
    # `newcomer`: tokens of the request that is new, its first decoded one included.
    batch = _rows(integer, rows)
    wider = block_count(newcomer, block_size) - batch_width_blocks(batch, block_size)
    after = [*next_token(batch), newcomer]
    changes = [_change(row, batch, after, block_size) for row in batch]
    jump = every(change == 1 + maximum(wider, 0) * block_size for change in changes)
    return _direct_statement(
        batch, block_size, implies(_is_calm(batch, block_size), jump), [newcomer]
    )


for _letter, _count in (("A", 2), ("B", 3), ("C", 4)):
    obligation(
        f"PRV-DEC-8{_letter}",
        bounds=f"every batch of {_count} rows, every block size",
        rules=["SPY-DEC-2", "SPY-DEC-3", "SPY-DEC-6", "SPY-TKV-2"],
        rows=_count,
    )(_layout)

for _letters, _statement, _rules in (
    ("AB", _changes_of_an_unchanged_batch, ["SPY-TKV-3", "SPY-TKV-4", "SPY-TKV-6"]),
    ("CD", _changes_when_a_row_leaves, ["SPY-TKV-5"]),
    ("EF", _changes_when_a_row_joins, ["SPY-TKV-7"]),
):
    for _letter, _count in zip(_letters, (2, 3), strict=True):
        obligation(
            f"PRV-TKV-8{_letter}",
            bounds=f"every step of a batch of {_count} rows, every block size",
            rules=_rules,
            rows=_count,
        )(_statement)
