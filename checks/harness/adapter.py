"""What the harness must know of a policy to hold driver processes against its reference."""

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
    """A device of ours for the steps of one episode, in their order."""

    @property
    def steps(self) -> int:
        """How many it did."""

    def wrong(self, step: Step, record: Json) -> tuple[str, str] | None:
        """What is wrong with a step, if the device can tell: a name and a sentence."""


def totals(_ctx: Any, step: Step, record: Json, strictness: Strictness) -> Iterator[Difference]:
    """Where a scheduler counts blocks otherwise than its requests and its pool add up to."""
    if strictness is not Strictness.EXACT:
        return
    pool = step.after.pool
    due = {"used": len(pool.references), "free": len(pool.free)}
    said = record.get("blocks", {})
    for name, count in ((name, said[name]) for name in due if name in said):
        if due[name] != count:
            yield Difference(f"blocks.{name}", "", due[name], count)


CONTRADICTS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What a record that contradicts itself makes raise where events are inferred from it."""

POOL_NAMES = {r"pool\.(keys|cached)": "cached", r"pool\.free": "free_list", r"pool\.": ""}
ROW_NAMES = {
    r"\b(waiting|skipped|running|swapped|draining)\.blocks": "block_tables",
    r"\b(waiting|skipped|running|swapped|draining)\.": "rows.",
}


@frozen(kw_only=True)
class Adapter:
    """How the drivers of one policy are understood.

    `fields`: what drivers may leave out. `decoder`: for the context of an episode.
    `inferred_events`: the events that show in the states of a step, for a configuration.
    `reported_twice`: where the record of a driver contradicts the states of a step, as strictly as
    asked for. `request_extras`: of a case, by request, what the line that begins an episode says
    beyond the request itself. `rules_know_leavers`: rules hold, too, of a step whose clients left
    while it ran. `device_needs`: what must not be left out if a device of ours is to do the steps.
    `names`: where a record calls a field otherwise than steps do, by regular expression.
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
        """The name that a record of a driver has for a field of a step."""
        name = field.removeprefix("after.")
        for pattern, known in self.names.items():
            name = re.sub(pattern, known, name)
        return name

    def uninferred_events(self, step: Step, config: Any) -> Iterator[Event]:
        """Visible events that a step's fields do not show, then those that only its fields show."""
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
