"""Records as JSON values and back: cattrs over the attrs classes, strict about what it reads."""

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from enum import StrEnum
from functools import cache, partial
from math import inf
from typing import Any, Literal, NewType, TypeVar, get_args, get_origin

from attrs import NOTHING as NO_DEFAULT
from attrs import fields, has
from cattrs import BaseValidationError, Converter, override
from cattrs.cols import list_structure_factory, mapping_structure_factory
from cattrs.gen import make_dict_structure_fn_from_attrs, make_dict_unstructure_fn

from engine.workloads.checked import NOTHING
from reference.core.frozen_map import FrozenMap
from spec.core.blocks import BlockPool
from spec.core.errors import TraceError
from spec.core.records import Event

Json = dict[str, Any]
Hook = Callable[[Any, Any], Any]
ValueT = TypeVar("ValueT")


# --- plain values ---------------------------------------------------------------------------------


def only(
    allowed: str, is_allowed: Callable[[Any], bool], read: Callable[..., Any] | None = None
) -> Hook:
    """A hook that refuses what is not allowed, and passes on what `read` makes of the rest."""

    def checked(value: Any, type_: Any) -> Any:
        if not is_allowed(value):
            raise TraceError("", value, allowed)
        return value if read is None else read(value, type_)

    return checked


def at_least(least: int) -> Hook:
    """A hook for whole numbers from `least` on; truth values are none."""
    return only(
        f"a whole number, {least} or more", lambda value: type(value) is int and value >= least
    )


def one_of(*allowed: str) -> Hook:
    """A hook for one of these texts."""
    return only(", ".join(allowed), lambda value: type(value) is str and value in allowed)


_is_text = only("a text", lambda value: type(value) is str)
_is_object = partial(only, "an object", lambda value: type(value) is dict)
_is_list = partial(only, "a list", lambda value: type(value) is list)
_BlockNumber = NewType("_BlockNumber", int)  # as the name of a field

_PLAIN: Mapping[Any, Hook] = {
    int: at_least(0),
    float: only(
        "a finite number, 0 or more", lambda value: type(value) in (int, float) and 0 <= value < inf
    ),
    str: _is_text,
    bool: only("true or false", lambda value: type(value) is bool),
    bytes: only(
        "an even number of hexadecimal digits, small letters",
        lambda value: (
            type(value) is str and len(value) % 2 == 0 and {*"0123456789abcdef"}.issuperset(value)
        ),
        lambda value, _: bytes.fromhex(value),
    ),
    _BlockNumber: only(
        "the number of a block",
        lambda value: value.isascii() and value.isdecimal() and str(int(value[:18])) == value,
        lambda value, _: int(value),
    ),
}


# --- records --------------------------------------------------------------------------------------


@cache
def converter() -> Converter:
    """The converter of records that belong to no policy; none is registered with it."""
    return new_converter()


def new_converter() -> Converter:
    """A converter for plain values, lists, maps, block pools, events and attrs classes.

    An attrs class is an object with a field for each attribute, without those that have their
    default; unknown fields are ignored. `record` says what is otherwise.
    """
    made = Converter(
        omit_if_default=True,
        unstruct_collection_overrides={Sequence: list, tuple: list, Set: sorted},
    )
    for type_, hook in _PLAIN.items():
        made.register_structure_hook(type_, hook)
    made.register_structure_hook(StrEnum, _read_choice)
    for is_such, read_as in (
        (has, _record_reader),
        (_has_origin({Literal}), lambda type_, _: one_of(*get_args(type_))),
        (_is_collection, _list_reader),
        (_has_origin({dict, Mapping}), _map_reader),
        (_is_block_map, _block_map_reader),
    ):
        made.register_structure_hook_factory(is_such, read_as)
    made.register_unstructure_hook_factory(_is_block_map, _block_map_writer)
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
    """Say how an attrs class is written and read where it is not done by default.

    Args:
        converter: where it is registered.
        class_: the attrs class.
        complete: every field is written and must be there, unless an override lets it be omitted.
        constant: the order of the fields, with the values of those that never change.
        last: the field that is written behind all others.
        overrides: by attribute: another name or other hooks, as `cattrs.override` has them.
    """
    write = make_dict_unstructure_fn(
        class_, converter, _cattrs_omit_if_default=not complete, **overrides
    )

    def in_order(value: Any) -> Json:
        line = {**(constant or {}), **write(value)}
        return line if last is None else line | {last: line.pop(last)}

    read = _record_reader(class_, converter, complete, **overrides)
    converter.register_structure_hook(class_, read)
    converter.register_unstructure_hook(class_, in_order)


