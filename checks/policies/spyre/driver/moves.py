"""What moved in a step, as anybody can see who holds the state before against the one after.

A released scheduler tells no transitions. Those that show in its states are named here as the
reference names them, without a rule: which rule allowed it, only the scheduler knows.
"""

from collections.abc import Iterator

from spec.core.records import DECODE, Event
from spec.spyre.records import Step
from spec.spyre.state import Sequence

VISIBLE = (
    *("admit", "preempt", "resume", "pause", "prefix_hit", "allocate"),
    *("chunk", "join", "decode", "finish"),
)


def seen_events(step: Step, block_size: int) -> tuple[Event, ...]:
    """Admissions, prefix hits, new blocks, joins, pauses, resumptions, ends: those that show."""
    return (*_queue_moves(step), *_new_blocks(step, block_size), *_of_chunk(step), *_ends(step))


def _queue_moves(step: Step) -> Iterator[Event]:
    before, after = step.before, step.after
    running = {row.id for row in step.batch}
    waiting = {row.id for row in before.waiting}
    if step.chunk is not None and step.chunk.id in waiting:
        yield Event("admit", step.chunk.id, "")
    for row in before.admitted:
        if any(row.id == other.id for other in after.waiting):
            yield Event("preempt", row.id, "")
    for row in before.paused:
        if row.id in running:
            yield Event("resume", row.id, "")
    for row in before.decoding:
        if step.kind == DECODE and any(row.id == other.id for other in after.paused):
            yield Event("pause", row.id, "")


def _new_blocks(step: Step, block_size: int) -> Iterator[Event]:
    """Prefix hits, then blocks at the end of a table that were not there."""
    held = {row.id: row.blocks for row in step.before.admitted}
    for row in _computed_rows(step, block_size):
        old = held.get(row.id)
        if old is None:
            old = row.blocks[: row.hit_blocks]
            if old:
                yield Event("prefix_hit", row.id, "", (), old)
        if len(row.blocks) > len(old):
            yield Event("allocate", row.id, "", old, row.blocks[len(old) :])


def _computed_rows(step: Step, block_size: int) -> Iterator[Sequence]:
    """Who computed something, with its blocks, also those who left at the end of the step."""
    chunk = step.chunk
    if chunk is None:
        yield from step.batch
        return
    row = next((one for one in step.after.admitted if one.id == chunk.id), None)
    if row is not None:
        yield row
    elif chunk.block_table:
        hit = (chunk.cached_tokens + chunk.inner_padding) // block_size
        own = chunk.block_table[chunk.left_padding // block_size :]
        yield Sequence(chunk.id, prefill_len=chunk.end, blocks=own, hit_blocks=hit)


def _of_chunk(step: Step) -> Iterator[Event]:
    if step.chunk is not None:
        yield Event("chunk", step.chunk.id, "", step.chunk.start, step.chunk.end)
        if step.chunk.is_last:
            yield Event("join", step.chunk.id, "")
    elif step.kind == DECODE:
        yield Event("decode", "", "")


def _ends(step: Step) -> Iterator[Event]:
    for one in step.finished:
        yield Event("finish", one, "")
