"""A driver's records as steps: the classes that rules judge and comparisons compare.

What a driver does not tell has the value that says nothing (empty, 0) in the step; `left_out`
tells which fields these are.
"""

from collections.abc import Sequence
from typing import Any

from attrs import define, evolve, field

from checks.harness.driver.cached import Pools
from checks.harness.driver.protocol import Action, Json
from spec.core.blocks import BlockPool
from spec.core.records import DECODE, PREFILL
from spec.spyre.config import Admission
from spec.spyre.padding import volume
from spec.spyre.records import Chunk, Context, Step
from spec.spyre.state import Sequence as Row
from spec.spyre.state import State

_CHUNK_LENGTHS = (
    *("chunk", "chunks", "start", "end"),
    *("left_padding", "right_padding", "cached_tokens", "inner_padding"),
)
_ROW_NUMBERS = (
    *("computed", "generated", "left_padding"),
    *("reserved", "hit_blocks", "waited_steps"),
)


@define
class Teller:
    """Makes steps of the records of one episode, in their order."""

    ctx: Context
    _last: State = field(init=False)
    _pools: Pools = field(init=False)

    def __attrs_post_init__(self) -> None:
        size = self.ctx.config.pool_blocks
        self._pools = Pools(self.ctx.keys)
        self._last = State(pool=BlockPool(size=size, free=tuple(range(1, size + 1))))

    def step(self, record: Json, action: Action, index: int, time: float) -> Step:
        """The step of a record; `action` is what was done around it."""
        before, aborted = self._before(record, action)
        finished = tuple(record["finished"])
        present = {row.id for row in before.present}.difference(finished)
        rows = tuple(self._row(row, row.get("blocks", ())) for row in record.get("batch", ()))
        tkv, kind = record.get("tkv", 0), record["kind"]
        told = Step(
            index=index,
            time=time,
            kind=kind,
            before=before,
            after=self._state(
                record,
                finished=before.finished | set(finished),
                aborted=before.aborted | present.intersection(action.abort_running),
                last_kind=kind,
                last_tkv=tkv if self.ctx.config.admission is Admission.SHIPPED else 0,
            ),
            scheduled=record["scheduled"],
            tkv=tkv,
            volume=int(volume(len(rows) if kind == DECODE else min(1, tkv), tkv)),
            chunk=self._chunk(record) if kind == PREFILL else None,
            batch=rows if kind == DECODE else (),
            outputs=record["outputs"],
            ended=tuple(one for one in action.ends or () if one in record["outputs"]),
            finished=finished,
            aborted=aborted,
        )
        self._last = told.after
        return told

    def _before(self, record: Json, action: Action) -> tuple[State, tuple[str, ...]]:
        """The state that the step started from, and who left since the step before."""
        last = self._last
        present = {row.id for row in last.present} | set(action.arrive)
        aborted = tuple(one for one in action.abort if one in present)
        if "before" not in record:
            return self._as_scripted(action, aborted), aborted
        state = self._state(
            record["before"],
            finished=last.finished,
            aborted=last.aborted | set(aborted),
            last_kind=last.last_kind,
            last_tkv=last.last_tkv,
        )
        return state, aborted

    def _as_scripted(self, action: Action, aborted: tuple[str, ...]) -> State:
        """The last state with the arrivals and without the leavers, if the driver does not look."""
        last = self._last
        if not action.arrive and not aborted:
            return last
        arrived = tuple(Row(one, self._prefill_len(one)) for one in action.arrive)
        slot = last.prefilling
        return evolve(
            last,
            waiting=_without(aborted, (*last.waiting, *arrived)),
            prefilling=None if slot is not None and slot.id in aborted else slot,
            decoding=_without(aborted, last.decoding),
            paused=_without(aborted, last.paused),
            aborted=last.aborted | set(aborted),
        )

    def _state(self, record: Json, **past: Any) -> State:
        """Queues, requests and blocks as a record tells them."""
        tables = record.get("block_tables", {})
        others = {
            row["id"]: self._row(row, tables.get(row["id"], ())) for row in record.get("others", ())
        }
        paused = tuple(others.pop(one) for one in record["paused"] if one in others)
        waiting = tuple(
            others.pop(one) if one in others else Row(one, self._prefill_len(one))
            for one in record["waiting"]
        )
        decoding = tuple(self._row(row, tables.get(row["id"], ())) for row in record["decoding"])
        return State(
            pool=self._pools.told(record, self._last.pool),
            waiting=waiting,
            prefilling=next(iter(others.values()), None),
            decoding=decoding,
            paused=paused,
            **past,
        )

    def _prefill_len(self, request_id: str) -> int:
        return self.ctx.requests[request_id].prompt_len

    def _row(self, row: Json, blocks: Sequence[int]) -> Row:
        known = {name: row[name] for name in _ROW_NUMBERS if name in row}
        length = row.get("prefill_len") or self._prefill_len(row["id"])
        return Row(row["id"], prefill_len=length, blocks=tuple(blocks), **known)

    def _chunk(self, record: Json) -> Chunk:
        told = record["prefilling"]
        return Chunk(
            id=told["id"],
            **{name: told[name] for name in _CHUNK_LENGTHS},
            block_table=tuple(told.get("block_table", ())),
            writes=tuple(told.get("writes", ())),
        )


def _without(leavers: tuple[str, ...], queue: tuple[Row, ...]) -> tuple[Row, ...]:
    return tuple(row for row in queue if row.id not in leavers)
