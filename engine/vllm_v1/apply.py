"""Apply a plan that the device has executed, and release the blocks of leaving requests.

Source: vllm-v1, "KV cache manager", "Memory Management & Preemption" and "Speculative Decoding".
"""

from collections.abc import Iterable, Sequence
from itertools import chain, compress, repeat

import numpy as np

from engine.core.requests import as_prescribed
from engine.core.scheduler import Ends
from engine.core.tensors import NO_TOKENS, Tensor
from engine.vllm_v1 import groups
from engine.vllm_v1.encoder import EncoderCache
from engine.vllm_v1.plan import (
    Admission,
    Blocks,
    Deferral,
    GiveBack,
    GroupBlocks,
    LoadStart,
    Move,
    Plan,
    Preemption,
    Promotion,
    Turn,
    Verification,
)
from engine.vllm_v1.requests import RequestState
from engine.vllm_v1.results import Missing, Outcome, Proposes, Results
from engine.vllm_v1.running import Batch
from engine.vllm_v1.sessions import hand_over
from engine.vllm_v1.state import SchedulerState
from engine.vllm_v1.verifying import VerifyingRows
from spec.core.requests import BlockKey
from spec.vllm_v1.config import Connector, rolled_back
from spec.vllm_v1.records import Load


def apply_plan(state: SchedulerState, plan: Plan, tokens: Tensor, results: Results) -> Outcome:
    """Apply the decisions of the plan, then the results of the model."""
    others = plan.own_moves or plan.passed or results.leavers
    if plan.encoder is not None:
        state.encoder = plan.encoder
    if plan.verification is not None and not others:
        state.noted.unreported.clear()
        return _verify_all(state, plan.verification, tokens, results)
    decide_all(state, plan)
    return _apply_results(state, plan, tokens, results)


# --- decisions ------------------------------------------------------------------------------------


def decide_all(state: SchedulerState, plan: Plan) -> None:
    """Hand out and hash blocks, and move requests between the queues."""
    state.noted.unreported.clear()
    for growth in plan.grown:
        _allocate(state, growth.row, growth.fresh)
    running = state.running
    running.verify_no_longer()
    if plan.batch is None:
        _stop_decoding(state, plan)
    elif state.config.prefix_caching:
        for row in running.in_order(running.of_length(0)):
            _register(state, row, running.tokens(row))
    for move in plan.moves:
        _make(state, move)
    for row in reversed(plan.passed):
        state.skipped.remove(row)
        state.queue.put_front(row)
    if state.planned is not None:
        state.planned()


def _stop_decoding(state: SchedulerState, plan: Plan) -> None:
    """Rows without a turn, for which no budget was left, do not decode any more."""
    turns = {turn.row for turn in plan.turns}
    for row in state.running.rows:
        if row.start is not None and row not in turns:
            state.running.leave(row)


def _make(state: SchedulerState, move: Move) -> None:
    match move:
        case Admission():
            _admit(state, move)
        case Turn(row=row):
            _allocate(state, row, move.fresh)
            known, row.drafts = row.registered, 0
            _register(state, row, min(move.computed + move.new, move.tokens))
            _take_in_groups(state, move, known)
        case GiveBack(row=row):
            row.tables = move.tables
            for blocks in move.given:
                state.blocks.release(blocks)
        case Preemption(row=row):
            preempt(state, row)
        case Promotion(row=row):
            _promote(state, row)
        case LoadStart():
            _load(state, move)
        case Deferral(row=row):
            state.queue.remove(row)
            state.skip(row)


def _allocate(state: SchedulerState, row: RequestState, fresh: Blocks) -> None:
    if fresh:
        state.blocks.allocate(fresh)
        state.slots.write_blocks(row.slot, len(row.blocks), fresh)
        row.blocks += fresh


