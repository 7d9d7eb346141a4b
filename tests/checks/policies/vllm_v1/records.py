"""A driver of vLLM V1 without a process: it tells what the reference does, or a planted fault."""

import json
from collections.abc import Iterator, Sequence

from attrs import asdict, define
from checks.conformance.script import script_of
from checks.fuzz.cases import Case
from tests.checks.conformance.faithful import Fault, names_of_blocks

from checks.harness.driver.protocol import Action, Hello, Json, Played
from spec.core.requests import BlockKey
from spec.vllm_v1.records import Context, State, Step
from spec.vllm_v1.records import Sequence as Row

RELEASED = Hello(
    name="vllm-v1",
    release="vLLM 0.28.0",
    policy="vllm-v1",
    abilities=frozenset({"abort", "abort_running", "ends"}),
)
STRANGER = Hello("stranger", "stranger 1.0", "vllm-v1", abilities=RELEASED.abilities)
Names = dict[BlockKey, tuple[str, int]]


@define
class FaithfulV1Lab:
    """Implements `Lab`: the reference's own steps as records, then changed by `fault`."""

    hello: Hello = STRANGER
    fault: Fault | None = None

    def play(self, case: Case, actions: Sequence[Action]) -> Iterator[Played]:
        running = any(action.abort_running for action in actions)
        script = script_of(case, aborts_while_running=running)
        told = json.dumps(list(records_of(script.machine.ctx, script.steps, actions)))
        records = json.loads(told)
        if self.fault is not None:
            self.fault(records)
        yield Played(records)


def records_of(ctx: Context, steps: Sequence[Step], actions: Sequence[Action]) -> Iterator[Json]:
    """What a driver tells that leaves nothing out and makes no mistake, while there are steps."""
    names: Names = names_of_blocks(ctx)
    for step, action in zip(steps, actions, strict=False):
        record = state_as_told(step.after, names) | {
            "planned": state_as_told(step.planned, names),
            "scheduled": dict(step.scheduled),
            "drafts": dict(step.drafts),
            "accepted": dict(step.accepted),
            "admitted": list(step.admitted),
            "preempted": list(step.preempted),
            "budget_left": step.budget_left,
            "reported": list(step.reported),
            "outputs": {one: list(tokens) for one, tokens in step.outputs.items()},
            "finished": list(step.finished),
            "statistics": asdict(step.statistics),
            "external": dict(step.external),
            "failed_loads": list(step.failed_loads),
        }
        if action.arrive or action.abort or action.loaded or action.lost:
            record["before"] = state_as_told(step.before, names)
        yield record


def state_as_told(state: State, names: Names) -> Json:
    return {
        "waiting": [row.id for row in state.waiting],
        "skipped": [row.id for row in state.skipped],
        "running": [row.id for row in state.running],
        "draining": [row.id for row in state.draining],
        "rows": [row_as_told(row) for row in (*state.present, *state.draining)],
        "block_tables": {
            row.id: list(row.blocks) for row in (*state.present, *state.draining) if row.blocks
        },
        "unreported": sorted(state.unreported),
        "blocks": {"used": len(state.pool.references), "free": len(state.pool.free)},
        "free_list": list(state.pool.free),
        "references": {str(block): count for block, count in state.pool.references.items()},
        "cached": [[*names[key], *blocks] for key, blocks in state.pool.cached.items()],
    }


def row_as_told(row: Row) -> Json:
    return {
        "id": row.id,
        "computed": row.computed,
        "generated": row.generated,
        "drafts": row.drafts,
        "prefilling": row.prefilling,
        "load": row.load.value,
    }
