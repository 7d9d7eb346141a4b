"""Labels: the kinds of action that are counted in a policy's steps."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from attrs import field, fields, frozen

from checks.harness.situations import Advice, Table

STEPS = ("prefill step", "decode step", "idle step")


def named_actions(
    *transitions: str,
    refusals: tuple[str, ...] = (),
    phases: tuple[str, ...] = (),
    others: tuple[str, ...] = (),
) -> tuple[str, ...]:
    """All kinds of action, in the order of output.

    `refusals`: ids of rules that refuse an admission. `phases`: phases in which clients abort.
    """
    refused = (f"refused by {rule}" for rule in refusals)
    aborts = (f"abort, {phase}" for phase in (*phases, "gone already"))
    return *transitions, *refused, *aborts, "arrive", "early end", *others


def queue_name(state: Any, request_id: str) -> str:
    """The field of the state that holds the request, or "gone already"."""
    for key in fields(type(state)):
        held = getattr(state, key.name)
        queue = held if isinstance(held, tuple) else (held,)
        if any(getattr(row, "id", None) == request_id for row in queue):
            return str(key.name)
    return "gone already"


_REFUSAL = "refused by "


@frozen(kw_only=True)
class Labels:
    """The kinds of action that are counted in a policy's steps.

    `actions`: the kinds that are counted; empty: all that occur. `further`: counts of actions that
    only this policy has, by step. `phase`: the phase of a request in a state; by default the name
    of its queue. `situations`: the classes of each transition; `advice`: keys that reach rare ones.
    """

    actions: tuple[str, ...] = ()
    further: Callable[[Any], Mapping[str, int]] = lambda _step: {}
    phase: Callable[[Any, str], str] = queue_name
    situations: Table = field(factory=dict)
    advice: tuple[Advice, ...] = ()

    _listed: frozenset[str] = field(init=False)

    @_listed.default
    def _from_actions(self) -> frozenset[str]:
        return frozenset(self.actions)

    @property
    def refusals(self) -> tuple[str, ...]:
        """The counted rules that can refuse an admission."""
        named = (action for action in self.actions if action.startswith(_REFUSAL))
        return tuple(action.removeprefix(_REFUSAL) for action in named)

    def add(self, counts: Counter[str], step: Any, early: int) -> None:
        """Count the actions of a step; `early`: requests that ended before `max_tokens`."""
        happened = [(event.transition, 1) for event in step.events]
        happened.append((f"{step.kind} step", 1))
        if step.refusal is not None:
            happened.append((f"{_REFUSAL}{step.refusal}", 1))
        evicted = len(step.after.pool.keys) < len(step.before.pool.keys)
        happened += [("early end", early), ("eviction", int(evicted)), *self.further(step).items()]
        for name, times in happened:
            if times and (not self._listed or name in self._listed):
                counts[name] += times
