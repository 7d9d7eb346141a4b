"""What a paged device is given for one step, and the sizes that it was built for.

Source: nano-vllm, chapter 9 ("Scheduler to GPU Execution"), with the names that its runner hands to
attention over ragged rows; vllm-v1, "The Fundamental Insight": rows of any length in one batch;
vllm-v0, "Swapping Functions", and the input of its worker: blocks that are copied before. All
tensors are numpy arrays of 64-bit integers; a slot is `block * block_size + offset in the block`.
"""

from collections.abc import Sequence
from typing import Self

import numpy as np
from attrs import frozen

from engine.core.tensors import Tensor

Pairs = Sequence[tuple[int, int]]  # blocks that are copied, source and target
NO_BLOCK = -1  # fills up the shorter rows of the block tables


@frozen(kw_only=True)
class PagedShape:
    """The sizes of a paged device; lengths in tokens.

    - `block_size`: tokens per KV block.
    - `first_block`, `num_blocks`: the pool is that many blocks from the first on.
    - `num_cpu_blocks`: blocks of the pool on the CPU, from the first number on, too.
    - `max_model_len`: positions that the model knows.
    - `max_num_seqs`, `max_num_batched_tokens`: rows and tokens that a batch has room for.
    - `num_speculative_tokens`: drafts that a row computes at most.
    - `captured_sizes`: rows for which a decode was captured, in ascending order.
    - `shares_unwritten`: rows with equal tokens may share a block that they have still to write.
    """

    block_size: int
    first_block: int
    num_blocks: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    num_speculative_tokens: int = 0
    captured_sizes: tuple[int, ...] = ()
    num_cpu_blocks: int = 0
    shares_unwritten: bool = False

    @property
    def end_block(self) -> int:
        """The block number behind the pool."""
        return self.first_block + self.num_blocks

    @property
    def end_cpu_block(self) -> int:
        """The block number behind the pool on the CPU."""
        return self.first_block + self.num_cpu_blocks


@frozen(eq=False)
class PagedInput:
    """The new tokens of every row of the batch, row after row, any number of each.

    - `token_ids` [tokens]: whose keys and values this step writes, drafts included.
    - `positions` [tokens]: the position of each in its row, from 0.
    - `slot_mapping` [tokens]: the slot that it is written to.
    - `cu_seqlens_q` [rows + 1]: tokens of the batch before each row, at last all of them.
    - `cached_lens` [rows]: tokens of each row that the cache has already.
    - `context_lens` [rows]: tokens that each row attends to, this step's counted.
    - `block_tables` [rows, width]: the blocks of each row, filled up with -1.
    - `logits_indices` [samples]: the places in the batch behind which a token is sampled.
    - `is_captured` [1]: 1 if a captured decode is replayed, which has a fixed size.
    """

    token_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    cu_seqlens_q: Tensor
    cached_lens: Tensor
    context_lens: Tensor
    block_tables: Tensor
    logits_indices: Tensor
    is_captured: Tensor


@frozen(eq=False)
class Transfers:
    """Blocks that are copied before a step computes, as pairs [pairs, 2] of a source and a target.

    - `swaps_out`: from the GPU to the CPU.
    - `swaps_in`: from the CPU to the GPU.
    - `copies`: on the GPU.

    Copies come last; the pairs of one tensor are copied at once.
    """

    swaps_out: Tensor
    swaps_in: Tensor
    copies: Tensor

    @classmethod
    def of(cls, swaps_out: Pairs = (), swaps_in: Pairs = (), copies: Pairs = ()) -> Self:
        """The tensors of these pairs."""
        kinds = (swaps_out, swaps_in, copies)
        return cls(*(np.array(pairs, np.int64).reshape(-1, 2) for pairs in kinds))
