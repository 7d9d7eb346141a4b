"""Pair coverage: how often an event (abort, arrival, early end) met a transition of a step."""

from collections.abc import Collection, Iterator
from typing import Any

from checks.harness.system import Action, Step

PAIRED = " + "  # separates an event and a transition


def happened(step: Step) -> list[tuple[str, str]]:
    """The transitions of a step, and its refusal, each with its request id."""
    kinds = [(event.transition, event.id) for event in step.events]
    refused = [] if step.refusal is None else [(f"refused by {step.refusal}", "")]
    return kinds + refused


def event_kinds(action: Action, step: Step, requests: Any) -> set[tuple[str, str]]:
    """The kinds of event before and in a step, each with its request id."""
    ends = [
        request_id
        for request_id in step.finished
        if requests[request_id].end < requests[request_id].max_tokens
    ]
    ids = {
        "abort": (*action.abort, *action.abort_running),
        "early end": ends,
        "arrive": action.arrive,
        "lost load": action.lost,
    }
    return {(kind, request_id) for kind, several in ids.items() for request_id in several}


def event_pairs(events: Collection[tuple[str, str]], step: Step) -> Iterator[str]:
    """Each event with each transition of a step; "own" marks a transition of the same request."""
    for kind, request_id in events:
        for transition, subject in happened(step):
            own = "own " if subject == request_id else ""
            yield f"{kind}{PAIRED}{own}{transition}"
