"""A driver of Spyre schedulers without a process."""

from itertools import pairwise
from typing import Any

from attrs import asdict, evolve

from checks.harness.driver.system import DriverSystem
from checks.harness.system import Action, Hello, Json
from spec.spyre.records import Context, Step
from spec.spyre.state import Sequence as Row
from spec.spyre.state import State
from tests.checks.harness.driver.faithful import Names, blocks_of, faithful

SENDNN = Hello(
    name="sendnn",
    release="sendnn-inference 2.6.3 on vLLM 0.28.0",
    policy="spyre",
    abilities=frozenset({"abort", "abort_running", "ends"}),
)
OLDER = evolve(SENDNN, release="sendnn-inference 2.6.1 on vLLM 0.27.1")
STRANGER = Hello("stranger", "stranger 1.0", "spyre", abilities=SENDNN.abilities)
SAYS_WHY = evolve(STRANGER, abilities=STRANGER.abilities | {"refusal"})


def freed_to_the_end(records: list[Json]) -> None:
    """Blocks that requests give back follow all other free ones, as on vLLM 0.27.1."""
    for last, record in pairwise(records):
        kept = set(last["free_list"])
        record["free_list"].sort(key=lambda block: block not in kept)


def driver(hello: Hello = STRANGER, **faults: Any) -> DriverSystem:
    """A driver that reports the reference's own steps, changed by `faults`."""
    return faithful(hello, record_of, **faults)


def record_of(names: Names, ctx: Context, step: Step, action: Action) -> Json:
    """The record of a step."""
    record = _state(names, step.after) | {
        "kind": step.kind,
        "scheduled": dict(step.scheduled),
        "tkv": step.tkv,
        "outputs": {request_id: list(tokens) for request_id, tokens in step.outputs.items()},
        "finished": list(step.finished),
        "refusal": step.refusal,
    }
    if step.chunk is not None:
        record["prefilling"] = asdict(step.chunk)
    if step.batch:
        record["batch"] = [_on_device(row, ctx.config.block_size) for row in step.batch]
    if action.arrive or action.abort:
        record["before"] = _state(names, step.before)
    return record


def _state(names: Names, state: State) -> Json:
    slot = () if state.prefilling is None else (state.prefilling,)
    preempted = tuple(row for row in state.waiting if row.generated)
    record = blocks_of(names, state, state.admitted)
    promised = sum(row.reserved for row in state.admitted)
    record["blocks"]["reserved"] = promised + state.orphaned
    return record | {
        "waiting": [row.id for row in state.waiting],
        "decoding": [_row(row) for row in state.decoding],
        "running": [row.id for row in state.running],
        "paused": [row.id for row in state.paused],
        "others": [_row(row) for row in (*slot, *state.paused, *preempted)],
    }


def _row(row: Row) -> Json:
    record = asdict(row)
    del record["blocks"]
    return record | {"tkv": row.tkv}


def _on_device(row: Row, block_size: int) -> Json:
    slot = [row.blocks[-1], (row.computed - 1) % block_size]
    return _row(row) | {"blocks": list(row.blocks), "slot": slot}
