"""Records as JSON values and back: cattrs over the attrs classes, strict about what it reads.

What is read is refused with the path of the field inside the value, what was found there and what
is allowed. Whole numbers are counts: none of them is negative.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum
from functools import partial
from math import inf
from typing import Any, Literal, NewType, NoReturn, TypeVar, get_args, get_origin

from attrs import NOTHING as NO_DEFAULT
from attrs import fields, has
from cattrs import BaseValidationError, Converter, override
from cattrs.cols import list_structure_factory, mapping_structure_factory
from cattrs.gen import (
    make_dict_structure_fn_from_attrs,
    make_dict_unstructure_fn,
)

from engine.workloads.checked import NOTHING
from spec.core.blocks import BlockPool
from spec.core.errors import TraceError
from spec.core.records import Event
from spec.core.sharing import BlockOrder, FrozenMap

Json = dict[str, Any]
Hook = Callable[[Any, Any], Any]
RecordT = TypeVar("RecordT")

_BLOCK_KEY_DIGITS = frozenset("0123456789abcdef")
_COLLECTIONS: Mapping[Any, type] = {tuple: tuple, frozenset: frozenset, list: list, Sequence: list}
_BlockNumber = NewType("_BlockNumber", int)  # a whole number that is the name of a field


def converter() -> Converter:
    """A converter that knows JSON's values, blocks and events; each policy adds its records."""
    made = Converter(
        omit_if_default=True,
        unstruct_collection_overrides={Sequence: list, tuple: list, frozenset: sorted},
    )
    made.register_structure_hook_factory(has, _reader)
    for type_, hook in _PLAIN.items():
        made.register_structure_hook(type_, hook)
    made.register_structure_hook_factory(_is_made_of({Literal}), _one_of_these)
    made.register_structure_hook_factory(_is_enum, _one_of_members)
    made.register_structure_hook_factory(_is_made_of(_COLLECTIONS), _entries)
    made.register_structure_hook_factory(_is_made_of({dict, Mapping}), _named)
    made.register_structure_hook_factory(_is_shared_map, _map_reader)
    made.register_unstructure_hook_factory(_is_shared_map, _map_writer)
    order = tuple[int, ...] | BlockOrder
    made.register_structure_hook(order, made.get_structure_hook(tuple[int, ...]))
    made.register_unstructure_hook(order, list)
    record(made, BlockPool, complete=True)
    value = partial(override, unstruct_hook=listed, struct_hook=_tupled)
    record(made, Event, last="rule", before=value(rename="from"), after=value(rename="to"))
    return made


def record(
    converter: Converter,
    class_: Any,
    *,
    complete: bool = False,
    constant: Mapping[str, Any] | None = None,
    last: str | None = None,
    **overrides: Any,
) -> None:
    """Register how an attrs class is written and read, where it is not done by default.

    By default a record is an object with a field for each of its attributes, without those that
    have their default. Unknown fields of an object are ignored.

    Args:
        converter: where it is registered.
        class_: an attrs class.
        complete: every field is written and must be there.
        constant: the order of the fields, with the values of those that never change.
        last: the field that is written behind all others.
        overrides: by attribute: another name, other hooks, or that it is left out.
    """
    write = make_dict_unstructure_fn(
        class_, converter, _cattrs_omit_if_default=not complete, **overrides
    )
    converter.register_structure_hook(class_, _reader(class_, converter, complete, **overrides))
    converter.register_unstructure_hook(class_, _ordered(write, constant or {}, last))


def _reader(class_: Any, converter: Converter, complete: bool = False, **overrides: Any) -> Hook:
    attributes = [one.evolve(default=NO_DEFAULT) if complete else one for one in fields(class_)]
    read = make_dict_structure_fn_from_attrs(attributes, class_, converter, **overrides)
    return _strictly(dict, "an object", read)


def _ordered(
    write: Callable[[Any], Json], constant: Mapping[str, Any], last: str | None
) -> Callable[[Any], Json]:
    """What `write` writes, in another order."""
    if last is None:
        return write

    def written(value: Any) -> Json:
        line = {**constant, **write(value)}
        line[last] = line.pop(last)
        return line

    return written


def structured(converter: Converter, value: Any, class_: type[RecordT], path: str = "") -> RecordT:
    """The value as a record of this class; `path` is where the value stands in its line.

    Raises:
        TraceError: a field of it is missing or has a value that is not allowed.
    """
    try:
        return converter.structure(value, class_)
    except (BaseValidationError, TraceError) as error:
        raise _refusal(error, path) from None


def _refusal(error: BaseException, path: str) -> TraceError:
    """The first of what is wrong, with the path that cattrs notes at each level."""
    if isinstance(error, BaseValidationError):
        inner = error.exceptions[0]
        note: Any = inner.__notes__[-1]
        return _refusal(inner, joined(path, getattr(note, "name", None) or note.index))
    if isinstance(error, TraceError):
        return TraceError(path, error.found, error.allowed)
    if isinstance(error, KeyError):
        return TraceError(path, NOTHING, "a value, in every line of this kind")
    raise error


