"""Who decodes under the volume limit when not everybody can.

Source: sendnn-inference 2.6.3, decode pausing.
"""

import numpy as np
from attrs import frozen

from engine.scheduler.batch import Batch
from engine.scheduler.core import Core
from engine.scheduler.layout import longest_and_furthest
from engine.scheduler.tracked import Tracked
from spec.padding import last_block_offset, max_tkv, volume


@frozen(eq=False)
class Shift:
    """Who decodes in a step and who is left out, with those for whom that is new."""

    rows: Batch
    paused: Batch
    resumed: tuple[Tracked, ...] = ()
    benched: tuple[Tracked, ...] = ()


def shift(core: Core) -> Shift:
    """Who decodes in this step: longest paused first, as far as the limit allows.

    Then fewest generated first, or most with `long_output_first`; ties as they were queued.
    """
    everyone = core.paused.followed_by(core.decoding) if len(core.paused) else core.decoding
    if not len(core.paused) and _fits_limit(core, everyone):
        return Shift(core.decoding, core.paused)
    sign = -1 if core.config.long_output_first else 1
    order = np.lexsort((sign * everyone.generated(), -everyone.waited_steps))
    kept, benched = _within_limit(core, everyone, order.tolist())
    was_paused = len(core.paused)
    resumed = [row for row in kept if row < was_paused]
    staying = set(kept)
    decoding = [row for row in range(was_paused, len(everyone)) if row in staying]
    rows, paused = everyone.of_rows([*decoding, *resumed]), everyone.of_rows(benched)
    rows.waited_steps[:] = 0
    paused.waited_steps += 1
    return Shift(
        rows,
        paused,
        tuple(everyone.members[row] for row in resumed),
        tuple(everyone.members[row] for row in benched if row >= was_paused),
    )


def _fits_limit(core: Core, rows: Batch) -> bool:
    """True if all of these rows may decode together in the next step."""
    size = core.config.block_size
    tkv = max_tkv(longest_and_furthest(rows.computed + 1, size), size)
    return int(volume(len(rows), tkv)) <= core.config.max_batch_tkv_limit


def _within_limit(core: Core, rows: Batch, order: list[int]) -> tuple[list[int], list[int]]:
    """Row numbers that decode, and those that do not fit in with them, both in this order.

    Of those that decode only two matter to the tkv: the longest and the one that reaches furthest
    into its last block.
    """
    size, limit = core.config.block_size, core.config.max_batch_tkv_limit
    kept: list[int] = []
    benched: list[int] = []
    longest = furthest = 1
    for row in order:
        length = int(rows.computed[row]) + 1
        tkv = max_tkv([longest, furthest, length], size)
        if volume(len(kept) + 1, tkv) > limit:
            benched.append(row)
            continue
        kept.append(row)
        longest = max(longest, length)
        furthest = max(furthest, length, key=lambda one: last_block_offset(one, size))
    return kept, benched
