"""Carry out a plan, once the device has done its part.

Source: spyre, "Chunked Prefill" and "Decode padding"; vllm-v1, "Request lifecycle".
"""

from collections.abc import Collection

import numpy as np

from engine.core.tensors import Tensor
from engine.spyre.scheduler.batch import Batch
from engine.spyre.scheduler.core import Core
from engine.spyre.scheduler.keys import extend_keys
from engine.spyre.scheduler.leaving import finish, preempt
from engine.spyre.scheduler.plan import DecodePlan, IdlePlan, Outcome, Plan, PrefillPlan
from engine.spyre.scheduler.tracked import Tracked
from spec.core.records import IDLE
from spec.spyre.config import Admission
from spec.spyre.reservation import still_promised

Ends = Collection[str] | None


def carry_out(core: Core, plan: Plan, tokens: Tensor, ends: Ends) -> Outcome:
    """Do what was planned; `tokens` are what the device sampled for it.

    `ends`: who samples the end of sequence; None: each request where it says so.
    """
    match plan:
        case PrefillPlan():
            outcome = _carry_out_prefill(core, plan, tokens, ends)
        case DecodePlan():
            outcome = _carry_out_decode(core, plan, tokens, ends)
        case IdlePlan():
            outcome = Outcome(IDLE)
    core.last_kind = outcome.kind
    # Kept only for the rule that looks at it.
    core.last_tkv = outcome.tkv if core.config.admission is Admission.SHIPPED else 0
    return outcome


# --- prefill ------------------------------------------------------------------------------------


def _carry_out_prefill(core: Core, plan: PrefillPlan, tokens: Tensor, ends: Ends) -> Outcome:
    request, tkv = plan.request, plan.request.prefill_len
    if plan.is_new:
        _admit(core, plan)
    _hand_out(core, request, plan.new_blocks)
    request.computed = plan.chunk.end
    _register_full_blocks(core, request, request.computed)
    if not plan.chunk.is_last:
        return Outcome(plan.kind, tkv)
    tokens = _join(core, request, tokens)
    finished = finish(core, [0] if _ends_with_first_token(core, ends) else [])
    return Outcome(plan.kind, tkv, (request.id,), tokens, finished)


def _admit(core: Core, plan: PrefillPlan) -> None:
    """A waiting request takes the prefill slot, its cached blocks and its reservation."""
    request = plan.request
    core.queue.remove(request)
    core.prefilling = request
    core.blocks.acquire(plan.held)
    request.blocks = plan.held
    request.hit_blocks = request.registered = plan.hit_blocks
    request.hit = None
    request.reserved = plan.promised
    core.reserved += plan.promised


def _join(core: Core, request: Tracked, tokens: Tensor) -> Tensor:
    """The request has its first token and decodes from now on, in front of the batch."""
    core.prefilling = None
    request.slot = core.slots.take(request.blocks, request.outputs, request.request.max_tokens)
    core.decoding = core.decoding.with_front(request)
    return _keep_sampled(core, core.decoding.of_rows([0]), tokens)


def _ends_with_first_token(core: Core, ends: Ends) -> bool:
    """True if the request in front of the batch leaves at once."""
    rows = core.decoding
    last = rows.full_at if ends is not None else rows.ends_at
    return bool(rows.computed[0] >= last[0]) or rows.members[0].id in (ends or ())


# --- decode -------------------------------------------------------------------------------------


def _carry_out_decode(core: Core, plan: DecodePlan, tokens: Tensor, ends: Ends) -> Outcome:
    for victim in plan.preempted:
        preempt(core, victim)
    rows = core.decoding = plan.rows
    core.paused = plan.paused
    if plan.left_padding is not None:
        rows.left_padding[:] = plan.left_padding
    for row, block in zip(plan.growing, plan.new_blocks, strict=True):
        _hand_out(core, rows.members[row], (block,))
    rows.advance(plan.tkv)
    if core.config.prefix_caching and plan.tkv % core.config.block_size == 0:
        _register_filled(core, rows)
    tokens = _keep_sampled(core, rows, tokens)
    finished = finish(core, _ending_rows(rows, ends))
    return Outcome(plan.kind, plan.tkv, rows.ids, tokens, finished)


def _register_filled(core: Core, rows: Batch) -> None:
    """Let lookups find the blocks that this step has filled; some row did if tkv fills its own."""
    size = core.config.block_size
    for row in np.flatnonzero(rows.computed % size == 0).tolist():
        _register_full_blocks(core, rows.members[row], int(rows.computed[row]))


def _keep_sampled(core: Core, rows: Batch, tokens: Tensor) -> Tensor:
    """The rows' new tokens, written down: the device's, unless a request says what it samples."""
    places = rows.computed - rows.prompt_len
    if rows.prescribed:
        tokens = tokens.copy()
    for row in rows.prescribed:
        output, place = rows.members[row].request.output or (), int(places[row])
        if place < len(output):
            tokens[row] = output[place]
    core.slots.outputs[rows.slot, places] = tokens
    return tokens


def _ending_rows(rows: Batch, ends: Ends) -> list[int]:
    """Rows that have all their tokens, or sampled the end of sequence, in batch order."""
    if ends is None:
        if rows.steps_to_end > 0:
            return []
        return np.flatnonzero(rows.computed >= rows.ends_at).tolist()
    ending = {row for row, name in enumerate(rows.ids) if name in ends} if ends else set()
    if rows.steps_to_full <= 0:
        ending.update(np.flatnonzero(rows.computed >= rows.full_at).tolist())
    return sorted(ending)


# --- blocks -------------------------------------------------------------------------------------


def _hand_out(core: Core, request: Tracked, blocks: tuple[int, ...]) -> None:
    """New blocks at the end of the request's table, out of those set aside for it."""
    if not blocks:
        return
    core.blocks.allocate(blocks)
    if request.slot >= 0:
        core.slots.write_blocks(request.slot, len(request.blocks), blocks)
    request.blocks += blocks
    left = max(still_promised(request.reserved, len(blocks)), 0)
    core.reserved += left - request.reserved
    request.reserved = left


def _register_full_blocks(core: Core, request: Tracked, computed: int) -> None:
    """Let lookups find the request's full blocks that are not cached yet."""
    full = computed // core.config.block_size
    if not core.config.prefix_caching or full <= request.registered:
        return
    extend_keys(core, request, full)
    fresh = slice(request.registered, full)
    core.blocks.register(request.blocks[fresh], request.keys[fresh])
    request.registered = full
