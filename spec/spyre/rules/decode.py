"""Rules of the decode step: a rectangular batch, its padding, and how tkv moves.

Source: spyre, sections "Padding" and "Decode padding".
"""

from collections.abc import Iterator

from attrs import frozen

from spec.core.judging import ids
from spec.core.records import PREFILL
from spec.spyre.records import Context, Step
from spec.spyre.rules.observed import Continued, by_id, continued, entering, is_decode
from spec.spyre.rules.registry import of_step, release, spyre, witness
from spec.spyre.state import Sequence


@of_step("SPY-DEC-1", spyre("Decode padding"), witness=lambda _, step: len(step.batch) > 1)
def one_token_per_request(ctx: Context, step: Step) -> Iterator[str]:
    """In a decode step every decoding request computes one token and samples one."""
    # The batch is what decoded, less the preempted and, where there are any, the paused, plus the
    # resumed.
    if not is_decode(step):
        return
    may_leave = ("pause", "preempt") if ctx.config.may_pause else ("preempt",)
    left = ids(step.happened(*may_leave))
    came = ids(step.happened("resume"))
    expected = (ids(step.before.decoding) - left) | came
    if ids(step.batch) != expected or set(step.scheduled) != expected:
        yield f"batch {sorted(step.scheduled)}, decoding {sorted(expected)}"
    before = by_id(step.before.admitted)
    for row in step.batch:
        tokens, due = len(step.outputs.get(row.id, ())), before[row.id].computed + 1
        if step.scheduled.get(row.id) != 1 or tokens != 1 or row.computed != due:
            yield f"request {row.id}: {tokens} tokens, computed {row.computed}"


