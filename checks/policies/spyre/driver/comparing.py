"""A driver's step held against the reference's: its fields, and the totals that only it tells."""

from collections.abc import Collection, Iterator
from typing import Any

from attrs import fields

from checks.conformance.leftout import NOT_COMPARED
from checks.fuzz.compare import Difference, Strictness, differences
from checks.harness.driver.protocol import Json
from spec.spyre.records import Context, Step
from spec.spyre.state import State

_TOLD = tuple(one.name for one in fields(Step) if one.name not in NOT_COMPARED)


def step_differences(
    ctx: Context,
    expected: Step,
    found: Step,
    record: Json,
    strictness: Strictness,
    not_compared: Collection[str],
) -> tuple[Difference, ...]:
    """Where the driver's step differs, what came first at the front.

    Source of `found`: the `record`, whose totals are compared as well, for a scheduler may count
    otherwise than its own requests and blocks add up to.
    """
    if strictness is Strictness.DECISIONS:
        return differences(expected, found, strictness, None, not_compared)
    early = _totals("before.", expected.before, record["before"]) if "before" in record else ()
    seen = (
        ()
        if _same(expected, found)
        else differences(expected, found, strictness, None, not_compared)
    )
    late = _totals("", expected.after, record)
    size = ctx.config.block_size
    device = _device(expected, record, size) if strictness is Strictness.EXACT else ()
    return (*early, *seen, *late, *device)


def _same(expected: Step, found: Step) -> bool:
    """True if they agree in all that a driver can tell."""
    return all(getattr(expected, name) == getattr(found, name) for name in _TOLD)


def totals_told(step: Step, record: Json) -> Iterator[Difference]:
    """Where blocks are counted otherwise than the record's own requests and blocks add up to."""
    for side, state, told in (
        ("before.", step.before, record.get("before", {})),
        ("", step.after, record),
    ):
        yield from _totals(side, state, {"blocks": told.get("blocks", {})})


def _totals(side: str, state: State, record: Json) -> Iterator[Difference]:
    """The running queue as it is kept, and the blocks as they are counted."""
    expected: dict[str, Any] = {
        "running": [row.id for row in state.running],
        "blocks.used": len(state.pool.references),
        "blocks.reserved": sum(row.reserved for row in state.admitted),
        "blocks.free": len(state.pool.free),
    }
    blocks = record.get("blocks", {})
    told = {f"blocks.{name}": count for name, count in blocks.items()}
    if "running" in record:
        told["running"] = record["running"]
    for name, due in expected.items():
        if name in told and told[name] != due:
            yield Difference(f"{side}{name}", "", due, told[name])


def _device(expected: Step, record: Json, block_size: int) -> Iterator[Difference]:
    """What the device was given for each row of a decode step: its tkv, and where it writes."""
    told = {row["id"]: row for row in record.get("batch", ())}
    for due in expected.batch:
        row = told.get(due.id, {})
        given = {
            "tkv": due.tkv,
            "slot": [due.blocks[-1], (due.computed - 1) % block_size],
        }
        for name, value in given.items():
            if name in row and row[name] != value:
                yield Difference(f"batch.{name}", due.id, value, row[name])
