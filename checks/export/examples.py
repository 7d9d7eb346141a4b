"""Examples of a policy: runs of the reference that the book shows."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import frozen

from spec.core.configuration import PolicyConfig
from spec.core.requests import Prompt, Request

Steps = Sequence[Any]  # of the policy's own class


@frozen(kw_only=True)
class Example:
    """A configuration and requests, and a claim about the reference's steps for them.

    `says`: the claim in one or two sentences; `shows`: true if the steps confirm it. `at`: the step
    that is shown first. For a plot: `meter`, the plotted meter, by default the first one of the
    step with the most meters; `marks`, numbers drawn at steps, by step; `levels`, numbers drawn
    over several steps, by first and last step.
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
    """A request whose prompt has no common prefix with another."""
    prompt = Prompt.of_stream(id_, prompt_len)
    return Request(id=id_, prompt=prompt, max_tokens=max_tokens, arrival=arrival)


def happened_events(steps: Steps, *transitions: str) -> list[Any]:
    """The events of these kinds in all steps, in order."""
    return [event for step in steps for event in step.happened(*transitions)]
