"""A driver of vLLM V1 without a process."""

from collections.abc import Iterator
from typing import Any

from attrs import asdict, evolve

from checks.harness.driver.system import DriverSystem
from checks.harness.system import Action, Hello, Json
from spec.core.requests import Content
from spec.vllm_v1.records import Context, Flight, State, Step
from spec.vllm_v1.records import Sequence as Row
from tests.checks.harness.driver.faithful import Names, blocks_of, faithful

RELEASED = Hello(
    name="vllm-v1",
    release="vLLM 0.28.0",
    policy="vllm-v1",
    config={"kv_groups": [None]},
    abilities=frozenset({"abort", "abort_running", "ends"}),
)
STRANGER = evolve(RELEASED, name="stranger", release="stranger 1.0")
SAYS_ORDER = evolve(STRANGER, abilities=STRANGER.abilities | {"order"})


def driver(hello: Hello = STRANGER, **faults: Any) -> DriverSystem:
    """A driver that reports the reference's own steps, changed by `faults`."""
    return faithful(hello, record_of, **faults)


def record_of(names: Names, _ctx: Context, step: Step, action: Action) -> Json:
    """The record of a step."""
    record = _state(names, step.after) | {
        "planned": _state(names, step.planned),
        "outputs": {request_id: list(tokens) for request_id, tokens in step.outputs.items()},
        "statistics": asdict(step.statistics),
        "lookups": asdict(step.lookups),
        "resumed_lookups": asdict(step.resumed_lookups),
        "budget_left": step.budget_left,
        "order": list(_order(step)),
    }
    record["encodes"] = {request_id: list(spans) for request_id, spans in step.encoded}
    record["evicted"] = list(map(_content, step.evicted))
    if step.results_of is not None:
        record["results_of"] = _flight(step.results_of)
    for name in ("scheduled", "drafts", "accepted", "proposed", "external"):
        record[name] = dict(getattr(step, name))
    for name in ("masked", "admitted", "preempted", "reported", "finished", "failed_loads"):
        record[name] = list(getattr(step, name))
    transfers = (action.loaded, action.lost, action.sent, action.answered, action.compiled)
    if action.arrive or action.abort or any(transfers):
        record["before"] = _state(names, step.before)
    return record


def _order(step: Step) -> Iterator[list[Any]]:
    """Victims, loads that have ended, and the tokens and blocks that each request is given."""
    blocks: list[int] = []
    for event in step.events:
        match event.transition:
            case "preempt" | "promote":
                yield [event.transition, event.id]
            case "allocate":
                blocks = list(event.after)
            case "catch_up" | "admit" | "load":
                yield ["allocate", event.id, event.after, blocks]
                blocks = []


def _state(names: Names, state: State) -> Json:
    rows = (*state.present, *state.draining)
    queues = ("waiting", "skipped", "running", "draining")
    return blocks_of(names, state, rows) | {
        **{name: [row.id for row in getattr(state, name)] for name in queues},
        "rows": [_row(row) for row in rows],
        "unreported": sorted(state.unreported),
        "flights": list(map(_flight, state.flights)),
        "encoder": {
            "held": [[_content(content), list(ids)] for content, ids in state.encoder.held],
            "evictable": list(map(_content, state.encoder.evictable)),
            "taken": [[name, list(spans)] for name, spans in state.encoder.taken],
        },
    }


def _content(content: Content) -> list[Any]:
    return [content.name, content.tokens]


def _flight(flight: Flight) -> Json:
    return {
        "scheduled": dict(flight.scheduled),
        "samples": list(flight.samples),
        "drafts": dict(flight.drafts),
        "padded": list(flight.padded),
        "external": dict(flight.external),
        "frees": [[table.id, list(table.blocks)] for table in flight.frees],
    }


def _row(row: Row) -> Json:
    numbers = ("id", "computed", "generated", "drafts", "placeholders", "prefilling", "sending")
    return {name: getattr(row, name) for name in numbers} | {"load": row.load.value}