def _record_reader(
    class_: Any, converter: Converter, complete: bool = False, **overrides: Any
) -> Hook:
    may_lack = {name for name, override in overrides.items() if override.omit_if_default}
    own = [
        member.evolve(default=NO_DEFAULT) if complete and member.name not in may_lack else member
        for member in fields(class_)
    ]
    return _is_object(make_dict_structure_fn_from_attrs(own, class_, converter, **overrides))


def _read_choice(value: Any, type_: type[StrEnum]) -> StrEnum:
    """A choice by its text; without a hook of its own it would be read as any text."""
    return type_(one_of(*type_)(value, type_))


# --- lists and maps -------------------------------------------------------------------------------

_COLLECTIONS: Mapping[Any, type] = {
    tuple: tuple,
    Set: frozenset,
    frozenset: frozenset,
    list: list,
    Sequence: tuple,
}


def _has_origin(origins: Collection[Any]) -> Callable[[Any], bool]:
    return lambda type_: get_origin(type_) in origins


def _is_collection(type_: Any) -> bool:
    """True of lists and the like, but for tuples of several types, one for each entry."""
    kinds = {kind for kind in get_args(type_) if kind is not Ellipsis}
    return get_origin(type_) in _COLLECTIONS and len(kinds) == 1


def _list_reader(type_: Any, converter: Converter) -> Hook:
    """Lists of numbers or texts, which most of a trace is, take one look."""
    make, entry = _COLLECTIONS[get_origin(type_)], get_args(type_)[0]
    each = list_structure_factory(type_, converter)

    def read(value: Any, _: Any) -> Any:
        is_plain = entry in (int, str) and {entry}.issuperset(map(type, value))
        if is_plain and (entry is str or min(value, default=0) >= 0):
            return make(value)
        return make(each(value, type_))

    return _is_list(read)


def _map_reader(type_: Any, converter: Converter) -> Hook:
    return _is_object(mapping_structure_factory(type_, converter))


def _is_block_map(type_: Any) -> bool:
    """True of maps by block number or block key, which states hold."""
    return get_origin(type_) is Mapping and get_args(type_)[0] in (int, bytes)


def _block_map_reader(type_: Any, converter: Converter) -> Hook:
    """JSON has block numbers and block keys as texts."""
    key, value = get_args(type_)
    items = converter.get_structure_hook(dict[_BlockNumber if key is int else key, value])  # type: ignore[misc]
    return lambda found, _: FrozenMap(items(found, type_))


def _block_map_writer(type_: Any, converter: Converter) -> Callable[[Any], Json]:
    key, value = get_args(type_)
    name = str if key is int else bytes.hex
    write = bytes.hex if value is bytes else converter.get_unstructure_hook(value)
    return lambda found: {name(block): write(held) for block, held in found.items()}


def listed(value: Any) -> Any:
    """Tuples as lists, at every depth."""
    return [listed(item) for item in value] if isinstance(value, tuple) else value


def _tupled(value: Any, _: Any = None) -> Any:
    return tuple(_tupled(item) for item in value) if isinstance(value, list) else value


# --- what is refused ------------------------------------------------------------------------------


def structured(converter: Converter, value: Any, type_: type[ValueT], path: str = "") -> ValueT:
    """The value as one of this type; `path` is where it stands in its line.

    Raises:
        TraceError: the first field that is missing or has a value that is not allowed.
    """
    try:
        return converter.structure(value, type_)
    except (BaseValidationError, TraceError) as error:
        raise _refusal(error, path) from None


def _refusal(error: BaseException, path: str) -> TraceError:
    if isinstance(error, BaseValidationError):  # cattrs notes field or index at each level
        inner = error.exceptions[0]
        note: Any = inner.__notes__[-1]
        return _refusal(inner, joined(path, getattr(note, "name", None) or note.index))
    if isinstance(error, TraceError):
        return TraceError(path, error.found, error.allowed)
    if isinstance(error, KeyError):
        return missing(path)
    raise error


def missing(path: str) -> TraceError:
    """The refusal of a line that lacks this field."""
    return TraceError(path, NOTHING, "a value, in every line of this kind")


def joined(path: str, field: str | int) -> str:
    """The path of a field, or of an entry by its number, inside what stands at `path`."""
    if isinstance(field, int):
        return f"{path}[{field}]"
    return f"{path}.{field}" if path and not field.startswith("[") else f"{path}{field}"
