"""Planted faults of vLLM V1's engine.

Run as a module, it prints the finding and the episode of each fault.
"""

from typing import Any

import numpy as np
from attrs import evolve

from checks.harness.policy import system_of
from engine.core.blocks import FreeList
from engine.core.requests import Slots, WaitingQueue
from engine.core.state import SchedulerState
from engine.vllm_v1 import admission, apply, groups, landing, planning, running_turns, scheduler
from engine.vllm_v1.apply import Sampled
from engine.vllm_v1.blocks import BlockManager, PoolDraft
from engine.vllm_v1.draft import Draft
from engine.vllm_v1.encoder import EncoderCache, EncoderDraft
from engine.vllm_v1.flights import Flight
from engine.vllm_v1.plan import Promotion, Turn
from engine.vllm_v1.requests import RankedQueue, RequestState
from engine.vllm_v1.results import Missing, Outcome
from engine.vllm_v1.running import Running
from engine.vllm_v1.state import SchedulerState as V1State
from engine.vllm_v1.verifying import VerifyingRows
from spec.core.requests import Request
from spec.vllm_v1.groups import GroupKind
from spec.vllm_v1.records import Load
from tests.checks.faults.patches import Wrong, always
from tests.checks.harness.cases import hunt_table
from tests.checks.policies.engine_faults import EngineFaults, hunt_fault

ENGINE = system_of("vllm-v1", "engine")
ENGINE_FAULTS = EngineFaults()
fault = ENGINE_FAULTS.fault


# --- the budget -----------------------------------------------------------------------------------

fault("budget", running_turns, "_new_tokens")(
    lambda right, draft, row: max(right(draft, row) - 1, 1),
    "one token less: a running request computes one token less than it could",
)
fault("budget", running_turns, "running_tokens")(
    lambda right, tokens, drafts, computed, _threshold, budget, length: right(
        tokens, drafts, computed, 0, budget, length
    ),
    "threshold forgotten: a running request's chunks are not cut to the threshold",
)
fault("budget", running_turns, "running_tokens")(
    lambda right, tokens, drafts, computed, threshold, budget, length: right(
        tokens, drafts, computed, threshold, budget, length + 1
    ),
    "model length one off: the last position of the model length is computed",
)
fault("budget", admission, "waiting_tokens")(
    lambda right, tokens, computed, _threshold, budget: right(tokens, computed, 0, budget),
    "newcomer's threshold forgotten: the first chunk is not cut to the threshold",
)
fault("budget", admission, "no_room")(
    lambda right, config, budget, running: right(config, budget, running + 1),
    "slot left empty: one request less than allowed runs",
)


# --- preemption -----------------------------------------------------------------------------------

fault("preemption", running_turns, "_victim")(
    lambda _right, draft: next(
        row for row in draft.state.running.rows if row not in draft.preempted
    ),
    "first gives way: the front of the running queue is preempted",
)
fault("preemption", running_turns, "_victim")(
    lambda _right, draft: next(
        row for row in reversed(draft.state.running.rows) if row not in draft.preempted
    ),
    "priorities not looked at: the last of the running queue is always the victim",
)
fault("preemption", running_turns, "_make_room")(
    lambda right, draft, row, lacking: right(draft, row, max(lacking - 1, 0)),
    "a block too few: requests are preempted until all but one block are free",
)


@fault("preemption", Draft, "preempt")
def victim_is_not_refunded(right: Wrong, draft: Draft, victim: RequestState) -> None:
    """The tokens of a victim that was scheduled already are not given back."""
    budget = draft.budget
    right(draft, victim)
    draft.budget = budget


@fault("preemption", planning, "plan_admissions")
def never_called_after_a_token(right: Wrong, draft: Draft) -> None:
    """No request is admitted next to one that runs."""
    if not draft.turns and draft.batch is None and draft.verification is None:
        right(draft)


@fault("preemption", RequestState, "again")
def answer_lost_with_preemption(right: Wrong, request: RequestState, outputs: Any) -> Any:
    """A preempted request loses its newest token."""
    return right(request, outputs[:-1])


# --- the encoder ----------------------------------------------------------------------------------

fault("encoder", EncoderCache, "make_room")(
    lambda right, cache, tokens: right(cache, tokens - 1),
    "a token too little room: an encoding takes one token more than there is room for",
)
fault("encoder", EncoderCache, "pass_by")(
    lambda right, cache, row, certain: right(cache, row, certain - 1),
    "passed a token later: an encoding stays until the token behind it is computed",
)
fault("encoder", EncoderDraft, "_is_split")(
    lambda _right, _draft, _span, _start, _end: False,
    "split all the same: images are split that must not be",
)
fault("encoder", EncoderDraft, "give_back")(
    always(None), "kept by victims: a victim, or a waiting request, still refers to its encodings"
)


