"""Plan a decode step: rows of the batch, new blocks and preemptions.

Source: nano-vllm, "The Decode Path: Advancing All Running Sequences", and chapter 8.
"""

from collections import deque

from engine.core.decoding import RequestState
from engine.nano_vllm.plan import DecodePlan
from engine.nano_vllm.state import SchedulerState


def plan_decode(state: SchedulerState, refusal: str | None) -> DecodePlan:
    """The next decode step; rows are preempted if there are too few free blocks."""
    running, blocks = state.running, state.blocks
    growing = running.of_length(state.growing_remainder)
    if len(growing) <= blocks.free.count:
        moves = [*zip(growing, blocks.next_free(len(growing)), strict=True)]
        return DecodePlan(running.batch, moves, refusal)
    return _with_victims(state, growing, refusal)


def _with_victims(
    state: SchedulerState, growing: list[RequestState], refusal: str | None
) -> DecodePlan:
    """Preempt from the back of the queue until a block is free, at last the row that needs it."""
    rows, free = state.running.rows, deque(state.blocks.free)
    moves: list[tuple[RequestState, int | None]] = []
    victims: list[RequestState] = []
    freed = 0
    for row in growing:
        while not free and row not in victims:
            victims.append(rows[-1 - len(victims)])
            moves.append((victims[-1], None))
            _, back = state.blocks.freed_by([victim.blocks for victim in victims])
            free.extend(back[freed:])
            freed = len(back)
        if row in victims:
            break
        moves.append((row, free.popleft()))
    return DecodePlan(state.running.front(len(rows) - len(victims)), moves, refusal)
