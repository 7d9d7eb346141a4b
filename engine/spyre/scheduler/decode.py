"""What the next decode step does: who takes part, who gets a block, and how rows are padded.

Source: spyre, "Decode padding" and "tkv jumping"; pausing is that of sendnn-inference 2.6.3,
preemption that of vLLM V1.
"""

import numpy as np

from engine.spyre.scheduler.batch import Batch
from engine.spyre.scheduler.core import Core
from engine.spyre.scheduler.layout import layout
from engine.spyre.scheduler.pausing import Shift, shift
from engine.spyre.scheduler.plan import DecodePlan
from engine.spyre.scheduler.tracked import Tracked


def plan_decode(core: Core, refusal: str | None) -> DecodePlan:
    """The next decode step; somebody decodes or is paused.

    As long as the same rows decode and none has filled its block, every tkv moves by one and
    nothing else happens.
    """
    taking_part = shift(core) if core.config.may_pause else Shift(core.decoding, core.paused)
    rows, size = taking_part.rows, core.config.block_size
    if rows.tkv % size:
        return DecodePlan(rows, taking_part.paused, rows.tkv + 1, refusal=refusal)
    preempted = _preempted(core, rows)
    if preempted:
        rows = rows.without([row for row, member in enumerate(rows.members) if member in preempted])
    growing = _growing(rows, size)
    front, back = core.blocks.freed_by([victim.blocks for victim in preempted])
    padding, tkv = layout(rows.computed + 1, size)
    return DecodePlan(
        rows,
        taking_part.paused,
        tkv,
        taking_part.resumed,
        taking_part.benched,
        preempted,
        growing,
        core.blocks.next_free(len(growing), front=front, back=back),
        padding if (padding != rows.left_padding).any() else None,
        refusal,
    )


def _growing(rows: Batch, block_size: int) -> list[int]:
    """Rows whose blocks are full: the next token starts a new one."""
    return np.flatnonzero(rows.computed % block_size == 0).tolist()


def _preempted(core: Core, rows: Batch) -> tuple[Tracked, ...]:
    """Who has to go until the free blocks suffice for every row left: the last admitted first.

    A prefill in progress was admitted last of all; then the front of the batch.
    """
    growing = set(_growing(rows, core.config.block_size))
    needed, free = len(growing), core.blocks.free.count
    if needed <= free:
        return ()
    victims: list[Tracked] = []
    ongoing = [] if core.prefilling is None else [(core.prefilling, False)]
    batch = ((member, row in growing) for row, member in enumerate(rows.members))
    for victim, grows in (*ongoing, *batch):
        if needed <= free:
            break
        victims.append(victim)
        needed -= grows
        freed = core.blocks.freed_by([one.blocks for one in victims])
        free = core.blocks.free.count + sum(map(len, freed))
    return tuple(victims)
