"""Hypothesis strategies: configurations, workloads and actions of every policy.

    from hypothesis import given
    from lockstep import api, strategies

    @given(strategies.cases("vllm-v1", block_size=4))
    def test_every_request_ends(case):
        steps = api.serve(case.config, case.requests)
        finished = {request_id for step in steps for request_id in step.finished}
        ...

The strategies draw with the generators of `lockstep fuzz` and `conform`, and shrink as they do.
"""

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from hypothesis import reject
from hypothesis import strategies as st

from checks.harness.case import Case
from checks.harness.choices import Choices
from checks.harness.policy import evidence_of
from checks.harness.system import Action
from checks.registry import DEFAULT, POLICIES, claims_of
from spec.core.configuration import PolicyConfig
from spec.core.errors import InputError
from spec.core.requests import Request

Value = TypeVar("Value")

_IDLE = 4  # most steps between two actions of clients
_SHARES = 100


def policies() -> st.SearchStrategy[str]:
    """The name of a policy."""
    return st.sampled_from(list(POLICIES))


@st.composite
def cases(draw: st.DrawFn, /, policy: str = DEFAULT, **keys: Any) -> Case:
    """A configuration, requests that it can serve, and the surroundings of the scheduler.

    `keys`: configuration keys that are not drawn.
    """
    try:
        case = evidence_of(policy).generate(_Drawn(draw), keys)
        for request in case.requests:
            claims_of(case.config.policy).refuse_unservable(request, case.config)
    except InputError:
        reject()
    return case


def configurations(policy: str = DEFAULT, **keys: Any) -> st.SearchStrategy[PolicyConfig]:
    """A configuration; `keys` are not drawn."""
    return cases(policy, **keys).map(lambda case: case.config)


def workloads(config: PolicyConfig) -> st.SearchStrategy[tuple[Request, ...]]:
    """Requests that can be served under the configuration."""
    keys = config.as_mapping()
    name = keys.pop("policy")
    read = {key: getattr(config, key) for key in keys}
    return cases(name, **read).map(lambda case: case.requests)


@st.composite
def actions(draw: st.DrawFn, requests: Sequence[Request], *, aborts: bool = True) -> list[Action]:
    """The actions of a run, a list with an entry per step.

    All requests arrive in order, up to some steps apart. With `aborts` any client may abort at any
    later step, also after its request has left.
    """
    steps: list[dict[str, list[str]]] = [{"arrive": [], "abort": []}]

    def at(index: int) -> dict[str, list[str]]:
        steps.extend({"arrive": [], "abort": []} for _ in range(index + 1 - len(steps)))
        return steps[index]

    arrival = 0
    for request in requests:
        arrival += draw(st.integers(0, _IDLE))
        at(arrival)["arrive"].append(request.id)
        if aborts and draw(st.booleans()):
            later = draw(st.integers(1, _IDLE + request.end))
            at(arrival + later)["abort"].append(request.id)
    return [Action(tuple(step["arrive"]), tuple(step["abort"])) for step in steps]


class _Drawn(Choices):
    """The choices of a generator, drawn by Hypothesis, which shrinks them to the simplest."""

    def __init__(self, draw: st.DrawFn) -> None:
        super().__init__(lambda: 0.0)
        self._draw = draw

    def chance(self, share: float) -> bool:
        """True in about `share` of the draws; False is simpler."""
        return self.between(0, _SHARES - 1) >= _SHARES - round(share * _SHARES)

    def between(self, least: int, most: int) -> int:
        """A whole number from `least` to `most`."""
        return self._draw(st.integers(least, most))

    def one_of(self, values: Sequence[Value]) -> Value:
        """One of the values."""
        return values[self.between(0, len(values) - 1)]

    def earlier(self, repetitions: int) -> int:
        """The index of one of `repetitions` earlier repetitions."""
        return self.between(0, repetitions - 1)

    def several(self, least: int, most: int) -> Iterator[Choices]:
        """The draws of each repetition; whether there is another one is drawn before each."""
        usual = (least + most) / 2
        for number in range(most):
            if number >= least and not self.chance(1 - 1 / usual):
                return
            yield self
