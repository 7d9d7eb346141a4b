"""What moved in a step of nano-vLLM, as the states around it show."""

from collections.abc import Iterator

from spec.records import DECODE, Event, Step

VISIBLE = ("preempt", "admit", "prefix_hit", "allocate", "prefill", "decode", "finish")


def seen_events(step: Step, _block_size: int) -> tuple[Event, ...]:
    """Victims, the last one in front of waiting; what each row of the batch got; then ends."""
    running = {row.id for row in step.before.decoding}
    victims = [row.id for row in step.after.waiting if row.id in running]
    return (
        *(Event("preempt", one, "") for one in reversed(victims)),
        *_given(step),
        *_computed(step),
        *(Event("finish", one, "") for one in step.finished),
    )


def _given(step: Step) -> Iterator[Event]:
    """An admission with its hits, and blocks at the end of a table that were not there."""
    held = {row.id: row.blocks for row in step.before.decoding}
    for row in step.batch:
        old = held.get(row.id, row.blocks[: row.hit_blocks])
        if row.id not in held:
            yield Event("admit", row.id, "")
            if old:
                yield Event("prefix_hit", row.id, "", (), old)
        if row.blocks[len(old) :]:
            yield Event("allocate", row.id, "", old, row.blocks[len(old) :])


def _computed(step: Step) -> Iterator[Event]:
    if step.kind == DECODE:
        yield Event("decode", "", "")
        return
    for row in step.batch:
        start = row.computed - step.scheduled[row.id]
        yield Event("prefill", row.id, "", start, row.computed)
