"""Guards: the error of a transition whose guard does not hold, and checks of several machines."""

from collections.abc import Iterable
from typing import TypeVar

from attrs import define

from spec.core.records import SomeSequence, SomeState

SequenceT = TypeVar("SequenceT", bound=SomeSequence)


@define(slots=False)
class GuardError(Exception):
    """A transition was taken although its guard does not hold; `rule` names the guard."""

    transition: str
    rule: str

    def __str__(self) -> str:
        return f"{self.transition} is not allowed here: {self.rule}"


def require(condition: bool, transition: str, rule: str) -> None:
    """Raise unless the guard holds.

    Raises:
        GuardError: the condition is false.
    """
    if not condition:
        raise GuardError(transition, rule)


def require_new(state: SomeState, request_id: str, rule: str) -> None:
    """Raise unless the request arrives for the first time.

    Raises:
        GuardError: it is present or has left.
    """
    known = {*(row.id for row in state.present), *state.finished, *state.aborted}
    require(request_id not in known, "arrive", rule)


def require_among(
    queue: Iterable[SequenceT], request_id: str, transition: str, rule: str
) -> SequenceT:
    """The request of this name in the queue.

    Raises:
        GuardError: there is none.
    """
    for row in queue:
        if row.id == request_id:
            return row
    raise GuardError(transition, rule)
