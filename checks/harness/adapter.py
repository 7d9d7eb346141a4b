"""Adapters: how the harness understands the driver processes of a policy."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from attrs import field, frozen

from checks.harness.case import Case
from checks.harness.comparing import Difference, Strictness
from checks.harness.decoding import RecordDecoder
from checks.harness.system import Json, Step
from checks.harness.unreported import Fields
from spec.core.records import Event


class Device(Protocol):
    """A simulated device that does the steps of one episode in their order."""

    @property
    def steps(self) -> int:
        """The number of steps that the device did."""

    def wrong(self, step: Step, record: Json) -> tuple[str, str] | None:
        """The error that the device found in a step, a name and a sentence; None without one."""

    def saved(self) -> Any:
        """A copy of the device's memory."""

    def restore(self, saved: Any) -> None:
        """Go on from a saved memory, which stays as it is."""


def totals(_ctx: Any, step: Step, record: Json, strictness: Strictness) -> Iterator[Difference]:
    """Block counts in the record that differ from the block tables and the pool in the state."""
    if strictness is not Strictness.EXACT:
        return
    pool = step.after.pool
    due = {"used": len(pool.references), "free": len(pool.free)}
    said = record.get("blocks", {})
    for name, count in ((name, said[name]) for name in due if name in said):
        if due[name] != count:
            yield Difference(f"blocks.{name}", "", due[name], count)


CONTRADICTS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Errors that inferring events from a record raises if the record contradicts itself."""

POOL_NAMES = {r"pool\.(keys|cached)": "cached", r"pool\.free": "free_list", r"pool\.": ""}
ROW_NAMES = {
    r"\b(waiting|skipped|running|swapped|draining)\.blocks": "block_tables",
    r"\b(waiting|skipped|running|swapped|draining)\.": "rows.",
}


@frozen(kw_only=True)
class Adapter:
    """How the records of a policy's drivers are read and compared.

    `fields`: fields that drivers may leave out. `decoder`: makes the decoder of an episode from its
    context. `inferred_events`: the events that follow from the states of a step, for a
    configuration. `reported_twice`: values of a record that contradict the states of the step, for
    a strictness. `request_extras`: keys per request that the first line of an episode adds to the
    request. `rules_know_leavers`: rules judge steps in which a client left while the model ran.
    `device_needs`: fields that the simulated device needs. `infers_all_events`: the fields of a
    step determine all its events. `names`: field names of records that differ from those of steps,
    by regular expression.
    """

    fields: Fields
    decoder: Callable[[Any], RecordDecoder[Any]]
    inferred_events: Callable[[Step, Any], tuple[Event, ...]] = lambda _step, _config: ()
    reported_twice: Callable[[Any, Step, Json, Strictness], Iterator[Difference]] = totals
    request_extras: Callable[[Case], Mapping[str, Json]] = lambda _case: {}
    rules_know_leavers: bool = False
    device_needs: frozenset[str] = frozenset()
    infers_all_events: bool = False
    names: Mapping[str, str] = field(factory=POOL_NAMES.copy)

    def in_record(self, field: str) -> str:
        """The name of a step's field in the record of a driver."""
        name = field.removeprefix("after.")
        for pattern, recorded in self.names.items():
            name = re.sub(pattern, recorded, name)
        return name

    def uninferred_events(self, step: Step, config: Any) -> Iterator[Event]:
        """Visible events of a step that its fields do not imply, then implied ones it lacks."""
        inferred = [*self.inferred_events(step, config)]
        for event in step.events:
            if event.transition not in self.fields.visible:
                continue
            equal = next((candidate for candidate in inferred if _agree(candidate, event)), None)
            if equal is None:
                yield event
            else:
                inferred.remove(equal)
        yield from inferred


def _agree(inferred: Event, event: Event) -> bool:
    """True if both have the same transition and, where they are inferred, request and values."""
    pairs = (
        (inferred.id or None, event.id),
        (inferred.before, event.before),
        (inferred.after, event.after),
    )
    return inferred.transition == event.transition and all(
        value is None or value == reported for value, reported in pairs
    )
