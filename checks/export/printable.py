"""Text for a screen: foreign text made safe to show, and long lines wrapped."""

from functools import cache
from textwrap import fill
from unicodedata import category

_SHOWN = {"\n", "\t"}
_WIDTH = 100


def wrapped(line: str) -> str:
    """The line, its continuation further in than itself."""
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return fill(line, _WIDTH, subsequent_indent=indent, break_long_words=False)


def printable(text: str) -> str:
    """The text with control characters and the like as escapes: nothing in it moves a cursor.

    New lines and tabs stay. What turns the direction of writing, what is invisible and what XML
    cannot have are escaped, too.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_shown, text))


@cache
def _shown(character: str) -> str:
    is_odd = category(character)[0] == "C" or category(character) in ("Zl", "Zp")
    return ascii(character)[1:-1] if is_odd and character not in _SHOWN else character
