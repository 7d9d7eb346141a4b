"""A driver without a process: it tells what the reference does, or that with a planted fault."""

import json
from collections.abc import Callable, Iterator, Sequence

from attrs import asdict, define, field
from checks.conformance.script import script_of
from checks.fuzz.cases import Case

from checks.harness.driver.protocol import Action, DriverFailure, Hello, Json, Played
from spec.core.records import SomeContext
from spec.core.requests import BlockKey
from spec.spyre.records import Chunk, Context, Step
from spec.spyre.state import Sequence as Row
from spec.spyre.state import State

Fault = Callable[[list[Json]], None]

SENDNN = Hello(
    name="sendnn",
    release="sendnn-inference 2.6.3 on vLLM 0.28.0",
    abilities=frozenset({"abort", "abort_running", "ends"}),
)
STRANGER = Hello("stranger", "stranger 1.0", abilities=SENDNN.abilities)


@define
class FaithfulLab:
    """Implements `Lab`: the reference's own steps as records, then changed by `fault`.

    `raises_at`: the step that it raises in instead of taking it.
    """

    hello: Hello = STRANGER
    fault: Fault | None = None
    raises_at: int | None = None
    failure: DriverFailure = field(default=DriverFailure("ValueError", "no", "toy.py:1 step: x"))

    def play(self, case: Case, actions: Sequence[Action]) -> Iterator[Played]:
        running = any(action.abort_running for action in actions)
        script = script_of(case, aborts_while_running=running)
        played = actions[: len(script.steps)]  # who is judged alone may ask for more
        told = json.dumps(list(records_of(script.machine.ctx, script.steps, played)))
        records = json.loads(told)
        if self.fault is not None:
            self.fault(records)
        if self.raises_at is None:
            yield Played(records)
        else:
            yield Played(records[: self.raises_at], self.failure)


def records_of(ctx: Context, steps: Sequence[Step], actions: Sequence[Action]) -> Iterator[Json]:
    """What a driver tells that leaves nothing out and makes no mistake."""
    names = names_of_blocks(ctx)
    last: Chunk | None = None
    for step, action in zip(steps, actions, strict=True):
        last = step.chunk or last
        record = state_as_told(step.after, last, names) | {
            "kind": step.kind,
            "scheduled": dict(step.scheduled),
            "tkv": step.tkv,
            "outputs": {one: list(tokens) for one, tokens in step.outputs.items()},
            "finished": list(step.finished),
        }
        if step.chunk is not None:
            record["prefilling"] = chunk_as_told(step.chunk)
        if step.batch:
            record["batch"] = [batch_row(row, ctx.config.block_size) for row in step.batch]
        if action.arrive or action.abort:
            record["before"] = state_as_told(step.before, last, names)
        yield record


def names_of_blocks(ctx: SomeContext) -> dict[BlockKey, tuple[str, int]]:
    """Request and index of every full block that there can be."""
    return {
        key: (one.id, index)
        for one in ctx.requests.values()
        for index, key in enumerate(
            ctx.keys.of(one.id, (one.prompt_len + one.max_tokens) // ctx.config.block_size)
        )
    }


def state_as_told(state: State, last: Chunk | None, names: dict[BlockKey, tuple[str, int]]) -> Json:
    slot = () if state.prefilling is None else (state.prefilling,)
    preempted = tuple(row for row in state.waiting if row.generated)
    return {
        "waiting": [row.id for row in state.waiting],
        "prefilling": chunk_as_told(last) if slot and last else None,
        "decoding": [row_as_told(row) for row in state.decoding],
        "running": [row.id for row in state.running],
        "paused": [row.id for row in state.paused],
        "others": [row_as_told(row) for row in (*slot, *state.paused, *preempted)],
        "block_tables": {row.id: list(row.blocks) for row in state.admitted},
        "blocks": {
            "used": len(state.pool.references),
            "reserved": sum(row.reserved for row in state.admitted),
            "free": len(state.pool.free),
        },
        "free_list": list(state.pool.free),
        "references": {str(block): count for block, count in state.pool.references.items()},
        "cached": [[*names[key], *blocks] for key, blocks in state.pool.cached.items()],
    }


def chunk_as_told(chunk: Chunk) -> Json:
    return asdict(chunk)


def row_as_told(row: Row) -> Json:
    told = asdict(row)
    del told["blocks"]
    return told | {"tkv": row.tkv}


def batch_row(row: Row, block_size: int) -> Json:
    slot = [row.blocks[-1], (row.computed - 1) % block_size]
    return row_as_told(row) | {"blocks": list(row.blocks), "slot": slot}
