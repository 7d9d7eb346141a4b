"""Results of a step: events while the model runs, and the outcome."""

from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

import numpy as np
from attrs import define, field

from engine.core import scheduler
from engine.core.scheduler import Ends
from engine.core.tensors import Tensor
from engine.vllm_v1.flights import Flight
from engine.vllm_v1.plan import Admission, Blocks, Turn
from engine.vllm_v1.requests import RequestState
from spec.core.arithmetic import cdiv

# How many drafts are proposed for a row's next tokens, at most the given number.
Proposes: TypeAlias = Callable[[RequestState, int], int]


@define(eq=False)
class Results:
    """Results of the model, the connector and the clients.

    - `ends`: the requests that sample the end of sequence, as the last of their tokens in the step
      if not before, where they say that they do; None: each where it says so.
    - `accepted`: how many of its drafts are verified, by request; of others none.
    - `lost`: requests whose external tokens should have come within the step and are not there.
    - `leavers`: requests whose clients went away while the model ran, in order.
    - `proposes`: how many drafts each row has in its next step; None: as many as are configured.
    """

    ends: Ends = None
    accepted: Mapping[str, int] = field(factory=dict)
    lost: Collection[str] = ()
    leavers: tuple[str, ...] = ()
    proposes: Proposes | None = None


@define(eq=False)
class Outcome(scheduler.Outcome):
    """What a step did.

    - `accepted`: drafts that were verified, by request, of those that had any.
    - `proposed`: drafts for the next step, by request, where they are fewer than configured.
    - `lost`: requests whose external tokens were not there.
    - `undone`: requests that read missing blocks, with their computed and their valid tokens.
    - `leavers`: requests whose clients went away while the model ran.
    - `results_of`: the step in flight whose results came, if one did.
    """

    accepted: dict[str, int] = field(factory=dict)
    proposed: dict[str, int] = field(factory=dict)
    lost: tuple[str, ...] = ()
    undone: dict[str, tuple[int, int]] = field(factory=dict)
    leavers: tuple[str, ...] = ()
    results_of: Flight | None = None


def as_prescribed(turn: Turn, samples: Tensor) -> Tensor:
    """The row's sampled tokens [samples], with prescribed tokens in their places."""
    output = turn.row.request.output
    if output is None:
        return samples
    first = turn.tokens - turn.row.request.prompt_len
    given = output[first : first + len(samples)]
    return np.concatenate([np.array(given, np.int64), samples[len(given) :]])


class Missing:
    """Blocks that a connector should have filled in this step and did not.

    The first request that holds such a block recomputes it; the others rely on that.
    """

    def __init__(self, lost: Collection[Admission], block_size: int) -> None:
        """`lost`: the requests whose external tokens did not all come; `block_size` in tokens."""
        self._block_size = block_size
        self._blocks = frozenset(block for admission in lost for block in self._unfilled(admission))
        self._unclaimed = {*self._blocks}

    def _unfilled(self, admission: Admission) -> Blocks:
        """The blocks that should have been filled for the request and were not."""
        end, size = admission.computed, self._block_size
        valid = admission.row.valid_after_loss(end - admission.external, end, size)
        return admission.table[valid // size : int(cdiv(end, size))]

    def valid_tokens(self, turn: Turn) -> int | None:
        """Valid tokens of a row that reads a missing block; None if it reads none.

        For the first holder of a missing block, these are the tokens before it.
        """
        if not self._blocks:
            return None
        read = turn.table[: int(cdiv(turn.computed, self._block_size))]
        if self._blocks.isdisjoint(read):
            return None
        claimed = [place for place, block in enumerate(read) if block in self._unclaimed]
        self._unclaimed.difference_update(read)
        return claimed[0] * self._block_size if claimed else turn.computed
