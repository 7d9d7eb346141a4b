"""Who decodes under the volume limit when not everybody can.

Source: sendnn-inference 2.6.3, decode pausing.
"""

import numpy as np
from attrs import frozen

from engine.core.tensors import Tensor
from engine.spyre.scheduler.batch import Batch
from engine.spyre.scheduler.core import Core
from engine.spyre.scheduler.layout import layout
from engine.spyre.scheduler.tracked import Tracked
from spec.spyre.padding import last_block_offset, max_tkv, volume


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
    decoding, paused = core.decoding, core.paused
    if not len(paused) and _fits_limit(core, decoding):
        return Shift(decoding, paused)
    everyone = paused.followed_by(decoding)
    sign = -1 if core.config.long_output_first else 1
    order = np.lexsort((sign * everyone.generated(), -everyone.waited_steps))
    kept, left_out = _within_limit(core, everyone.computed + 1, order.tolist())
    resumed = [row for row in kept if row < len(paused)]
    benched = [row for row in left_out if row >= len(paused)]
    if resumed or benched:
        staying = sorted(row for row in kept if row >= len(paused))
        decoding = everyone.of_rows([*staying, *resumed])
        decoding.waited_steps[:] = 0
    paused = everyone.of_rows(left_out)
    paused.waited_steps += 1
    return Shift(
        decoding,
        paused,
        tuple(everyone.members[row] for row in resumed),
        tuple(everyone.members[row] for row in benched),
    )


def _fits_limit(core: Core, rows: Batch) -> bool:
    """True if all of these rows may decode together in the next step."""
    size = core.config.block_size
    tkv = rows.tkv + 1 if rows.tkv % size else layout(rows.computed + 1, size)[1]
    return int(volume(len(rows), tkv)) <= core.config.max_batch_tkv_limit


def _within_limit(core: Core, lengths: Tensor, order: list[int]) -> tuple[list[int], list[int]]:
    """Row numbers that decode, and those that do not fit in with them, both in this order.

    Of those that decode only two matter to the tkv: the longest and the one that reaches furthest
    into its last block. It is worked out anew only where a row surpasses them.
    """
    size, limit = core.config.block_size, core.config.max_batch_tkv_limit
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
