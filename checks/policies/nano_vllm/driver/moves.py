"""What moved in a step of nano-vLLM, in its order, as the states around it show."""

from collections import Counter
from collections.abc import Iterator

from spec.core.records import DECODE, Event
from spec.nano_vllm.records import Step

VISIBLE = ("preempt", "admit", "prefix_hit", "allocate", "prefill", "decode", "finish")


def seen_events(step: Step, _block_size: int) -> tuple[Event, ...]:
    """What each row of the batch got, victims where their blocks were needed; then ends."""
    given = _decodes(step) if step.kind == DECODE else _admissions(step)
    return (*given, *_computed(step), *(Event("finish", one, "") for one in step.finished))


def _admissions(step: Step) -> Iterator[Event]:
    """An admission with its hits, and the blocks behind them."""
    for row in step.batch:
        hits, fresh = row.blocks[: row.hit_blocks], row.blocks[row.hit_blocks :]
        yield Event("admit", row.id, "")
        if hits:
            yield Event("prefix_hit", row.id, "", (), hits)
        if fresh:
            yield Event("allocate", row.id, "", hits, fresh)


def _decodes(step: Step) -> Iterator[Event]:
    """The new block of each row; before it the victims without which none would be free.

    The last victim stands in front of waiting; a row that went itself is in no batch.
    """
    tables = {row.id: row.blocks for row in step.before.running}
    victims = [row.id for row in step.after.waiting if row.id in tables]
    free, holders = len(step.before.pool.free), Counter(step.before.pool.references)
    for row in step.batch:
        fresh = row.blocks[len(tables[row.id]) :]
        while fresh and not free and victims:
            free += _given_up(tables[victims[-1]], holders)
            yield Event("preempt", victims.pop(), "")
        if fresh:
            free -= len(fresh)
            yield Event("allocate", row.id, "", tables[row.id], fresh)
    yield from (Event("preempt", one, "") for one in reversed(victims))


def _given_up(table: tuple[int, ...], holders: "Counter[int]") -> int:
    """How many blocks of a table nobody holds any more once it is given back."""
    holders.subtract(table)
    return sum(not holders[block] for block in set(table))


def _computed(step: Step) -> Iterator[Event]:
    if step.kind == DECODE:
        yield Event("decode", "", "")
        return
    for row in step.batch:
        start = row.computed - step.scheduled[row.id]
        yield Event("prefill", row.id, "", start, row.computed)
