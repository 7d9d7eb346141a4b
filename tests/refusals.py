"""Refusals as text."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from engine.core.faults import Constraint, ConstraintError


@contextmanager
def device_refuses(constraint: Constraint, **numbers: int) -> Iterator[None]:
    """Expect that the device refuses the step by this constraint, with `numbers` in its message."""
    with pytest.raises(ConstraintError) as refused:
        yield
    assert refused.value.constraint == constraint
    assert not numbers or refused.value.numbers == numbers


def refusal(kind: type[Exception], call: Callable[..., object], *given: Any, **named: Any) -> str:
    """The message of the error that the call is refused with."""
    with pytest.raises(kind) as refused:
        call(*given, **named)
    return str(refused.value)
