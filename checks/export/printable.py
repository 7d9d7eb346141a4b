"""Text for a screen: foreign text made safe to show, and long lines wrapped."""

from functools import cache
from textwrap import fill
from unicodedata import category

_KEPT = {"\n", "\t"}
_WIDTH = 100


def wrapped(line: str) -> str:
    """The line, its continuation further in than itself."""
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return fill(line, _WIDTH, subsequent_indent=indent, break_long_words=False)


def printable(text: str) -> str:
    """The text with control characters as escapes, so that it cannot move a terminal's cursor.

    New lines and tabs stay. Characters that change the direction of writing, that are invisible or
    that XML does not allow are escaped, too.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_escaped, text))


@cache
def _escaped(character: str) -> str:
    kind = category(character)
    is_unsafe = kind.startswith("C") or kind in ("Zl", "Zp")
    return ascii(character)[1:-1] if is_unsafe and character not in _KEPT else character
