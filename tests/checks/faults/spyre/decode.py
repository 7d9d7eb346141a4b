"""Faults of the decode step: padding and tkv jumps, new blocks, tokens."""

from collections.abc import Callable
from functools import partial

from attrs import evolve

from reference.spyre import step, transitions
from reference.spyre.transitions import Moved
from spec.spyre.records import Context
from spec.spyre.state import Sequence as Row
from spec.spyre.state import State
from tests.checks.faults.patches import (
    Wrong,
    always,
    changed,
    configured,
    depending,
    each,
    first,
    plus,
    result,
)
from tests.checks.faults.spyre.table import fault

# --- pad -----------------------------------------------------------------------------------------

fault(
    transitions,
    "batch_width_blocks",
    of="pad",
    on="layout",
    rules="SPY-DEC-3, SPY-TKV-2, SPY-TKV-1",
)(
    lambda right, *given: right(*given) + 1,
    "a column too many: every row is padded by a block more than it needs",
)
fault(
    transitions, "row_left_padding", of="pad", on="layout", rules="SPY-DEC-2, SPY-DEC-6, SPY-TKV-1"
)(always(0), "rows not padded: no row is padded")
fault(transitions, "pad", on="layout", rules="SPY-DEC-2, SPY-DEC-6, SPY-TKV-8, SPY-TKV-1")(
    result(decoding=first(left_padding=0)),
    "newest row not padded: the row that joined last is left without padding",
)
fault(
    transitions,
    "row_left_padding",
    of="pad",
    on="layout",
    rules="SPY-DEC-4, SPY-DEC-3, SPY-TKV-2, SPY-TKV-1",
)(
    lambda _right, length, width, size: width * size - length,
    "rows padded by tokens: rows are padded by tokens until they end together",
)
fault(step, "max_tkv", of="pad", on="layout", rules="SPY-TKV-2")(
    lambda _right, lengths, _block_size: max(lengths),
    "tkv of the longest: the tkv of a decode step is taken to be that of its longest row",
)
fault(step, "volume", of="pad", on="layout", rules="SPY-VOL-1")(
    lambda _right, _batch_size, tkv: tkv,
    "volume of one row: the volume of a decode step counts one row",
)


# --- jump_tkv ------------------------------------------------------------------------------------


def _decoded(state: State) -> list[Row]:
    """The rows that have decoded before, whose padding the last step left."""
    return [row for row in state.decoding if row.computed > row.prefill_len]


def _crosses(ctx: Context, row: Row) -> bool:
    return row.computed % ctx.config.block_size == 0


def _joined(state: State) -> bool:
    """True if the batch has a row that has not decoded before."""
    return len(_decoded(state)) < len(state.decoding)


def stays_if(stays: Callable[[Context, State, Row, Row], bool]) -> Wrong:
    """What `pad` does, but rows that decoded before stay as they were where `stays` says so."""

    def wrong(right: Wrong, ctx: Context, state: State) -> Moved:
        moved, events = right(ctx, state)
        old_rows = _decoded(state)
        rows = tuple(
            old if old in old_rows and stays(ctx, state, old, new) else new
            for old, new in zip(state.decoding, moved.decoding, strict=True)
        )
        return evolve(moved, decoding=rows), events

    return wrong


jump = partial(fault, transitions, "pad", of="jump_tkv")

jump(on="short and long", rules="SPY-TKV-3, SPY-TKV-2, SPY-DEC-2, SPY-DEC-6, SPY-TKV-8, SPY-TKV-1")(
    stays_if(lambda ctx, _, old, new: _crosses(ctx, old) and old.left_padding > new.left_padding),
    "no jump when crossing: a padded row that crosses into a new block keeps its padding",
)
jump(on="short and long", rules="SPY-TKV-4, SPY-TKV-2, SPY-DEC-2, SPY-DEC-6, SPY-TKV-8, SPY-TKV-1")(
    stays_if(lambda _, state, old, new: not _joined(state) and old.left_padding < new.left_padding),
    "no jump when the batch grows: an unpadded row crosses, and the others stay as they are",
)
jump(on="short and long", rules="SPY-TKV-7, SPY-TKV-2, SPY-DEC-2, SPY-DEC-6, SPY-TKV-8, SPY-TKV-1")(
    stays_if(
        lambda ctx, state, old, new: (
            _joined(state) and not _crosses(ctx, old) and old.left_padding < new.left_padding
        )
    ),
    "no jump when a longer joins: the others are not padded to the width of a longer request",
)
jump(on="layout", rules="SPY-TKV-5, SPY-TKV-2, SPY-DEC-3, SPY-TKV-8, SPY-TKV-1")(
    stays_if(
        lambda ctx, _, old, new: not _crosses(ctx, old) and old.left_padding > new.left_padding
    ),
    "no jump when the longest leaves: the others keep the padding that it caused",
)


@jump(on="layout", rules="SPY-TKV-6, SPY-TKV-2, SPY-DEC-3, SPY-TKV-8, SPY-TKV-1")
def jumps_without_cause(right: Wrong, ctx: Context, state: State) -> Moved:
    """A row that stays within its block is padded by a block more than the step before."""
    moved, events = right(ctx, state)
    size = ctx.config.block_size
    rows = tuple(
        evolve(row, left_padding=row.left_padding + size)
        if row.computed > row.prefill_len and not _crosses(ctx, row)
        else row
        for row in moved.decoding
    )
    return evolve(moved, decoding=rows), events


# --- extend, decode ------------------------------------------------------------------------------

fault(transitions, "block_count", of="extend", on="layout", rules="SPY-DEC-5, BLK-8")(
    lambda right, *given: right(*given) + 1,
    "a block too many: a row is given a block more than its next token needs",
)
fault(transitions, "extend", on="layout", rules="guard BLK-8")(
    lambda _right, _ctx, state: (state, ()),
    "a block missing: a row whose next token starts a block is given none",
)
fault(transitions, "decode", on="layout", rules="SPY-DEC-1, SPY-DEC-5, SPY-TKV-1, LIF-4, BLK-8")(
    depending(lambda _ctx, state: changed(decoding=lambda rows: (*rows[:-1], state.decoding[-1]))),
    "a row is skipped: the last row of the batch computes nothing",
)


@fault(transitions, "decode", on="layout", rules="SPY-DEC-1, SPY-DEC-5, SPY-TKV-1, BLK-8, LIF-8")
def computed_not_advanced(right: Wrong, ctx: Context, state: State) -> Moved:
    """A row samples a token, and the tokens in its cache are not counted up."""
    moved, events = right(ctx, state)
    rows = zip(state.decoding, moved.decoding, strict=True)
    stuck = tuple(evolve(new, computed=old.computed) for old, new in rows)
    return evolve(moved, decoding=stuck), events


fault(transitions, "decode", on="layout", rules="LIF-4, LIF-8")(
    result(decoding=each(generated=plus(1))),
    "two tokens at once: a row is a token further than it sampled",
)
fault(transitions, "decode", on="dialogue", rules="SPY-PFX-8, BLK-12")(
    configured(prefix_caching=False),
    "answers not cached: blocks that fill up with generated tokens are not cached",
)
fault(transitions, "Event", of="jump_tkv", on="layout", rules="SPY-TKV-8")(
    lambda right, name, *values: right(name.replace("jump_tkv", "pad"), *values),
    "jumps not reported: a jump is reported as something else",
)
