"""The paged device as the harness has devices: next to a driver's scheduler."""

from typing import Any

from attrs import frozen

from checks.harness.paging.watch import PagedWatch
from checks.harness.system import Json, Step
from engine.core.faults import ConstraintError


@frozen
class PagedDevice:
    """The paged device behind a driver's scheduler, which needs nothing but steps with events.

    It is shown every step of an episode, in their order, up to the first that it refuses.
    Implements `Device`.
    """

    _watch: PagedWatch[Any]

    @property
    def steps(self) -> int:
        """How many steps the device did."""
        return self._watch.steps

    def wrong(self, step: Step, _record: Json) -> tuple[str, str] | None:
        """What is wrong with the step, a name and a sentence.

        Of requests that left while it ran the scheduler drops what was sampled.
        """
        gone = step.after.aborted - step.before.aborted
        try:
            self._watch.observe(step)
        except ConstraintError as error:
            return f"device: {error.constraint}", str(error)
        wrong = [
            wrong for wrong in self._watch.wrong if wrong.by == "device" or wrong.id not in gone
        ]
        self._watch.wrong.clear()
        return ("device: token", str(wrong[0])) if wrong else None
