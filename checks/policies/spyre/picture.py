"""Pictures of Spyre: the padded prompt of a prefill, the rectangular batch, its volume."""

from collections.abc import Iterator, Mapping

from attrs import evolve

from checks.export.pages.picture import Cells, Meter, Picture, Row, held_cells, joined
from spec.core.records import DECODE
from spec.spyre.padding import left_padding
from spec.spyre.records import Chunk, Context, Step
from spec.spyre.rules.observed import in_line
from spec.spyre.state import PADDING_BLOCK, Sequence, State

_NUMBERS = ("tkv", "left_padding", "computed", "generated", "hit_blocks", "reserved")


def rows(ctx: Context, state: State, step: Step | None) -> Iterator[Row]:
    """The rows of the current prefill, of the batch as it was computed, and of paused requests.

    The chunk of a prefill step is drawn also if it was the last, after which its request is in the
    batch.
    """
    chunk = None if step is None else step.chunk
    batch = step.batch if step is not None and step.kind == DECODE else state.decoding
    admitted = {row.id: row for row in state.admitted}
    if chunk is not None:
        prefilling = admitted.get(chunk.id) or Sequence(chunk.id, prefill_len=chunk.end)
        yield _prefill(ctx, state, prefilling, chunk)
    elif state.prefilling is not None:
        yield _prefill(ctx, state, state.prefilling, None)
    for row in batch:
        if chunk is None or row.id != chunk.id:
            now = step is not None and step.kind == DECODE
            place = "finished" if step is not None and row.id in step.finished else "decoding"
            yield evolve(_decoding(ctx, state, row, place, now), request=row)
    for row in state.paused:
        yield _decoding(ctx, state, row, "paused", False)


def _decoding(ctx: Context, state: State, row: Sequence, place: str, now: bool) -> Row:
    """A decoding row: padding blocks, so that all rows end in the same column; its block table."""
    size = ctx.config.block_size
    padding = Cells(kind="padding", blocks=(PADDING_BLOCK,))
    computed = range(row.computed - 1, row.computed) if now else range(0)
    kind = "freed" if place == "finished" else None
    held = held_cells(
        state.pool, row.blocks, size, filled=row.computed, computed=computed, kind=kind
    )
    cells = [padding] * (row.left_padding // size) + list(held)
    cells += [Cells(kind="reserved", count=1)] * row.reserved
    return Row(id=row.id, place=place, cells=joined(cells, size))


def _prefill(ctx: Context, state: State, row: Sequence, chunk: Chunk | None) -> Row:
    """A prefilling row: the padded prompt, and the blocks that a computed chunk read and wrote."""
    size, config = ctx.config.block_size, ctx.config
    padded = left_padding(row.prefill_len, size, config.chunk_size)
    chunks = range(0)
    held = row.blocks
    if chunk is not None:
        first = chunk.chunk * config.blocks_per_chunk
        chunks = range(first, first + config.blocks_per_chunk)
        held = held or chunk.block_table[chunk.left_padding // size :]
        padded = chunk.left_padding
    before = int(padded) // size
    length = before + -(-row.prefill_len // size)
    cells = []
    for place in range(length):
        block = place - before
        now = place in chunks
        tokens = min(max(row.prefill_len - block * size, 0), size)
        if block < 0:
            cells.append(Cells(kind="padding", blocks=(PADDING_BLOCK,), now=now))
        elif block >= len(held):
            cells.append(Cells(kind="pending", count=1, now=now))
        elif chunk is not None and now and chunk.writes[place - chunks.start] == PADDING_BLOCK:
            cells.append(Cells(kind="dummy", blocks=(held[block],), tokens=tokens, now=now))
        else:
            shared = state.pool.references.get(held[block], 0) > 1
            is_held = held[block] in state.pool.references
            own = "shared" if shared else "own" if is_held else "freed"
            kind = "cached" if block < row.hit_blocks and is_held else own
            cells.append(Cells(kind=kind, blocks=(held[block],), tokens=tokens, now=now))
    cells += [Cells(kind="reserved", count=1)] * row.reserved
    note = "" if chunk is None else f"chunk {chunk.chunk + 1} of {chunk.chunks}"
    return Row(id=row.id, place="prefill", cells=joined(cells, size), note=note)


def meters(ctx: Context, step: Step) -> Iterator[Meter]:
    """Volume and tkv of a decode step, or the chunk of a prefill step; the size of the batch."""
    config = ctx.config
    if step.kind == DECODE:
        rows = [(row.id, step.tkv) for row in step.batch]
        yield Meter(name="volume", value=step.volume, limit=config.max_batch_tkv_limit, parts=rows)
        yield Meter(name="tkv", value=step.tkv, limit=config.max_model_len)
    elif step.chunk is not None:
        chunk = step.chunk
        tokens = chunk.end - chunk.start
        parts = {
            "left padding": chunk.left_padding if chunk.chunk == 0 else 0,
            "computed": tokens,
            "right padding": chunk.right_padding if chunk.is_last else 0,
        }
        shown = tuple((name, count) for name, count in parts.items() if count)
        yield Meter(name="chunk", value=tokens, limit=config.chunk_size, parts=shown)
    running = len(step.batch or step.after.running)
    yield Meter(name="batch", value=running, limit=config.max_num_seqs, unit="requests")


def refused(ctx: Context, step: Step) -> str | None:
    """The refused request: the current prefill, else the first of the queue's order."""
    held = step.before.prefilling or in_line(ctx, step.before)
    return None if held is None else held.id


def _reserved(state: State) -> Mapping[str, int]:
    return {"pool": sum(row.reserved for row in state.admitted) + state.orphaned}


PICTURE = Picture(
    rows=rows,
    numbers=_NUMBERS,
    meters=meters,
    charts=("volume", "tkv", "batch"),
    refused=refused,
    reserved=_reserved,
)