def _register(state: SchedulerState, row: RequestState, tokens: int) -> None:
    """Register the row's blocks that its first `tokens` tokens fill."""
    whole = tokens // state.alignment * state.alignment
    full, known = whole // state.config.block_size, row.registered
    if full > known and state.config.prefix_caching:
        state.hash_blocks(row, full)
        keys: tuple[BlockKey, ...] = row.hashes[known:full]
        state.blocks.register(row.blocks[known:full], keys)
        row.registered = full


def _take_blocks(state: SchedulerState, row: RequestState, hits: Blocks, fresh: Blocks) -> None:
    """Append cached blocks and new blocks to the request's table."""
    if hits:
        state.blocks.acquire(hits)
        row.registered = len(hits)
    if fresh:
        state.blocks.allocate(fresh)
    row.blocks += hits + fresh
    row.hit = None


def _admit(state: SchedulerState, admission: Admission) -> None:
    """Move a request from the queues to the running queue."""
    row = admission.row
    _leave_queues(state, row)
    state.noted.preempted.discard(row.id)
    hits = admission.further.hits if admission.further else ()
    state.blocks.acquire([block for table in hits for block in groups.real(table)])
    _take_blocks(state, row, admission.hits, admission.fresh)
    row.slot = state.slots.take(row.blocks, row.outputs, row.request.max_tokens)
    row.computed, known = admission.computed, row.registered
    _register(state, row, min(admission.computed + admission.new, row.tokens))
    _take_in_groups(state, admission, known)
    state.running.append(row)


def _take_in_groups(state: SchedulerState, turn: Turn, known: int) -> None:
    """Hand out and register the blocks of a turn in the groups of layers beside the first.

    `known`: leading blocks of the first group that lookups found before.
    """
    if turn.further is not None:
        _allocate_in_groups(state, turn.row, turn.further)
        _register_in_groups(state, turn.row, known, min(turn.computed + turn.new, turn.tokens))


def _allocate_in_groups(state: SchedulerState, row: RequestState, further: GroupBlocks) -> None:
    for blocks in further.fresh:
        state.blocks.allocate(blocks)
    row.tables, row.grown_from = further.tables, further.grown_from
    row.junction = row.junction or further.junction


