"""The large parts of a policy, engines and tensors, are imported when they are asked for."""

from collections.abc import Callable
from importlib import import_module
from typing import Any


def imported_when_called(module: str, name: str) -> Callable[..., Any]:
    """The function of this name, whose module is imported at its first call."""

    def function(*args: Any) -> Any:
        return getattr(import_module(module), name)(*args)

    return function
