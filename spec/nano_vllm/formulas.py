"""The formulas of the nano-vLLM text: boundaries of blocks, the gates, captured batch sizes.

Source: nano-vllm, the sections named at each function, and the released commit 9e8507e. Lengths are
in tokens; every formula of numbers alone takes integers or solver terms.
"""

from spec.core.arithmetic import Number, Truth, floor_div, select
from spec.nano_vllm.config import FullHit, GraphSizes, MemoryGate, NewBlock, Prefill, TokenGate

# --- blocks of a sequence -------------------------------------------------------------------------


def starts_block(length: Number, block_size: Number, reading: NewBlock) -> Truth:
    """True if the newest of `length` tokens needs a new block ("The Decode Path", step 2)."""
    return length % block_size == (1 if reading is NewBlock.AFTER_BOUNDARY else 0)


def fills_block(length: Number, block_size: Number) -> Truth:
    """True if the newest of `length` tokens fills its block, which is then hashed."""
    return length % block_size == 0


def lookup_blocks(length: Number, block_size: Number, reading: FullHit) -> Number:
    """Leading blocks that are looked up at an admission: the full ones, and maybe not the last."""
    return floor_div(length - (1 if reading is FullHit.LAST_COMPUTED else 0), block_size)


def skips_prefill(length: Number, cached: Number, reading: FullHit) -> Truth:
    """True if a sequence of `length` tokens, `cached` of them cached, is in no prefill step."""
    return reading is FullHit.LAST_DECODED and cached == length


def is_cut(missing: Number, room: Number, reading: Prefill) -> Truth:
    """True if of `missing` tokens of a prefill only the `room` that the budget leaves is computed.

    Only the first of a step may need more than that: the others passed the token gate.
    """
    return reading is Prefill.FIRST_CHUNKED and missing > room


# --- the gates ------------------------------------------------------------------------------------


def counted_tokens(length: Number, cached: Number, gate: TokenGate) -> Number:
    """What a sequence of `length` tokens, `cached` of them cached, weighs in the token gate."""
    return length if gate is TokenGate.FULL_LENGTH else length - cached


def within_budget(batched: Number, counted: Number, budget: Number) -> Truth:
    """Gate 1 ("Admission Checks"): the step's tokens and the sequence's fit the budget."""
    return batched + counted <= budget


def can_allocate(free: Number, blocks: Number, shared: Number, gate: MemoryGate) -> Truth:
    """Gate 2 ("Admission Checks"): there are enough free blocks.

    `shared`: blocks that are found in the cache and held by a sequence.
    """
    return free >= (blocks if gate is MemoryGate.ALL_BLOCKS else blocks - shared)


def can_append(free: Number, length: Number, block_size: Number, reading: NewBlock) -> Truth:
    """True if the free blocks suffice for the newest token ("BlockManager")."""
    return free >= select(starts_block(length, block_size, reading), 1, 0)


# --- what the runner is handed --------------------------------------------------------------------


def captured_sizes(largest: int, reading: GraphSizes) -> tuple[int, ...]:
    """Batch sizes for which decoding is captured where batches have up to `largest` sequences.

    Source: "CUDA Graphs"; the released commit.
    """
    if reading is GraphSizes.POWERS_OF_TWO:
        return tuple(1 << bits for bits in range((largest - 1).bit_length() + 1))
    return (1, 2, 4, 8, *range(16, largest + 1, 16))


def graph_batch_size(batch: int, largest: int, reading: GraphSizes) -> int | None:
    """The captured size that a decode batch is padded to; None if no size holds it."""
    return next((size for size in captured_sizes(largest, reading) if size >= batch), None)
