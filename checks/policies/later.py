"""The large parts of a policy, engines and tensors, are imported when they are asked for."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

_CHECKS = __name__.rpartition(".policies.")[0]  # inside another package where it is installed


def imported_when_called(module: str, name: str) -> Callable[..., Any]:
    """The function of this name in a module inside `checks`, imported when it is called."""

    def function(*args: Any) -> Any:
        return getattr(import_module(f"{_CHECKS}.{module}"), name)(*args)

    return function
