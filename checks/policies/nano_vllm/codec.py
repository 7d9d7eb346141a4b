"""Traces of nano-vLLM: Spyre's lines, for its states and steps are of the same classes.

`decoding` lists the running queue and `tkv` is the longest row of the step; `prefilling` is always
null, `paused` empty and `volume` 0. The `batch` of a full line holds the rows of a prefill, too.
"""

from collections.abc import Mapping

from checks.export.trace import decoding, encoding
from checks.export.trace.encoding import Json, Past
from spec.core.requests import Request
from spec.spyre.records import Step
from spec.spyre.state import State


def step_as_json(step: Step, past: Past, *, full: bool) -> Json:
    """The step's line, with `state` if it is to be `full`."""
    longest = max((row.computed for row in step.batch), default=0)
    return encoding.step_as_json(step, past, full=full) | {"tkv": longest}


def step_from_json(line: Json, last: State | None, requests: Mapping[str, Request]) -> Step:
    """The step of a full line; `last` is the state that the step before left.

    Raises:
        TraceError: a state is missing, or has a request that `requests` does not name.
    """
    return decoding.step_from_json(line | {"tkv": 0}, last, requests, chunked=False)
