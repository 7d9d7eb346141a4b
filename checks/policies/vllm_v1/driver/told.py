"""A vLLM V1 driver's records as steps, see `checks.policies.spyre.driver.told`."""

from collections.abc import Collection, Sequence
from typing import Any

from attrs import define, evolve, field

from checks.harness.driver.cached import Pools
from checks.harness.driver.protocol import Action, Json
from spec.core.blocks import BlockPool
from spec.vllm_v1.config import Connector, Scheduling
from spec.vllm_v1.records import Context, Load, State, Statistics, Step
from spec.vllm_v1.records import Sequence as Row

_NO_STATISTICS = {"waiting": 0, "running": 0, "usage": 0.0}
_NUMBERS = ("computed", "generated", "drafts", "prefilling")


@define
class Teller:
    """Makes steps of the records of one episode, in their order."""

    ctx: Context
    _last: State = field(init=False)
    _pools: Pools = field(init=False)
    _arrived: list[str] = field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        size = self.ctx.config.pool_blocks
        self._pools = Pools(self.ctx.keys)
        self._last = State(pool=BlockPool(size=size, free=tuple(range(1, size + 1))))

    def step(self, record: Json, action: Action, index: int, time: float) -> Step:
        """The step of a record; `action` is what was done around it."""
        before = self._before(record, action)
        finished = tuple(record["finished"])
        present = {row.id for row in before.present}
        left = present.difference(finished)
        planned = record.get("planned", record)  # an idle step decides nothing
        self._last = self._state(
            record,
            finished=before.finished | set(finished),
            aborted=before.aborted | left.intersection(action.abort_running),
            lost=before.lost | present.intersection(action.lost),
        )
        return Step(
            index=index,
            time=time,
            before=before,
            planned=self._state(
                planned, finished=before.finished, aborted=before.aborted, lost=before.lost
            ),
            after=self._last,
            scheduled=record["scheduled"],
            drafts=record.get("drafts", {}),
            admitted=tuple(record.get("admitted", ())),
            external=record.get("external", {}),
            preempted=tuple(record.get("preempted", ())),
            budget_left=record.get("budget_left", self.ctx.config.token_budget),
            refusal=None,
            reported=tuple(record.get("reported", ())),
            statistics=Statistics(**record.get("statistics", _NO_STATISTICS)),
            outputs={one: tuple(tokens) for one, tokens in record["outputs"].items()},
            accepted=record.get("accepted", {}),
            failed_loads=tuple(record.get("failed_loads", ())),
            finished=finished,
            aborted=tuple(one for one in action.abort if one in before.aborted),
            ended=tuple(one for one in action.ends or () if one in record["outputs"]),
        )

    def _before(self, record: Json, action: Action) -> State:
        """The state that the step started from, after arrivals and aborts."""
        last = self._last
        self._arrived += action.arrive
        present = {row.id for row in last.present} | set(action.arrive)
        gone = present.intersection(action.abort)
        lost = last.lost
        if self.ctx.config.connector is Connector.ASYNC:  # else they are lost in the step
            lost |= present.difference(gone).intersection(action.lost)
        aborted = last.aborted | gone
        if "before" in record:
            told = record["before"]
            return self._state(told, finished=last.finished, aborted=aborted, lost=lost)
        newcomers = tuple(self._row({"id": one}, ()) for one in action.arrive)
        return evolve(
            last,
            waiting=_without(gone, (*last.waiting, *newcomers)),
            running=_without(gone, last.running),
            unreported=last.unreported | gone,
            aborted=aborted,
            lost=lost,
        )

    def _state(self, record: Json, **past: Any) -> State:
        """Queues, requests and blocks as a record tells them."""
        rows = {row["id"]: row for row in record["rows"]}
        tables = record.get("block_tables", {})

        def queue(name: str) -> tuple[Row, ...]:
            return tuple(self._row(rows[one], tables.get(one, ())) for one in record.get(name, ()))

        return State(
            pool=self._pools.told(record, self._last.pool),
            waiting=queue("waiting"),
            skipped=queue("skipped"),
            running=queue("running"),
            draining=queue("draining"),
            unreported=frozenset(record.get("unreported", ())),
            **past,
        )

    def _row(self, row: Json, blocks: Sequence[int]) -> Row:
        by_priority = self.ctx.config.scheduling is Scheduling.PRIORITY
        return Row(
            row["id"],
            prompt_len=self.ctx.requests[row["id"]].prompt_len,
            arrival=self._arrived.index(row["id"]) if by_priority else 0,
            blocks=tuple(blocks),
            load=Load(row.get("load", "none")),
            **{name: row[name] for name in _NUMBERS if name in row},
        )


def _without(leavers: Collection[str], queue: tuple[Row, ...]) -> tuple[Row, ...]:
    return tuple(row for row in queue if row.id not in leavers)