@fault("encoder", EncoderDraft, "want")
def not_read_ahead(right: Wrong, draft: Any, row: RequestState, start: int, tokens: int) -> Any:
    """No image is encoded for the token that a drafter reads behind those of a step."""
    config = draft._config
    draft._config = evolve(config, drafter_reads_ahead=False)
    wanted = right(draft, row, start, tokens)
    draft._config = config
    return wanted


# --- blocks ---------------------------------------------------------------------------------------

fault("blocks", BlockManager, "is_kept")(
    lambda _right, _blocks, _block, _key: True,
    "plain blocks behind: blocks without content are handed out last",
)
fault("blocks", BlockManager, "release")(
    lambda right, blocks, table: right(blocks, table[::-1]),
    "released head first: a table is given back from its head on",
)
fault("blocks", FreeList, "put_back")(
    lambda _right, free, blocks: free.put_front(blocks),
    "last in, first out: cached blocks that are given back are handed out next",
)
fault("blocks", running_turns, "slots_end")(
    lambda right, tokens, _lookahead, length: right(tokens, 0, length),
    "lookahead forgotten: no slots are set aside for the drafter",
)
fault("blocks", running_turns, "slots_end")(
    lambda right, tokens, lookahead, length: right(tokens, lookahead, length + 99),
    "slots beyond the model: blocks are handed out behind the model length",
)
fault("blocks", PoolDraft, "release")(
    lambda right, pool, table: right(pool, table[::-1]),
    "planned head first: a victim's table is planned to be given back from its head on",
)
fault("blocks", Draft, "promote")(
    lambda _right, draft, row: draft.moves.append(Promotion(row)),
    "promotion not planned: what was loaded, or given back, is not seen in its step",
)


@fault("blocks", admission, "_lacking")
def whole_prompt_not_reserved(right: Wrong, draft: Draft, found: Any, *room: int) -> Any:
    """A request is admitted though all of its tokens do not fit."""
    whole, found.row.tokens = found.row.tokens, 0
    try:
        return right(draft, found, *room)
    finally:
        found.row.tokens = whole


# --- caching --------------------------------------------------------------------------------------

fault("caching", admission, "hit_blocks_at_most")(
    lambda right, tokens, size: right(tokens + 1, size),
    "whole prompt hit: all of a cached prompt is taken",
)
fault("caching", admission, "hit_blocks_at_most")(
    lambda right, tokens, size: max(right(tokens, size) - 1, 0),
    "last block missed: the last block that may be hit is not looked up",
)
fault("caching", PoolDraft, "lookup")(
    lambda _right, pool, key: pool._manager.lookup(key),
    "blind to its own step: blocks hashed or evicted in the step are not seen",
)
fault("caching", apply, "_register")(always(None), "nothing cached: no block can ever be found")
fault("caching", SchedulerState, "request_tokens")(
    lambda _right, _state, _request, start, end: np.zeros(end - start, np.int64),
    "keys without tokens: no token counts in the key of a block",
)


@fault("caching", admission, "_hit")
def lookup_not_repeated(right: Wrong, draft: Draft, row: RequestState) -> Any:
    """A lookup is not repeated after a change."""
    return row.hit or right(draft, row)


@fault("caching", Draft, "give_turn")
def drafts_are_cached(right: Wrong, draft: Draft, turn: Turn) -> None:
    """Blocks full of drafts can be found."""
    right(draft, turn)
    if turn.drafts and (turn.computed + turn.new) % draft.state.config.block_size == 0:
        turn.tokens += turn.drafts


# --- order ----------------------------------------------------------------------------------------

fault("order", WaitingQueue, "put_front")(
    lambda _right, queue, request: queue.put_back(request),
    "preempted waits last: a preempted request goes to the end of the queue",
)


@fault("order", RankedQueue, "put_back")
def priorities_not_sorted(_right: Wrong, queue: Any, request: RequestState) -> None:
    """A request goes to the end, also with a higher priority."""
    WaitingQueue.put_back(queue, request)
    queue._ranked.append(request)


fault("order", Running, "in_order")(
    lambda _right, _running, rows: rows[::-1],
    "blocks in no order: the last row is handed one first",
)


@fault("order", V1State, "skip")
def loading_stands_first(_right: Wrong, state: V1State, request: RequestState) -> None:
    """A request that begins to load stands before those that were passed over."""
    state.skipped.insert(0, request)


# --- speculation ----------------------------------------------------------------------------------

