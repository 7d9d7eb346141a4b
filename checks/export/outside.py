"""Files and lines from outside: read, decoded and checked here.

JSON is restricted to what every reader takes: finite numbers, texts that can be written again, a
bounded depth. The form of an object is given by a JSON Schema or by a record (`structured`).
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from types import NoneType
from typing import Any, NoReturn

from checks.export.trace.records import Json, joined, missing
from engine.workloads.checked import brief
from spec.core.errors import InputError, TraceError, cannot

_MOST_BYTES = 2**30
_MOST_DEPTH = 100
_MOST_NUMBER = 2**63

Check = Callable[[Any, str], None]


# --- files ----------------------------------------------------------------------------------------


def file_content(path: Path, most_bytes: int = _MOST_BYTES) -> bytes:
    """All of a file.

    Raises:
        TraceError: it cannot be read, or is larger.
    """
    try:
        with path.open("rb") as file:
            content = file.read(most_bytes + 1)
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        raise cannot("read", path, error, TraceError) from None
    if len(content) > most_bytes:
        allowed = f"a file of at most {most_bytes:,} bytes"
        raise TraceError("file", "more", allowed).at(path)
    return content


def json_objects(path: Path) -> Iterator[Json]:
    """The JSON objects of a file, one a line.

    Raises:
        TraceError: it cannot be read, or a line is no JSON object.
    """
    for number, line in enumerate(file_content(path).splitlines(), start=1):
        try:
            found = json_object(line)
        except InputError as error:
            raise error.at(path, number) from None
        yield found


@contextmanager
def placed(path: Path, line: int | None = None) -> Iterator[None]:
    """Name the file, and the line, in refusals of the block that name none yet."""
    try:
        yield
    except InputError as error:
        raise error.at(path, line) from None


# --- JSON -----------------------------------------------------------------------------------------


def json_object(text: bytes | str, what: str = "line") -> Json:
    """The text as a JSON object. `what`: the field that a refusal names.

    Raises:
        TraceError: it is no JSON object, is too deep, or has half a surrogate pair in it.
    """
    shown = text.decode(errors="replace") if isinstance(text, bytes) else text
    try:
        decoded = text.decode() if isinstance(text, bytes) else text
        found = json.loads(
            decoded, parse_constant=_no_number, parse_float=_finite, parse_int=_bounded
        )
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise TraceError(what, brief(shown.rstrip("\r\n")), "a JSON object")
    _refuse_deep(found)
    if r"\ud" in decoded or r"\uD" in decoded:
        _refuse_half_characters(found, "")
    return found


def _no_number(name: str) -> NoReturn:
    raise ValueError(name)


def _finite(digits: str) -> float:
    number = float(digits)
    if not isfinite(number):
        raise ValueError(digits)
    return number


def _bounded(digits: str) -> int:
    number = int(digits)
    if abs(number) >= _MOST_NUMBER:
        raise ValueError(digits)
    return number


def _refuse_deep(value: Any) -> None:
    """Refuse objects and lists in more levels than recursion can follow.

    Raises:
        TraceError: there are more than `_MOST_DEPTH`.
    """
    level = [value]
    for _ in range(_MOST_DEPTH):
        level = [
            entry
            for holder in level
            for entry in (holder.values() if type(holder) is dict else holder)
            if type(entry) in (dict, list)
        ]
        if not level:
            return
    raise TraceError("line", "more", f"at most {_MOST_DEPTH} levels of objects and lists")


def _refuse_half_characters(value: Any, path: str) -> None:
    """Refuse texts that cannot be written again: half a surrogate pair.

    Raises:
        TraceError: the first of them, with its path.
    """
    if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
        raise TraceError(path, brief(ascii(value)), "a text of whole characters")
    if isinstance(value, dict | list):
        for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
            _refuse_half_characters(key, path)
            _refuse_half_characters(entry, joined(path, key))


class _Refusing(dict[str, Any]):
    """A JSON object of a file; looking up a field that is missing raises a TraceError."""

    def __init__(self, entries: Json, file: Path, place: str) -> None:
        super().__init__(entries)
        self._file, self._place = file, place

    def __missing__(self, name: str) -> NoReturn:
        raise missing(joined(self._place, name)).at(self._file)


def refusing_missing(value: Any, file: Path, place: str = "") -> Any:
    """The value, whose objects raise a TraceError when a field that is missing is looked up.

    The error names the file and the field.
    """
    if isinstance(value, dict):
        entries = {
            name: refusing_missing(entry, file, joined(place, name))
            for name, entry in value.items()
        }
        return _Refusing(entries, file, place)
    if isinstance(value, list):
        return [
            refusing_missing(entry, file, joined(place, index)) for index, entry in enumerate(value)
        ]
    return value


# --- schemas --------------------------------------------------------------------------------------

_TYPES: Mapping[str, tuple[str, frozenset[type]]] = {
    "object": ("an object", frozenset({dict})),
    "array": ("a list", frozenset({list})),
    "string": ("a text", frozenset({str})),
    "boolean": ("true or false", frozenset({bool})),
    "null": ("null", frozenset({NoneType})),
    "integer": ("a whole number", frozenset({int})),
    "number": ("a number", frozenset({int, float})),
}


def schema_check(schema: Json, *, may_lack_fields: bool = False, any_number: bool = False) -> Check:
    """A check of values by a JSON Schema, as far as our schemas use the language.

    The check is called with a value and its path, and raises a TraceError with the first field that
    is wrong. An object may have fields that its schema does not name: later versions add some.
    `1.0` is no whole number: it is printed and compared differently. `may_lack_fields`: required
    fields may be missing. `any_number`: `minimum` is not checked.
    """
    return _Schemas(schema, may_lack_fields, any_number).check(schema)


class _Schemas:
    """Checks of the parts of a schema, by where they stand in it."""

    def __init__(self, root: Json, may_lack_fields: bool, any_number: bool) -> None:
        self._root = root
        self._may_lack_fields = may_lack_fields
        self._any_number = any_number
        self._by_reference: dict[str, Check] = {}

    def check(self, schema: Json) -> Check:
        """The check of a schema: its keywords in turn."""
        parts = [*self._parts(schema)]
        if len(parts) == 1:
            return parts[0]

        def all_of(value: Any, path: str) -> None:
            for part in parts:
                part(value, path)

        return all_of

    def _parts(self, schema: Json) -> Iterator[Check]:
        if "$ref" in schema:
            yield self._referred(schema["$ref"])
        if "type" in schema:
            yield _of_types(schema["type"])
        if "enum" in schema or "const" in schema:
            yield _one_of(schema.get("enum", [schema.get("const")]))
        if "minimum" in schema and not self._any_number:
            yield _at_least(schema["minimum"])
        if "anyOf" in schema:
            yield self._any_of(schema["anyOf"])
        if {"properties", "additionalProperties", "required"} & schema.keys():
            yield self._object(schema)
        if {"items", "prefixItems", "minItems", "maxItems"} & schema.keys():
            yield self._list(schema)

    def _referred(self, reference: str) -> Check:
        """The check of `#/…`, made when it is first needed: a schema may refer to itself."""

        def look_up(value: Any, path: str) -> None:
            if reference not in self._by_reference:
                found: Any = self._root
                for name in reference.removeprefix("#/").split("/"):
                    found = found[name]
                self._by_reference[reference] = self.check(found)
            self._by_reference[reference](value, path)

        return look_up

    def _any_of(self, schemas: Sequence[Json]) -> Check:
        """Any of several schemas; the one whose type the value has says what is wrong."""
        checks = [self.check(schema) for schema in schemas]

        def any_of(value: Any, path: str) -> None:
            refusals = []
            for check in checks:
                try:
                    check(value, path)
                except TraceError as error:
                    refusals.append(error)
                else:
                    return
            deeper = [refusal for refusal in refusals if refusal.field != path]
            allowed = ", or ".join(refusal.allowed for refusal in refusals)
            raise deeper[0] if deeper else TraceError(path, brief(value), allowed)

        return any_of

    def _object(self, schema: Json) -> Check:
        properties = schema.get("properties", {})
        fields = {name: self.check(entry) for name, entry in properties.items()}
        further = schema.get("additionalProperties", True)
        required = () if self._may_lack_fields else schema.get("required", ())
        others = self.check(further) if isinstance(further, dict) and further else None
        are_numbers = self._numbers(further if not fields and not required else {})

        def entries(value: Any, path: str) -> None:
            if type(value) is not dict or are_numbers(value.values()):
                return
            for name in required:
                if name not in value:
                    raise missing(joined(path, name))
            for name, entry in value.items():
                check = fields.get(name, others)
                if check is not None:
                    check(entry, joined(path, name))

        return entries

    def _list(self, schema: Json) -> Check:
        first = [self.check(entry) for entry in schema.get("prefixItems", ())]
        rest = self.check(schema["items"]) if schema.get("items") else None
        least, most = schema.get("minItems", 0), schema.get("maxItems", _MOST_NUMBER)
        are_numbers = self._numbers({} if first else schema.get("items") or {})

        def entries(value: Any, path: str) -> None:
            if type(value) is not list:
                return
            if not least <= len(value) <= most:
                allowed = f"{least} entries" if least == most else f"{least} entries or more"
                raise TraceError(path, f"{len(value)} entries", allowed)
            if are_numbers(value):
                return
            for index, entry in enumerate(value):
                check = first[index] if index < len(first) else rest
                if check is not None:
                    check(entry, joined(path, index))

        return entries

    def _numbers(self, schema: Any) -> Callable[[Collection[Any]], bool]:
        """True of values that are whole numbers as the schema has them: most of a record is such.

        Never true if the schema is another.
        """
        if not isinstance(schema, dict) or schema.get("type") != "integer" or "enum" in schema:
            return lambda _values: False
        least = -_MOST_NUMBER if self._any_number else schema.get("minimum", -_MOST_NUMBER)

        def are_numbers(values: Collection[Any]) -> bool:
            return {int}.issuperset(map(type, values)) and min(values, default=least) >= least

        return are_numbers


def _of_types(names: str | Sequence[str]) -> Check:
    types = [_TYPES[name] for name in ([names] if isinstance(names, str) else names)]
    allowed = " or ".join(says for says, _ in types)
    right = frozenset[type]().union(*(right for _, right in types))

    def of_types(value: Any, path: str) -> None:
        if type(value) not in right:
            raise TraceError(path, brief(value), allowed)

    return of_types


def _one_of(values: Sequence[Any]) -> Check:
    def one_of(value: Any, path: str) -> None:
        if not any(type(value) is type(choice) and value == choice for choice in values):
            raise TraceError(path, brief(value), ", ".join(map(str, values)))

    return one_of


def _at_least(least: float) -> Check:
    def at_least(value: Any, path: str) -> None:
        if type(value) in (int, float) and value < least:
            raise TraceError(path, value, f"{least} or more")

    return at_least
