"""Which events met which transitions: what goes wrong between two things is met only with both."""

from collections.abc import Collection, Iterator
from typing import Any

from checks.harness.system import Action, Step

PAIRED = " + "  # between an event and a transition


def happened(step: Step) -> list[tuple[str, str]]:
    """The kinds of transition in a step, a refusal among them, with the request of each."""
    kinds = [(event.transition, event.id) for event in step.events]
    refused = [] if step.refusal is None else [(f"refused by {step.refusal}", "")]
    return kinds + refused


def event_kinds(action: Action, step: Step, requests: Any) -> set[tuple[str, str]]:
    """The kinds of event around a step and in it, with the request of each."""
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
    """Each event with each transition of a step, marked where both are of one request."""
    for kind, request_id in events:
        for transition, subject in happened(step):
            own = "own " if subject == request_id else ""
            yield f"{kind}{PAIRED}{own}{transition}"
