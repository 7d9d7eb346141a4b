"""Runs of an engine on a device that fails on demand, and the state that must survive."""

from collections.abc import Callable, Iterable
from typing import Any

from attrs import define, field

from engine.core.faults import Failure
from engine.core.serving import Engine, StepResult
from spec.core.requests import Request


@define
class Run:
    """A run of an engine until no request is left, and its tokens.

    `observed`: its scheduler as the rules see it. `new_device`: one to go on with when it stopped.
    `assert_restarted`: holds the state before that against the one after it.
    """

    engine: Engine[Any, Any, Any, Any]
    observed: Callable[[Any], Any]
    new_device: Callable[[], Any]
    assert_restarted: Callable[[Any, Any], None]
    results: list[StepResult[Any, Any, Any]] = field(factory=list)
    states: list[Any] = field(factory=list)
    tokens: dict[str, list[int]] = field(factory=dict)

    def serve(self, requests: Iterable[Request]) -> "Run":
        """Serve until the last request has left."""
        for request in requests:
            self.engine.add(request)
        while self.engine.has_requests:
            self._step()
        return self

    def _step(self) -> None:
        before = self.observed(self.engine.scheduler)
        result = self.engine.step()
        self.results.append(result)
        after = self.observed(self.engine.scheduler)
        if result.failure is None:
            self.states.append(after)
            for name, tokens in result.outputs.items():
                self.tokens.setdefault(name, []).extend(tokens)
        else:
            assert after == before
        if result.failure is Failure.STOPPED:
            self.engine.replace_device(self.new_device())
            self.assert_restarted(before, self.observed(self.engine.scheduler))


def alone(request: Request) -> list[int]:
    """What the request samples when it is served alone."""
    return [request.output_token(index) for index in range(request.end)]
