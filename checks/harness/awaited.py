"""Random requests with a grammar or images, and the steps before which these are ready."""

from collections.abc import Sequence
from typing import Any

from attrs import evolve

from checks.harness.choices import Choices
from spec.core.requests import Request

_COMPILES, _ENCODES = (1, 2, 3, 4), (1, 2, 4, 8, 16)  # steps; images take longer


def with_grammars(
    choices: Choices, requests: tuple[Request, ...]
) -> tuple[tuple[Request, ...], dict[str, int]]:
    """The requests, some of which have a grammar, and when these are ready: see `Case.times`."""
    return _some_with("grammar", _COMPILES, choices, requests)


def with_images(
    choices: Choices, requests: tuple[Request, ...]
) -> tuple[tuple[Request, ...], dict[str, int], dict[str, int]]:
    """The requests, some of which have images, and when these are encoded, or turn out not to be.

    These are the times of "encodings" and "unencodable", see `Case.times`.
    """
    some, times = _some_with("has_images", _ENCODES, choices, requests)
    fails = {request_id for request_id in times if choices.chance(0.15)}
    encodings = {name: every for name, every in times.items() if name not in fails}
    return some, encodings, {name: every for name, every in times.items() if name in fails}


def _some_with(
    key: str, times: Sequence[int], choices: Choices, requests: tuple[Request, ...]
) -> tuple[tuple[Request, ...], dict[str, int]]:
    share = choices.one_of((0.0, 0.0, 0.0, 0.3, 0.6))
    if not share:
        return requests, {}
    awaited: dict[str, Any] = {key: True}
    some = tuple(
        evolve(request, **awaited) if choices.chance(share) else request for request in requests
    )
    waiting = [request for request in some if getattr(request, key)]
    return some, {request.id: choices.one_of(times) for request in waiting}
