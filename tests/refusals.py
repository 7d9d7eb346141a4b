"""What is refused, as text."""

from collections.abc import Callable
from typing import Any

import pytest


def refusal(kind: type[Exception], call: Callable[..., object], *given: Any, **named: Any) -> str:
    """The message of the error that the call is refused with."""
    with pytest.raises(kind) as refused:
        call(*given, **named)
    return str(refused.value)
