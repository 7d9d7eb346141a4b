"""A nano-vLLM driver's records as steps, see `checks.policies.spyre.driver.told`."""

from collections.abc import Collection, Sequence
from typing import Any

from attrs import define, evolve, field

from checks.harness.driver.cached import Pools
from checks.harness.driver.protocol import Action, Json
from spec.core.blocks import BlockPool
from spec.core.sharing import FrozenMap
from spec.nano_vllm.records import Context, State, Step
from spec.nano_vllm.records import Sequence as Row

_NUMBERS = ("prefill_len", "computed", "generated", "hit_blocks")


@define
class Teller:
    """Makes steps of the records of one episode, in their order."""

    ctx: Context
    _last: State = field(init=False)
    _pools: Pools = field(init=False)

    def __attrs_post_init__(self) -> None:
        size = self.ctx.config.pool_blocks
        self._pools = Pools(self.ctx.keys)
        self._last = State(pool=BlockPool(size=size, free=tuple(range(size))))

    def step(self, record: Json, action: Action, index: int, time: float) -> Step:
        """The step of a record; `action` is what was done around it."""
        before, aborted = self._before(record, action)
        finished = tuple(record["finished"])
        left = {row.id for row in before.present}.difference(finished)
        self._last = self._state(
            record,
            finished=before.finished | set(finished),
            aborted=before.aborted | left.intersection(action.abort_running),
        )
        return Step(
            index=index,
            time=time,
            kind=record["kind"],
            before=before,
            after=self._last,
            scheduled=record["scheduled"],
            batch=tuple(self._row(row, row.get("blocks", ())) for row in record.get("batch", ())),
            outputs=record["outputs"],
            ended=tuple(one for one in action.ends or () if one in record["outputs"]),
            finished=finished,
            aborted=aborted,
        )

    def _before(self, record: Json, action: Action) -> tuple[State, tuple[str, ...]]:
        """The state that the step started from, and who left since the step before."""
        last = self._last
        present = {row.id for row in last.present} | set(action.arrive)
        aborted = tuple(one for one in action.abort if one in present)
        gone = last.aborted | set(aborted)
        if "before" in record:
            return self._state(record["before"], finished=last.finished, aborted=gone), aborted
        newcomers = tuple(self._row({"id": one}, ()) for one in action.arrive)
        as_scripted = evolve(
            last,
            waiting=_without(aborted, (*last.waiting, *newcomers)),
            running=_without(aborted, last.running),
            aborted=gone,
        )
        return as_scripted, aborted

    def _state(self, record: Json, **past: Any) -> State:
        """Queues, sequences and blocks as a record tells them."""
        rows = {row["id"]: row for row in (*record["decoding"], *record.get("others", ()))}
        tables = record.get("block_tables", {})

        def queue(name: str) -> tuple[Row, ...]:
            return tuple(
                self._row(rows.get(one, {"id": one}), tables.get(one, ())) for one in record[name]
            )

        return State(
            pool=self._pool(record), waiting=queue("waiting"), running=queue("running"), **past
        )

    def _row(self, row: Json, blocks: Sequence[int]) -> Row:
        known = {"prefill_len": self.ctx.requests[row["id"]].prompt_len}
        known |= {name: row[name] for name in _NUMBERS if name in row}
        return Row(row["id"], blocks=tuple(blocks), **known)

    def _pool(self, record: Json) -> BlockPool:
        """The pool; a block may carry what the lookup table names another one for."""
        told = self._pools.told(record, self._last.pool)
        if "keys" not in record:
            return told
        keys = {block: self._pools.key(one, index) for one, index, block in record["keys"]}
        return evolve(told, keys=FrozenMap(keys))


def _without(leavers: Collection[str], queue: tuple[Row, ...]) -> tuple[Row, ...]:
    return tuple(row for row in queue if row.id not in leavers)
