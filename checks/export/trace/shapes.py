"""What a JSON value must look like: small checks that are put together to a format.

A check returns nothing and raises TraceError with the path of the field inside the value.
"""

from collections.abc import Callable, Mapping
from math import inf
from typing import Any

from engine.workloads.checked import NOTHING
from spec.core.errors import InputError, TraceError

Check = Callable[[Any], None]

_BLOCK_KEY_DIGITS = frozenset("0123456789abcdef")


def whole(value: Any, at_least: int = 0) -> None:
    """A whole number, not negative."""
    if type(value) is not int or value < at_least:
        raise TraceError("", value, f"a whole number, {at_least} or more")


def positive(value: Any) -> None:
    """A whole number, 1 or more."""
    whole(value, 1)


def number(value: Any) -> None:
    """A finite number, not negative."""
    if type(value) not in (int, float) or not 0 <= value < inf:
        raise TraceError("", value, "a finite number, 0 or more")


def text(value: Any) -> None:
    """A text."""
    if type(value) is not str:
        raise TraceError("", value, "a text")


def flag(value: Any) -> None:
    """True or false."""
    if type(value) is not bool:
        raise TraceError("", value, "true or false")


def anything(_value: Any) -> None:
    """Any JSON value."""


def one_of(*allowed: str) -> Check:
    """One of these texts."""

    def check(value: Any) -> None:
        if type(value) is not str or value not in allowed:
            raise TraceError("", value, ", ".join(allowed))

    return check


def maybe(inner: Check) -> Check:
    """Null, or what `inner` allows."""
    return lambda value: None if value is None else inner(value)


def list_of(inner: Check) -> Check:
    """A list, each entry as `inner` allows."""

    def check(value: Any) -> None:
        if type(value) is not list:
            raise TraceError("", value, "a list")
        done = 0
        try:
            for one in value:
                inner(one)
                done += 1
        except TraceError as error:
            raise within(f"[{done}]", error) from None

    return check


def wholes(value: Any) -> None:
    """A list of whole numbers, not negative; quick, because most of a trace is that."""
    if (
        type(value) is not list
        or not {int}.issuperset(map(type, value))
        or min(value, default=0) < 0
    ):
        list_of(whole)(value)


def texts(value: Any) -> None:
    """A list of texts; quick too."""
    if type(value) is not list or not {str}.issuperset(map(type, value)):
        list_of(text)(value)


def map_of(key: Check, inner: Check) -> Check:
    """An object whose names pass `key` and whose values pass `inner`."""

    def check(value: Any) -> None:
        if type(value) is not dict:
            raise TraceError("", value, "an object")
        name = ""
        try:
            for name, one in value.items():
                key(name)
                inner(one)
        except TraceError as error:
            raise within(name, error) from None

    return check


def record(required: Mapping[str, Check], optional: Mapping[str, Check] | None = None) -> Check:
    """An object with these fields; others are nobody's business."""
    options = optional or {}

    def check(value: Any) -> None:
        if type(value) is not dict:
            raise TraceError("", value, "an object")
        name = ""
        try:
            for name, inner in required.items():
                if name not in value:
                    raise TraceError("", NOTHING, "a value, in every line of this kind")
                inner(value[name])
            for name, inner in options.items():
                if name in value:
                    inner(value[name])
        except TraceError as error:
            raise within(name, error) from None

    return check


def block_number(value: str) -> None:
    """The number of a block as the name of a field."""
    if not (value.isascii() and value.isdecimal() and str(int(value[:18])) == value):
        raise TraceError("", value, "the number of a block")


def block_key(value: Any) -> None:
    """The key of a cached block."""
    if type(value) is not str or len(value) % 2 or not _BLOCK_KEY_DIGITS.issuperset(value):
        raise TraceError("", value, "an even number of hexadecimal digits, small letters")


def within(name: str, error: InputError) -> TraceError:
    """The error with its path seen from one level further out."""
    dot = "." if error.field and not error.field.startswith("[") else ""
    return TraceError(f"{name}{dot}{error.field}", error.found, error.allowed)
