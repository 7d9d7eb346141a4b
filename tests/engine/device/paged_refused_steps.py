"""Steps that the paged device refuses, each one change away from a legal step."""

from functools import partial

from attrs import evolve

from engine.core.faults import Constraint
from engine.paged.inputs import PagedShape, Transfers
from tests.engine.device.batches import PagedRow, paged_input
from tests.engine.device.refused_steps import Case, Cases, changed, int32

SHAPE = PagedShape(
    block_size=4,
    first_block=1,
    num_blocks=8,
    max_model_len=16,
    max_num_seqs=3,
    max_num_batched_tokens=10,
    captured_sizes=(1, 2),
    num_cpu_blocks=3,
)

# Three rows that have been computed so far: 6 tokens in blocks 1 and 2, 3 tokens in block 3, and of
# ten tokens the first four in block 4. The next step writes one token of the first, one of the
# second and all that are left of the third.
#
#     first    block 1: 10 11 12 13 | block 2: 14 15  .  .
#     second   block 3: 20 21 22  .
#     third    block 4: 30 31 32 33 | block 5:  .  .  .  . | block 6:  .  .  .  .
BEFORE = paged_input(PagedRow([10, 11, 12, 13, 14, 15], 0, [1, 2]), PagedRow([20, 21, 22], 0, [3]))
CHUNK = paged_input(PagedRow([30, 31, 32, 33], 0, [4, 5, 6], samples=0))
BATCH = paged_input(
    PagedRow([16], 6, [1, 2]),
    PagedRow([23], 3, [3]),
    PagedRow([34, 35, 36, 37, 38, 39], 4, [4, 5, 6]),
)
DECODE = paged_input(PagedRow([16], 6, [1, 2]), PagedRow([23], 3, [3]), is_captured=True)

# The first row computes its last two tokens again, as if they had been drafts; or only the last,
# and it is another one.
AGAIN = paged_input(PagedRow([14, 15], 4, [1, 2], samples=2))
OTHER_TOKEN = paged_input(PagedRow([99], 5, [1, 2]))

# A newcomer finds block 1 in the cache and goes on in block 7.
SHARING = paged_input(PagedRow([17], 4, [1, 7]))

# The first row was swapped out; now the second is, the first comes back and its end is copied.
SWAPPED = Transfers.of(swaps_out=[(1, 1), (2, 2)])
TRANSFERS = Transfers.of(swaps_out=[(3, 3)], swaps_in=[(1, 1), (2, 2)], copies=[(2, 7)])

