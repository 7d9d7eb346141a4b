"""Differing fields in the words of the records that drivers write."""

from collections.abc import Iterable, Mapping
from typing import Any

from attrs import evolve

from checks.harness.case import Case
from checks.harness.comparing import Difference
from checks.harness.policy import evidence_of
from spec.core.requests import BlockKeys

_REPEATED = ("finished", "aborted")  # sets of a state that repeat what a step and its action say


def reported(case: Case, differences: Iterable[Difference]) -> list[Difference]:
    """The differences with fields as a record names them, each once.

    A block's content is written as in a record: the request and the index of the block in it.
    """
    adapter, contents = evidence_of(case.config.policy).adapter, _contents(case)
    named: dict[tuple[str, str], Difference] = {}
    cached = set[str]()  # fields that name contents by themselves, not by block
    for one in differences:
        is_repeated = one.field.rpartition(".")[2] in _REPEATED and "." in one.field
        if is_repeated and named:
            continue
        field = adapter.in_record(one.field)
        if one.field.endswith(".cached") and field not in cached:
            cached.add(field)
            named = {key: other for key, other in named.items() if key[0] != field}
        elif one.field.endswith(".keys") and field in cached:
            continue
        place = contents.get(one.place, one.place)
        values = {name: _known(getattr(one, name), contents) for name in ("expected", "found")}
        named.setdefault((field, str(place)), evolve(one, field=field, place=str(place), **values))
    return list(named.values())


def _contents(case: Case) -> Mapping[str, list[Any]]:
    """By the key of a block, in hexadecimal, the request and the index that a record has for it."""
    requests = {one.id: one for one in case.requests}
    keys, size = BlockKeys(requests, case.config.block_size), case.config.block_size
    named: dict[str, list[Any]] = {}
    for one in case.requests:
        for index, key in enumerate(keys.of(one.id, (one.prompt_len + one.max_tokens) // size)):
            named.setdefault(_text(key), [one.id, index])
    return named


def _text(key: Any) -> str:
    return key.hex() if isinstance(key, bytes) else str(key)


def _known(value: Any, contents: Mapping[str, list[Any]]) -> Any:
    return contents.get(_text(value), value) if isinstance(value, bytes | str) else value
