"""A configuration file in TOML: its text, its keys, and on which line each of them stands."""

import re
import tomllib
from pathlib import Path
from typing import Any

from spec.core.errors import ConfigError, cannot

MOST = 10**9  # a number that only a mistake exceeds
MOST_FILE_BYTES = 2**20
_SHOWN_CHARACTERS = 60


def text_of(path: Path) -> str:
    """The content of the file.

    Raises:
        ConfigError: it cannot be read, or is no short text; with the file.
    """
    try:
        with path.open("rb") as stream:
            raw = stream.read(MOST_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        raise cannot("read", path, error, ConfigError) from None
    if len(raw) > MOST_FILE_BYTES:
        found = f"over {MOST_FILE_BYTES} bytes"
        raise ConfigError("file", found, "a configuration, which is short").at(path)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        found = f"byte {raw[error.start]:#04x}"
        raise ConfigError("file", found, "UTF-8 text").at(path, line) from None


def toml_of(text: str, path: Path) -> dict[str, Any]:
    """The keys of the text, which is that of the file.

    Raises:
        ConfigError: it is no TOML, with file and line.
    """
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        line, what = _broken_line(str(error), text)
        found = brief(text.split("\n")[line - 1].strip())
        raise ConfigError("line", found, f"valid TOML ({what})").at(path, line) from None


def _broken_line(message: str, text: str) -> tuple[int, str]:
    """The line, from 1, that the parser's message points at, and what it says of it."""
    match = re.fullmatch(r"(.*) \(at (?:line (\d+), column \d+|end of document)\)", message, re.S)
    if match is None:  # a number or a nesting without end
        return 1, "a number or a nesting in this file is too long"
    return int(match[2] or text.rstrip("\n").count("\n") + 1), match[1]


def line_of(key: str, text: str, table: str | None = None) -> int | None:
    """The line, from 1, on which a key or the table of this name first stands.

    With `table` that of the key in it, whether the table has a header or not.
    """
    first = 0 if table is None else (line_of(table, text) or 1) - 1
    inside = "" if table is None else "(?:.*[.{,])?"
    pattern = re.compile(rf"""\s*\[*{inside}\s*(["']?){re.escape(key)}\1\s*[].=]""")
    lines = enumerate(text.split("\n")[first:], start=first + 1)
    return next((number for number, line in lines if pattern.match(line)), None)


def brief(value: object) -> object:
    """`value`, or its beginning where a message would drown in it."""
    if isinstance(value, int) and abs(value) > MOST:
        return f"{value.bit_length()} bits"  # the longest cannot be written out
    text = value if isinstance(value, str) else repr(value)
    return value if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"
