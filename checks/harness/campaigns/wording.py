"""Differing fields, named as in the records of drivers."""

from collections.abc import Iterable, Mapping
from typing import Any

from attrs import evolve

from checks.harness.case import Case
from checks.harness.comparing import Difference, key_text
from checks.harness.policy import evidence_of
from spec.core.requests import BlockKeys

_REPEATED = ("finished", "aborted")  # sets of a state that follow from the step and its action


def reported(case: Case, differences: Iterable[Difference]) -> list[Difference]:
    """The differences with the field names of a record, each field and place once.

    A block's content is written as in a record: the request and the block's index in it.
    """
    adapter, contents = evidence_of(case.config.policy).adapter, _contents(case)
    named: dict[tuple[str, str], Difference] = {}
    cached = set[str]()  # fields whose places are contents, not blocks
    for difference in differences:
        is_repeated = difference.field.rpartition(".")[2] in _REPEATED and "." in difference.field
        if is_repeated and named:
            continue
        field = adapter.in_record(difference.field)
        if difference.field.endswith(".cached") and field not in cached:
            cached.add(field)
            named = {key: other for key, other in named.items() if key[0] != field}
        elif difference.field.endswith(".keys") and field in cached:
            continue
        place = contents.get(difference.place, difference.place)
        values = {
            name: _known(getattr(difference, name), contents) for name in ("expected", "found")
        }
        named.setdefault(
            (field, str(place)), evolve(difference, field=field, place=str(place), **values)
        )
    return list(named.values())


def _contents(case: Case) -> Mapping[str, list[Any]]:
    """By block hash, in hexadecimal: the request and the block index that a record names."""
    requests = {request.id: request for request in case.requests}
    keys, size = BlockKeys(requests, case.config.block_size), case.config.block_size
    named: dict[str, list[Any]] = {}
    for request in case.requests:
        for index, key in enumerate(
            keys.of(request.id, (request.prompt_len + request.max_tokens) // size)
        ):
            named.setdefault(key_text(key), [request.id, index])
    return named


def _known(value: Any, contents: Mapping[str, list[Any]]) -> Any:
    return contents.get(key_text(value), value) if isinstance(value, bytes | str) else value
