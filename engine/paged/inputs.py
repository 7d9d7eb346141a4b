"""Input tensors of a paged device for one step, and its sizes.

Source: nano-vllm, chapter 9 ("Scheduler to GPU Execution"), with the names that its model runner
uses for attention over ragged rows; vllm-v1, "The Fundamental Insight": rows of any length in one
batch; vllm-v0, "Swapping Functions", and its worker's input: blocks to copy before the step. All
tensors are numpy arrays of 64-bit integers; a slot is `block * block_size + offset in the block`.
"""

from collections.abc import Sequence
from typing import Self

import numpy as np
from attrs import frozen

from engine.core.tensors import Tensor

Pairs = Sequence[tuple[int, int]]  # source and target of copied blocks
NO_BLOCK = -1  # pads the shorter rows of the block tables


@frozen(kw_only=True)
class PagedShape:
    """The sizes of a paged device; lengths in tokens.

    - `block_size`: tokens per KV block.
    - `first_block`, `num_blocks`: first block id and number of blocks of the pool.
    - `num_cpu_blocks`: number of blocks of the pool on the CPU, with the same first block id.
    - `max_model_len`: number of positions of the model.
    - `max_num_seqs`, `max_num_batched_tokens`: most rows and tokens of a batch.
    - `num_speculative_tokens`: most drafts of a row.
    - `captured_sizes`: batch sizes with a captured decode, in ascending order.
    - `shares_unwritten`: whether rows with equal tokens may share a block before it is written.
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
        """The first block id after the pool."""
        return self.first_block + self.num_blocks

    @property
    def end_cpu_block(self) -> int:
        """The first block id after the pool on the CPU."""
        return self.first_block + self.num_cpu_blocks


@frozen(eq=False)
class PagedInput:
    """The new tokens of a ragged batch, row after row.

    - `token_ids` [tokens]: tokens whose keys and values the step writes, drafts included.
    - `positions` [tokens]: position of each token in its row, from 0.
    - `slot_mapping` [tokens]: slot that each token is written to.
    - `cu_seqlens_q` [rows + 1]: number of tokens before each row, then the number of all tokens.
    - `cached_lens` [rows]: tokens of each row that are in the KV cache before the step.
    - `context_lens` [rows]: tokens that each row attends to, including its new tokens.
    - `block_tables` [rows, width]: block table of each row, padded with -1.
    - `logits_indices` [samples]: indices of the tokens after which a token is sampled.
    - `is_captured` [1]: 1 if the step replays a captured decode of fixed size.
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
    """Blocks to copy before a step computes, as pairs [pairs, 2] of source and target.

    - `swaps_out`: from the GPU to the CPU.
    - `swaps_in`: from the CPU to the GPU.
    - `copies`: on the GPU.

    `copies` are executed last. The pairs of one tensor are copied simultaneously.
    """

    swaps_out: Tensor
    swaps_in: Tensor
    copies: Tensor

    @classmethod
    def of(cls, swaps_out: Pairs = (), swaps_in: Pairs = (), copies: Pairs = ()) -> Self:
        """The pairs as tensors."""
        kinds = (swaps_out, swaps_in, copies)
        return cls(*(np.array(pairs, np.int64).reshape(-1, 2) for pairs in kinds))
