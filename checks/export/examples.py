"""Examples of a policy: runs of the reference that are worth looking at, in the book."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import frozen

from spec.core.configuration import PolicyConfig
from spec.core.requests import Prompt, Request

Steps = Sequence[Any]  # of the policy's own class


@frozen(kw_only=True)
class Example:
    """A configuration and requests, and what is to be seen when the reference serves them.

    `says`: a sentence or two; `shows`: whether the steps are so. `at`: the step that is shown
    first. Where the run is drawn as a line: `meter`, what is drawn, by default the first meter of
    the fullest step; `marks`, numbers that are drawn at steps, by step; `levels`, numbers that are
    drawn over several steps, by the first and the last of these.
    """

    name: str
    title: str
    says: str
    config: PolicyConfig
    requests: tuple[Request, ...]
    at: int = 0
    shows: Callable[[Steps], bool]
    meter: str = ""
    marks: Callable[[Steps], Mapping[int, int]] | None = None
    levels: Callable[[Steps], Mapping[tuple[int, int], int]] | None = None


def request(id_: str, prompt_len: int, max_tokens: int, arrival: int = 0) -> Request:
    """A request whose prompt no other shares."""
    prompt = Prompt.of_stream(id_, prompt_len)
    return Request(id=id_, prompt=prompt, max_tokens=max_tokens, arrival=arrival)


def events_of(steps: Steps, *transitions: str) -> list[Any]:
    """The events of these kinds in all steps, in order."""
    return [event for step in steps for event in step.happened(*transitions)]
