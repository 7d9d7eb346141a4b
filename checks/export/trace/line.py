"""The fields of a trace line that are the same for every policy: steps and violations."""

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any, Literal

from attrs import frozen

from checks.export.trace.records import Json
from spec.core.blocks import BlockPool
from spec.core.records import Event, SomeSequence, SomeState, SomeStep


@frozen
class Row:
    """A row of the batch after the step, in tokens."""

    id: str
    tkv: int
    left_padding: int
    computed: int
    generated: int


@frozen
class Blocks:
    """Numbers of KV blocks; `reserved` blocks are among the `free` ones."""

    used: int
    reserved: int
    free: int


@frozen(kw_only=True)
class Line:
    """A line of a step, for every policy; `checks.export.trace` describes the fields.

    The last three fields are in every full line.
    """

    step: int
    time: float
    kind: Literal["prefill", "decode", "idle"]
    scheduled: Mapping[str, int]
    tkv: int
    volume: int
    waiting: list[str]
    prefilling: Any
    decoding: list[Row]
    running: list[str]
    paused: list[str]
    outputs: Mapping[str, list[int]]
    finished: list[str]
    aborted: list[str]
    blocks: Blocks
    block_tables: Mapping[str, list[int]]
    events: list[Event]
    arrived: list[str] = []  # noqa: RUF008
    refusal: str | None = None
    state: Mapping[str, Any] = {}


@frozen
class Violation:
    """The rule that a trace breaks, in its last line.

    `rule`: its id; `says`: its sentence; `found`: the violation, any JSON value.

    `loop`: if the violation is a cycle, the first step of the repeating part; the number of steps
    if the last state never changes. `state`: the violating state, if requests arrived or clients
    left after the last step.
    """

    rule: str
    says: str
    found: Any
    loop: int | None = None
    state: SomeState | None = None


@frozen
class Past:
    """The part of earlier steps that a line depends on; empty before the first step.

    `state`: the state after the last step. `chunk`: the last computed chunk, if the policy has
    chunks.
    """

    state: SomeState | None = None
    chunk: Any = None


_request_id = attrgetter("id")


def ids_of(queue: Iterable[SomeSequence]) -> list[str]:
    """The ids of the requests, in the order of the queue."""
    return list(map(_request_id, queue))


def blocks_as_json(pool: BlockPool, reserved: int = 0) -> Json:
    """The numbers of used, reserved and free blocks of a pool, see `Blocks`."""
    return {"used": len(pool.references), "reserved": reserved, "free": len(pool.free)}


def row_as_json(row: SomeSequence, left_padding: int = 0) -> Json:
    """A row of the batch, see `Row`."""
    return {
        "id": row.id,
        "tkv": left_padding + row.computed,
        "left_padding": left_padding,
        "computed": row.computed,
        "generated": row.generated,
    }


def arrived_since(last: SomeState | None, before: SomeState) -> list[str]:
    """The requests that arrived since the state `last`, including those that left again."""
    if before is last:  # the usual case: no arrival and no abort
        return []
    earlier = set() if last is None else {row.id for row in last.present}
    came = [row.id for row in before.present if row.id not in earlier]
    gone = before.aborted if last is None else before.aborted - last.aborted
    return [*came, *sorted(gone - earlier)]


def aborted_since(last: SomeState | None, step: SomeStep) -> list[str]:
    """The requests whose clients left: in the record's order, or inferred from the states."""
    if step.aborted or step.before is last:
        return list(step.aborted)
    return sorted(step.before.aborted - (frozenset() if last is None else last.aborted))
