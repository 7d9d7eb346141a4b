"""The work of a scheduler step on the paged device: transfers, loads, then rows to compute.

Source: vllm-v0, "Swapping Functions", for the transfers.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from attrs import field, frozen

from engine.core.tensors import Tensor, prompt_tokens
from engine.paged.inputs import Transfers
from engine.paged.rows import Row
from spec.core.requests import Request, attended_sum, sampled_token


@frozen(eq=False)
class Load:
    """External keys and values of the request's `tokens` from index `start` on."""

    tokens: Tensor
    start: int
    blocks: Sequence[int]


@frozen
class PagedWork:
    """The work of a step: transfers and loads, then rows by request.

    If a request has several sequences, rows are by sequence. `forked`: the parent of each sequence
    whose first token is sampled from the parent's row. `is_known`: false for a step of which it is
    not known what it writes; the device does not do it.
    """

    rows: Mapping[str, Row]
    loads: Sequence[Load] = ()
    is_captured: bool = False
    transfers: Transfers | None = None
    forked: Mapping[str, str] = field(factory=dict)
    is_known: bool = True


def request_tokens(request: Request, start: int, end: int) -> Tensor:
    """Tokens `start` to `end` (not included) of a request, prompt and then output."""
    first, last = (max(place - request.prompt_len, 0) for place in (start, end))
    outputs = np.array([request.output_token(index) for index in range(first, last)], np.int64)
    return np.concatenate([prompt_tokens(request.prompt, start, end), outputs])


def model_token(request: Request, index: int) -> int:
    """The `index`-th output token that the model samples for the request served alone.

    If the workload prescribes this token, the scheduler delivers the prescribed one instead.
    """
    if request.output is None or index >= len(request.output):
        return request.output_token(index)
    return sampled_token(attended_sum([*request.prompt.tokens(), *request.output[:index]]))