def _register_in_groups(state: SchedulerState, row: RequestState, known: int, tokens: int) -> None:
    """Register the row's blocks that its first `tokens` tokens fill, but for the `known` ones."""
    if not (row.tables and state.config.prefix_caching):
        return
    full = range(known * state.config.block_size, tokens // state.alignment * state.alignment)
    for _, block, key in groups.findable(state, row, row.tables, full):
        state.blocks.register((block,), (key,))


def _load(state: SchedulerState, start: LoadStart) -> None:
    """Start a load: the request moves to the skipped queue."""
    row = start.row
    if start.further is not None:
        state.blocks.acquire([*chain.from_iterable(start.further.hits)])
        _allocate_in_groups(state, row, start.further)
    _take_blocks(state, row, start.hits, start.fresh)
    row.computed, row.load = start.computed, Load.LOADING
    if state.queue.find(row.id) is not None:
        state.queue.remove(row)
        state.skip(row)


def _promote(state: SchedulerState, row: RequestState) -> None:
    """Register the loaded blocks; release them if nothing was loaded."""
    row.load = Load.NONE
    if row.computed:
        known = row.registered
        _register(state, row, row.computed)
        _register_in_groups(state, row, known, row.computed)
        row.computed = min(row.computed, row.tokens - 1)
        return
    state.blocks.release(row.blocks)
    row.blocks, row.registered = (), 0


def _leave_queues(state: SchedulerState, row: RequestState) -> None:
    if state.queue.find(row.id) is not None:
        state.queue.remove(row)
    else:
        state.skipped.remove(row)


# --- results --------------------------------------------------------------------------------------


def _apply_results(state: SchedulerState, plan: Plan, tokens: Tensor, results: Results) -> Outcome:
    """Count the scheduled tokens as computed, verify drafts, store tokens, finish requests."""
    running, batch = state.running, plan.batch
    if running.decoding:
        running.steps += 1
    if batch is not None and not plan.turns and not results.leavers:
        tokens = _note_batch(state, batch, tokens)
        return Outcome(batch.ids, tokens, finish(state, _leaving(state, batch, results)))
    outcome = Outcome()
    for turn in plan.turns:
        compute(turn)
    admissions = [turn for turn in plan.turns if isinstance(turn, Admission)]
    missing = lose_loads(state, admissions, results, outcome)
    let_go(state, results, outcome, plan.turns)
    sampled = Sampled(state, results, outcome)
    leaving: list[RequestState] = []
    if batch is not None:
        sampled.add_batch(batch, _note_batch(state, batch, tokens[: len(batch.rows)]))
        leaving = [row for row in _leaving(state, batch, results) if row.id not in outcome.leavers]
    own = tokens[plan.samples - sum(turn.samples for turn in plan.turns) :].tolist()
    for turn in plan.turns:
        samples, own = own[: turn.samples], own[turn.samples :]
        if turn.row.id in outcome.leavers:
            continue
        valid = missing.valid_tokens(turn)
        if valid is not None:
            compute_again(state, turn, valid, outcome)
        elif not samples:
            state.encoder.pass_by(turn.row, turn.row.computed)
        elif sampled.add(turn, samples):
            leaving.append(turn.row)
    sampled.write()
    sampled.register()
    outcome.finished = finish(state, leaving)
    return outcome


def _note_batch(state: SchedulerState, batch: Batch, tokens: Tensor) -> Tensor:
    """Store and return the tokens that the rows of a batch get."""
    steps = state.running.steps
    if batch.prescribed:
        tokens = as_prescribed(tokens, batch.rows, batch.prescribed, batch.outputs + steps)
    state.slots.note(batch.slots, batch.outputs, steps, tokens)
    return tokens


def _leaving(state: SchedulerState, batch: Batch, results: Results) -> list[RequestState]:
    """The rows of a batch that end."""
    running, ends = state.running, results.ends
    if ends is None:
        return running.in_order(running.ending())
    full = running.full()
    return [row for row in batch.rows if row in full or row.id in ends] if full or ends else []


def compute(turn: Turn) -> None:
    """Count the turn's tokens as computed; with more to come, the row is in its prefill."""
    row = turn.row
    if row.start is None:
        row.computed = turn.computed + turn.new
        row.prefilling = row.computed < turn.tokens + turn.awaited


def lose_loads(
    state: SchedulerState, admissions: Iterable[Admission], results: Results, outcome: Outcome
) -> Missing:
    """Note the loads of these requests that were lost; they are not offered again."""
    lost = [turn for turn in admissions if turn.external and turn.row.id in results.lost]
    outcome.lost = tuple(turn.row.id for turn in lost)
    for name in outcome.lost:
        state.lost.add(name)
    return Missing(lost, state.config.block_size)


def let_go(
    state: SchedulerState, results: Results, outcome: Outcome, turns: Iterable[Turn]
) -> None:
    """Remove requests whose clients left while the model ran; `turns`: those of the step."""
    new = {turn.row: turn.new for turn in turns} if results.leavers else {}
    present = [(name, state.find(name)) for name in results.leavers]
    outcome.leavers = tuple(name for name, row in present if row is not None)
    for name, row in present:
        if row is not None:
            decodes = row.start is not None
            remove(state, row, new.get(row, 0))
            row.tokens = row.computed if decodes else row.tokens  # it gets none of this step
            state.aborted.add(name)


def compute_again(state: SchedulerState, turn: Turn, valid: int, outcome: Outcome) -> None:
    """A row read a missing block: it has no output and resumes behind its valid tokens.

    What steps in flight sample for it is not awaited: they have read the block, too.
    """
    row = turn.row
    outcome.undone[row.id] = row.computed, valid
    row.computed, row.prefilling = valid, True
    row.drafts = row.placeholders = 0
    for flight in state.flights:
        flight.no_longer_awaits(row.id)
        flight.void.add(row.id)


class Sampled:
    """Collects the tokens of rows with turns of their own."""

    def __init__(self, state: SchedulerState, results: Results, outcome: Outcome) -> None:
        self._state, self._results, self._outcome = state, results, outcome
        self._of_batch: tuple[Sequence[str], Tensor] = (), NO_TOKENS
        self._ids: list[str] = []
        self._tokens: list[int] = []
        self._stored: list[int] = []  # of these, the tokens of running rows
        self._slots: list[int] = []
        self._places: list[int] = []
        self._filled: list[tuple[RequestState, int]] = []

    def add_batch(self, batch: Batch, tokens: Tensor) -> None:
        """Tokens of the batch's rows that have not left."""
        ids: Sequence[str] = batch.ids
        if gone := self._outcome.leavers:
            kept = [name not in gone for name in ids]
            ids, tokens = [*compress(ids, kept)], tokens[kept]
        self._of_batch = ids, tokens

    def add(self, turn: Turn, samples: list[int]) -> bool:
        """Accepted drafts and one more token, up to the request's end; True if the request ends."""
        row = turn.row
        accepted = self._accepted(turn)
        row.computed = int(rolled_back(row.computed, turn.drafts, accepted))
        awaited = row.placeholders and int(rolled_back(row.placeholders, turn.drafts, accepted))
        self._state.encoder.pass_by(row, self._state.running.computed(row) - awaited)
        tokens, is_over = self._gained(turn, accepted, samples)
        due, first = len(tokens), turn.tokens - row.request.prompt_len
        self._stored += tokens
        self._slots += [row.slot] * due
        self._places += range(first, first + due)
        if row.start is None:
            self._extend(turn, due, is_over)
        if is_over and self._state.config.behaviour.trims_at_end:
            row.computed -= accepted + 1 - due
        self._filled.append((row, turn.tokens + due - 1))
        if is_over:
            self._state.encoder.give_back(row)
        return is_over

    def add_late(self, row: RequestState, turn: Turn, samples: list[int]) -> bool:
        """The same for a row that was preempted meanwhile and waits, with nothing to roll back."""
        tokens, is_over = self._gained(turn, self._accepted(turn), samples)
        row.receive(tokens)
        if self._state.queue.find(row.id) is row:
            self._state.queue.has_changed(row)
        return is_over

    def _gained(self, turn: Turn, accepted: int, samples: list[int]) -> tuple[list[int], bool]:
        """The tokens that a request gets, and whether it ends with them."""
        row, request = turn.row, turn.row.request
        first = turn.tokens - request.prompt_len
        due, is_over = self._due(row, first, accepted + 1)
        tokens = samples[:due]
        if request.output is not None:
            given = request.output[first : first + due]
            tokens[: len(given)] = given
        self._ids += [row.id] * due
        self._tokens += tokens
        return tokens, is_over

    def _accepted(self, turn: Turn) -> int:
        """Number of accepted drafts of the turn."""
        if not turn.drafts:
            return 0
        name, accepted = turn.row.id, 0
        if not isinstance(turn, Admission):  # else they were never made
            accepted = min(self._results.accepted.get(name, 0), turn.drafts)
        self._outcome.accepted[name] = accepted
        return accepted

    def _due(self, row: RequestState, first: int, most: int) -> tuple[int, bool]:
        """Number of tokens, up to `most`, that the request gets, and whether it then ends."""
        ends, request = self._results.ends, row.request
        is_named = ends is not None and row.id in ends
        as_said = ends is None or is_named
        left = max((request.end if as_said else request.max_tokens) - first, 1)
        return min(most, left), is_named or left <= most

    def _extend(self, turn: Turn, due: int, is_over: bool) -> None:
        """The row has `due` more tokens, and new drafts behind them if any may be proposed."""
        row, most = turn.row, self._state.config.num_speculative_tokens
        row.tokens = turn.tokens + due
        if row.placeholders:
            row.placeholders -= turn.samples
        elif not most:
            self._state.running.join(row)
        elif not is_over:
            _propose(row, most, self._results.proposes, self._outcome)

    def write(self) -> None:
        """Store all collected tokens."""
        ids, tokens = self._of_batch
        own = np.array(self._tokens, np.int64)
        self._outcome.sampled = (*ids, *self._ids)
        self._outcome.tokens = np.concatenate((tokens, own))
        if self._slots:
            slots, places = (np.array(values, np.int64) for values in (self._slots, self._places))
            self._state.slots.note(slots, places, 0, np.array(self._stored, np.int64))

    def register(self) -> None:
        """Register what the rows have filled, where that is done at once."""
        if self._state.caches_sampled:
            for row, computed in self._filled:
                known = row.registered
                _register(self._state, row, computed)
                _register_in_groups(self._state, row, known, computed)


def _propose(row: RequestState, most: int, proposes: Proposes | None, outcome: Outcome) -> None:
    """The row has drafts for its next step, `most` unless the drafter has fewer."""
    row.drafts = most if proposes is None else proposes(row, most)
    if row.drafts < most:
        outcome.proposed[row.id] = row.drafts


# --- rows that all verify drafts ------------------------------------------------------------------


def _verify_all(
    state: SchedulerState, plan: Verification, tokens: Tensor, results: Results
) -> Outcome:
    """Apply a step in which all rows verify drafts, with array operations."""
    rows = plan.verifying
    _give_slots(state, plan)
    if state.planned is not None:
        rows.propose(0)
        state.planned()
        rows.propose(plan.drafts)
    samples = _as_prescribed(rows, tokens.reshape(len(rows.rows), plan.drafts + 1))
    accepted = rows.accepted(results.accepted)
    if isinstance(accepted, int) and not results.ends and rows.none_ends(accepted + 1):
        outcome = _verify_alike(state, rows, samples, accepted)
    else:
        outcome = _verify_each(state, rows, samples, accepted, results.ends)
    _propose_all(state, results.proposes, outcome)
    return outcome


def _propose_all(state: SchedulerState, proposes: Proposes | None, outcome: Outcome) -> None:
    """All rows, which verified drafts, have new ones."""
    running, most = state.running, state.config.num_speculative_tokens
    verifying = running.verifying()
    if verifying is not None:
        verifying.propose(most)
    if proposes is not None:
        running.verify_no_longer()
        for row in running.members:
            _propose(row, most, proposes, outcome)


def _give_slots(state: SchedulerState, plan: Verification) -> None:
    """Hand out blocks, and register full ones."""
    rows = plan.verifying
    for place, growth in plan.grown.items():
        _allocate(state, growth.row, growth.fresh)
        rows.grow(place, len(growth.fresh))
    for place in plan.full:
        row = rows.rows[place]
        _register(state, row, rows.row_computed(place) + 1)
        rows.register(place, row.registered)


def _as_prescribed(rows: VerifyingRows, samples: Tensor) -> Tensor:
    """Sampled tokens [rows, tokens], with prescribed tokens in their places."""
    if not rows.prescribed:
        return samples
    columns = (
        as_prescribed(column, rows.rows, rows.prescribed, rows.outputs + number)
        for number, column in enumerate(samples.T)
    )
    return np.stack([*columns], axis=1)


def _verify_alike(
    state: SchedulerState, rows: VerifyingRows, samples: Tensor, accepted: int
) -> Outcome:
    """Each row accepts `accepted` drafts and none ends: all get the same number of tokens."""
    due = accepted + 1
    for number in range(due):
        rows.note(state.slots, samples[:, number])
    rows.advance(int(rolled_back(1 + rows.drafts, rows.drafts, accepted)))
    _register_filled(state, rows, rows.computed)
    names = rows.ids if due == 1 else _repeated(rows.ids, [due] * len(rows.ids))
    return Outcome(names, samples[:, :due].ravel(), accepted=dict.fromkeys(rows.ids, accepted))


def _verify_each(
    state: SchedulerState,
    rows: VerifyingRows,
    samples: Tensor,
    accepted: int | Tensor,
    ends: Ends,
) -> Outcome:
    """Each row gets its accepted drafts and one more token, up to its end."""
    due, is_over = rows.due(accepted, ends)
    columns = np.arange(samples.shape[1])
    is_due = columns < due[:, np.newaxis]
    tokens, places = samples[is_due], (rows.outputs[:, np.newaxis] + columns)[is_due]
    state.slots.note(rows.slots.repeat(due), places, 0, tokens)
    kept = rows.computed + due  # a row that ends may have computed more
    rows.compute(rolled_back(rows.computed + 1 + rows.drafts, rows.drafts, accepted))
    _register_filled(state, rows, kept)
    outcome = Outcome(
        _repeated(rows.ids, due.tolist()),
        tokens,
        accepted=dict(zip(rows.ids, np.broadcast_to(accepted, len(due)).tolist(), strict=True)),
    )
    if is_over.any():
        ending = [*compress(rows.rows, is_over)]
        state.running.verify_no_longer()
        for row, computed in zip(ending, kept[is_over].tolist(), strict=True):
            row.tokens = computed + 1
            if state.config.behaviour.trims_at_end:
                row.computed = computed
        outcome.finished = finish(state, ending)
        state.running.verify(rows.without(is_over))
    return outcome


def _register_filled(state: SchedulerState, rows: VerifyingRows, computed: Tensor) -> None:
    """Register blocks full of these computed tokens, [rows], where that is done at once."""
    if state.caches_sampled:
        for place in rows.full(0):
            row = rows.rows[place]
            _register(state, row, int(computed[place]))
            rows.register(place, row.registered)


def _repeated(ids: Sequence[str], counts: Sequence[int]) -> tuple[str, ...]:
    """Each id repeated by its count."""
    return tuple(chain.from_iterable(map(repeat, ids, counts)))


# --- release --------------------------------------------------------------------------------------


def finish(state: SchedulerState, leaving: Iterable[RequestState]) -> tuple[str, ...]:
    """Remove these finished rows, in this order; return their ids."""
    names = []
    for row in leaving:
        if (turn := row.request.continued_by) is None:
            remove(state, row)
        else:
            hand_over(state, row, turn)
        state.finished.add(row.id)
        names.append(row.id)
    return tuple(names)


def preempt(state: SchedulerState, victim: RequestState) -> None:
    """Release a row's blocks: it keeps its tokens and waits first in the queue.

    It still gets what steps in flight sample for it, unless what it computed is to be sent.
    """
    generated = state.running.tokens(victim) - victim.request.prompt_len
    outputs = state.slots.outputs[victim.slot, :generated].copy()
    state.running.remove(victim)
    state.encoder.give_back(victim)
    _give_back(state, victim)
    state.queue.put_front(victim.again(outputs))
    state.noted.preempted.add(victim.id)
    for flight in state.flights if state.config.sends else ():
        flight.no_longer_awaits(victim.id)


def remove(state: SchedulerState, request: RequestState, new: int = 0) -> None:
    """Remove the request from its queue, and release what it holds.

    Blocks of an unfinished load, or that are to be sent, are kept until then. With a connector
    those that are read no more are released first (vLLM 0.28.0). `new`: tokens that the step
    computes while it leaves.
    """
    if request.tables and state.config.connector is not Connector.NONE:
        _release_unread(state, request, state.running.computed(request) - new)
    state.noted.has_left(request.request)
    state.encoder.give_back(request)
    if request.slot >= 0:
        state.running.remove(request)
    else:
        _leave_queues(state, request)
    request.placeholders = 0
    request.sending = state.config.sends and request.computed > 0
    if _is_transferred(request):
        request.drafts, request.prefilling = 0, False
        if request.load is not Load.LOADING:
            request.load = Load.NONE
        _give_slot_back(state, request)
        state.draining.append(request)
    else:
        _give_back(state, request)


def _release_unread(state: SchedulerState, request: RequestState, computed: int) -> None:
    request.tables, given = groups.unread(state, request, computed)
    for blocks in given:
        state.blocks.release(blocks)


def _is_transferred(request: RequestState) -> bool:
    """True if something still writes to the blocks of a request that has left, or sends them."""
    return request.sending or request.load is Load.LOADING


def _give_back(state: SchedulerState, request: RequestState) -> None:
    _release(state, request)
    _give_slot_back(state, request)


def _release(state: SchedulerState, request: RequestState) -> None:
    """Its blocks are free, or will be with the results of all steps in flight that write."""
    if request.blocks and state.is_written(request.id):
        last = next(flight for flight in reversed(state.flights) if flight.plan.turns)
        last.frees.append((request.id, request.blocks))
    else:
        state.blocks.release(request.blocks)
    for table in request.tables:
        state.blocks.release(groups.real(table))


def _give_slot_back(state: SchedulerState, request: RequestState) -> None:
    if request.slot < 0:
        return
    state.slots.give_back(request.slot)
    if state.flights:  # steps that it is in read its tokens later
        request.outputs = state.slots.outputs[request.slot, : request.request.max_tokens].copy()
        request.slot = -1


def end_load(state: SchedulerState, request_id: str, failed: bool) -> bool:
    """End a load, complete or failed; False if the request does not load."""
    for row in state.draining:
        if row.id == request_id and row.load is Load.LOADING:
            row.load = Load.NONE
            _end_transfer(state, row)
            return True
    for row in state.skipped:
        if row.id == request_id and row.load is Load.LOADING:
            row.load = Load.FAILED if failed else Load.LOADED
            if failed:
                size = state.config.block_size
                row.computed = row.valid_after_loss(row.registered * size, row.computed, size)
                state.lost.add(request_id)
            return True
    return False


def answer(state: SchedulerState, request_id: str) -> bool:
    """Note that the connector has said what it has of a request; False if that was known."""
    row = state.find(request_id)
    if row is None or not row.unanswered:
        return False
    row.unanswered = False
    return True


def compiled(state: SchedulerState, request_id: str) -> bool:
    """Note that a request's grammar is ready; False if it was."""
    if request_id not in state.noted.compiling:
        return False
    state.noted.compiling.discard(request_id)
    return True


def end_send(state: SchedulerState, request_id: str) -> bool:
    """End the send of a request that has left; False if its blocks are not sent."""
    for row in state.draining:
        if row.id == request_id and row.sending:
            row.sending = False
            _end_transfer(state, row)
            return True
    return False


def _end_transfer(state: SchedulerState, row: RequestState) -> None:
    """Release the blocks of a request that has left, once no transfer needs them."""
    if not _is_transferred(row):
        state.draining.remove(row)
        _release(state, row)


def restart(state: SchedulerState) -> None:
    """Drop both caches: all requests with blocks wait at the head, running requests first.

    Steps in flight are lost, with what they sampled.
    """
    for _, table in (table for flight in state.flights for table in flight.frees):
        state.blocks.release(table)
    state.flights.clear()
    holding = [row for row in state.queue if row.blocks]
    for row in reversed([*state.skipped, *holding]):
        _leave_queues(state, row)
        _give_back(state, row)
        state.queue.put_front(row.again(row.outputs))
    for row in reversed([*state.running.rows]):
        preempt(state, row)
    for row in state.draining:
        _release(state, row)
    state.draining.clear()
    state.encoder = EncoderCache.of(state.config)
    state.blocks.forget_contents()
