"""Text from drivers and files, made safe to print."""

from functools import cache
from unicodedata import category

_KEPT = {"\n", "\t"}


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
