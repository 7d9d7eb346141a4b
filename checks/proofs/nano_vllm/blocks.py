"""Obligations about nano-vLLM's slots and block tables: where a token's keys and values go.

The argument for tables, by induction over a sequence's steps: a prefill hands it the blocks of its
tokens, each decode step one more exactly if its newest token starts one (PRV-NANO-DEC-1), so that
every token that is computed has a place (PRV-NANO-SLT-5). Two sequences that write have different
blocks, or the same at different places, and then different slots (PRV-NANO-SLT-2, PRV-NANO-SLT-3).

Source: nano-vllm, "Block Tables: Logical Memory Map", "BlockManager: Three Core Operations" and
"One Decode Step: What Happens".
"""

from functools import partial
from typing import Annotated, Any

from checks.proofs.nano_vllm.moves import of_every_run
from checks.proofs.nano_vllm.scope import obligation
from checks.proofs.registry import Natural, Numbers, Positive, Statement, Verdict
from checks.proofs.unshared import unshared
from spec.core.arithmetic import Number, Truth, every, floor_div, select
from spec.core.blocks import block_count, block_index, slot
from spec.core.requests import Oversized, Request
from spec.nano_vllm.config import NanoVllmConfig, NewBlock
from spec.nano_vllm.formulas import can_append, fills_block, starts_block

LEAST_BLOCK = 2  # tokens; with 1 no length is one more than a multiple of the block
BlockSize = Annotated[Number, LEAST_BLOCK]


def make_config(length: int, **keys: Any) -> NanoVllmConfig:
    """A configuration for sequences of at most `length` tokens."""
    return NanoVllmConfig(max_model_len=length, max_num_batched_tokens=length, **keys)


# --- slots ----------------------------------------------------------------------------------------

_ANY_SLOT = "every position and block, every block size"
_of_a_slot = partial(obligation, bounds=_ANY_SLOT, rules=["NANO-SLT-1"])


@_of_a_slot("PRV-NANO-SLT-1", is_step=True)
def slots_can_be_taken_apart(block: Natural, position: Natural, block_size: Positive) -> Statement:
    """A slot tells its block and the place in it: dividing by the block size takes it apart
    again.
    """
    where = slot(block, position, block_size)
    same_place = where % block_size == position % block_size
    return Statement([block_index(where, block_size) == block, same_place])


@_of_a_slot(
    "PRV-NANO-SLT-2",
    bounds=f"tokens of one sequence whose table names no block twice; {_ANY_SLOT}",
)
def tokens_of_a_sequence_have_slots_of_their_own(
    block: Natural, other_block: Natural, position: Natural, other: Number, block_size: Positive
) -> Statement:
    """Two tokens of one sequence never share a slot."""
    # `block` and `other_block` are what the table has at the two positions.
    same_place = block_index(position, block_size) == block_index(other, block_size)
    return Statement(
        slot(block, position, block_size) != slot(other_block, other, block_size),
        given=[other > position, same_place == (block == other_block)],
    )


@_of_a_slot(
    "PRV-NANO-SLT-3",
    bounds=f"tokens in different blocks, any number of sequences; {_ANY_SLOT}",
)
def blocks_have_slots_of_their_own(
    block: Natural, other_block: Number, position: Natural, other: Natural, block_size: Positive
) -> Statement:
    """Tokens in different blocks never share a slot, whosever they are."""
    # Two sequences write to different blocks: shared ones are full.
    return Statement(
        slot(block, position, block_size) != slot(other_block, other, block_size),
        given=[other_block > block],
    )


@_of_a_slot("PRV-NANO-SLT-4", bounds=f"{_ANY_SLOT}, every pool", rules=[])
def slots_are_inside_the_pool(
    block: Natural, position: Natural, block_size: Positive, num_blocks: Number
) -> Statement:
    """Every slot of a block of the pool is one of the pool."""
    where = slot(block, position, block_size)
    return Statement([where >= 0, where < num_blocks * block_size], [block < num_blocks])


@_of_a_slot("PRV-NANO-SLT-5", bounds="every length, every block size", is_step=True)
def every_token_has_its_place(length: Number, position: Natural, block_size: Positive) -> Statement:
    """Each token of a sequence has its place in a table of the sequence's blocks, and the last
    block of the table holds one.
    """
    blocks = block_count(length, block_size)
    holds_one = block_index(length - 1, block_size) == blocks - 1
    return Statement(
        [block_index(position, block_size) < blocks, holds_one], given=[position < length]
    )


# --- decode steps ---------------------------------------------------------------------------------


def blocks_after_append(computed: Number, block_size: Number, reading: NewBlock) -> Number:
    """Blocks of a sequence in the step that computes the token after the `computed` ones.

    Before the step the sequence holds the blocks of its computed tokens.
    """
    starts = starts_block(computed + 1, block_size, reading)
    return block_count(computed, block_size) + select(starts, 1, 0)


def _has_a_place(computed: Number, block_size: Number, reading: NewBlock) -> Truth:
    blocks = blocks_after_append(computed, block_size, reading)
    return block_index(computed, block_size) < blocks


def _matches_the_tokens(computed: Number, block_size: Number, reading: NewBlock) -> Truth:
    blocks = blocks_after_append(computed, block_size, reading)
    return blocks == block_count(computed + 1, block_size)


def _at_boundary(numbers: Numbers) -> tuple[NanoVllmConfig, list[Request]]:
    """A prompt of the computed tokens, then one decode step."""
    length = numbers["computed"] + 2
    config = make_config(
        length, block_size=numbers["block_size"], num_blocks=length, new_block=NewBlock.AT_BOUNDARY
    )
    return config, unshared((numbers["computed"], 2))