@of_step("SPY-DEC-2", spyre("Padding, Rectangular Decode"))
@witness(lambda _, step: len({len(row.blocks) for row in step.batch}) > 1)
def table_is_rectangular(ctx: Context, step: Step) -> Iterator[str]:
    """All rows of a decode batch occupy equally many KV blocks."""
    # Padding blocks and own blocks add up to the same width.
    size = ctx.config.block_size
    widths = {row.id: row.left_padding // size + len(row.blocks) for row in step.batch}
    if len({*widths.values()}) > 1:
        yield f"blocks per row {widths}"


@of_step("SPY-DEC-3", spyre("Left-padding with full blocks"))
@witness(lambda _, step: any(row.left_padding for row in step.batch))
def some_row_has_no_left_padding(_ctx: Context, step: Step) -> Iterator[str]:
    """Left padding is minimal: the row with the most blocks has none."""
    # If every row were padded, a column of padding could go.
    paddings = {row.id: row.left_padding for row in step.batch}
    if min(paddings.values(), default=0) != 0:
        yield f"left padding {paddings}"


@of_step("SPY-DEC-4", spyre("Left-padding with full blocks"))
@witness(lambda ctx, step: any(row.left_padding > ctx.config.block_size for row in step.batch))
def row_padding_is_whole_blocks(ctx: Context, step: Step) -> Iterator[str]:
    """Rows are left-padded by whole blocks."""
    # No negative padding, none inside a block.
    for row in step.batch:
        if row.left_padding < 0 or row.left_padding % ctx.config.block_size:
            yield f"request {row.id}: left padding {row.left_padding}"


@of_step("SPY-DEC-5", spyre("Right-padding until next block boundary"))
@witness(lambda ctx, step: any(row.computed % ctx.config.block_size for row in step.batch))
def last_block_holds_the_newest_token(ctx: Context, step: Step) -> Iterator[str]:
    """A row's last block holds its newest token and is padded to the block's right boundary."""
    # The room behind the newest token is less than a block.
    size = ctx.config.block_size
    for row in step.batch:
        if not 0 <= len(row.blocks) * size - row.computed < size:
            yield f"request {row.id}: {row.computed} tokens in {len(row.blocks)} blocks"


@of_step("SPY-DEC-6", spyre("Padding, Rectangular Decode"))
@witness(lambda _, step: len({row.tkv for row in step.batch}) > 1)
def all_tkv_in_one_block(ctx: Context, step: Step) -> Iterator[str]:
    """The tkv of all rows lie in the same block."""
    # A tkv of exactly n blocks lies in the n-th.
    tkvs = {row.id: row.tkv for row in step.batch}
    if len({(tkv - 1) // ctx.config.block_size for tkv in tkvs.values()}) > 1:
        yield f"tkv {tkvs}"


@of_step("SPY-TKV-1", spyre("Per-request tkv"))
@witness(lambda _, step: any(row.left_padding for row in step.batch))
def tkv_of_a_row(ctx: Context, step: Step) -> Iterator[str]:
    """A row's tkv is its left padding, plus the tokens computed so far, plus one for this
    step's.
    """
    # Computed so far is what the step found. The padding is counted in the tables: the blocks that
    # the row's lacks to be as long as the longest.
    before, size = by_id(step.before.admitted), ctx.config.block_size
    width = max((len(row.blocks) for row in step.batch), default=0)
    for row in step.batch:
        padding, computed = (width - len(row.blocks)) * size, before[row.id].computed
        if row.tkv != padding + computed + 1:
            yield f"request {row.id}: tkv {row.tkv} with {padding} + {computed}"


@of_step("SPY-TKV-2", spyre("Per-request tkv"))
@witness(lambda ctx, step: any(row.tkv == step.tkv and row.left_padding for row in step.batch))
def tkv_of_the_step(_ctx: Context, step: Step) -> Iterator[str]:
    """The tkv of a decode step is that of the row that reaches furthest into the last block; of a
    prefill step it is the prompt length.
    """
    # The published trace format fixes the convention for prefill steps.
    expected = max((row.tkv for row in step.batch), default=0)
    if step.kind == PREFILL and step.chunk is not None:
        expected = entering(step, step.chunk.id).prefill_len
    if step.tkv != expected:
        yield f"tkv {step.tkv}, rows reach {expected}"


@frozen
class _Moves:
    """How the padding of the rows that already decoded together moved in a step."""

    rows: list[tuple[Sequence, int]]  # as the step found it, and how far its tkv moved
    crossing: set[str]  # those whose next token starts a new block
    grows: bool  # one of them is unpadded
    left_by: int  # tokens of padding that the longest request left behind when it went
    joined_width: int  # blocks of the widest row that is new in the batch, 0 if none is new

    @property
    def distances(self) -> set[int]:
        """How far the rows moved."""
        return {moved for _, moved in self.rows}

    @property
    def width(self) -> int:
        """Blocks of the batch before."""
        return max((len(row.blocks) for row, _ in self.rows), default=0)


def _moves(ctx: Context, step: Step) -> _Moves:
    """The rows that decoded before and decode now, and what can be the cause of their moves."""
    size = ctx.config.block_size
    resumed = ids(step.happened("resume"))
    old = {
        row.id: row
        for row in step.before.decoding
        if row.computed > row.prefill_len and row.id not in resumed
    }
    rows = [(old[row.id], row.tkv - old[row.id].tkv) for row in step.batch if row.id in old]
    left_by = min((row.left_padding for row, _ in rows), default=0)
    crossing = [row for row, _ in rows if row.computed % size == 0]
    return _Moves(
        rows=rows,
        crossing=ids(crossing),
        grows=any(row.left_padding == left_by for row in crossing),
        left_by=left_by,
        joined_width=max(
            (-(-row.computed // size) for row in step.batch if row.id not in old), default=0
        ),
    )


@of_step("SPY-TKV-3", spyre("tkv jumping"), given=_moves)
@witness(lambda ctx, step: 1 - ctx.config.block_size in _moves(ctx, step).distances)
def padded_row_jumps_back(ctx: Context, _step: Step, moves: _Moves) -> Iterator[str]:
    """A padded row that crosses into a new block gives up one padding block: its tkv jumps back."""
    # As long as no request joined or left and the batch did not grow.
    size = ctx.config.block_size
    if moves.joined_width or moves.left_by or moves.grows or not moves.crossing:
        return
    for row, moved in moves.rows:
        if row.id in moves.crossing and moved != 1 - size:
            yield f"request {row.id} crosses with padding {row.left_padding}: tkv moved {moved}"


@of_step("SPY-TKV-4", spyre("tkv jumping"), given=_moves)
@witness(
    lambda ctx, step: (
        _moves(ctx, step).grows and 1 + ctx.config.block_size in _moves(ctx, step).distances
    )
)
def others_jump_forward(ctx: Context, _step: Step, moves: _Moves) -> Iterator[str]:
    """When an unpadded row crosses into a new block, all others get one more padding block: their
    tkv jump forward.
    """
    # A row that crosses in the same step uses the new column itself and moves by one.
    size = ctx.config.block_size
    if moves.joined_width or moves.left_by or not moves.grows:
        return
    for row, moved in moves.rows:
        if moved != (1 if row.id in moves.crossing else 1 + size):
            yield f"request {row.id}: tkv moved {moved} while the batch grew by a block"


@of_step("SPY-TKV-5", spyre("Left-padding with full blocks"), given=_moves)
@witness(lambda ctx, step: _moves(ctx, step).left_by > 0)
def longest_leaves(_ctx: Context, _step: Step, moves: _Moves) -> Iterator[str]:
    """When the longest request leaves, the padding that only it caused is removed: tkv jump
    back.
    """
    # All others move back by the same number of blocks, unless they cross a block as well.
    if moves.joined_width or not moves.left_by or moves.crossing:
        return
    for row, moved in moves.rows:
        if moved != 1 - moves.left_by:
            yield f"request {row.id}: tkv moved {moved}, {moves.left_by} of padding to remove"


@of_step("SPY-TKV-6", spyre("Visualization - Decode Padding"), given=_moves)
@witness(lambda ctx, step: 1 in _moves(ctx, step).distances)
def nothing_else_moves_tkv(ctx: Context, _step: Step, moves: _Moves) -> Iterator[str]:
    """Without a block crossed, a request gone or a request new, every tkv moves by exactly one."""
    # Whatever the cause, a move is one plus whole blocks.
    size = ctx.config.block_size
    quiet = not moves.joined_width and not moves.left_by
    calm = quiet and not moves.crossing
    for row, moved in moves.rows:
        if (moved - 1) % size or (calm and moved != 1):
            yield f"request {row.id}: tkv moved {moved}"


@of_step("SPY-TKV-7", spyre("Left-padding with full blocks"), given=_moves)
@witness(lambda ctx, step: 0 < _moves(ctx, step).width < _moves(ctx, step).joined_width)
def longer_request_joins(ctx: Context, _step: Step, moves: _Moves) -> Iterator[str]:
    """When a request with more blocks joins, the others are padded to its width: tkv jump
    forward.
    """
    # A request that is no wider than the batch moves no other.
    size = ctx.config.block_size
    if not moves.joined_width or moves.left_by or moves.crossing:
        return
    expected = 1 + max(moves.joined_width - moves.width, 0) * size
    for row, moved in moves.rows:
        if moved != expected:
            yield f"request {row.id}: tkv moved {moved}, expected {expected}"


@of_step("SPY-TKV-8", spyre("tkv jumping"), witness=lambda _, step: step.happened("jump_tkv"))
def jumps_are_reported(_ctx: Context, step: Step) -> Iterator[str]:
    """Every change of a row's left padding is reported as a jump, with the tkv before and after."""
    # And nothing else is.
    old = by_id(step.before.admitted)
    jumped = {
        (row.id, old[row.id].tkv, row.tkv)
        for row in step.batch
        if row.left_padding != old[row.id].left_padding
    }
    told = {(event.id, event.before, event.after) for event in step.happened("jump_tkv")}
    if told != jumped:
        yield f"told {sorted(told)}, jumped {sorted(jumped)}"


@of_step("SPY-DEC-7", release("order of the batch"))
@witness(lambda _, step: step.happened("join") and len(step.after.decoding) > 1)
def batch_keeps_its_order(_ctx: Context, step: Step) -> Iterator[str]:
    """A request that joins the batch is put in front, one that is resumed behind; the others keep
    their places.
    """
    # So that the front of the batch was admitted last, which is what preemption looks at.
    gone = ids(step.happened("pause", "preempt", "finish"))
    order = [
        *(event.id for event in step.happened("join")),
        *(row.id for row in step.before.decoding),
        *(event.id for event in step.happened("resume")),
    ]
    expected = [id_ for id_ in order if id_ not in gone]
    if [row.id for row in step.after.decoding] != expected:
        yield f"batch {[row.id for row in step.after.decoding]}, expected {expected}"


@of_step("SPY-TKV-9", spyre("Left-padding with full blocks"), given=continued)
@witness(lambda _, step: step.chunk and any(row.left_padding for row in step.after.decoding))
def padding_is_of_the_last_decode(_ctx: Context, step: Step, rows: Continued) -> Iterator[str]:
    """The left padding of a row is that of the last decode step that it was in, and before the
    first it has none.
    """
    # Of the rows of a decode step, SPY-TKV-1 says what it is.
    computed = ids(step.batch)
    for before, after in rows:
        if after.id not in computed and after.left_padding != before.left_padding:
            yield f"request {after.id}: padding {after.left_padding}, was {before.left_padding}"
