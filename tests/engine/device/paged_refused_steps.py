"""Steps that the paged device refuses, each one change away from a legal step."""

from typing import Any

import numpy as np
from attrs import evolve, field, frozen

from engine.core.faults import Constraint
from engine.paged.inputs import PagedInput, PagedShape
from tests.engine.device.refused_steps import changed

SHAPE = PagedShape(
    block_size=4,
    first_block=1,
    num_blocks=8,
    max_model_len=16,
    max_num_seqs=3,
    max_num_batched_tokens=10,
    captured_sizes=(1, 2),
)

# Three rows that have been computed so far: 6 tokens in blocks 1 and 2, 3 tokens in block 3, and of
# ten tokens the first four in block 4. The next step writes one token of the first, one of the
# second and all that are left of the third.
#
#     first    block 1: 10 11 12 13 | block 2: 14 15  .  .
#     second   block 3: 20 21 22  .
#     third    block 4: 30 31 32 33 | block 5:  .  .  .  . | block 6:  .  .  .  .
BEFORE = PagedInput(
    token_ids=np.array([10, 11, 12, 13, 14, 15, 20, 21, 22]),
    positions=np.array([0, 1, 2, 3, 4, 5, 0, 1, 2]),
    slot_mapping=np.array([4, 5, 6, 7, 8, 9, 12, 13, 14]),
    cu_seqlens_q=np.array([0, 6, 9]),
    cached_lens=np.array([0, 0]),
    context_lens=np.array([6, 3]),
    block_tables=np.array([[1, 2], [3, -1]]),
    logits_indices=np.array([5, 8]),
    is_captured=np.array([0]),
)
CHUNK = PagedInput(
    token_ids=np.array([30, 31, 32, 33]),
    positions=np.array([0, 1, 2, 3]),
    slot_mapping=np.array([16, 17, 18, 19]),
    cu_seqlens_q=np.array([0, 4]),
    cached_lens=np.array([0]),
    context_lens=np.array([4]),
    block_tables=np.array([[4, 5, 6]]),
    logits_indices=np.array([], np.int64),
    is_captured=np.array([0]),
)
BATCH = PagedInput(
    token_ids=np.array([16, 23, 34, 35, 36, 37, 38, 39]),
    positions=np.array([6, 3, 4, 5, 6, 7, 8, 9]),
    slot_mapping=np.array([10, 15, 20, 21, 22, 23, 24, 25]),
    cu_seqlens_q=np.array([0, 1, 2, 8]),
    cached_lens=np.array([6, 3, 4]),
    context_lens=np.array([7, 4, 10]),
    block_tables=np.array([[1, 2, -1], [3, -1, -1], [4, 5, 6]]),
    logits_indices=np.array([0, 1, 7]),
    is_captured=np.array([0]),
)
DECODE = PagedInput(
    token_ids=np.array([16, 23]),
    positions=np.array([6, 3]),
    slot_mapping=np.array([10, 15]),
    cu_seqlens_q=np.array([0, 1, 2]),
    cached_lens=np.array([6, 3]),
    context_lens=np.array([7, 4]),
    block_tables=np.array([[1, 2], [3, -1]]),
    logits_indices=np.array([0, 1]),
    is_captured=np.array([1]),
)

# The first row computes its last two tokens again, as if they had been drafts.
AGAIN = evolve(
    DECODE,
    token_ids=np.array([14, 15]),
    positions=np.array([4, 5]),
    slot_mapping=np.array([8, 9]),
    cu_seqlens_q=np.array([0, 2]),
    cached_lens=np.array([4]),
    context_lens=np.array([6]),
    block_tables=np.array([[1, 2]]),
    is_captured=np.array([0]),
)

# The first row computes its last token again, and it is another one.
OTHER_TOKEN = evolve(
    AGAIN,
    token_ids=np.array([99]),
    positions=np.array([5]),
    slot_mapping=np.array([9]),
    cu_seqlens_q=np.array([0, 1]),
    cached_lens=np.array([5]),
    logits_indices=np.array([0]),
)

# A newcomer finds block 1 in the cache and goes on in block 7.
SHARING = evolve(
    DECODE,
    token_ids=np.array([17]),
    positions=np.array([4]),
    slot_mapping=np.array([28]),
    cu_seqlens_q=np.array([0, 1]),
    cached_lens=np.array([4]),
    context_lens=np.array([5]),
    block_tables=np.array([[1, 7]]),
    logits_indices=np.array([0]),
)


