"""Plan a decode step: rows, pausing, preemptions, new blocks and left padding.

Source: spyre, "Decode padding" and "tkv jumping"; pausing is that of sendnn-inference 2.6.3,
preemption that of vLLM V1. The formulas are those of `spec/spyre/padding.py`.
"""

from typing import NamedTuple

import numpy as np

from engine.core.tensors import Tensor
from engine.spyre.scheduler.plan import DecodePlan, IdlePlan
from engine.spyre.scheduler.requests import Batch, RequestState
from engine.spyre.scheduler.state import SchedulerState
from spec.spyre.padding import (
    batch_width_blocks,
    last_block_offset,
    max_tkv,
    row_left_padding,
    volume,
)


def plan_decode(state: SchedulerState, refusal: str | None) -> DecodePlan | IdlePlan:
    """The next decode step; at least one row decodes or is paused. Idle if none fits the limit.

    While the same rows decode and none has filled its block, every tkv only grows by one.
    """
    chosen = choose_rows(state) if state.config.may_pause else Rows(state.decoding, state.paused)
    rows, size = chosen.decoding, state.config.block_size
    if not len(rows):
        return IdlePlan(refusal, chosen.paused, chosen.newly_paused)
    if rows.tkv % size:
        return DecodePlan(rows, chosen.paused, rows.tkv + 1, refusal=refusal)
    preempted = _preempted(state, rows)
    if preempted:
        rows = rows.without([row for row, member in enumerate(rows.members) if member in preempted])
    growing = _growing(rows, size)
    front, back = state.blocks.freed_by([victim.blocks for victim in preempted])
    padding, tkv = layout(rows.computed + 1, size)
    jumps = int(np.count_nonzero(padding != rows.left_padding))
    return DecodePlan(
        rows,
        chosen.paused,
        tkv,
        chosen.resumed,
        chosen.newly_paused,
        preempted,
        growing,
        state.blocks.next_free(len(growing), front=front, back=back),
        padding if jumps else None,
        jumps,
        refusal,
    )


def layout(lengths: Tensor, block_size: int) -> tuple[Tensor, int]:
    """Left padding of every row, [rows], and the batch's tkv; all in tokens.

    `lengths` [rows] count this step's token. Only two rows matter to the width and the tkv: the
    longest, and one that reaches furthest into its last block.
    """
    furthest = last_block_offset(lengths, block_size).argmax()
    decisive = [int(lengths.max()), int(lengths[furthest])]
    width = batch_width_blocks(decisive, block_size)
    return row_left_padding(lengths, width, block_size), int(max_tkv(decisive, block_size))


def _growing(rows: Batch, block_size: int) -> list[int]:
    """Rows whose last block is full: the next token needs a new block."""
    return np.flatnonzero(rows.computed % block_size == 0).tolist()


def _preempted(state: SchedulerState, rows: Batch) -> tuple[RequestState, ...]:
    """The victims, in order, until the free blocks suffice for the remaining rows.

    The last admitted goes first: the ongoing prefill, then the front of the batch.
    """
    growing = set(_growing(rows, state.config.block_size))
    needed, free = len(growing), state.blocks.free.count
    if needed <= free:
        return ()
    victims: list[RequestState] = []
    ongoing = [] if state.prefilling is None else [(state.prefilling, False)]
    batch = ((member, row in growing) for row, member in enumerate(rows.members))
    for victim, grows in (*ongoing, *batch):
        if needed <= free:
            break
        victims.append(victim)
        needed -= grows
        freed = state.blocks.freed_by([victim.blocks for victim in victims])
        free = state.blocks.free.count + sum(map(len, freed))
    return tuple(victims)


# --- pausing ------------------------------------------------------------------------------------


class Rows(NamedTuple):
    """The rows that decode in a step, the paused rows, and the requests that changed sides."""

    decoding: Batch
    paused: Batch
    resumed: tuple[RequestState, ...] = ()
    newly_paused: tuple[RequestState, ...] = ()


def choose_rows(state: SchedulerState) -> Rows:
    """The rows of this step: longest paused first, as far as the volume limit allows.

    Then fewest generated first, or most with `long_output_first`; ties as they were queued.
    Source: sendnn-inference 2.6.3, decode pausing.
    """
    decoding, paused = state.decoding, state.paused
    if not len(paused) and _fits_limit(state, decoding):
        return Rows(decoding, paused)
    everyone = paused.concatenated(decoding)
    sign = -1 if state.config.long_output_first else 1
    order = np.lexsort((sign * everyone.generated(), -everyone.waited_steps))
    kept, left_out = _within_limit(state, everyone.computed + 1, order.tolist())
    resumed = [row for row in kept if row < len(paused)]
    newly_paused = [row for row in left_out if row >= len(paused)]
    if resumed or newly_paused:
        staying = sorted(row for row in kept if row >= len(paused))
        decoding = everyone.of_rows([*staying, *resumed])
        decoding.waited_steps[:] = 0
    paused = everyone.of_rows(left_out)
    if kept or newly_paused:
        paused.waited_steps += 1
    return Rows(
        decoding,
        paused,
        tuple(everyone.members[row] for row in resumed),
        tuple(everyone.members[row] for row in newly_paused),
    )


def _fits_limit(state: SchedulerState, rows: Batch) -> bool:
    """True if all of these rows may decode together in the next step."""
    size = state.config.block_size
    tkv = rows.tkv + 1 if rows.tkv % size else layout(rows.computed + 1, size)[1]
    return int(volume(len(rows), tkv)) <= state.config.max_batch_tkv_limit


def _within_limit(
    state: SchedulerState, lengths: Tensor, order: list[int]
) -> tuple[list[int], list[int]]:
    """Indices of the rows that decode and of the rows that do not fit the limit, in this order.

    As in `layout`, two of the decoding rows determine the tkv; it is recomputed only where a row
    exceeds one of them.
    """
    size, limit = state.config.block_size, state.config.max_batch_tkv_limit
    rows = list(zip(lengths.tolist(), last_block_offset(lengths, size).tolist(), strict=True))
    kept: list[int] = []
    left_out: list[int] = []
    longest = furthest = 1
    offset = tkv = 0
    for row in order:
        length, reach = rows[row]
        surpasses = length > longest or reach > offset
        with_row = max_tkv([longest, furthest, length], size) if surpasses else tkv
        if volume(len(kept) + 1, with_row) > limit:
            left_out.append(row)
            continue
        kept.append(row)
        tkv, longest = with_row, max(longest, length)
        if reach > offset:
            furthest, offset = length, reach
    return kept, left_out