fault("speculation", VerifyingRows, "accepted")(
    lambda right, rows, given: np.minimum(right(rows, given) + 1, rows.drafts),
    "one draft too many: of rows that all verify, a rejected draft is accepted",
)
fault("speculation", VerifyingRows, "due")(
    lambda right, rows, accepted, ends: (
        np.broadcast_to(accepted + 1, len(rows.rows)),
        right(rows, accepted, ends)[1],
    ),
    "all rows behind the end: rows that all verify get all their accepted drafts",
)
fault("speculation", VerifyingRows, "none_ends")(
    always(True), "no end seen: rows that all get as many tokens go on behind their ends"
)
fault("speculation", VerifyingRows, "advance")(
    lambda right, rows, tokens: right(rows, tokens + 1),
    "a token ahead: rows that all get as many tokens have computed one more",
)
fault("speculation", VerifyingRows, "full")(
    always([]),
    "blocks of verifying rows unfound: what they have filled cannot be looked up",
)
fault("speculation", VerifyingRows, "write_back")(
    lambda _right, _rows: None,
    "lengths left behind: rows that verify no longer have the lengths of before",
)
fault("speculation", apply, "rolled_back")(
    lambda _right, computed, _drafts, _accepted: computed,
    "rejected and kept: rejected drafts count as computed",
)
fault("speculation", admission, "_padding")(
    always(0), "never filled up: a request with one token to compute gets no drafts"
)
fault("speculation", Sampled, "_due")(
    lambda right, sampled, row, first, most: (most, right(sampled, row, first, most)[1]),
    "tokens behind the end: a request gets all its accepted drafts",
)


@fault("speculation", Sampled, "_extend")
def one_draft(right: Wrong, sampled: Any, turn: Turn, due: int, is_over: bool) -> None:
    """One draft is proposed under every configuration."""
    right(sampled, turn, due, is_over)
    turn.row.drafts = 1


@fault("speculation", apply, "_propose_all")
def as_many_as_configured(right: Wrong, state: V1State, _proposes: Any, outcome: Outcome) -> None:
    """Rows that all verify drafts are proposed as many as configured, though there are fewer."""
    right(state, None, outcome)


# --- external keys and values ---------------------------------------------------------------------

fault("loading", admission, "_blocks_in_demand")(
    always(0), "nothing spoken for: a load takes blocks that prompts in progress need"
)
fault("loading", Missing, "valid_tokens")(
    always(None), "losses not noticed: a request goes on with what did not come"
)


@fault("loading", apply, "_promote")
def last_token_counts_as_loaded(right: Wrong, state: Any, row: RequestState) -> None:
    """All tokens of a request may be loaded, and none is computed."""
    computed = row.computed
    right(state, row)
    row.computed = computed


@fault("loading", apply, "remove")
def blocks_not_kept_while_they_load(right: Wrong, state: Any, request: RequestState) -> None:
    """Blocks of a client that goes away are free although a load writes to them."""
    if request.load is Load.LOADING:
        request.load = Load.LOADED
    right(state, request)


@fault("loading", apply, "end_load")
def lost_tokens_offered_again(right: Wrong, state: Any, request_id: str, failed: bool) -> bool:
    """What was lost is asked for again."""
    ended: bool = right(state, request_id, failed)
    state.lost._names.pop(request_id, None)
    return ended


# --- steps in flight ------------------------------------------------------------------------------

fault("flights", landing, "results_due")(
    lambda right, state, plan: right(state, plan) if len(state.flights) != 1 else None,
    "one too many: two steps are left in flight",
)
fault("flights", landing, "_takes_off")(
    always(True), "always planned: a step without anything to do is in flight, too"
)
fault("flights", running_turns, "_is_last_in_flight")(
    always(False), "one behind the end: a request that awaits its last token is given one more"
)
fault("flights", V1State, "just_sampled")(
    always(set()), "no turns: a request has a step of each stage of a pipeline"
)
fault("flights", V1State, "holds_back")(
    lambda right, state, row: row.unanswered or row.id in state.noted.compiling,
    "too early: a victim is admitted while its late token is in flight",
)
fault("flights", Flight, "settled")(
    lambda _right, flight: flight.plan,
    "as it was planned: rejected drafts before a step count as computed in it",
)
fault("flights", Flight, "no_longer_awaits")(
    always(None), "still awaited: a token of what was lost is delivered"
)
fault("flights", Sampled, "add_late")(
    always(False), "late token lost: a request that was preempted does not get its token"
)
fault("flights", V1State, "is_written")(
    always(False), "free at once: blocks that a step in flight writes to are handed out"
)


