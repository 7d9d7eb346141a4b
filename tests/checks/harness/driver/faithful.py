"""A driver without a process: it reports the reference's steps, with a planted fault if asked."""

import json
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from attrs import define, field

from checks.harness.case import Case
from checks.harness.driver.protocol import Played
from checks.harness.driver.system import DriverSystem
from checks.harness.policy import evidence_of
from checks.harness.reference import Reference
from checks.harness.system import Action, Failure, Hello, Json, Step, take_step
from spec.core.records import SomeContext
from spec.core.requests import BlockKey

Fault: TypeAlias = Callable[[list[Json]], object]
Names: TypeAlias = dict[BlockKey, tuple[str, int]]
Recorder: TypeAlias = Callable[[Names, Any, Step, Action], Json]
"""The record of a step that leaves nothing out and makes no mistake."""


FAILURE = Failure("ValueError", "no", "toy.py:1 step: x")


@define
class _FaithfulDriver:
    """Stands for `Driver`: the records of the reference's own steps, changed by `fault`.

    `failing_step`: the step that it raises in instead of taking it.
    """

    hello: Hello
    record_of: Recorder
    fault: Fault | None
    failing_step: int | None
    failure: Failure
    _reference: Reference = field(init=False)
    _names: Names = field(init=False)
    _steps: int = field(default=0, init=False)

    def start(self, case: Case) -> Failure | None:
        self._reference, self._steps = evidence_of(case.config.policy).reference(case), 0
        self._names = names_of_blocks(self._reference.machine.ctx)
        return None

    def play(self, actions: Iterable[Action]) -> Played:
        records = [self._record(action) for action in actions]
        first, self._steps = self._steps, self._steps + len(records)
        if self.fault is not None:
            self.fault(records)
        if self.failing_step is None or self.failing_step >= self._steps:
            return Played(records)
        return Played(records[: self.failing_step - first], self.failure)

    def close(self) -> None:
        """There is no process."""

    def _record(self, action: Action) -> Json:
        step = take_step(self._reference, self._steps, action)
        ctx = self._reference.machine.ctx
        record: Json = json.loads(json.dumps(self.record_of(self._names, ctx, step, action)))
        return record


def faithful(
    hello: Hello,
    record_of: Recorder,
    fault: Fault | None = None,
    failing_step: int | None = None,
    failure: Failure = FAILURE,
) -> DriverSystem:
    """A system whose driver reports the reference's own steps, changed by `fault`."""
    launch: Any = lambda: _FaithfulDriver(hello, record_of, fault, failing_step, failure)  # noqa: E731
    return DriverSystem(launch)


def at(step: int, change: Callable[[Json], object]) -> Fault:
    """A fault of one step."""
    return lambda records: change(records[step])


def names_of_blocks(ctx: SomeContext) -> Names:
    """Request and index of every possible full block, by its hash."""
    return {
        key: (request.id, index)
        for request in ctx.requests.values()
        for index, key in enumerate(
            ctx.keys.of(
                request.id, (request.prompt_len + request.max_tokens) // ctx.config.block_size
            )
        )
    }


def blocks_of(names: Names, state: Any, rows: Iterable[Any]) -> Json:
    """Tables of these rows, and the pool, as records have them."""
    pool = state.pool
    return {
        "block_tables": {row.id: list(row.blocks) for row in rows if row.blocks},
        "blocks": {"used": len(pool.references), "free": len(pool.free)},
        "free_list": list(pool.free),
        "references": {str(block): count for block, count in pool.references.items()},
        "cached": [[*names[key], *blocks] for key, blocks in pool.cached.items()],
    }
