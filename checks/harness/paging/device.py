"""The paged device beside a driver's scheduler, as the harness's `Device`."""

from copy import deepcopy
from typing import Any

from attrs import frozen

from checks.harness.paging.watch import PagedWatch
from checks.harness.system import Json, Step
from engine.core.faults import ConstraintError


@frozen
class PagedDevice:
    """The paged device for a driver's scheduler; implements `Device`.

    It needs steps with events, all steps of an episode in order, up to the first that it refuses.
    """

    _watch: PagedWatch[Any]

    @property
    def steps(self) -> int:
        """The number of steps that the device did."""
        return self._watch.steps

    def wrong(self, step: Step, _record: Json) -> tuple[str, str] | None:
        """The error in the step, a name and a sentence; None without one.

        A request that left while the step ran has no tokens: the scheduler drops them.
        """
        gone = step.after.aborted - step.before.aborted
        try:
            self._watch.observe(step)
        except ConstraintError as error:
            return f"device: {error.constraint}", str(error)
        wrong = [
            token for token in self._watch.wrong if token.by == "device" or token.id not in gone
        ]
        self._watch.wrong.clear()
        return ("device: token", str(wrong[0])) if wrong else None

    def saved(self) -> Any:
        """A copy of the device's memory."""
        return deepcopy(self._watch.device)

    def restore(self, saved: Any) -> None:
        """Go on from a saved memory, which stays as it is."""
        self._watch.device = deepcopy(saved)