# --- sessions -------------------------------------------------------------------------------------

fault("sessions", apply, "hand_over")(
    lambda _right, state, row, _turn: apply.remove(state, row),
    "closed: a session ends with its first turn",
)
fault("sessions", admission, "no_room")(
    lambda right, *asked: None if right(*asked) == "V1-SES-3" else right(*asked),
    "places free: a session between two turns keeps no place",
)


@fault("sessions", scheduler, "take_turn")
def a_token_short(right: Wrong, state: V1State, request: Request) -> RequestState | None:
    """The last token of a turn's prompt is not computed."""
    row: RequestState | None = right(state, request)
    if row is not None:
        row.tokens -= 1
    return row


@fault("sessions", apply, "hand_over")
def in_front(right: Wrong, state: V1State, row: RequestState, turn: str) -> None:
    """A session is looked at before those whose turns ended earlier."""
    right(state, row, turn)
    state.skipped.insert(0, state.skipped.pop())


# --- groups of layers -----------------------------------------------------------------------------

fault("groups", groups, "unread")(
    lambda _right, state, row, _certain: (row.tables, [()] * len(state.groups)),
    "kept behind: blocks behind a window are not given back",
)
fault("groups", groups, "common_hits")(
    lambda right, state, pool, row, longest: right(state, pool, row, longest - state.alignment),
    "less in common: the longest prefix that all groups have is not looked up",
)
fault("groups", groups, "_lacking")(
    lambda right, state, group, held, end, *, ever: right(
        state, evolve(group, kind=GroupKind.FULL), held, end, ever=ever
    ),
    "states for all: each block of a chunk gets a state",
)
fault("groups", groups, "chunk")(
    lambda _right, _state, _row, span, *_others: len(span),
    "cut anywhere: chunks do not end where states are kept",
)
fault("groups", groups, "findable")(
    lambda right, state, row, tables, tokens: right(
        state, row, tables, range(tokens.start, max(tokens.stop - state.alignment, tokens.start))
    ),
    "found a block late: the last block of a group cannot be found",
)
fault("groups", groups, "last_states")(
    always(()), "state of the step: a state is read in the step that computes it"
)


fault("groups", V1State, "in_flight")(
    always(0), "read no more: what a step in flight still reads in a window is given back"
)
fault("groups", apply, "_register_in_groups")(
    lambda right, state, row, *given: (
        None if row.tokens > row.request.prompt_len else right(state, row, *given)
    ),
    "answers of groups lost: blocks of an answer are not found in groups",
)
fault("groups", groups, "_end")(
    lambda _right, _group, needed: needed[0], "no lookahead: a window has no slots for it"
)
fault("groups", groups, "with_hits")(
    lambda right, state, hits, _computed: right(state, hits, 0),
    "loaded behind the window: what is brought has blocks that its next token does not read",
)
fault("groups", apply, "_release_unread")(
    always(None), "not free first: what leaves gives its blocks back from its first table on"
)


@fault("groups", Draft, "preempt")
def blocks_of_groups_stay_held(right: Wrong, draft: Draft, victim: RequestState) -> None:
    """In the plan a victim gives back the blocks of the first group alone."""
    turn = draft.turns.get(victim)
    if turn is not None:
        turn.further = None
    draft.tables[victim] = ()
    right(draft, victim)


# --- accounting -----------------------------------------------------------------------------------

fault("accounting", Running, "of_length")(
    lambda right, running, remainder: right(running, remainder + 1),
    "boundary one off: rows are taken to stand one token further in their blocks",
)
fault("accounting", Running, "ending")(
    always([]), "ends not seen: a request goes on though it has all tokens that it samples"
)


@fault("accounting", apply, "compute")
def chunks_not_noticed(right: Wrong, turn: Turn) -> None:
    """A request is never taken to be in its prefill."""
    right(turn)
    turn.row.prefilling = False


@fault("accounting", Slots, "note")
def tokens_written_a_place_late(
    right: Wrong, slots: Slots, rows: Any, starts: Any, step: int, tokens: Any
) -> None:
    """Sampled tokens are noted one place behind their own."""
    right(slots, rows, starts, step + 1, tokens)


@fault("accounting", apply, "apply_plan")
def reported_twice(right: Wrong, state: Any, *given: Any) -> Any:
    """Requests that have left are reported with every step."""
    unreported = {*state.noted.unreported}
    outcome = right(state, *given)
    state.noted.unreported |= unreported
    return outcome


if __name__ == "__main__":
    print(hunt_table(hunt_fault(ENGINE, fault, 200) for fault in ENGINE_FAULTS))
