"""Input tensors of a Spyre device for one step.

Source: spyre, "Prefill padding", "Decode padding" and "Boundary chunk". Padded positions count
from the left end of the padded row; real positions count a request's own tokens from 0. A slot is
`block * block_size + offset in the block`. Padding is read from slots of block 0, and redirected
writes go there. All tensors are numpy arrays of 64-bit integers.
"""

from typing import Protocol

from attrs import frozen

from engine.core.tensors import Tensor


@frozen(eq=False)
class PrefillInput:
    """One chunk of one prompt; a prefill has batch size 1.

    - `token_ids` [chunk_size]: the chunk's tokens; 0 where it is padding.
    - `positions` [chunk_size]: real position of each token; 0 where it is padding.
    - `slot_mapping` [chunk_size]: slot that each token is written to; any slot of block 0 for
      padding and for tokens of cached blocks that are recomputed.
    - `block_table` [1, blocks]: blocks of the padded prompt up to this chunk's end; 0 is padding.
    - `left_padding` [1]: number of padded positions before the first real token.
    - `length` [1]: padded position after this chunk's last real token; right padding begins there.
    - `chunk` [1]: index of the chunk in the padded prompt.
    - `is_last` [1]: 1 if the chunk is the prompt's last one, after which a token is sampled.
    """

    token_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    block_table: Tensor
    left_padding: Tensor
    length: Tensor
    chunk: Tensor
    is_last: Tensor


@frozen(eq=False)
class DecodeInput:
    """One token of every row of the batch.

    - `token_ids` [rows]: each row's last sampled token, whose key and value this step writes.
    - `positions` [rows]: its real position.
    - `slot_mapping` [rows]: the slot that it is written to.
    - `block_table` [rows, width]: block table of each row; 0 is left padding.
    - `left_padding` [rows]: padded positions before each row's first real token, whole blocks.
    - `tkv` [rows]: padded position after each row's last real token, including this step's.
    """

    token_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    block_table: Tensor
    left_padding: Tensor
    tkv: Tensor


class Device(Protocol):
    """A device that computes tokens from tensors and keeps the KV cache.

    A step whose result was lost may be run again with the same tokens. Both methods raise
    `engine.core.faults.ConstraintError` for a broken constraint and
    `engine.core.faults.DeviceFailedError` if the hardware fails.
    """

    def prefill(self, inputs: PrefillInput) -> Tensor:
        """Compute a chunk; returns the sampled token [1] of a last chunk, else an empty tensor."""
        ...

    def decode(self, inputs: DecodeInput) -> Tensor:
        """Compute one token of every row; returns the sampled tokens [rows]."""
        ...
