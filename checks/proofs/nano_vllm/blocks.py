"""Obligations about nano-vLLM's slots and block tables: where a token's keys and values go.

The argument for tables, by induction over a sequence's steps: a prefill hands it the blocks of its
tokens, each decode step one more exactly if its newest token starts one (PRV-NANO-DEC-1), so that
every token that is computed has a place (PRV-NANO-SLT-5). Two sequences that write have different
blocks, or the same at different places, and then different slots (PRV-NANO-SLT-2, PRV-NANO-SLT-3).

Source: nano-vllm, "Block Tables: Logical Memory Map", "BlockManager: Three Core Operations" and
"One Decode Step: What Happens".
"""

from checks.proofs.registry import Integer, Numbers, Statement, Verdict, obligation
from spec.core.arithmetic import Number, Truth, every, floor_div, select
from spec.core.blocks import block_count, block_index, slot
from spec.core.requests import Prompt, Request
from spec.nano_vllm.config import NanoVllmConfig, NewBlock, Oversized
from spec.nano_vllm.formulas import can_append, fills_block, starts_block

LEAST_BLOCK = 2  # tokens; with 1 no length is one more than a multiple of the block
_ANY = "every position and block, every block size"
_ANY_LENGTH = "every length, every block size from 2"


def run_alone(prompt_len: int, max_tokens: int) -> list[Request]:
    """One request that nobody shares anything with."""
    return [Request(id="0", prompt=Prompt.of_stream("own:0", prompt_len), max_tokens=max_tokens)]


# --- slots ----------------------------------------------------------------------------------------


@obligation(
    "PRV-NANO-SLT-1",
    "A slot tells its block and the place in it: dividing by the block size takes it apart again.",
    bounds=_ANY,
    rules=["NANO-SLT-1"],
)
def slots_can_be_taken_apart(integer: Integer) -> Statement:
    """The mapping's inverse."""
    block, position, block_size = integer("block"), integer("position"), integer("block_size")
    where = slot(block, position, block_size)
    return Statement(
        given=[block_size >= 1, block >= 0, position >= 0],
        claim=every(
            [block_index(where, block_size) == block, where % block_size == position % block_size]
        ),
    )


@obligation(
    "PRV-NANO-SLT-2",
    "Two tokens of one sequence never share a slot.",
    bounds=f"{_ANY}; tables that name no block twice",
    rules=["NANO-SLT-1", "V1-KV-7"],
)
def tokens_of_a_sequence_have_slots_of_their_own(integer: Integer) -> Statement:
    """`block` and `other_block` are what the table has at the two positions."""
    block, other_block = integer("block"), integer("other_block")
    position, other, block_size = integer("position"), integer("other"), integer("block_size")
    same_place = block_index(position, block_size) == block_index(other, block_size)
    return Statement(
        given=[
            *(number >= 0 for number in (block, other_block, position)),
            block_size >= 1,
            other > position,
            same_place == (block == other_block),
        ],
        claim=slot(block, position, block_size) != slot(other_block, other, block_size),
    )


@obligation(
    "PRV-NANO-SLT-3",
    "Tokens in different blocks never share a slot, whosever they are.",
    bounds=f"{_ANY}; any number of sequences",
    rules=["NANO-SLT-1", "V1-KV-9"],
)
def blocks_have_slots_of_their_own(integer: Integer) -> Statement:
    """Two sequences write to different blocks: shared ones are full."""
    block, other_block = integer("block"), integer("other_block")
    position, other, block_size = integer("position"), integer("other"), integer("block_size")
    return Statement(
        given=[
            block_size >= 1,
            block >= 0,
            other_block > block,
            position >= 0,
            other >= 0,
        ],
        claim=slot(block, position, block_size) != slot(other_block, other, block_size),
    )


@obligation(
    "PRV-NANO-SLT-4",
    "Every slot of a block of the pool is one of the pool.",
    bounds=f"{_ANY}, every pool",
    rules=["NANO-SLT-1"],
)
def slots_are_inside_the_pool(integer: Integer) -> Statement:
    """Blocks are numbered from 0."""
    block, position, block_size = integer("block"), integer("position"), integer("block_size")
    num_blocks = integer("num_blocks")
    where = slot(block, position, block_size)
    return Statement(
        given=[block_size >= 1, block >= 0, block < num_blocks, position >= 0],
        claim=every([where >= 0, where < num_blocks * block_size]),
    )


