"""What prefill and decode are refused for alike: form, block tables, tokens, shared writes."""

from collections.abc import Mapping

import numpy as np

from engine.core.faults import ConstraintError
from engine.spyre.device.constraints import Constraint
from engine.spyre.device.inputs import Tensor
from engine.spyre.device.refusing import Flags, refuse_if, refuse_where
from spec.core.requests import MOST_TOKEN_ID
from spec.spyre.config import SpyreConfig
from spec.spyre.padding import volume
from spec.spyre.state import PADDING_BLOCK


def check_form(given: object, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Every tensor, by name, has 64-bit integers in this shape."""
    for name, shape in shapes.items():
        tensor: Tensor = getattr(given, name)
        if tensor.dtype != np.int64:
            raise ConstraintError(Constraint.DTYPE, {"tensor": name, "dtype": str(tensor.dtype)})
        if tensor.shape != shape:
            found = {"tensor": name, "shape": str(tensor.shape), "expected": str(shape)}
            raise ConstraintError(Constraint.SHAPE, found)


def check_table(config: SpyreConfig, table: Tensor, left_padding: Tensor) -> None:
    """A table [rows, blocks] names blocks of the pool; block 0 in the padding and only there."""
    last = config.pool_blocks
    axes = ("row", "column")
    beyond = (table < 0) | (table > last)
    refuse_where(beyond, Constraint.BLOCK_ID, axes, block=table, last_block=last)
    padding = left_padding[:, np.newaxis] // config.block_size
    wrong = (table == PADDING_BLOCK) != (np.arange(table.shape[1]) < padding)
    refuse_where(wrong, Constraint.PADDING_BLOCKS, axes, block=table, padding_blocks=padding)


def check_tokens(axis: str, token_ids: Tensor, is_real: Flags | bool) -> None:
    """Token ids in range, 0 where there is padding."""
    most = np.where(is_real, MOST_TOKEN_ID, 0)
    wrong = (token_ids < 0) | (token_ids > most)
    refuse_where(wrong, Constraint.TOKEN_ID, (axis,), token_id=token_ids, largest=most)


def check_positions(config: SpyreConfig, axis: str, positions: Tensor, expected: Tensor) -> None:
    """Positions follow from tkv and left padding, and lie inside the model's context length."""
    wrong = positions != expected
    refuse_where(wrong, Constraint.POSITION, (axis,), position=positions, expected=expected)
    length = config.max_model_len
    beyond = positions >= length
    refuse_where(beyond, Constraint.MODEL_LENGTH, (axis,), position=positions, max_model_len=length)


def check_volume(config: SpyreConfig, rows: int, tkv: int) -> None:
    """Batch size times tkv keeps the limit."""
    limit = config.max_batch_tkv_limit
    excess = bool(volume(rows, tkv) > limit)
    refuse_if(excess, Constraint.VOLUME, rows=rows, tkv=tkv, limit=limit)


def check_written_once(axis: str, table: Tensor, written: Tensor) -> None:
    """Each block that is written stands once in the whole table."""
    times = np.bincount(table.ravel())[written]
    refuse_where(times > 1, Constraint.WRITE_SHARED, (axis,), block=written, times=times)