def joined(path: str, field: str | int) -> str:
    """The path of a field, or of an entry by its number, inside what stands at `path`."""
    if isinstance(field, int):
        return f"{path}[{field}]"
    return f"{path}.{field}" if path and not field.startswith("[") else f"{path}{field}"


# --- plain values ---------------------------------------------------------------------------------


def refuse(value: Any, allowed: str) -> NoReturn:
    """Refuse a value whose place is not known here.

    Raises:
        TraceError: always.
    """
    raise TraceError("", value, allowed)


def whole(value: Any, _: Any = None, least: int = 0) -> int:
    """A whole number, `least` or more; truth values are none.

    Raises:
        TraceError: it is something else.
    """
    if type(value) is not int or value < least:
        refuse(value, f"a whole number, {least} or more")
    return value


def positive(value: Any, _: Any = None) -> int:
    """A whole number, 1 or more.

    Raises:
        TraceError: it is something else.
    """
    return whole(value, least=1)


def _number(value: Any, _: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value < inf:
        refuse(value, "a finite number, 0 or more")
    return value  # type: ignore[no-any-return]


def _exactly(kind: type, allowed: str) -> Hook:
    return _strictly(kind, allowed, lambda value, _: value)


def _strictly(kind: type, allowed: str, inner: Callable[..., Any]) -> Hook:
    """What `inner` reads, of values of this very type."""

    def read(value: Any, type_: Any) -> Any:
        if type(value) is not kind:
            refuse(value, allowed)
        return inner(value, type_)

    return read


def one_of(*allowed: str) -> Hook:
    """A reader of one of these texts."""

    def read(value: Any, _: Any) -> str:
        if type(value) is not str or value not in allowed:
            refuse(value, ", ".join(allowed))
        return value

    return read


def _one_of_these(type_: Any) -> Hook:
    return one_of(*get_args(type_))


def _is_made_of(origins: Collection[Any]) -> Callable[[Any], bool]:
    return lambda type_: get_origin(type_) in origins


def _is_enum(type_: Any) -> bool:
    return isinstance(type_, type) and issubclass(type_, Enum)


def _one_of_members(type_: type[Enum]) -> Hook:
    read = one_of(*(one.value for one in type_))
    return lambda value, _: type_(read(value, _))


def _block_number(value: str, _: Any) -> int:
    if not (value.isascii() and value.isdecimal() and str(int(value[:18])) == value):
        refuse(value, "the number of a block")
    return int(value)


def _block_key(value: Any, _: Any) -> bytes:
    if type(value) is not str or len(value) % 2 or not _BLOCK_KEY_DIGITS.issuperset(value):
        refuse(value, "an even number of hexadecimal digits, small letters")
    return bytes.fromhex(value)


_PLAIN: Mapping[Any, Hook] = {
    int: whole,
    float: _number,
    str: _exactly(str, "a text"),
    bool: _exactly(bool, "true or false"),
    bytes: _block_key,
    _BlockNumber: _block_number,
}


# --- collections ----------------------------------------------------------------------------------


def _entries(type_: Any, converter: Converter) -> Hook:
    """A reader of lists; those of numbers or texts, which most of a trace is, take one look."""
    make, entry = _COLLECTIONS[get_origin(type_)], get_args(type_)[0]
    each = list_structure_factory(type_, converter)

    def read(value: Any, _: Any) -> Any:
        kinds = {*map(type, value)}
        if kinds == {entry} and (entry is str or (entry is int and min(value) >= 0)):
            return make(value)
        return make(each(value, type_))

    return _strictly(list, "a list", read)


def _named(type_: Any, converter: Converter) -> Hook:
    return _strictly(dict, "an object", mapping_structure_factory(type_, converter))


def _is_shared_map(type_: Any) -> bool:
    return any(get_origin(one) is FrozenMap for one in (type_, *get_args(type_)))


def _map_reader(type_: Any, converter: Converter) -> Hook:
    """A reader of maps by block number or block key, of which JSON has the names as texts."""
    key, value = get_args(get_args(type_)[0])
    items = converter.get_structure_hook(dict[_BlockNumber if key is int else key, value])  # type: ignore[misc]
    return lambda found, _: FrozenMap(items(found, type_))


def _map_writer(type_: Any, converter: Converter) -> Callable[[Any], Json]:
    key, value = get_args(get_args(type_)[0])
    name = str if key is int else bytes.hex
    write = bytes.hex if value is bytes else converter.get_unstructure_hook(value)
    return lambda found: {name(one): write(held) for one, held in found.items()}


def listed(value: Any) -> Any:
    """Tuples as lists, at every depth."""
    return [listed(one) for one in value] if isinstance(value, tuple) else value


def _tupled(value: Any, _: Any = None) -> Any:
    return tuple(_tupled(one) for one in value) if isinstance(value, list) else value