@obligation(
    "PRV-NANO-SLT-5",
    "Each token of a sequence has its place in a table of the sequence's blocks, and the last "
    "block of the table holds one.",
    bounds="every length, every block size",
    rules=["NANO-SLT-1", "NANO-BLK-4"],
)
def every_token_has_its_place(integer: Integer) -> Statement:
    """`position` of any token."""
    length, position, block_size = integer("length"), integer("position"), integer("block_size")
    blocks = block_count(length, block_size)
    return Statement(
        given=[block_size >= 1, position >= 0, position < length],
        claim=every(
            [
                block_index(position, block_size) < blocks,
                block_index(length - 1, block_size) == blocks - 1,
            ]
        ),
    )


# --- decode steps ---------------------------------------------------------------------------------


def blocks_after_append(computed: Number, block_size: Number, reading: NewBlock) -> Number:
    """Blocks of a sequence when its newest token is computed, which stands behind `computed`.

    Before the step it holds the blocks of its computed tokens.
    """
    starts = starts_block(computed + 1, block_size, reading)
    return block_count(computed, block_size) + select(starts, 1, 0)


def _has_a_place(integer: Integer, reading: NewBlock) -> Truth:
    computed, block_size = integer("computed"), integer("block_size")
    blocks = blocks_after_append(computed, block_size, reading)
    return block_index(computed, block_size) < blocks


def _matches_the_tokens(integer: Integer, reading: NewBlock) -> Truth:
    computed, block_size = integer("computed"), integer("block_size")
    blocks = blocks_after_append(computed, block_size, reading)
    return blocks == block_count(computed + 1, block_size)


def _decoding(integer: Integer) -> list[Truth]:
    return [integer("block_size") >= LEAST_BLOCK, integer("computed") >= 1]


def _at_boundary(numbers: Numbers) -> tuple[NanoVllmConfig, list[Request]]:
    """A prompt of so many tokens, then one decode step."""
    computed, block_size = numbers["computed"], numbers["block_size"]
    length = computed + 2
    config = NanoVllmConfig(
        block_size=block_size,
        num_blocks=length,
        max_model_len=length,
        max_num_batched_tokens=length,
        new_block=NewBlock.AT_BOUNDARY,
    )
    return config, run_alone(computed, 2)


@obligation(
    "PRV-NANO-DEC-1",
    "With a new block at the length after a boundary, a decode step's newest token has its place, "
    "and the table has exactly the blocks of the tokens.",
    bounds=_ANY_LENGTH,
    rules=["NANO-DEC-3", "NANO-BLK-4", "NANO-SLT-1"],
)
def after_boundary_is_in_time(integer: Integer) -> Statement:
    """As released: 257 tokens need a second block of 256."""
    return Statement(
        given=_decoding(integer),
        claim=every(
            [
                _has_a_place(integer, NewBlock.AFTER_BOUNDARY),
                _matches_the_tokens(integer, NewBlock.AFTER_BOUNDARY),
            ]
        ),
    )


@obligation(
    "PRV-NANO-DEC-2",
    "With a new block at a boundary, a decode step's newest token has its place.",
    bounds=_ANY_LENGTH,
    rules=["NANO-SLT-1"],
    expected=Verdict.REFUTED,
    scenario=_at_boundary,
)
def at_boundary_is_in_time(integer: Integer) -> Statement:
    """False: a prompt of whole blocks was never at the boundary in a decode step."""
    return Statement(given=_decoding(integer), claim=_has_a_place(integer, NewBlock.AT_BOUNDARY))


@obligation(
    "PRV-NANO-DEC-3",
    "With a new block at a boundary, the table has exactly the blocks of the tokens.",
    bounds=_ANY_LENGTH,
    rules=["NANO-DEC-3", "NANO-BLK-4"],
    expected=Verdict.REFUTED,
    scenario=_at_boundary,
)
def at_boundary_matches_the_tokens(integer: Integer) -> Statement:
    """False: the token that fills a block is handed the next one, too."""
    return Statement(
        given=_decoding(integer), claim=_matches_the_tokens(integer, NewBlock.AT_BOUNDARY)
    )


