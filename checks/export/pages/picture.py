"""Pictures of scheduler states: rows of blocks, meters, queues and pools.

The defaults of `Picture` draw a policy with the common names of requests, queues and pool; a policy
overrides the rest. Lengths are in tokens.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from spec.core.blocks import BlockPool
from spec.core.records import SomeContext, SomeSequence, SomeState, SomeStep

State = Any  # of the policy's own class, like steps and the requests in them
Step = Any


@frozen(kw_only=True)
class Cells:
    """Consecutive blocks of one kind in a row; `checks.export.pages` lists the kinds.

    `blocks`: their numbers, or else `count`, the number of blocks without numbers. `tokens`: in all
    of them, filled from the left. `now`: the step read or wrote them.
    """

    kind: str
    blocks: tuple[int, ...] = ()
    count: int = 0
    tokens: int = 0
    now: bool = False


@frozen(kw_only=True)
class Row:
    """A request with its blocks. `place`: its phase; `note`: what the step did for it.

    `request`: the request whose numbers are shown; by default the state's request with this id.
    """

    id: str
    place: str
    cells: tuple[Cells, ...]
    note: str = ""
    request: Any = None


@frozen(kw_only=True)
class Meter:
    """A quantity with its limit, if any; `parts`: its parts by name."""

    name: str
    value: int
    limit: int | None = None
    unit: str = "tokens"
    parts: Sequence[tuple[str, int]] = ()


# --- requests as rows of blocks -------------------------------------------------------------------


def joined(cells: Iterable[Cells], block_size: int) -> tuple[Cells, ...]:
    """Join single blocks of equal kind into runs; a run ends after a partly filled block."""
    runs: list[Cells] = []
    for cell in cells:
        last = runs[-1] if runs else None
        if last is not None and _continues(last, cell, block_size):
            runs[-1] = evolve(
                last,
                blocks=last.blocks + cell.blocks,
                count=last.count + cell.count,
                tokens=last.tokens + cell.tokens,
            )
        else:
            runs.append(cell)
    return tuple(runs)


def _continues(last: Cells, cell: Cells, block_size: int) -> bool:
    alike = (last.kind, last.now, bool(last.blocks)) == (cell.kind, cell.now, bool(cell.blocks))
    length = len(last.blocks) + last.count
    return alike and last.tokens in (0 if cell.tokens == 0 else None, length * block_size)


def held_cells(
    pool: BlockPool,
    blocks: Sequence[int],
    block_size: int,
    *,
    filled: int,
    computed: range = range(0),
    kind: str | None = None,
) -> Iterator[Cells]:
    """A block table, block by block.

    `filled`: tokens in it. `computed`: positions that the step computed. `kind`: the kind of every
    block; by default "shared" if several requests hold it, else "own".
    """
    for place, block in enumerate(blocks):
        start = place * block_size
        held = kind or ("shared" if pool.references.get(block, 0) > 1 else "own")
        yield Cells(
            kind=held,
            blocks=(block,),
            tokens=min(max(filled - start, 0), block_size),
            now=computed.start < start + block_size and start < computed.stop,
        )


def computed_positions(row: SomeSequence, step: SomeStep | None) -> range:
    """The positions of the request that the step computed."""
    tokens = 0 if step is None else step.scheduled.get(row.id, 0)
    return range(row.computed - tokens, row.computed)


def plain_rows(ctx: SomeContext, state: State, step: Step | None) -> Iterator[Row]:
    """The running requests with their block tables."""
    size = ctx.config.block_size
    for row in state.running:
        computed = computed_positions(row, step)
        cells = held_cells(state.pool, row.blocks, size, filled=row.computed, computed=computed)
        yield Row(id=row.id, place="running", cells=joined(cells, size))


# --- meters and pictures --------------------------------------------------------------------------


def scheduled_tokens(step: SomeStep, limit: int | None = None) -> Meter:
    """The tokens that a step computes, by request."""
    parts = tuple(step.scheduled.items())
    return Meter(name="tokens", value=sum(step.scheduled.values()), limit=limit, parts=parts)


def _plain_meters(_ctx: SomeContext, step: Step) -> Iterator[Meter]:
    yield scheduled_tokens(step)


def first_left_waiting(_ctx: SomeContext, step: SomeStep) -> str | None:
    """The first request that waits before and after the step."""
    before = {row.id for row in step.before.waiting}
    return next((row.id for row in step.after.waiting if row.id in before), None)


def requests_by_id(state: SomeState) -> dict[str, Any]:
    """The requests of a state, by the ids of their rows."""
    return {row.id: row for row in state.present}


@frozen(kw_only=True)
class Picture:
    """How the states and steps of a policy are drawn.

    `rows`: the rows of a state, with the step before it, if any. `numbers`: fields of a request
    that are shown beside its row. `owners`: the requests of a state by the ids of their rows.
    `queues`: fields of a state that are shown as queues. `pools`: fields of a state that are block
    pools, with their shown names. `meters`: the meters of a step. `charts`: meters whose charts
    come first. `refused`: the one request that a step's refusal kept waiting, or None. `reserved`:
    the number of reserved blocks of each pool, by field.
    """

    rows: Callable[[Any, State, Step | None], Iterable[Row]] = plain_rows
    numbers: tuple[str, ...] = ("computed", "generated")
    owners: Callable[[State], Mapping[str, Any]] = requests_by_id
    queues: tuple[str, ...] = ("waiting",)
    pools: Mapping[str, str] = {"pool": "blocks"}
    meters: Callable[[Any, Step], Iterable[Meter]] = _plain_meters
    charts: tuple[str, ...] = ("tokens",)
    refused: Callable[[Any, Step], str | None] = first_left_waiting
    reserved: Callable[[State], Mapping[str, int]] = lambda _state: {}


def ranges(numbers: Iterable[int]) -> str:
    """The numbers in order, with consecutive ones written as "7-9"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][-1:] = [runs[-1][-1], number] if len(runs[-1]) == 1 else [number]
        else:
            runs.append([number])
    return ",".join("-".join(map(str, run)) for run in runs)
