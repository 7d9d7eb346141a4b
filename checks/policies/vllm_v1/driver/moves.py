"""What moved in a step of vLLM V1, as the states around it show."""

from collections.abc import Iterator
from itertools import takewhile

from spec.core.records import Event
from spec.vllm_v1.records import Load, Sequence, Step

VISIBLE = (
    *("preempt", "catch_up", "prefix_hit", "allocate", "admit", "rollback", "finish"),
    *("load", "promote", "leave"),
)


def seen_events(step: Step, block_size: int) -> tuple[Event, ...]:
    """Victims and loads, what each request was given, who left, verdicts on drafts, and ends."""
    return (
        *(Event("preempt", one, "") for one in step.preempted),
        *_loads(step),
        *_given(step, block_size),
        *(Event("leave", one, "") for one in sorted(step.leavers)),
        *(
            Event("rollback", one, "", count, step.accepted.get(one, 0))
            for one, count in step.drafts.items()
        ),
        *(Event("finish", one, "") for one in step.finished),
    )


def _loads(step: Step) -> Iterator[Event]:
    """Loads that ended and whose requests may run again, and those that began."""
    before = {row.id: row.load for row in step.before.queued}
    for row in step.planned.present:
        was = before.get(row.id, Load.NONE)
        if was in (Load.LOADED, Load.FAILED) and row.load in (Load.NONE, Load.LOADING):
            yield Event("promote", row.id, "")
        if row.load is Load.LOADING and was is not Load.LOADING:
            cached = step.planned.pool.keys
            yield from _blocks(step, row, tuple(takewhile(cached.__contains__, row.blocks)))
            yield Event("load", row.id, "")


def _given(step: Step, block_size: int) -> Iterator[Event]:
    """Blocks and tokens; a newcomer's cached blocks are those that its computed tokens fill."""
    for row in step.planned.running:
        tokens, admitted = step.scheduled.get(row.id, 0), row.id in step.admitted
        local = row.computed - step.external.get(row.id, 0)
        yield from _blocks(step, row, row.blocks[: local // block_size] if admitted else ())
        if tokens:
            yield Event("admit" if admitted else "catch_up", row.id, "", row.computed, tokens)


def _blocks(step: Step, row: Sequence, hits: tuple[int, ...]) -> Iterator[Event]:
    """What it found in the cache, if it held nothing, and the blocks that are new in its table.

    Where nothing was loaded it has given back what it held.
    """
    was = next(one for one in step.before.present if one.id == row.id)
    held = () if was.load is Load.FAILED and not was.computed else was.blocks
    if hits and not held:
        yield Event("prefix_hit", row.id, "", (), hits)
    new = row.blocks[len(held or hits) :]
    if new:
        yield Event("allocate", row.id, "", held, new)
