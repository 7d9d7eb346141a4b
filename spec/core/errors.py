"""Errors in a user's input: a message with the place, the value and what is allowed."""

from enum import StrEnum
from typing import Literal, Self, TypeVar

from attrs import define, evolve, frozen

_MOST_CHARACTERS = 400  # of a key or a value that is shown


@frozen
class Place:
    """Where an input error was found: a file or option, and a line in it (from 1)."""

    source: str
    line: int | None = None

    def __str__(self) -> str:
        return self.source if self.line is None else f"{self.source}, line {self.line}"


@define(slots=False)
class InputError(Exception):
    """An input that cannot be used; nothing was run.

    `field` is the key that is wrong, `found` its value, `allowed` what it may be; `place` is
    added where the file is known. Without `allowed`, `field` says what cannot be and `found` why.
    Commands print the message and exit with code 2.
    """

    field: str
    found: object
    allowed: str
    place: Place | None = None

    def __str__(self) -> str:
        if not self.allowed:
            return f"{self.field}: {self.found}"
        where = "" if self.place is None else f"{self.place}: "
        if not where.endswith(f" {self.field}: "):  # "--set KEY" names the key already
            where += f"{_shortened(self.field)}: "
        found = repr(str(self.found) if isinstance(self.found, StrEnum) else self.found)
        return f"{where}found {_shortened(found)}; allowed: {self.allowed}"

    def at(self, source: object, line: int | None = None) -> Self:
        """The same error with its place, unless it already has one."""
        if self.place is not None:
            return self
        return evolve(self, place=Place(str(source), line))


def _shortened(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}…"


class ConfigError(InputError):
    """A configuration key that is unknown or has a value outside its range."""


class WorkloadError(InputError):
    """A request that is malformed or can never be served under the configuration."""


class TraceError(InputError):
    """A trace, counterexample or divergence file that cannot be read."""


ErrorT = TypeVar("ErrorT", bound=InputError)


def cannot(
    do: Literal["read", "write", "start"],
    path: object,
    error: OSError | ValueError,  # ValueError: a zero byte in the name
    kind: type[ErrorT],
) -> ErrorT:
    """The error of a file or directory that the system refuses."""
    return kind(f"cannot {do} {path}", (getattr(error, "strerror", None) or str(error)).lower(), "")
