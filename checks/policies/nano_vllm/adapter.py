"""The adapter for drivers of nano-vLLM: records decoded as steps, and inferred events."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from attrs import evolve

from checks.harness.adapter import POOL_NAMES, ROW_NAMES, Adapter
from checks.harness.decoding import RowsById, StepDecoder
from checks.harness.system import Json
from checks.harness.unreported import Fields
from reference.core.frozen_map import FrozenMap
from reference.nano_vllm.machine import NanoVllmMachine
from spec.core.blocks import BlockPool
from spec.core.judging import ids
from spec.core.records import DECODE, PREFILL, Event
from spec.nano_vllm.config import NanoVllmConfig
from spec.nano_vllm.records import Sequence as Row
from spec.nano_vllm.records import State, Step

_NUMBERS = ("prefill_len", "computed", "generated", "hit_blocks")


class NanoVllmDecoder(StepDecoder[State]):
    """Decodes the records of one episode into steps, in their order."""

    def state(self, record: Json, **past: Any) -> State:
        """The state in a record: queues, sequences and blocks."""
        listed = (*record["decoding"], *record.get("others", ()))
        rows = RowsById({row["id"]: row for row in listed})
        queues: Json = {name: self.queue(record[name], rows, record) for name in self.queues}
        return State(pool=self._pool(record), **queues, **past)

    def whole_step(self, record: Json, common: Json) -> Step:
        """The step with its kind and its batch."""
        return Step(kind=record["kind"], batch=self.batch(record), **common)

    def row(self, row: Json, blocks: Iterable[int]) -> Row:
        """A sequence with its block table, from its row in a record."""
        numbers = {"prefill_len": self.ctx.requests[row["id"]].prompt_len}
        numbers |= {name: row[name] for name in _NUMBERS if name in row}
        return Row(row["id"], blocks=tuple(blocks), **numbers)

    def _pool(self, record: Json) -> BlockPool:
        """The pool; a block may keep a hash under which the lookup table names another block."""
        pool = self.pools.decoded(record, self.last.pool)
        if "keys" not in record:
            return pool
        keys = {block: self.pools.key(id_, index) for id_, index, block in record["keys"]}
        return evolve(pool, keys=FrozenMap(keys))


# --- events ---------------------------------------------------------------------------------------

_VISIBLE = ("preempt", "admit", "prefix_hit", "allocate", "prefill", "decode", "finish")


def inferred_events(step: Step, config: NanoVllmConfig) -> tuple[Event, ...]:
    """Admissions, new blocks and victims, computed rows, then ends.

    Admissions, blocks and victims are those that the driver reports, if it does. Else a request
    that was admitted and preempted in the same step is not seen.
    """
    decided = _reported(step, config.block_size) if step.events else _inferred(step)
    return (*decided, *_computed(step), *(Event("finish", id_, "") for id_ in step.finished))


def _reported(step: Step, block_size: int) -> Iterator[Event]:
    """The reported admissions with their tables, new blocks, and victims."""
    tables = {row.id: row.blocks for row in step.before.running}
    for event in step.events:
        if event.transition == "admit":
            yield from _admission(event.id, event.after, event.before // block_size)
            tables[event.id] = event.after
        elif event.transition == "allocate":
            yield Event("allocate", event.id, "", tables[event.id], event.after)
        else:
            yield Event(event.transition, event.id, "")


def _inferred(step: Step) -> Iterator[Event]:
    for row in _admitted(step):
        yield from _admission(row.id, row.blocks, row.hit_blocks)
    if step.kind != PREFILL:  # an idle step, too, may have a victim
        yield from _decodes(step)


def _admitted(step: Step) -> Iterable[Row]:
    """The rows that a prefill began, and those that began to run without one, in queue order."""
    begun = ids(step.before.in_progress)
    prefilled = [row for row in step.batch if step.kind != DECODE and row.id not in begun]
    seen = begun | {row.id for row in (*step.before.running, *prefilled)}
    others = {row.id: row for row in (*step.batch, *step.after.running) if row.id not in seen}
    if not others:
        return prefilled
    place = {row.id: index for index, row in enumerate(step.before.waiting)}
    return sorted((*prefilled, *others.values()), key=lambda row: place[row.id])


def _admission(request_id: str, table: tuple[int, ...], hit_blocks: int) -> Iterator[Event]:
    """An admission with its hits, and the blocks behind them."""
    hits, fresh = table[:hit_blocks], table[hit_blocks:]
    yield Event("admit", request_id, "")
    if hits:
        yield Event("prefix_hit", request_id, "", (), hits)
    if fresh:
        yield Event("allocate", request_id, "", hits, fresh)


def _decodes(step: Step) -> Iterator[Event]:
    """The new block of each row, after the victims that freed it.

    The last victim stands in front of the waiting queue; a row that preempts itself is in no batch.
    """
    tables = {row.id: row.blocks for row in (*_admitted(step), *step.before.running)}
    victims = [row.id for row in step.after.waiting if row.id in tables]
    free, holders = len(step.before.pool.free), Counter(step.before.pool.references)
    for row in step.batch:
        fresh = row.blocks[len(tables[row.id]) :]
        while fresh and not free and victims:
            free += _freed(tables[victims[-1]], holders)
            yield Event("preempt", victims.pop(), "")
        if fresh:
            free -= len(fresh)
            yield Event("allocate", row.id, "", tables[row.id], fresh)
    yield from (Event("preempt", id_, "") for id_ in reversed(victims))


def _freed(table: tuple[int, ...], holders: "Counter[int]") -> int:
    """The number of blocks whose reference count drops to 0 when the table is released."""
    holders.subtract(table)
    return sum(not holders[block] for block in set(table))


def _computed(step: Step) -> Iterator[Event]:
    if step.kind == DECODE:
        yield Event("decode", "", "")
        return
    for row in step.batch:
        start = row.computed - step.scheduled[row.id]
        yield Event("prefill", row.id, "", start, row.computed)


ADAPTER = Adapter(
    decoder=lambda ctx: NanoVllmDecoder(NanoVllmMachine(ctx)),
    inferred_events=inferred_events,
    fields=Fields(
        left_out={
            "batch": ((Step, "batch"),),
            "blocks": ((State, "pool"), (Row, "blocks"), (Row, "hit_blocks")),
            "computed": ((Row, "computed"),),
            "hit_blocks": ((Row, "hit_blocks"),),
        },
        step=Step,
        visible=_VISIBLE,
        shown_by={"batch": _VISIBLE[:-2], "blocks": ("preempt", "prefix_hit", "allocate")},
        never=("refusal",),  # the states leave one order only
    ),
    device_needs=frozenset({"batch", "blocks", "computed"}),
    names=POOL_NAMES | ROW_NAMES,
)
