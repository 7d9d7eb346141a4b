"""Steps that the device refuses, several for each constraint, one change away from a legal step."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np
import pytest
from attrs import evolve, field, frozen

from engine.core.faults import Constraint, ConstraintError
from engine.core.tensors import Tensor
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


def changed(given: Any, **changes: Tensor | list[Any] | Mapping[Any, int]) -> Any:
    """The step with other tensors, or with other values at some of their places."""
    tensors = {}
    for name, change in changes.items():
        if isinstance(change, Mapping):
            tensors[name] = getattr(given, name).copy()
            for place, value in change.items():
                tensors[name][place] = value
        else:
            tensors[name] = np.array(change)
    return evolve(given, **tensors)


@frozen
class Case:
    """A step, and what is found wrong; configuration and what was done before may differ, too."""

    step: Any
    found: str
    before: tuple[Any, ...] = ()
    config: dict[str, Any] = field(factory=dict)


Cases = Mapping[Constraint, Mapping[str, Case]]


def assert_refused(
    device: Any, compute: Callable[[Any], object], case: Case, constraint: Constraint
) -> None:
    """The device refuses the case's step by this constraint, and its cache is as it was."""
    cache = deepcopy(vars(device._cache))

    with pytest.raises(ConstraintError) as refused:
        compute(case.step)

    assert refused.value.constraint is constraint
    assert str(refused.value).endswith(f" Found: {case.found}")
    for name, before in cache.items():
        assert np.array_equal(getattr(device._cache, name), before), "a refused step left a trace"


def parameters(cases: Cases) -> list[Any]:
    """The cases as pytest parameters, each with its constraint and name."""
    return [
        pytest.param(kind, case, id=name) for kind in cases for name, case in cases[kind].items()
    ]


def int32(tensor: Tensor) -> Any:
    return tensor.astype(np.int32)


