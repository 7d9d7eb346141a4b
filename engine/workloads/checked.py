"""Values from workload files, checked: type and range, or an error that names the field."""

import json
import math
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from spec.core.errors import WorkloadError

# Limits that only a mistake exceeds; within them, no line of a file can exhaust the memory.
MOST_TOKENS = 2**20  # of one prompt and of one output; above any context length served today
MOST_TOKEN_ID = 2**31 - 1
MOST_STEPS = 10**9
MOST_SECONDS = 10**9
MOST_MILLISECONDS = 10**12
MOST_NUMBER = 10**15  # of seconds on any clock
MOST_PRIORITY = 10**9
MOST_SEQUENCES = 1_000  # of one request
MOST_LORA = 10**6  # number of an adapter
MOST_ID_CHARACTERS = 200
MOST_REQUESTS = 10**6
MOST_DOCUMENT_BYTES = 2**30  # of a file that is one JSON document, and is read as a whole
MOST_LINE_BYTES = 2**25  # the longest prompt and output, both given token by token

_SHOWN_CHARACTERS = 60


class _Nothing:
    """What is found where a key is absent."""

    def __repr__(self) -> str:
        return "nothing"


NOTHING = _Nothing()


def brief(value: object) -> object:
    """`value`, or its beginning where a message would drown in it."""
    try:
        text = value if isinstance(value, str) else repr(value)
    except RecursionError:
        return "deep nesting"
    return value if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"


def json_object(text: str) -> dict[str, Any]:
    """The JSON object that a line consists of.

    Raises:
        WorkloadError: broken JSON, anything but an object, a key that is given twice.
    """
    try:
        value = json.loads(text, object_pairs_hook=_without_repeats)
    except json.JSONDecodeError as error:
        allowed = f"one JSON object; this is broken at column {error.colno}"
        raise WorkloadError("line", brief(text), allowed) from None
    except (ValueError, RecursionError):  # an endless number, endless nesting
        raise WorkloadError("line", brief(text), "one JSON object of sane size") from None
    if not isinstance(value, dict):
        raise WorkloadError("line", brief(text), "one JSON object")
    return value


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entry: dict[str, Any] = {}
    for key, value in pairs:
        if key in entry:
            raise WorkloadError("key", brief(key), "each key once")
        entry[key] = value
    return entry


def only_known_keys(entry: Iterable[str], known: Iterable[str]) -> None:
    """Refuse the first key that is not among the known ones, and name the nearest of these."""
    names = list(known)
    for key in entry:
        if key not in names:
            nearest = "".join(f"; nearest: {name}" for name in get_close_matches(key, names, n=1))
            raise WorkloadError("key", brief(key), f"{', '.join(names)}{nearest}")


def text(field: str, value: object) -> str:
    """`value`, if a message and a terminal can show it."""
    if isinstance(value, str) and value.isprintable() and 1 <= len(value) <= MOST_ID_CHARACTERS:
        return value
    allowed = f"printable text of 1 to {MOST_ID_CHARACTERS} characters"
    raise WorkloadError(field, brief(value), allowed)


def whole(field: str, value: object, least: int, most: int, unit: str = "") -> int:
    """`value`, if it is a whole number (truth values are none) from `least` to `most`."""
    if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
        return value
    kind = f"a whole number of {unit}" if unit else "a whole number"
    raise WorkloadError(field, brief(value), f"{kind} from {least} to {most}")


def seconds(field: str, value: object, most: float = MOST_SECONDS, unit: str = "seconds") -> float:
    """`value`, if it is a finite number from 0 to `most`."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    # Compared before it is converted: a large whole number has no float.
    if is_number and 0 <= value <= most and math.isfinite(value):  # type: ignore[operator, arg-type]
        return float(value)  # type: ignore[arg-type]
    raise WorkloadError(field, brief(value), f"a number of {unit} from 0 to {most}")


def truth(field: str, value: object) -> bool:
    """`value`, if it is true or false."""
    if isinstance(value, bool):
        return value
    raise WorkloadError(field, brief(value), "true or false")


def number(field: str, value: object, unit: str) -> float:
    """`value`, if it is a finite number."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < MOST_NUMBER:
        return float(value)
    raise WorkloadError(field, brief(value), f"a number of {unit}")


def milliseconds(field: str, value: object) -> float | None:
    """`value`, if it is a number of milliseconds, in seconds; None if it is None."""
    return (
        None if value is None else seconds(field, value, MOST_MILLISECONDS, "milliseconds") / 1000
    )


def token_ids(field: str, value: object) -> tuple[int, ...]:
    """`value`, if it is a list of token ids, neither empty nor too long."""
    if not isinstance(value, list) or not 1 <= len(value) <= MOST_TOKENS:
        raise WorkloadError(field, brief(value), f"a list of 1 to {MOST_TOKENS} token ids")
    return tuple(
        whole(f"{field}[{index}]", token, 0, MOST_TOKEN_ID) for index, token in enumerate(value)
    )
