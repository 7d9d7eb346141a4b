"""Requests with a grammar in cases: which have one, and when it is ready."""

from collections.abc import Mapping

from attrs import evolve

from checks.harness.case import Case
from checks.harness.choices import Choices
from spec.core.requests import Request


def compile_times(case: Case) -> Mapping[str, int]:
    """By request, of which number the step is a multiple before which its grammar is ready."""
    drawn: Mapping[str, int] = case.surroundings.get("grammars", {})
    return drawn


def with_grammars(
    choices: Choices, requests: tuple[Request, ...]
) -> tuple[tuple[Request, ...], dict[str, int]]:
    """The requests, some of which have a grammar, and when these are ready: `compile_times`."""
    share = choices.one_of((0.0, 0.0, 0.0, 0.3, 0.6))
    if not share:
        return requests, {}
    with_grammar = tuple(
        evolve(request, grammar=True) if choices.chance(share) else request for request in requests
    )
    compiled = [request for request in with_grammar if request.grammar]
    return with_grammar, {request.id: choices.between(1, 4) for request in compiled}
