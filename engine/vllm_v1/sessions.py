"""Sessions: the next turn goes on with the blocks of the one before (vLLM 0.28.0)."""

from engine.vllm_v1.requests import RequestState
from engine.vllm_v1.state import SchedulerState
from spec.core.requests import Prompt, Request


def hand_over(state: SchedulerState, row: RequestState, turn: str) -> None:
    """The next turn of a session has what a row computed that ends, and waits for its client.

    The last token that was sampled is left out: it is not computed.
    """
    kept = state.running.computed(row)
    tokens = state.request_tokens(row, 0, kept).tolist()
    state.running.remove(row)
    state.slots.give_back(row.slot)
    # Of the turn nothing is known yet but its name and the tokens that it begins with.
    waiting = RequestState.of(Request(id=turn, prompt=Prompt.of_tokens(tokens), max_tokens=1))
    waiting.computed, waiting.blocks = kept, row.blocks
    waiting.hashes, waiting.registered = row.hashes[: row.registered], row.registered
    state.skip(waiting)
    state.noted.preempted.discard(row.id)
    state.noted.awaited.add(turn)


def begin_turn(state: SchedulerState, request: Request) -> RequestState:
    """The client has sent an awaited turn: its tokens stand behind those that are kept."""
    row = next(row for row in state.skipped if row.id == request.id)
    row.request = request
    row.tokens = row.prefill_len = request.prompt_len
    state.noted.awaited.discard(request.id)
    return row