@frozen
class PagedCase:
    """`step` breaks `constraint`; the sizes and what was done before may differ, too."""

    name: str
    constraint: Constraint
    step: PagedInput
    numbers: dict[str, int | str]
    before: tuple[PagedInput, ...] = ()
    shape: dict[str, Any] = field(factory=dict)


C = Constraint
PAGED_CASES = [
    PagedCase(
        "32-bit slots",
        C.DTYPE,
        evolve(BATCH, slot_mapping=BATCH.slot_mapping.astype(np.int32)),
        {"tensor": "slot_mapping", "dtype": "int32"},
    ),
    PagedCase(
        "a flat block table",
        C.SHAPE,
        changed(BATCH, block_tables=[1, 2]),
        {"tensor": "block_tables", "shape": "(2,)"},
    ),
    PagedCase(
        "a context for two rows of three",
        C.SHAPE,
        changed(BATCH, context_lens=[7, 4]),
        {"tensor": "context_lens", "shape": "(2,)", "expected": "(3,)"},
    ),
    PagedCase(
        "a token id that is too large",
        C.TOKEN_ID,
        changed(BATCH, token_ids={2: 2**31}),
        {"token": 2, "token_id": 2**31, "largest": 2**31 - 1},
    ),
    PagedCase(
        "rows that end before the batch does",
        C.LENGTHS,
        changed(BATCH, cu_seqlens_q={3: 7}),
        {"first": 0, "last": 7, "tokens": 8},
    ),
    PagedCase(
        "a context that is one too long",
        C.LENGTHS,
        changed(BATCH, context_lens={1: 5}),
        {"row": 1, "cached": 3, "computed": 1, "context": 5},
    ),
    PagedCase(
        "a cached length that is one too short",
        C.LENGTHS,
        changed(BATCH, cached_lens={0: 5}),
        {"row": 0, "cached": 5, "computed": 1, "context": 7},
    ),
    PagedCase(
        "a row that computes nothing, as all of it is cached",
        C.EMPTY_QUERY,
        changed(BATCH, cu_seqlens_q=[0, 2, 2, 8], cached_lens=[5, 4, 4]),
        {"row": 1, "computed": 0, "cached": 4},
    ),
    PagedCase(
        "a sample behind the batch",
        C.SAMPLED,
        changed(BATCH, logits_indices={2: 8}),
        {"sample": 2, "place": 8, "tokens": 8},
    ),
    PagedCase(
        "samples out of order",
        C.SAMPLED,
        changed(BATCH, logits_indices=[1, 0, 7]),
        {"sample": 1, "place": 0, "tokens": 8},
    ),
    PagedCase(
        "more rows than there is room for",
        C.BATCH_LIMIT,
        BATCH,
        {"rows": 3, "max_num_seqs": 2},
        shape={"max_num_seqs": 2},
    ),
    PagedCase(
        "more tokens than there is room for",
        C.BATCH_LIMIT,
        BATCH,
        {"tokens": 8, "max_num_batched_tokens": 7},
        shape={"max_num_batched_tokens": 7},
    ),
    PagedCase(
        "a decode that no captured size holds",
        C.CAPTURED_SIZE,
        DECODE,
        {"rows": 2, "tokens": 2, "largest": 1},
        shape={"captured_sizes": (1,)},
    ),
    PagedCase(
        "a prefill that replays a captured decode",
        C.CAPTURED_SIZE,
        changed(BATCH, is_captured={0: 1}),
        {"rows": 3, "tokens": 8, "largest": 4},
        shape={"captured_sizes": (4,)},
    ),
    PagedCase(
        "a block that the pool does not have",
        C.TABLE,
        changed(BATCH, block_tables={(2, 1): 9}),
        {"row": 2, "column": 1, "block": 9, "last_block": 8},
    ),
    PagedCase(
        "the null block",
        C.TABLE,
        changed(BATCH, block_tables={(0, 0): 0}),
        {"row": 0, "column": 0, "block": 0, "last_block": 8},
    ),
    PagedCase(
        "a hole in a table",
        C.TABLE,
        changed(BATCH, block_tables={(2, 1): -1}),
        {"row": 2, "column": 2, "block": 6, "last_block": 8},
    ),
    PagedCase(
        "more tokens than the blocks of the table hold",
        C.TABLE_LENGTH,
        changed(BATCH, block_tables={(2, 2): -1}),
        {"row": 2, "blocks": 2, "context": 10},
    ),
    PagedCase(
        "a position left out",
        C.NEXT_POSITION,
        changed(BATCH, positions={4: 7}),
        {"token": 4, "position": 7, "expected": 6},
    ),
    PagedCase(
        "a position that the model does not know",
        C.MODEL_LENGTH,
        BATCH,
        {"token": 7, "position": 9, "max_model_len": 9},
        shape={"max_model_len": 9},
    ),
    PagedCase(
        "a slot of the null block",
        C.SLOT,
        changed(BATCH, slot_mapping={1: 3}),
        {"token": 1, "slot": 3, "first_slot": 4, "last_slot": 35},
    ),
    PagedCase(
        "a slot behind the pool",
        C.SLOT,
        changed(BATCH, slot_mapping={1: 36}),
        {"token": 1, "slot": 36, "first_slot": 4, "last_slot": 35},
    ),
    PagedCase(
        "a slot of another row's block",
        C.WRITE_OUTSIDE,
        changed(BATCH, slot_mapping={1: 11}),
        {"token": 1, "slot": 11, "block": 2, "expected": 3},
    ),
    PagedCase(
        "a slot that is one too far",
        C.WRITE_OFFSET,
        changed(BATCH, slot_mapping={0: 11}),
        {"token": 0, "slot": 11, "offset": 3, "expected": 2},
    ),
    PagedCase(
        "one block for two rows that write",
        C.WRITE_HELD,
        changed(BATCH, block_tables={(0, 1): 3}, slot_mapping={0: 14}),
        {"token": 0, "block": 3, "holders": 2},
    ),
    PagedCase(
        "a block that somebody else holds for later",
        C.WRITE_HELD,
        changed(BATCH, block_tables={(1, 1): 2}),
        {"token": 0, "block": 2, "holders": 2},
    ),
    PagedCase(
        "a block that is begun behind its first slot",
        C.WRITE_GAP,
        changed(BATCH, block_tables={(0, 1): 7}, slot_mapping={0: 30}),
        {"token": 0, "block": 7, "slot": 2, "written": 0},
    ),
    PagedCase(
        "another token inside a block where nothing is a draft",
        C.REWRITE,
        OTHER_TOKEN,
        {"token": 0, "block": 2, "slot": 1, "written": 2},
    ),
    PagedCase(
        "another token further back than drafts reach",
        C.REWRITE,
        OTHER_TOKEN,
        {"token": 0, "block": 2, "slot": 1, "written": 4},
        before=(
            DECODE,
            changed(
                DECODE,
                token_ids=[17, 40],
                positions=[7, 4],
                slot_mapping=[11, 28],
                cached_lens=[7, 4],
                context_lens=[8, 5],
                block_tables=[[1, 2], [3, 7]],
            ),
        ),
        shape={"num_speculative_tokens": 2},
    ),
    PagedCase(
        "a cached block that nobody has written",
        C.READ_UNWRITTEN,
        changed(SHARING, block_tables=[[8, 7]]),
        {"row": 0, "column": 0, "block": 8, "read": 4, "written": 0},
    ),
    PagedCase(
        "a cached block that is not full",
        C.READ_UNWRITTEN,
        changed(SHARING, block_tables=[[2, 7]]),
        {"row": 0, "column": 0, "block": 2, "read": 4, "written": 2},
    ),
    PagedCase(
        "a first block in second place",
        C.READ_POSITION,
        changed(
            SHARING,
            positions=[8],
            cached_lens=[8],
            context_lens=[9],
            block_tables=[[1, 3, 7]],
        ),
        {"row": 0, "column": 1, "block": 3, "position": 4, "written_for": 0},
        before=(DECODE,),
    ),
    PagedCase(
        "a block behind other tokens than it was written behind",
        C.READ_CONTENT,
        changed(BATCH, block_tables={(0, 0): 4}),
        {"row": 0, "column": 1, "block": 2, "position": 4},
    ),
]
