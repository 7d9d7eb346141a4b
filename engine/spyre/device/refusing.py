"""Refuse a step, with the numbers of the first place where it is wrong."""

import numpy as np
from numpy.typing import NDArray

from engine.core.faults import ConstraintError
from engine.spyre.device.constraints import Constraint
from engine.spyre.device.inputs import Tensor

Flags = NDArray[np.bool_]


def refuse_if(wrong: bool, constraint: Constraint, **numbers: int | str) -> None:
    """Refuse a step that is wrong as a whole.

    Raises:
        ConstraintError: with `numbers`, what was found and what is allowed.
    """
    if wrong:
        raise ConstraintError(constraint, numbers)


def refuse_where(
    wrong: Flags, constraint: Constraint, axes: tuple[str, ...] = ("row",), **numbers: Tensor | int
) -> None:
    """Refuse a step that is wrong somewhere.

    `axes` name the axes of `wrong`; `numbers` are tensors of its shape, or that stretch to it.

    Raises:
        ConstraintError: with the first place that is wrong and the numbers there.
    """
    if not np.count_nonzero(wrong):  # what `any` says, in half the time
        return
    place = tuple(int(index) for index in np.argwhere(wrong)[0])
    found = {name: int(np.broadcast_to(one, wrong.shape)[place]) for name, one in numbers.items()}
    raise ConstraintError(constraint, dict(zip(axes, place, strict=True)) | found)
