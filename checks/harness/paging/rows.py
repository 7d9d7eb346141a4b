"""What a step of any scheduler computes of each request, and the tensors of such a batch.

Source: nano-vllm, "Block Tables: Logical Memory Map"; what a row of several samples is, vllm-v1,
"Speculative Decoding"; what is copied before, vllm-v0, "Swapping Functions".
"""

from collections.abc import Mapping, Sequence

import numpy as np
from attrs import field, frozen

from engine.core.tensors import Tensor, prompt_tokens
from engine.paged.inputs import NO_BLOCK, PagedInput, Transfers
from spec.core.blocks import block_index, slot
from spec.core.requests import Request, attended_sum, sampled_token


@frozen(eq=False)
class Row:
    """What a step computes of one request; lengths in tokens.

    `tokens`: the ids to compute, drafts included. `cached`: tokens before them. `samples`: behind
    how many of the last tokens one is sampled. `due`: the first so many of the samples are what the
    request gets, unless it ends before; the others are behind rejected drafts.
    """

    tokens: Tensor
    cached: int
    blocks: Sequence[int]
    samples: int
    due: int

    @property
    def context(self) -> int:
        """Tokens that the row attends to."""
        return self.cached + len(self.tokens)

    @property
    def sampled_from(self) -> int:
        """Position of the first token that it samples, from 0 in the request."""
        return self.context - self.samples + 1


@frozen(eq=False)
class Load:
    """Keys and values that come from elsewhere: of the request's `tokens` those from `start`."""

    tokens: Tensor
    start: int
    blocks: Sequence[int]


@frozen
class PagedWork:
    """What a step asks of the device: rows by request, after transfers and loads.

    Where a request has several sequences, rows are by sequence. `forked`: sequences that begin with
    what the row of another one samples, by that of which the sampler chooses theirs.
    """

    rows: Mapping[str, Row]
    loads: Sequence[Load] = ()
    is_captured: bool = False
    transfers: Transfers | None = None
    forked: Mapping[str, str] = field(factory=dict)


def paged_input(rows: Sequence[Row], block_size: int, is_captured: bool = False) -> PagedInput:
    """The tensors of a batch of rows.

    A row with too few blocks is refused by the device: its slots are worked out all the same.
    """
    counts = np.array([len(row.tokens) for row in rows])
    cached = np.array([row.cached for row in rows])
    ends = counts.cumsum()
    of = np.repeat(np.arange(len(rows)), counts)
    places = np.arange(ends[-1])
    positions = places + (cached - ends + counts)[of]
    table = _filled_up([row.blocks for row in rows])
    last_column = np.array([len(row.blocks) - 1 for row in rows])
    columns = np.minimum(block_index(positions, block_size), last_column[of])
    unsampled = ends - np.array([row.samples for row in rows])
    return PagedInput(
        token_ids=np.concatenate([row.tokens for row in rows]),
        positions=positions,
        slot_mapping=slot(table[of, columns], positions, block_size),
        cu_seqlens_q=np.concatenate([[0], ends]),
        cached_lens=cached,
        context_lens=cached + counts,
        block_tables=table,
        logits_indices=np.flatnonzero(places >= unsampled[of]),
        is_captured=np.array([int(is_captured)]),
    )


def _filled_up(tables: Sequence[Sequence[int]]) -> Tensor:
    """The tables [rows, width], the shorter ones with -1 behind their blocks."""
    width = max(len(table) for table in tables)
    filled = np.full((len(tables), width), NO_BLOCK, np.int64)
    for row, table in enumerate(tables):
        filled[row, : len(table)] = table
    return filled


def request_tokens(request: Request, start: int, end: int) -> Tensor:
    """Tokens `start` to `end` (not included) of a request, prompt and then output."""
    first, last = (max(place - request.prompt_len, 0) for place in (start, end))
    outputs = np.array([request.output_token(index) for index in range(first, last)], np.int64)
    return np.concatenate([prompt_tokens(request.prompt, start, end), outputs])


def model_token(request: Request, index: int) -> int:
    """What the model samples as the `index`-th token of the request served alone.

    Where the workload prescribes a token, the request gets that one instead.
    """
    if request.output is None or index >= len(request.output):
        return request.output_token(index)
    return sampled_token(attended_sum([*request.prompt.tokens(), *request.output[:index]]))
