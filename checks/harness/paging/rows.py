"""What a step of any scheduler computes of each request, after what is copied before.

Source: vllm-v0, "Swapping Functions", for the latter.
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
