"""Words of the claims about batches; rows are given by their tokens without padding.

Each states a fact of rows in one place: the obligation that proves it and those that build on it
use the same function.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from checks.proofs.registry import Fact, Integer, cite
from spec.core.arithmetic import Number, Truth, every, floor_div, implies, maximum, some
from spec.core.blocks import block_count
from spec.spyre.padding import batch_width_blocks, last_block_offset, max_tkv, reaches_block_end

REAL_BLOCK = 64  # tokens, of the product
LETTERS = "ABCD"  # of the obligations of a family, in the order of how many rows they are about
SYMBOLIC_ROWS = 2  # up to this number of rows the solver decides every block size at once


def block_size_choice(rows: int, most: int = SYMBOLIC_ROWS) -> dict[str, Any]:
    """The product's block size where there are more than `most` rows, else any."""
    return {} if rows <= most else {"block_size": REAL_BLOCK}


def block_size_words(rows: int, most: int = SYMBOLIC_ROWS) -> str:
    """The same in words, for the bounds of an obligation."""
    return "every block size" if rows <= most else f"block {REAL_BLOCK}"


def make_rows(integer: Integer, count: int) -> list[Number]:
    """The rows `row_0`, `row_1`, … of a batch of `count` rows."""
    return [integer(f"row_{index}") for index in range(count)]


def cite_rows(family: str, batch: Sequence[Number], *, fewest: int = 1, **instead: Any) -> Fact:
    """The instance for these rows of a family's obligation about this number of rows.

    The letter of the obligation is A for the `fewest` rows, B for one more, and so on.
    """
    letter = LETTERS[len(batch) - fewest]
    rows = {f"row_{index}": row for index, row in enumerate(batch)}
    return cite(f"{family}{letter}", **rows, **instead)


def cite_layout(batch: Iterable[Number], block_size: Number) -> list[Fact]:
    """PRV-DEC-5 for each row: it fills its blocks and reaches into its last one."""
    return [cite("PRV-DEC-5", row=row, block_size=block_size) for row in batch]


def cite_width(now: Sequence[Number], final: Sequence[Number], block_size: Number) -> list[Fact]:
    """PRV-PEAK-1C for the longest rows: the first batch is no wider than the second."""
    both = maximum(*now), maximum(*final)
    no_wider = cite("PRV-PEAK-1C", longest=both[0], longer=both[1], block_size=block_size)
    return [no_wider, *cite_layout(both, block_size)]


def positive(*numbers: Number) -> list[Truth]:
    """The conditions that each number is at least 1."""
    return [number >= 1 for number in numbers]


def later(batch: Sequence[Number], steps: Number) -> list[Number]:
    """The rows after this number of steps."""
    return [row + steps for row in batch]


def without_one(batch: Sequence[Number]) -> list[list[Number]]:
    """The batch without its first row, without its second, and so on."""
    return [[*batch[:index], *batch[index + 1 :]] for index in range(len(batch))]


def last_full_step(row: Number, steps: Number, block_size: Number) -> Number:
    """The last step, up to `steps`, in which the row fills its block; below 1 if none does."""
    return floor_div(row + steps, block_size) * block_size - row


def fills_or_stays_in_its_block(
    row: Number, step: Number, steps: Number, block_size: Number
) -> Truth:
    """From `step` to the last step the row fills a block, or gets no new one."""
    fills = reaches_block_end(row + step, row + steps, block_size)
    now, last = (block_count(row + computed, block_size) for computed in (step, steps))
    return some([fills, now == last])


def fills_or_only_rises(row: Number, step: Number, steps: Number, block_size: Number) -> Truth:
    """From `step` to the last step the row fills a block, or its offset does not fall."""
    fills = reaches_block_end(row + step, row + steps, block_size)
    now, last = (last_block_offset(row + computed, block_size) for computed in (step, steps))
    return some([fills, now <= last])


def is_full_in_its_last_full_step(row: Number, steps: Number, block_size: Number) -> Truth:
    """True if the last full step, if there is one, is one of the steps and full."""
    step = last_full_step(row, steps, block_size)
    full = last_block_offset(row + step, block_size) == block_size
    return implies(step >= 1, every([step <= steps, full]))


def is_full_no_later(row: Number, fewer: Number, steps: Number, block_size: Number) -> Truth:
    """True if with fewer steps the last full step is no later."""
    return last_full_step(row, fewer, block_size) <= last_full_step(row, steps, block_size)


def is_no_wider(batch: Sequence[Number], other: Sequence[Number], block_size: Number) -> Truth:
    """True if the batch is as wide as the other or at least a block narrower."""
    width = batch_width_blocks(batch, block_size)
    wider = batch_width_blocks(other, block_size)
    a_block_less = width * block_size <= (wider - 1) * block_size
    return every([width <= wider, implies(width < wider, a_block_less)])


def max_tkv_lies_in_the_last_block(batch: Sequence[Number], block_size: Number) -> Truth:
    """True if max-tkv lies beyond the last but one block and within the width."""
    width, tkv = batch_width_blocks(batch, block_size), max_tkv(batch, block_size)
    return every([(width - 1) * block_size < tkv, tkv <= width * block_size])
