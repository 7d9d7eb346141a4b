"""A configuration file in TOML: its text, its keys and their lines."""

import re
import tomllib
from pathlib import Path
from typing import Any

from spec.core.errors import ConfigError, cannot

MOST = 10**9  # larger numbers are taken for mistakes
MOST_FILE_BYTES = 2**20
_SHOWN_CHARACTERS = 60


def read_text(path: Path) -> str:
    """The content of the file.

    Raises:
        ConfigError: the file cannot be read, is too large, or is no UTF-8; names the file.
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


def parse_toml(text: str, path: Path) -> dict[str, Any]:
    """The keys in the text of the file.

    Raises:
        ConfigError: the text is no TOML; names file and line.
    """
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        line, what = _broken_line(str(error), text)
        found = brief(text.split("\n")[line - 1].strip())
        raise ConfigError("line", found, f"valid TOML ({what})").at(path, line) from None


def _broken_line(message: str, text: str) -> tuple[int, str]:
    """The line, from 1, in the parser's message, and the message without it."""
    match = re.fullmatch(r"(.*) \(at (?:line (\d+), column \d+|end of document)\)", message, re.S)
    if match is None:  # a number or a nesting without end
        return 1, "a number or a nesting in this file is too long"
    return int(match[2] or text.rstrip("\n").count("\n") + 1), match[1]


def key_line(key: str, text: str, table: str | None = None) -> int | None:
    """The first line, from 1, with this key or with a table of this name; None if there is none.

    `table`: the table of the key, with or without a header.
    """
    first = 0 if table is None else (key_line(table, text) or 1) - 1
    inside = "" if table is None else "(?:.*[.{,])?"
    pattern = re.compile(rf"""\s*\[*{inside}\s*(["']?){re.escape(key)}\1\s*[].=]""")
    lines = enumerate(text.split("\n")[first:], start=first + 1)
    return next((number for number, line in lines if pattern.match(line)), None)


def brief(value: object) -> object:
    """The value, shortened for a message if it is long."""
    if isinstance(value, int) and abs(value) > MOST:
        return f"{value.bit_length()} bits"  # the longest cannot be written out
    text = value if isinstance(value, str) else repr(value)
    return value if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"