@obligation(
    "PRV-NANO-DEC-4",
    "`can_append` is enough and asks for no more: whoever passes finds its block, and whoever is "
    "refused needs one and none is free.",
    bounds="every length, every block size, any number of free blocks, both readings of a boundary",
    rules=["NANO-DEC-3", "NANO-PRE-1"],
)
def can_append_is_exact(integer: Integer) -> Statement:
    """So somebody is preempted only if no block is free."""
    free, length, block_size = integer("free"), integer("length"), integer("block_size")

    def claim(reading: NewBlock) -> Truth:
        starts = starts_block(length, block_size, reading)
        left = free - select(starts, 1, 0)
        refused = every([starts, free == 0])
        return select(can_append(free, length, block_size, reading), left >= 0, refused)

    return Statement(
        given=[block_size >= LEAST_BLOCK, free >= 0, length >= 1],
        claim=every(claim(reading) for reading in NewBlock),
    )


@obligation(
    "PRV-NANO-DEC-5",
    "A sequence has as many hashed blocks as full ones, after a decode step as before it.",
    bounds=_ANY_LENGTH,
    rules=["NANO-PFX-1"],
)
def full_blocks_are_hashed(integer: Integer) -> Statement:
    """The token that fills a block has it hashed."""
    computed, block_size = integer("computed"), integer("block_size")
    full, full_then = (floor_div(length, block_size) for length in (computed, computed + 1))
    more = select(fills_block(computed + 1, block_size), 1, 0)
    return Statement(given=_decoding(integer), claim=full + more == full_then)


# --- progress -------------------------------------------------------------------------------------


def _front_has_room(integer: Integer) -> Truth:
    """The front of running, once all others are preempted, finds a slot for its newest token."""
    computed, block_size = integer("computed"), integer("block_size")
    free = integer("num_blocks") - block_count(computed, block_size)
    return can_append(free, computed + 1, block_size, NewBlock.AFTER_BOUNDARY)


def _running(integer: Integer) -> list[Truth]:
    """It holds its blocks, and of its answer a token is missing."""
    computed, block_size = integer("computed"), integer("block_size")
    return [
        *_decoding(integer),
        block_count(computed, block_size) <= integer("num_blocks"),
        computed + 1 < integer("total"),
    ]


def _outgrows_the_pool(numbers: Numbers) -> tuple[NanoVllmConfig, list[Request]]:
    """A prompt that fits, with an answer that does not."""
    total = numbers["total"]
    config = NanoVllmConfig(
        block_size=numbers["block_size"],
        num_blocks=numbers["num_blocks"],
        max_model_len=total,
        max_num_batched_tokens=total,
        oversized=Oversized.QUEUED,
    )
    return config, run_alone(numbers["computed"], total - numbers["computed"])


@obligation(
    "PRV-NANO-DEC-6",
    "In a decode step at least the front of running gets a token, where requests that the pool can "
    "never hold are refused.",
    bounds=f"{_ANY_LENGTH}, pool and output; any number of sequences",
    rules=["NANO-LIF-7"],
)
def the_front_gets_a_token(integer: Integer) -> Statement:
    """`total`: prompt and longest answer, whose last token is never written."""
    fits = block_count(integer("total") - 1, integer("block_size")) <= integer("num_blocks")
    return Statement(given=[*_running(integer), fits], claim=_front_has_room(integer))


@obligation(
    "PRV-NANO-DEC-7",
    "In a decode step at least the front of running gets a token, whoever is let in.",
    bounds=f"{_ANY_LENGTH}, pool and output",
    rules=["NANO-LIF-6", "NANO-LIF-7"],
    expected=Verdict.REFUTED,
    scenario=_outgrows_the_pool,
)
def the_front_gets_a_token_if_anybody_is_let_in(integer: Integer) -> Statement:
    """False as released: a request that outgrows the pool preempts itself, and starts again."""
    return Statement(given=_running(integer), claim=_front_has_room(integer))
