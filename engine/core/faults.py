"""How a device says no: what it refuses, and how it fails."""

from collections.abc import Mapping
from enum import StrEnum

from attrs import define, field

from engine.spyre.device.constraints import SAYS, Constraint


@define(slots=False)
class ConstraintError(Exception):
    """The tensors ask for what the hardware cannot do: an error of whoever built them.

    `constraint` names what was broken, `numbers` where, what was found and what is allowed. The
    step was not done: the cache is as it was before.
    """

    constraint: Constraint
    numbers: Mapping[str, int | str] = field(factory=dict)

    def __str__(self) -> str:
        told = ", ".join(f"{name} {value}" for name, value in self.numbers.items())
        return f"the device refuses: {self.constraint}: {SAYS[self.constraint]} Found: {told}"


class Failure(StrEnum):
    """How a device can fail through no fault of its inputs."""

    STEP_FAILED = "step failed"  # nothing was computed or written
    RESULT_LOST = "result lost"  # all was computed and written, the tokens did not arrive
    STOPPED = "stopped"  # nothing is computed from now on, the cache is lost


@define(slots=False)
class DeviceFailedError(Exception):
    """The hardware failed; `kind` tells what is left of the step."""

    kind: Failure

    def __str__(self) -> str:
        return f"the device failed: {self.kind}"