_ANY_LENGTH = "every length, every block size from 2"
_of_decoding = partial(obligation, bounds=_ANY_LENGTH)


@of_every_run(
    "PRV-NANO-DEC-1",
    bounds=f"the number of blocks of a table; {_ANY_LENGTH}",
    where="new_block=after_boundary",
    rules=["NANO-DEC-3", "NANO-BLK-4", "NANO-SLT-1"],
)
def after_boundary_is_in_time(block_size: BlockSize, computed: Positive) -> Statement:
    """With a new block at the length after a boundary, a decode step's newest token has its place,
    and the table has exactly the blocks of the tokens.
    """
    # As released: 257 tokens need a second block of 256.
    about = computed, block_size, NewBlock.AFTER_BOUNDARY
    return Statement([_has_a_place(*about), _matches_the_tokens(*about)])


@_of_decoding(
    "PRV-NANO-DEC-2",
    where="new_block=at_boundary",
    rules=["NANO-SLT-1"],
    expected=Verdict.REFUTED,
    scenario=_at_boundary,
)
def at_boundary_is_in_time(block_size: BlockSize, computed: Positive) -> Statement:
    """With a new block at a boundary, a decode step's newest token has its place."""
    # False: a prompt of whole blocks was never at the boundary in a decode step.
    return Statement(_has_a_place(computed, block_size, NewBlock.AT_BOUNDARY))


@_of_decoding(
    "PRV-NANO-DEC-3",
    where="new_block=at_boundary",
    rules=["NANO-DEC-3", "NANO-BLK-4"],
    expected=Verdict.REFUTED,
    scenario=_at_boundary,
)
def at_boundary_matches_the_tokens(block_size: BlockSize, computed: Positive) -> Statement:
    """With a new block at a boundary, the table has exactly the blocks of the tokens."""
    # False: the token that fills a block is handed the next one, too.
    return Statement(_matches_the_tokens(computed, block_size, NewBlock.AT_BOUNDARY))


@of_every_run(
    "PRV-NANO-DEC-4",
    bounds="every length, every block size, any number of free blocks, both readings of a boundary",
    rules=["NANO-PRE-1"],
    each=[{"reading": reading} for reading in NewBlock],
)
def can_append_is_exact(
    free: Natural, length: Positive, block_size: BlockSize, reading: NewBlock
) -> Statement:
    """`can_append` is enough and asks for no more: one that passes finds its block, one that is
    refused needs one and none is free.
    """
    # So a sequence is preempted only if no block is free.
    starts = starts_block(length, block_size, reading)
    left, refused = free - select(starts, 1, 0), every([starts, free == 0])
    return Statement(select(can_append(free, length, block_size, reading), left >= 0, refused))


@of_every_run(
    "PRV-NANO-DEC-5",
    where="new_block=after_boundary",
    bounds=f"the number of hashed blocks; {_ANY_LENGTH}",
    rules=["NANO-PFX-1"],
)
def full_blocks_are_hashed(block_size: BlockSize, computed: Positive) -> Statement:
    """A sequence has as many hashed blocks as full ones, after a decode step as before it."""
    # The token that fills a block has it hashed.
    full, full_then = (floor_div(length, block_size) for length in (computed, computed + 1))
    more = select(fills_block(computed + 1, block_size), 1, 0)
    return Statement(full + more == full_then)


# --- progress -------------------------------------------------------------------------------------


def _front_has_room(computed: Number, block_size: Number, num_blocks: Number) -> Truth:
    """True if the front of running finds a slot for its newest token after all preemptions."""
    free = num_blocks - block_count(computed, block_size)
    return can_append(free, computed + 1, block_size, NewBlock.AFTER_BOUNDARY)


def _running(
    computed: Positive, block_size: BlockSize, num_blocks: Number, total: Number
) -> list[Truth]:
    """Conditions: the pool holds the sequence's blocks, and a token of its answer is missing."""
    return [block_count(computed, block_size) <= num_blocks, computed + 1 < total]


def _outgrows_the_pool(numbers: Numbers) -> tuple[NanoVllmConfig, list[Request]]:
    """A prompt that fits, with an answer that does not."""
    computed, total = numbers["computed"], numbers["total"]
    config = make_config(
        total,
        block_size=numbers["block_size"],
        num_blocks=numbers["num_blocks"],
        oversized=Oversized.QUEUED,
    )
    return config, unshared((computed, total - computed))


@of_every_run(
    "PRV-NANO-DEC-6",
    where="oversized=refused, new_block=after_boundary",
    bounds=f"{_ANY_LENGTH}, pool and output; any number of sequences; a decode step",
    given=_running,
    rules=["NANO-LIF-7"],
)
def the_front_gets_a_token(
    computed: Number, block_size: Number, num_blocks: Number, total: Number
) -> Statement:
    """In a decode step at least the front of running gets a token, where requests that the pool can
    never hold are refused.
    """
    # `total`: prompt and longest answer, whose last token is never written.
    fits = block_count(total - 1, block_size) <= num_blocks
    return Statement(_front_has_room(computed, block_size, num_blocks), given=[fits])


@obligation(
    "PRV-NANO-DEC-7",
    where="oversized=queued, new_block=after_boundary",
    bounds=f"{_ANY_LENGTH}, pool and output",
    given=_running,
    rules=["NANO-LIF-6", "NANO-LIF-7"],
    expected=Verdict.REFUTED,
    scenario=_outgrows_the_pool,
)
def the_front_gets_a_token_of_any_queue(
    computed: Number, block_size: Number, num_blocks: Number
) -> Statement:
    """In a decode step at least the front of running gets a token, whatever is let in."""
    # False as released: a request that outgrows the pool preempts itself, and starts again.
    return Statement(_front_has_room(computed, block_size, num_blocks))
