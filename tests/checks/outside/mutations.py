"""Mutations of files from outside: changed JSON values, lines, words and bytes."""

import json
import re
from collections.abc import Callable, Iterator
from functools import reduce
from random import Random
from typing import Any

Path = tuple[str | int, ...]

_ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 7, 1.0, 0.5, -0.0, 10**6, 10**12, 10**19, 10**400),
    *("", "x", "0", "-1", "spyre", "a/0", "\x00", "\x1b[2J", "\u202e", "\ud800", "y" * 100_000),
    *([], {}, [[]], [None], [0], ["x"], {"": 0}, {"id": "x"}, {"x": [1]}),
)
_RAW = ("NaN", "Infinity", "1e400", "-1e400", "1" * 5_000, "[" * 3_000 + "]" * 3_000)
_PLACE = "@@raw@@"
_WORDS = (
    *(b"", b"0", b"-1", b"1.5", b"1e400", b"nan", b"inf", b"9" * 5_000, b"true", b"1979-05-27"),
    *(b'"x"', b"[", b"[]", b"{}", b"=", b"\n", b"x.y", b"\xff", b'"\\u0000"'),
)


def mutated(dice: Random, content: bytes) -> bytes:
    """The content with one change, or two."""
    for _ in range(dice.choice((1, 1, 1, 2))):
        content = dice.choice(_CHANGES)(dice, content)
    return content


def _value(dice: Random, content: bytes) -> bytes:
    """A value of a JSON object is another one, is gone, is there twice, or is elsewhere."""
    lines = content.splitlines(keepends=True)
    if not lines:
        return content
    whole = _parsed(content)  # one object on many lines, or an object a line
    number = dice.choice((0, len(lines) - 1, dice.randrange(len(lines))))
    found = whole if whole is not None else _parsed(lines[number])
    if not isinstance(found, dict):
        return _bytes(dice, content)
    places = [*_places(found)]
    path: Path = dice.choice(places) if places else ()
    holder, raw = _entry(found, path[:-1]), ""
    match dice.randrange(8) if path else -1:
        case 0:
            del holder[path[-1]]
        case 1:
            raw = dice.choice(_RAW)
            holder[path[-1]] = _PLACE
        case 2 if isinstance(holder, list):
            holder.append(holder[int(path[-1])])
        case 3:
            holder[path[-1]] = _beside(dice, holder[path[-1]])
        case 4:
            holder[path[-1]] = json.loads(json.dumps(_entry(found, dice.choice(places))))
        case -1:
            found["x"] = 1
        case _:
            holder[path[-1]] = dice.choice(_ODD)
    text = json.dumps(found).replace(f'"{_PLACE}"', raw)
    if whole is not None:
        return text.encode()
    lines[number] = text.encode() + b"\n"
    return b"".join(lines)


def _beside(dice: Random, value: Any) -> Any:
    """A value that is nearly this one."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + dice.choice((-1, 1, 64, -(10**6)))
        case str():
            return dice.choice((value + "x", value[:-1], value.upper(), value * 2))
        case list():
            return [value] if dice.random() < 0.5 else value[::-1]
        case dict():
            return {key.upper(): entry for key, entry in value.items()}
        case _:
            return [value]


def _alike(dice: Random, content: bytes) -> bytes:
    """A value is that of another place of its name, or of another entry of its list."""
    lines = content.splitlines(keepends=True)
    whole = _parsed(content)
    objects = [whole] if isinstance(whole, dict) else [*map(_parsed, lines)]
    by_name: dict[Any, list[tuple[Any, Any, int]]] = {}
    for number, found in enumerate(objects):
        for path in _places(found) if isinstance(found, dict) else ():
            holder = _entry(found, path[:-1])
            name = path[-1] if isinstance(holder, dict) else (path[-2], len(path))
            by_name.setdefault(name, []).append((holder, path[-1], number))
    several = [places for places in by_name.values() if len(places) > 1]
    if not several:
        return _word(dice, content)
    places = dice.choice(several)
    (holder, key, number), (other, other_key, _) = dice.choice(places), dice.choice(places)
    holder[key] = json.loads(json.dumps(other[other_key]))
    text = json.dumps(objects[number]).encode()
    if isinstance(whole, dict):
        return text
    lines[number] = text + b"\n"
    return b"".join(lines)


def _word(dice: Random, content: bytes) -> bytes:
    """A word of a text is another one."""
    words = re.split(rb"(\W+)", content)
    words[dice.randrange(len(words))] = dice.choice((*_WORDS, dice.choice(words)))
    return b"".join(words)


def _line(dice: Random, content: bytes) -> bytes:
    """A line is gone, is there twice, or is elsewhere."""
    lines = content.splitlines(keepends=True)
    if not lines:
        return content
    first, second = dice.randrange(len(lines)), dice.randrange(len(lines))
    match dice.randrange(4):
        case 0:
            del lines[first]
        case 1:
            lines.insert(second, lines[first])
        case 2:
            lines[first], lines[second] = lines[second], lines[first]
        case _:
            lines = lines[:first]
    return b"".join(lines)


def _bytes(dice: Random, content: bytes) -> bytes:
    """Bytes are others, are gone, or end early."""
    place = dice.randrange(len(content) + 1)
    odd = dice.choice((b"", b"\x00", b"\xff", b"{", b"]", b'"', b"\n", b",", b"9", b"\xed\xa0\x80"))
    return content[:place] + odd + content[place + dice.randrange(3) :] * dice.choice((0, 1, 1))


_CHANGES: tuple[Callable[[Random, bytes], bytes], ...] = (
    *(_value,) * 5,
    *(_alike,) * 3,
    *(_line, _word, _bytes),
)


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _entry(value: Any, path: Path) -> Any:
    """The entry at this path."""
    return reduce(lambda holder, key: holder[key], path, value)


def _places(value: Any, path: Path = ()) -> Iterator[Path]:
    """The paths of all entries, at every depth."""
    entries = value.items() if isinstance(value, dict) else enumerate(value)
    for key, entry in entries:
        yield (*path, key)
        if isinstance(entry, dict | list):
            yield from _places(entry, (*path, key))
