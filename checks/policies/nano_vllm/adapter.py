"""How drivers of nano-vLLM are understood: their records as steps, and the events that show."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from attrs import evolve

from checks.harness.adapter import Adapter
from checks.harness.decoding import RowsById, StepDecoder
from checks.harness.system import Json
from checks.harness.unreported import Fields
from reference.nano_vllm.machine import NanoVllmMachine
from spec.core.blocks import BlockPool
from spec.core.records import DECODE, Event
from spec.core.sharing import FrozenMap
from spec.nano_vllm.config import NanoVllmConfig
from spec.nano_vllm.records import Sequence as Row
from spec.nano_vllm.records import State, Step

_NUMBERS = ("prefill_len", "computed", "generated", "hit_blocks")


class NanoVllmDecoder(StepDecoder[State]):
    """Makes steps of the records of one episode, in their order."""

    def state(self, record: Json, **past: Any) -> State:
        """Queues, sequences and blocks as a record has them."""
        listed = (*record["decoding"], *record.get("others", ()))
        rows = RowsById({row["id"]: row for row in listed})
        queues: Json = {name: self.queue(record[name], rows, record) for name in self.queues}
        return State(pool=self._pool(record), **queues, **past)

    def whole_step(self, record: Json, common: Json) -> Step:
        """The step with its kind and its batch."""
        return Step(kind=record["kind"], batch=self.batch(record), **common)

    def row(self, row: Json, blocks: Iterable[int]) -> Row:
        """A sequence with its block table, as a record has it."""
        known = {"prefill_len": self.ctx.requests[row["id"]].prompt_len}
        known |= {name: row[name] for name in _NUMBERS if name in row}
        return Row(row["id"], blocks=tuple(blocks), **known)

    def _pool(self, record: Json) -> BlockPool:
        """The pool; a block may carry what the lookup table names another one for."""
        pool = self.pools.decoded(record, self.last.pool)
        if "keys" not in record:
            return pool
        keys = {block: self.pools.key(one, index) for one, index, block in record["keys"]}
        return evolve(pool, keys=FrozenMap(keys))


# --- events ---------------------------------------------------------------------------------------

_VISIBLE = ("preempt", "admit", "prefix_hit", "allocate", "prefill", "decode", "finish")


def inferred_events(step: Step, _config: NanoVllmConfig) -> tuple[Event, ...]:
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
    """How many blocks of a table have no holder any more once it is given back."""
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
)
