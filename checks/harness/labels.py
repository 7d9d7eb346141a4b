"""What is counted of a policy's steps: how often each kind of action happened."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from attrs import field, fields, frozen

STEPS = ("prefill step", "decode step", "idle step")


def named_actions(
    *transitions: str,
    refusals: tuple[str, ...] = (),
    phases: tuple[str, ...] = (),
    others: tuple[str, ...] = (),
) -> tuple[str, ...]:
    """All kinds of action, in the order in which they are listed.

    `refusals`: ids of rules that refuse something. `phases`: in which clients leave.
    """
    refused = (f"refused by {rule}" for rule in refusals)
    aborts = (f"abort, {phase}" for phase in (*phases, "gone already"))
    return *transitions, *refused, *aborts, "arrive", "early end", *others


def queue_of(state: Any, request_id: str) -> str:
    """The field of a state that holds the request."""
    for key in fields(type(state)):
        held = getattr(state, key.name)
        queue = held if isinstance(held, tuple) else (held,)
        if any(getattr(one, "id", None) == request_id for one in queue):
            return str(key.name)
    return "gone already"


def _nothing(_step: object) -> Mapping[str, int]:
    return {}


_REFUSED_BY = "refused by "


@frozen(kw_only=True)
class Labels:
    """What is counted of a policy's steps.

    `actions`: all kinds that there are, and no other is counted; by default whatever happens.
    `further`: how often a step does what only this policy knows. `phase`: where a request is in a
    state; by default the queue that holds it.
    """

    actions: tuple[str, ...] = ()
    further: Callable[[Any], Mapping[str, int]] = _nothing
    phase: Callable[[Any, str], str] = queue_of

    _listed: frozenset[str] = field(init=False)

    @_listed.default
    def _from_actions(self) -> frozenset[str]:
        return frozenset(self.actions)

    @property
    def refusals(self) -> tuple[str, ...]:
        """The rules that can refuse an admission, as far as they are counted."""
        named = (one for one in self.actions if one.startswith(_REFUSED_BY))
        return tuple(one.removeprefix(_REFUSED_BY) for one in named)

    def add(self, counts: Counter[str], step: Any, early: int) -> None:
        """Count what happened in a step; `early`: requests that ended before `max_tokens`."""
        happened = [(event.transition, 1) for event in step.events]
        happened.append((f"{step.kind} step", 1))
        if step.refusal is not None:
            happened.append((f"{_REFUSED_BY}{step.refusal}", 1))
        evicted = len(step.after.pool.keys) < len(step.before.pool.keys)
        happened += [("early end", early), ("eviction", int(evicted)), *self.further(step).items()]
        for name, times in happened:
            if times and (not self._listed or name in self._listed):
                counts[name] += times
