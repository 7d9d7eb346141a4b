"""What a device is given for one step: tensors, and nothing else.

Source: spyre, "Prefill padding", "Decode padding" and "Boundary chunk". Padded positions count
from the left end of the padded row; real positions count a request's own tokens from 0. A slot is
`block * block_size + offset in the block`; slots of block 0 are where padding is read from and
where redirected writes go. All tensors are numpy arrays of 64-bit integers.
"""

from typing import Protocol

from attrs import frozen

from engine.core.tensors import Tensor


@frozen(eq=False)
class PrefillInput:
    """One chunk of one prompt; a prefill has batch size 1.

    - `token_ids` [chunk_size]: the chunk's tokens; 0 where it is padding.
    - `positions` [chunk_size]: real position of each token; 0 where it is padding.
    - `slot_mapping` [chunk_size]: where each key and value is written; any slots of block 0 for
      padding on both sides and for tokens of cached blocks that are computed again.
    - `block_table` [1, blocks]: blocks of the padded prompt up to this chunk's end; 0 is padding.
    - `left_padding` [1]: padded positions before the first real token.
    - `length` [1]: padded position after this chunk's last real token, where its right padding
      begins.
    - `chunk` [1]: index of the chunk in the padded prompt.
    - `is_last` [1]: 1 if the chunk ends the prompt; then a token is sampled.
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
    - `slot_mapping` [rows]: the slot it is written to.
    - `block_table` [rows, width]: equally many blocks a row, 0 is left padding.
    - `left_padding` [rows]: padded positions before each row's first real token, whole blocks.
    - `tkv` [rows]: padded position after each row's last real token, this step's counted.
    """

    token_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    block_table: Tensor
    left_padding: Tensor
    tkv: Tensor


class Device(Protocol):
    """What computes tokens from tensors; it keeps the KV cache itself.

    A step whose result was lost may be run again with the same tokens. Both methods raise
    `engine.core.faults.ConstraintError` for what the hardware refuses and
    `engine.core.faults.DeviceFailedError` if the hardware fails.
    """

    def prefill(self, given: PrefillInput) -> Tensor:
        """Compute a chunk: the sampled token [1] if it is the last one, else an empty tensor."""
        ...

    def decode(self, given: DecodeInput) -> Tensor:
        """Compute one token of every row: the sampled tokens [rows]."""
        ...