batch = partial(changed, BATCH)
C = Constraint
PAGED_CASES: Cases = {
    C.DTYPE: {
        "32-bit slots": Case(
            batch(slot_mapping=int32(BATCH.slot_mapping)), "tensor slot_mapping, dtype int32"
        ),
        "32-bit pairs of blocks": Case(
            evolve(TRANSFERS, copies=int32(TRANSFERS.copies)), "tensor copies, dtype int32"
        ),
    },
    C.SHAPE: {
        "a flat block table": Case(batch(block_tables=[1, 2]), "tensor block_tables, shape (2,)"),
        "a context for two rows of three": Case(
            batch(context_lens=[7, 4]), "tensor context_lens, shape (2,), expected (3,)"
        ),
        "a flat list of blocks that are copied": Case(
            changed(TRANSFERS, copies=[2, 7]), "tensor copies, shape (2,), expected (1, 2)"
        ),
    },
    C.TOKEN_ID: {
        "a token id that is too large": Case(
            batch(token_ids={2: 2**31}), "token 2, token_id 2147483648, largest 2147483647"
        ),
    },
    C.LENGTHS: {
        "rows that end before the batch does": Case(
            batch(cu_seqlens_q={3: 7}), "first 0, last 7, tokens 8"
        ),
        "a context that is one too long": Case(
            batch(context_lens={1: 5}), "row 1, cached 3, computed 1, context 5"
        ),
    },
    C.EMPTY_QUERY: {
        "a row that computes nothing, as all of it is cached": Case(
            batch(cu_seqlens_q=[0, 2, 2, 8], cached_lens=[5, 4, 4]), "row 1, computed 0, cached 4"
        ),
    },
    C.SAMPLED: {
        "a sample behind the batch": Case(
            batch(logits_indices={2: 8}), "sample 2, place 8, tokens 8"
        ),
    },
    C.BATCH_LIMIT: {
        "more rows than there is room for": Case(
            BATCH, "rows 3, max_num_seqs 2", config={"max_num_seqs": 2}
        ),
        "more tokens than there is room for": Case(
            BATCH, "tokens 8, max_num_batched_tokens 7", config={"max_num_batched_tokens": 7}
        ),
    },
    C.CAPTURED_SIZE: {
        "a decode that no captured size holds": Case(
            DECODE, "rows 2, tokens 2, largest 1", config={"captured_sizes": (1,)}
        ),
        "a prefill that replays a captured decode": Case(
            batch(is_captured={0: 1}),
            "rows 3, tokens 8, largest 4",
            config={"captured_sizes": (4,)},
        ),
    },
    C.TABLE: {
        "a block that the pool does not have": Case(
            batch(block_tables={(2, 1): 9}), "row 2, column 1, block 9, last_block 8"
        ),
        "a hole in a table": Case(
            batch(block_tables={(2, 1): -1}), "row 2, column 2, block 6, last_block 8"
        ),
    },
    C.TABLE_LENGTH: {
        "more tokens than the blocks of the table hold": Case(
            batch(block_tables={(2, 2): -1}), "row 2, blocks 2, context 10"
        ),
    },
    C.NEXT_POSITION: {
        "a position left out": Case(batch(positions={4: 7}), "token 4, position 7, expected 6"),
    },
    C.MODEL_LENGTH: {
        "a position that the model does not know": Case(
            BATCH, "token 7, position 9, max_model_len 9", config={"max_model_len": 9}
        ),
    },
    C.SLOT: {
        "a slot of the null block": Case(
            batch(slot_mapping={1: 3}), "token 1, slot 3, first_slot 4, last_slot 35"
        ),
    },
    C.WRITE_OUTSIDE: {
        "a slot of another row's block": Case(
            batch(slot_mapping={1: 11}), "token 1, slot 11, block 2, expected 3"
        ),
    },
    C.WRITE_OFFSET: {
        "a slot that is one too far": Case(
            batch(slot_mapping={0: 11}), "token 0, slot 11, offset 3, expected 2"
        ),
    },
    C.WRITE_HELD: {
        "one block for two rows that write": Case(
            batch(block_tables={(0, 1): 3}, slot_mapping={0: 14}), "token 0, block 3, holders 2"
        ),
        "a block that another row holds for later": Case(
            batch(block_tables={(1, 1): 2}), "token 0, block 2, holders 2"
        ),
    },
    C.WRITE_GAP: {
        "a block that is begun behind its first slot": Case(
            batch(block_tables={(0, 1): 7}, slot_mapping={0: 30}),
            "token 0, block 7, slot 2, written 0",
        ),
    },
    C.REWRITE: {
        "another token inside a block where nothing is a draft": Case(
            OTHER_TOKEN, "token 0, block 2, slot 1, written 2"
        ),
        "another token further back than drafts reach": Case(
            OTHER_TOKEN,
            "token 0, block 2, slot 1, written 4",
            before=(
                DECODE,
                paged_input(PagedRow([17], 7, [1, 2]), PagedRow([40], 4, [3, 7]), is_captured=True),
            ),
            config={"num_speculative_tokens": 2},
        ),
    },
    C.READ_UNWRITTEN: {
        "a cached block that was never written": Case(
            changed(SHARING, block_tables=[[8, 7]]), "row 0, column 0, block 8, read 4, written 0"
        ),
    },
    C.READ_POSITION: {
        "a first block in second place": Case(
            paged_input(PagedRow([17], 8, [1, 3, 7])),
            "row 0, column 1, block 3, position 4, written_for 0",
            before=(DECODE,),
        ),
    },
    C.READ_CONTENT: {
        "a block behind other tokens than it was written behind": Case(
            batch(block_tables={(0, 0): 4}), "row 0, column 1, block 2, position 4"
        ),
    },
    C.TRANSFER_BLOCK: {
        "a swap to a block that the CPU does not have": Case(
            Transfers.of(swaps_out=[(1, 1), (2, 4)]), "pair 1, side 1, block 4, last_block 3"
        ),
        "a copy of a block that the GPU does not have": Case(
            Transfers.of(copies=[(9, 7)]), "pair 0, side 0, block 9, last_block 8"
        ),
    },
    C.TRANSFER_TARGET: {
        "two blocks that are swapped out to one": Case(
            Transfers.of(swaps_out=[(1, 1), (2, 1)]), "pair 0, source 1, target 1, other 2"
        ),
    },
    C.TRANSFER_READ: {
        "a block that is copied on as it is copied to": Case(
            Transfers.of(copies=[(7, 8), (1, 7)]), "pair 1, source 1, target 7"
        ),
    },
    C.SWAP_SOURCE: {
        "a swap from a block that holds nothing": Case(
            Transfers.of(swaps_in=[(1, 7), (3, 8)]),
            "pair 1, source 3, target 8",
            before=(SWAPPED,),
        ),
    },
    C.SWAP_ORDER: {
        "a block that makes room for what comes in": Case(
            Transfers.of(swaps_out=[(3, 3), (4, 2)], swaps_in=[(1, 4)]),
            "pair 1, side 0, block 4",
            before=(SWAPPED,),
        ),
        "a block that goes out to what comes in": Case(
            Transfers.of(swaps_out=[(3, 1)], swaps_in=[(1, 7)]),
            "pair 0, side 1, block 1",
            before=(SWAPPED,),
        ),
    },
}
