"""Plan the tokens of the running requests, and the preemptions for their blocks.

Source: vllm-v1, "Token Budget Management" and "Memory Management & Preemption"; the ends of the
loop are those of the release. The formulas are those of `spec/vllm_v1/config.py`.
"""

from collections.abc import Sequence
from itertools import islice

from engine.vllm_v1 import groups
from engine.vllm_v1.draft import Draft
from engine.vllm_v1.plan import Growth, Turn, Verification
from engine.vllm_v1.requests import RequestState
from engine.vllm_v1.state import SchedulerState
from spec.core.blocks import missing_blocks
from spec.vllm_v1.config import is_last_in_flight, running_tokens, slots_end


def lacking_blocks(state: SchedulerState, held: int, computed: int, new: int) -> int:
    """Blocks that a request with `held` blocks lacks to compute `new` tokens."""
    config = state.config
    end = slots_end(computed + new, config.num_lookahead_tokens, config.max_model_len)
    return int(missing_blocks(end, held, config.block_size))


def plan_batch(state: SchedulerState) -> list[Growth] | None:
    """The rows that are handed blocks, if all rows decode and each of them finds its slots."""
    running = state.running
    if not running.members or not running.all_decode or state.groups:
        return None
    # A request is admitted only with budget left, so that there is a token for each row.
    growing = running.of_length(1 - state.config.num_lookahead_tokens)
    if not growing:
        return []
    wanted: list[tuple[RequestState, int]] = []
    for row in running.in_order(growing):
        lacking = lacking_blocks(state, len(row.blocks), running.computed(row), 1)
        if lacking:
            wanted.append((row, lacking))
    return _grown(state, wanted)


def _grown(
    state: SchedulerState, wanted: Sequence[tuple[RequestState, int]]
) -> list[Growth] | None:
    """Each row with the next free blocks that it wants; None if there are too few for all."""
    count = sum(lacking for _, lacking in wanted)
    if count > state.blocks.free.count:
        return None
    blocks = iter(state.blocks.next_free(count))
    return [Growth(row, row.blocks, tuple(islice(blocks, lacking))) for row, lacking in wanted]


def plan_verification(state: SchedulerState) -> Verification | None:
    """All rows verify their drafts; None unless budget, model length and slots suffice."""
    verifying = state.running.verifying()
    if verifying is None or state.groups:
        return None
    config, drafts, longest = state.config, verifying.drafts, verifying.longest
    new = 1 + drafts
    threshold, positions = state.threshold, config.most_positions
    budget = state.budget - new * (len(verifying.rows) - 1)  # of the last one
    if running_tokens(longest + 1, drafts, longest, threshold, budget, positions) != new:
        return None
    rows, wanted = verifying.rows, dict[int, int]()
    for place in verifying.crowded(new + config.num_lookahead_tokens):
        held, computed = len(rows[place].blocks), verifying.row_computed(place)
        lacking = lacking_blocks(state, held, computed, new)
        if lacking:  # else the model length ends before its slots do
            wanted[place] = lacking
    grown = _grown(state, [(rows[place], lacking) for place, lacking in wanted.items()])
    if grown is None:
        return None
    return Verification(
        verifying,
        rows,
        starts=verifying.starts,
        ahead=verifying.ahead,
        room=verifying.room.copy(),
        drafts=drafts,
        grown=dict(zip(wanted, grown, strict=True)),
        full=verifying.full(1) if config.prefix_caching else (),
    )


def plan_turns(draft: Draft) -> None:
    """Each running request catches up, in queue order, as long as there is budget.

    Where slots are lacking a request is preempted; up to 0.28.0 one that preempts itself ends the
    loop, and one that waits for blocks that a step in flight writes to does. Where a step in flight
    brings its last token there is nothing to catch up. Behind a step that samples for it, the other
    stages of a pipeline have their steps first.
    """
    state = draft.state
    ends_turns = state.config.behaviour.own_preemption_ends_turns
    running, just_sampled = state.running, state.just_sampled()
    for row in [*running.rows]:
        if not draft.budget:
            return
        if row in draft.preempted or row.id in just_sampled:
            continue
        if row.placeholders and _is_last_in_flight(row):
            continue
        new = _new_tokens(draft, row)
        if new <= 0:  # no position of the model length is left to compute
            continue
        computed, tokens = running.computed(row), running.tokens(row)
        if state.groups:
            span = range(computed, computed + new)
            new = groups.chunk(state, row, span, tokens, row.junction)
            if not new:  # the budget holds no whole block for a state
                continue
        encodings = draft.encoder.want(row, computed, new)
        new = encodings.tokens
        if not new:
            continue
        if state.groups:
            draft.give_back(row, computed - state.in_flight(row.id))
        tables, lacking = draft.tables.get(row, row.tables), 0
        wanted = lacking_blocks(state, len(row.blocks), computed, new)
        if state.groups:
            needed = groups.positions(state, computed + new)
            lacking = sum(groups.lacking(state, tables, needed))
        lacking += wanted
        _make_room(draft, row, lacking)
        if row in draft.preempted:
            if ends_turns:
                return
            continue
        if lacking > draft.pool.free:
            return
        fresh, further = draft.pool.allocate(wanted) if wanted else (), None
        if state.groups:
            held = groups.taken(tables, groups.empty(state))
            held.grown_from = row.grown_from
            further = groups.allocated(state, draft.pool, held, needed)
        draft.encoder.encode(row, encodings)
        own = (row, tokens, computed, new, row.blocks, fresh)
        encoded, awaited = encodings.new, row.placeholders
        draft.give_turn(Turn(*own, awaited=awaited, encoded=encoded, further=further))


def _new_tokens(draft: Draft, row: RequestState) -> int:
    """Tokens that the row computes."""
    if row.start is not None:
        return 1
    threshold, positions = draft.threshold, draft.state.config.most_positions
    return int(
        running_tokens(
            row.tokens + row.placeholders,
            row.drafts,
            row.computed,
            threshold,
            draft.budget,
            positions,
        )
    )


def _is_last_in_flight(row: RequestState) -> bool:
    request = row.request
    ahead = (row.computed, row.placeholders, request.prompt_len, request.max_tokens)
    return bool(is_last_in_flight(*ahead))


def _make_room(draft: Draft, row: RequestState, lacking: int) -> None:
    """Preempt until `lacking` blocks are free, or the row itself is preempted.

    From 0.33.0 on also until the victim's blocks would be free only later.
    """
    spares = draft.state.config.behaviour.spares_in_flight
    while lacking > draft.pool.free:
        victim = _victim(draft)
        if spares and draft.state.is_written(victim.id):
            return
        draft.preempt(victim)
        if victim is row:
            return


def _victim(draft: Draft) -> RequestState:
    """The last of the running queue; by priority, the worst one."""
    rows = draft.state.running.rows
    if not draft.state.by_priority:
        return rows[-1 - len(draft.preempted)]
    return max((row for row in rows if row not in draft.preempted), key=lambda row: row.rank)