decode, chunk = partial(changed, BATCH), partial(changed, CHUNK)
C = Constraint
CASES: Cases = {
    C.DTYPE: {
        "32-bit tokens in a decode": Case(
            decode(token_ids=int32(BATCH.token_ids)), "tensor token_ids, dtype int32"
        ),
        "32-bit slots in a prefill": Case(
            chunk(slot_mapping=int32(CHUNK.slot_mapping)), "tensor slot_mapping, dtype int32"
        ),
    },
    C.SHAPE: {
        "a position for one row of two": Case(
            decode(positions=[6]), "tensor positions, shape (1,), expected (2,)"
        ),
        "a flat block table in a decode": Case(
            decode(block_table=[1, 2]), "tensor block_table, shape (2,)"
        ),
        "a table that ends before its chunk": Case(
            chunk(block_table=[[0, 4, 5]]), "tensor block_table, shape (1, 3), expected (1, 4)"
        ),
    },
    C.TOKEN_ID: {
        "a token id that is too large": Case(
            chunk(token_ids={0: 2**31}), "token 0, token_id 2147483648, largest 2147483647"
        ),
        "a token in the right padding": Case(
            chunk(token_ids={6: 1}), "token 6, token_id 1, largest 0"
        ),
    },
    C.BLOCK_ID: {
        "a block that the pool does not have": Case(
            decode(block_table={(0, 0): 41}), "row 0, column 0, block 41, last_block 40"
        ),
    },
    C.POSITION: {
        "a padded position": Case(decode(positions={1: 7}), "row 1, position 7, expected 3"),
        "a position in the right padding": Case(
            chunk(positions={6: 10}), "token 6, position 10, expected 0"
        ),
    },
    C.MODEL_LENGTH: {
        "a row that outgrows the model": Case(
            BATCH, "row 0, position 6, max_model_len 6", config={"max_model_len": 6}
        ),
        "a prompt that outgrows the model": Case(
            CHUNK, "token 5, position 9, max_model_len 9", config={"max_model_len": 9}
        ),
    },
    C.BATCH_SIZE: {
        "more rows than slots": Case(BATCH, "rows 2, max_num_seqs 1", config={"max_num_seqs": 1}),
        "a prefill of two prompts": Case(
            chunk(block_table=[[0, 4, 5, 6], [0, 4, 5, 6]]), "rows 2, allowed 1"
        ),
    },
    C.VOLUME: {
        "a batch over the limit": Case(
            BATCH, "rows 2, tkv 8, limit 15", config={"max_batch_tkv_limit": 15}
        ),
        "a prompt over the limit": Case(
            CHUNK, "rows 1, tkv 10, limit 9", config={"max_batch_tkv_limit": 9}
        ),
    },
    C.LEFT_PADDING: {
        "padding inside a block of a row": Case(
            decode(left_padding={1: 3}, tkv={1: 7}, slot_mapping={1: 14}),
            "row 1, left_padding 3, block_size 4, width 2",
        ),
        "a row that begins before the table": Case(
            decode(left_padding={1: -4}), "row 1, left_padding -4, block_size 4, width 2"
        ),
        "padding inside a block of a prompt": Case(
            chunk(left_padding=[2]), "left_padding 2, block_size 4"
        ),
    },
    C.EXCESS_PADDING: {
        "a column of padding": Case(
            decode(block_table=[[0, 1, 2], [0, 0, 3]], left_padding=[4, 8], tkv=[11, 12]),
            "least_left_padding 4",
        ),
    },
    C.PADDING_BLOCKS: {
        "another block in the padding of a row": Case(
            decode(block_table={(1, 0): 1}), "row 1, column 0, block 1, padding_blocks 1"
        ),
        "block 0 inside a row": Case(
            decode(block_table={(0, 0): 0}), "row 0, column 0, block 0, padding_blocks 0"
        ),
    },
    C.EMPTY_LAST_BLOCK: {
        "a last block that is empty in every row": Case(
            decode(block_table=[[1, 2, 7], [0, 3, 8]]), "blocks 2, width 3"
        ),
        "a prompt that ends in the last block but one": Case(
            chunk(
                length=[12],
                token_ids={4: 0, 5: 0},
                positions={4: 0, 5: 0},
                slot_mapping={4: 0, 5: 0},
            ),
            "length 12, last_block_from 12",
        ),
    },
    C.RECTANGLE: {
        "a short row that is padded on the right": Case(
            decode(block_table={(1, 0): 3, (1, 1): 7}, left_padding={1: 0}, tkv={1: 4}),
            "row 1, tkv 4, blocks 1, most_blocks 2",
        ),
    },
    C.CHUNK: {
        "a chunk of seven tokens": Case(
            chunk(token_ids=[34, 35, 36, 37, 38, 39, 0]), "tokens 7, chunk_size 8"
        ),
        "right padding in a chunk that is not the last": Case(
            chunk(is_last=[0]), "length 14, chunk_end 16, is_last 0"
        ),
        "a prompt that goes on after its last chunk": Case(
            chunk(length=[17]), "length 17, chunk_end 16, is_last 1"
        ),
    },
    C.WRITE_OUTSIDE: {
        "a block that is not in the row's table": Case(
            decode(slot_mapping={0: 7 * 4 + 2}), "row 0, slot 30, block 7, expected 2"
        ),
        "a decode to block 0": Case(
            decode(slot_mapping={1: 3}), "row 1, slot 3, block 0, expected 3"
        ),
        "right padding to the prompt's block": Case(
            chunk(slot_mapping={6: 6 * 4 + 2}), "token 6, slot 26, block 6, expected 6"
        ),
    },
    C.WRITE_OFFSET: {
        "the next slot": Case(decode(slot_mapping={0: 11}), "row 0, slot 11, offset 3, expected 2"),
        "two tokens of a chunk to one slot": Case(
            chunk(slot_mapping={5: 6 * 4}), "token 5, slot 24, expected 25"
        ),
    },
    C.WRITE_SHARED: {
        "two rows to one block": Case(
            decode(block_table={(1, 1): 2}, slot_mapping={1: 11}), "row 0, block 2, times 2"
        ),
        "a prompt to a block that it reads": Case(
            chunk(block_table={(0, 3): 4}, slot_mapping={4: 16, 5: 17}), "index 1, block 4, times 2"
        ),
    },
    C.WRITE_GAP: {
        "half a block redirected": Case(
            chunk(slot_mapping={2: 0, 3: 0}), "token 2, slot 0, expected 22"
        ),
        "half a block written behind what was redirected": Case(
            chunk(slot_mapping={0: 0}), "token 1, slot 21, expected 21"
        ),
    },
    C.OVERWRITE: {
        "another token in a slot that is written": Case(
            decode(token_ids={0: 17}), "row 0, block 2, slot 2", before=(BATCH,)
        ),
    },
    C.READ_UNWRITTEN: {
        "a block that was never written": Case(
            decode(block_table={(0, 0): 7}), "row 0, column 0, block 7, read 4, written 0"
        ),
        "a block that is written in part": Case(
            decode(
                block_table=[[1, 2, 7], [0, 0, 3]],
                tkv=[9, 12],
                positions={0: 8},
                slot_mapping={0: 28},
                left_padding={1: 8},
            ),
            "row 0, column 1, block 2, read 4, written 2",
        ),
        "a redirected block that is not cached": Case(
            chunk(slot_mapping={0: 0, 1: 1, 2: 2, 3: 3}), "index 0, block 5, read 4, written 0"
        ),
    },
    C.READ_POSITION: {
        "blocks in the wrong order": Case(
            decode_input(config(), [Row(10, [*THIRD.tokens, 40], [5, 4, 6])]),
            "row 0, column 0, block 5, position 0, written_for 4",
            before=(CHUNK,),
        ),
        "a last block that was written for the beginning of a prompt": Case(
            decode(
                block_table={(0, 1): 3, (1, 1): 7},
                slot_mapping={0: 14, 1: 28},
                positions={1: 0},
                tkv={1: 5},
            ),
            "row 0, block 3, position 4, written_for 0",
        ),
    },
    C.READ_CONTENT: {
        "the first block of another prompt": Case(
            decode(block_table={(0, 0): 4}), "row 0, block 2, position 4"
        ),
        "a prompt behind the first block of another": Case(
            decode_input(config(), [Row(10, [*THIRD.tokens, 40], [1, 5, 6])]),
            "row 0, column 1, block 5, position 4",
            before=(CHUNK,),
        ),
        "a cached block of other tokens": Case(
            prefill_input(
                config(),
                evolve(SECOND, tokens=[30, 31, 3, 4, 5], prompt_len=5, blocks=[4, 8], cached=1),
                0,
            ),
            "index 0, block 4, position 0",
        ),
    },
}
