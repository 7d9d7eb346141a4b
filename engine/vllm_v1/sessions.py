"""Sessions: the next turn goes on with the blocks of the one before (vLLM 0.28.0)."""

from engine.vllm_v1.requests import RequestState
from engine.vllm_v1.state import SchedulerState
from spec.core.requests import Prompt, Request


def hand_over(state: SchedulerState, row: RequestState, turn: str) -> None:
    """The next turn of a session has what a row computed that ends.

    The last token that was sampled is left out: it is not computed. If its client has not sent it
    the turn is awaited.
    """
    noted, kept = state.noted, state.running.computed(row)
    tokens = state.request_tokens(row, 0, kept).tolist()
    state.running.remove(row)
    state.slots.give_back(row.slot)
    noted.preempted.discard(row.id)
    noted.expected.discard(turn)
    # Of an awaited turn nothing is known but its name and the tokens that it begins with.
    sent = noted.early.pop(turn, None)
    kept_alone = Request(id=turn, prompt=Prompt.of_tokens(tokens), max_tokens=1)
    following = RequestState.of(sent or kept_alone)
    following.computed, following.blocks = kept, row.blocks
    following.hashes, following.registered = row.hashes[: row.registered], row.registered
    if sent is None:
        noted.awaited.add(turn)
    if sent is None or state.config.behaviour.holders_first:
        state.skip(following)
    else:
        state.queue.put_back(following)


def take_turn(state: SchedulerState, request: Request) -> RequestState | None:
    """The client has sent a later turn: its tokens stand behind those that are kept.

    None if the turn before has not ended.
    """
    if request.id not in state.noted.awaited:
        state.noted.early[request.id] = request
        return None
    row = next(row for row in state.skipped if row.id == request.id)
    row.request = request
    row.tokens = row.prefill_len = request.prompt_len
    state.noted.awaited.discard(request.id)
    return row
