"""Steps that the device refuses, several for each constraint, one change away from a legal step."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from attrs import evolve, field, frozen

from engine.core.faults import Constraint
from engine.core.tensors import Tensor
from engine.spyre.device import DecodeInput, PrefillInput
from tests.engine.device.batches import Row, config, decode_input, prefill_input

# Two rows that have been prefilled: of 6 tokens in blocks 1 and 2, of 3 tokens in block 3. The
# next step writes position 6 of the first to slot 10 and position 3 of the second to slot 15.
#
#     first    1 2 | block 1: 10 11 12 13 | block 2: 14 15 16  .
#     second   0 3 |     left padding     | block 3: 20 21 22 23
FIRST = Row.of([10, 11, 12, 13, 14, 15], [1, 2])
SECOND = Row.of([20, 21, 22], [3])
BATCH = decode_input(
    config(),
    [evolve(FIRST, tokens=[*FIRST.tokens, 16]), evolve(SECOND, tokens=[*SECOND.tokens, 23])],
)

# A prompt of 10 tokens after 4 of left padding; its first chunk is there, in block 4.
#
#     0 4 | left padding | block 4: 30 31 32 33
#     5 6 | block 5: 34 35 36 37 | block 6: 38 39  .  .
THIRD = Row.of([30, 31, 32, 33, 34, 35, 36, 37, 38, 39], [4, 5, 6])
CHUNK = prefill_input(config(), THIRD, 1)

Step = PrefillInput | DecodeInput


def with_values(tensor: Tensor, changes: Mapping[Any, int]) -> Tensor:
    changed = tensor.copy()
    for place, value in changes.items():
        changed[place] = value
    return changed


def changed(given: Any, **changes: Mapping[Any, int] | list[Any]) -> Any:
    """The step with other values at some places of a tensor, or with another tensor."""
    tensors = {
        name: np.array(one) if isinstance(one, list) else with_values(getattr(given, name), one)
        for name, one in changes.items()
    }
    return evolve(given, **tensors)


@frozen
class Case:
    """`step` breaks `constraint`; the configuration and what was done before may differ, too."""

    name: str
    constraint: Constraint
    step: Step
    numbers: dict[str, int | str]
    before: tuple[Step, ...] = ()
    config: dict[str, int] = field(factory=dict)


def int32(tensor: Tensor) -> Any:
    return tensor.astype(np.int32)


C = Constraint
FORM = [
    Case(
        "32-bit tokens in a decode",
        C.DTYPE,
        evolve(BATCH, token_ids=int32(BATCH.token_ids)),
        {"tensor": "token_ids", "dtype": "int32"},
    ),
    Case(
        "32-bit slots in a prefill",
        C.DTYPE,
        evolve(CHUNK, slot_mapping=int32(CHUNK.slot_mapping)),
        {"tensor": "slot_mapping", "dtype": "int32"},
    ),
    Case(
        "a position for one row of two",
        C.SHAPE,
        changed(BATCH, positions=[6]),
        {"tensor": "positions", "shape": "(1,)", "expected": "(2,)"},
    ),
    Case(
        "a flat block table in a decode",
        C.SHAPE,
        changed(BATCH, block_table=[1, 2]),
        {"tensor": "block_table", "shape": "(2,)"},
    ),
    Case(
        "no row at all",
        C.SHAPE,
        evolve(BATCH, block_table=BATCH.block_table[:0]),
        {"tensor": "block_table", "shape": "(0, 2)"},
    ),
    Case(
        "a flat block table in a prefill",
        C.SHAPE,
        changed(CHUNK, block_table=[0, 4, 5, 6]),
        {"tensor": "block_table", "shape": "(4,)"},
    ),
    Case(
        "a table that ends before its chunk",
        C.SHAPE,
        changed(CHUNK, block_table=[[0, 4, 5]]),
        {"tensor": "block_table", "shape": "(1, 3)", "expected": "(1, 4)"},
    ),
    Case(
        "two lengths for one prompt",
        C.SHAPE,
        changed(CHUNK, length=[14, 14]),
        {"tensor": "length", "shape": "(2,)", "expected": "(1,)"},
    ),
    Case(
        "a token id below 0",
        C.TOKEN_ID,
        changed(BATCH, token_ids={1: -1}),
        {"row": 1, "token_id": -1, "largest": 2**31 - 1},
    ),
    Case(
        "a token id that is too large",
        C.TOKEN_ID,
        changed(CHUNK, token_ids={0: 2**31}),
        {"token": 0, "token_id": 2**31, "largest": 2**31 - 1},
    ),
    Case(
        "a token in the right padding",
        C.TOKEN_ID,
        changed(CHUNK, token_ids={6: 1}),
        {"token": 6, "token_id": 1, "largest": 0},
    ),
    Case(
        "a block that the pool does not have",
        C.BLOCK_ID,
        changed(BATCH, block_table={(0, 0): 41}),
        {"row": 0, "column": 0, "block": 41, "last_block": 40},
    ),
    Case(
        "a block below 0",
        C.BLOCK_ID,
        changed(CHUNK, block_table={(0, 1): -1}),
        {"row": 0, "column": 1, "block": -1, "last_block": 40},
    ),
    Case(
        "a padded position",
        C.POSITION,
        changed(BATCH, positions={1: 7}),
        {"row": 1, "position": 7, "expected": 3},
    ),
    Case(
        "positions that are not counted on from the chunk before",
        C.POSITION,
        changed(CHUNK, positions={0: 0}),
        {"token": 0, "position": 0, "expected": 4},
    ),
    Case(
        "a position in the right padding",
        C.POSITION,
        changed(CHUNK, positions={6: 10}),
        {"token": 6, "position": 10, "expected": 0},
    ),
    Case(
        "a row that outgrows the model",
        C.MODEL_LENGTH,
        BATCH,
        {"row": 0, "position": 6, "max_model_len": 6},
        config={"max_model_len": 6},
    ),
    Case(
        "a prompt that outgrows the model",
        C.MODEL_LENGTH,
        CHUNK,
        {"token": 5, "position": 9, "max_model_len": 9},
        config={"max_model_len": 9},
    ),
]
LIMITS = [
    Case(
        "more rows than slots",
        C.BATCH_SIZE,
        BATCH,
        {"rows": 2, "max_num_seqs": 1},
        config={"max_num_seqs": 1},
    ),
    Case(
        "a prefill of two prompts",
        C.BATCH_SIZE,
        changed(CHUNK, block_table=[[0, 4, 5, 6], [0, 4, 5, 6]]),
        {"rows": 2, "allowed": 1},
    ),
    Case(
        "a batch over the limit",
        C.VOLUME,
        BATCH,
        {"rows": 2, "tkv": 8, "limit": 15},
        config={"max_batch_tkv_limit": 15},
    ),
    Case(
        "a prompt over the limit",
        C.VOLUME,
        CHUNK,
        {"rows": 1, "tkv": 10, "limit": 9},
        config={"max_batch_tkv_limit": 9},
    ),
]
LAYOUT = [
    Case(
        "padding inside a block of a row",
        C.LEFT_PADDING,
        changed(BATCH, left_padding={1: 3}, tkv={1: 7}, slot_mapping={1: 14}),
        {"row": 1, "left_padding": 3, "block_size": 4, "width": 2},
    ),
    Case(
        "a row that is all padding",
        C.LEFT_PADDING,
        changed(BATCH, left_padding={1: 8}),
        {"row": 1, "left_padding": 8, "block_size": 4, "width": 2},
    ),
    Case(
        "a row that begins before the table",
        C.LEFT_PADDING,
        changed(BATCH, left_padding={1: -4}),
        {"row": 1, "left_padding": -4, "block_size": 4, "width": 2},
    ),
    Case(
        "padding inside a block of a prompt",
        C.LEFT_PADDING,
        changed(CHUNK, left_padding=[2]),
        {"left_padding": 2, "block_size": 4},
    ),
    Case(
        "a chunk of padding",
        C.LEFT_PADDING,
        changed(CHUNK, left_padding=[8]),
        {"left_padding": 8, "block_size": 4},
    ),
    Case(
        "a column of padding",
        C.EXCESS_PADDING,
        changed(BATCH, block_table=[[0, 1, 2], [0, 0, 3]], left_padding=[4, 8], tkv=[11, 12]),
        {"least_left_padding": 4},
    ),
    Case(
        "another block in the padding of a row",
        C.PADDING_BLOCKS,
        changed(BATCH, block_table={(1, 0): 1}),
        {"row": 1, "column": 0, "block": 1, "padding_blocks": 1},
    ),
    Case(
        "block 0 inside a row",
        C.PADDING_BLOCKS,
        changed(BATCH, block_table={(0, 0): 0}),
        {"row": 0, "column": 0, "block": 0, "padding_blocks": 0},
    ),
    Case(
        "another block in the padding of a prompt",
        C.PADDING_BLOCKS,
        changed(CHUNK, block_table={(0, 0): 3}),
        {"row": 0, "column": 0, "block": 3, "padding_blocks": 1},
    ),
    Case(
        "block 0 inside a prompt",
        C.PADDING_BLOCKS,
        changed(CHUNK, block_table={(0, 1): 0}),
        {"row": 0, "column": 1, "block": 0, "padding_blocks": 1},
    ),
    Case(
        "a last block that is empty in every row",
        C.EMPTY_LAST_BLOCK,
        changed(BATCH, block_table=[[1, 2, 7], [0, 3, 8]]),
        {"blocks": 2, "width": 3},
    ),
    Case(
        "a prompt that ends in the last block but one",
        C.EMPTY_LAST_BLOCK,
        changed(
            CHUNK,
            length=[12],
            token_ids={4: 0, 5: 0},
            positions={4: 0, 5: 0},
            slot_mapping={4: 0, 5: 0},
        ),
        {"length": 12, "last_block_from": 12},
    ),
    Case(
        "a short row that is padded on the right",
        C.RECTANGLE,
        changed(BATCH, block_table={(1, 0): 3, (1, 1): 7}, left_padding={1: 0}, tkv={1: 4}),
        {"row": 1, "tkv": 4, "blocks": 1, "most_blocks": 2},
    ),
    Case(
        "rows that reach beyond the table",
        C.RECTANGLE,
        changed(BATCH, block_table=[[2], [3]], left_padding=[0, 0]),
        {"blocks": 2, "width": 1},
    ),
    Case(
        "a chunk of seven tokens",
        C.CHUNK,
        changed(CHUNK, token_ids=[34, 35, 36, 37, 38, 39, 0]),
        {"tokens": 7, "chunk_size": 8},
    ),
    Case("a chunk before the prompt", C.CHUNK, changed(CHUNK, chunk=[-1]), {"chunk": -1}),
    Case(
        "right padding in a chunk that is not the last",
        C.CHUNK,
        changed(CHUNK, is_last=[0]),
        {"length": 14, "chunk_end": 16, "is_last": 0},
    ),
    Case(
        "a prompt that goes on after its last chunk",
        C.CHUNK,
        changed(CHUNK, length=[17]),
        {"length": 17, "chunk_end": 16, "is_last": 1},
    ),
    Case("neither last nor not", C.CHUNK, changed(CHUNK, is_last=[2]), {"is_last": 2}),
]
WRITES = [
    Case(
        "a block that is not in the row's table",
        C.WRITE_OUTSIDE,
        changed(BATCH, slot_mapping={0: 7 * 4 + 2}),
        {"row": 0, "slot": 30, "block": 7, "expected": 2},
    ),
    Case(
        "another block of the row's table",
        C.WRITE_OUTSIDE,
        changed(BATCH, slot_mapping={0: 1 * 4 + 2}),
        {"row": 0, "slot": 6, "block": 1, "expected": 2},
    ),
    Case(
        "a decode to block 0",
        C.WRITE_OUTSIDE,
        changed(BATCH, slot_mapping={1: 3}),
        {"row": 1, "slot": 3, "block": 0, "expected": 3},
    ),
    Case(
        "a block that is not in the prompt's table",
        C.WRITE_OUTSIDE,
        changed(CHUNK, slot_mapping={5: 7 * 4 + 1}),
        {"token": 5, "slot": 29, "block": 7, "expected": 6},
    ),
    Case(
        "right padding to the prompt's block",
        C.WRITE_OUTSIDE,
        changed(CHUNK, slot_mapping={6: 6 * 4 + 2}),
        {"token": 6, "slot": 26, "block": 6, "expected": 6},
    ),
    Case(
        "the next slot",
        C.WRITE_OFFSET,
        changed(BATCH, slot_mapping={0: 11}),
        {"row": 0, "slot": 11, "offset": 3, "expected": 2},
    ),
    Case(
        "two tokens of a chunk to one slot",
        C.WRITE_OFFSET,
        changed(CHUNK, slot_mapping={5: 6 * 4}),
        {"token": 5, "slot": 24, "expected": 25},
    ),
    Case(
        "two rows to one block",
        C.WRITE_SHARED,
        changed(BATCH, block_table={(1, 1): 2}, slot_mapping={1: 11}),
        {"row": 0, "block": 2, "times": 2},
    ),
    Case(
        "a row to a block that another reads",
        C.WRITE_SHARED,
        changed(BATCH, block_table={(1, 1): 1}, slot_mapping={1: 7}),
        {"row": 1, "block": 1, "times": 2},
    ),
    Case(
        "a prompt to a block that it reads",
        C.WRITE_SHARED,
        changed(CHUNK, block_table={(0, 3): 4}, slot_mapping={4: 16, 5: 17}),
        {"index": 1, "block": 4, "times": 2},
    ),
    Case(
        "half a block redirected",
        C.WRITE_GAP,
        changed(CHUNK, slot_mapping={2: 0, 3: 0}),
        {"token": 2, "slot": 0, "expected": 22},
    ),
    Case(
        "half a block written behind what was redirected",
        C.WRITE_GAP,
        changed(CHUNK, slot_mapping={0: 0}),
        {"token": 1, "slot": 21, "expected": 21},
    ),
    Case(
        "another token in a slot that is written",
        C.OVERWRITE,
        changed(BATCH, token_ids={0: 17}),
        {"row": 0, "block": 2, "slot": 2},
        before=(BATCH,),
    ),
    Case(
        "another token in the second slot of a block",
        C.OVERWRITE,
        decode_input(config(), [Row(3, [20, 29], [3])]),
        {"row": 0, "block": 3, "slot": 1},
    ),
]
READS = [
    Case(
        "a block that nobody has written",
        C.READ_UNWRITTEN,
        changed(BATCH, block_table={(0, 0): 7}),
        {"row": 0, "column": 0, "block": 7, "read": 4, "written": 0},
    ),
    Case(
        "a block that is written in part",
        C.READ_UNWRITTEN,
        changed(
            BATCH,
            block_table=[[1, 2, 7], [0, 0, 3]],
            tkv=[9, 12],
            positions={0: 8},
            slot_mapping={0: 28},
            left_padding={1: 8},
        ),
        {"row": 0, "column": 1, "block": 2, "read": 4, "written": 2},
    ),
    Case(
        "a token left out",
        C.READ_UNWRITTEN,
        changed(BATCH, positions={0: 7}, tkv={0: 8}, slot_mapping={0: 11}),
        {"row": 0, "block": 2, "read": 3, "written": 2},
    ),
    Case(
        "a chunk left out",
        C.READ_UNWRITTEN,
        evolve(CHUNK, block_table=np.array([[0, 7, 5, 6]])),
        {"row": 0, "column": 1, "block": 7, "read": 4, "written": 0},
    ),
    Case(
        "a redirected block that is not cached",
        C.READ_UNWRITTEN,
        changed(CHUNK, slot_mapping={0: 0, 1: 1, 2: 2, 3: 3}),
        {"index": 0, "block": 5, "read": 4, "written": 0},
    ),
    Case(
        "blocks in the wrong order",
        C.READ_POSITION,
        decode_input(config(), [Row(10, [*THIRD.tokens, 40], [5, 4, 6])]),
        {"row": 0, "column": 0, "block": 5, "position": 0, "written_for": 4},
        before=(CHUNK,),
    ),
    Case(
        "a last block that was written for the beginning of a prompt",
        C.READ_POSITION,
        changed(
            BATCH,
            block_table={(0, 1): 3, (1, 1): 7},
            slot_mapping={0: 14, 1: 28},
            positions={1: 0},
            tkv={1: 5},
        ),
        {"row": 0, "block": 3, "position": 4, "written_for": 0},
    ),
    Case(
        "a block with one token, of another prompt",
        C.READ_CONTENT,
        decode_input(config(), [Row(5, [20, 21, 22, 23, 50, 51], [3, 7])]),
        {"row": 0, "block": 7, "position": 4},
        before=(
            prefill_input(config(), Row.of([60, 61, 62, 63, 50], [8, 7]), 0),
            decode_input(config(), [Row(4, [20, 21, 22, 23], [3])]),
        ),
    ),
    Case(
        "the first block of another prompt",
        C.READ_CONTENT,
        changed(BATCH, block_table={(0, 0): 4}),
        {"row": 0, "block": 2, "position": 4},
    ),
    Case(
        "a prompt behind the first block of another",
        C.READ_CONTENT,
        decode_input(config(), [Row(10, [*THIRD.tokens, 40], [1, 5, 6])]),
        {"row": 0, "column": 1, "block": 5, "position": 4},
        before=(CHUNK,),
    ),
    Case(
        "a cached block of other tokens",
        C.READ_CONTENT,
        prefill_input(
            config(),
            evolve(SECOND, tokens=[30, 31, 3, 4, 5], prompt_len=5, blocks=[4, 8], cached=1),
            0,
        ),
        {"index": 0, "block": 4, "position": 0},
    ),
]
CASES = [*FORM, *LIMITS, *LAYOUT, *WRITES, *READS]
