"""What a driver leaves out of its records: what is then not compared, and who may not look at it.

A rule that asks for something that was not told must not be judged: it would judge the value that
stands in its place. `Guarded` lets a rule run on a step and stops it where it asks for such a
field.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from attrs import frozen

from checks.policies.nano_vllm.driver import moves as nano_vllm_moves
from checks.policies.spyre.driver import moves
from checks.policies.vllm_v1.driver import moves as vllm_v1_moves
from spec.nano_vllm import records as nano
from spec.spyre.records import Chunk, Step
from spec.spyre.state import Sequence, State
from spec.vllm_v1 import records as v1

Attributes = tuple[tuple[type, str], ...]

BEFORE = "before"  # what arrivals and aborts did; without it the script is taken at its word
NOT_COMPARED = ("events", "refusal")  # only the scheduler knows why, and which rule it was


@frozen(kw_only=True)
class Fields:
    """What drivers of a policy may leave out, and where it is missing then.

    `left_out`: by name the attributes that say nothing then. `step`, `state`: the policy's
    classes. `places`: of each class how comparisons begin the names of its attributes. `visible`:
    transitions that show in the states. `never`: of a step what no rule may look at, whoever told
    it: why something was refused, and, where states leave it open, in which order what happened.
    """

    left_out: Mapping[str, Attributes]
    step: type
    state: type
    places: Mapping[type, tuple[str, ...]]
    visible: tuple[str, ...]
    never: tuple[str, ...] = NOT_COMPARED

    @property
    def names(self) -> tuple[str, ...]:
        """All that a driver may name."""
        return (*self.left_out, BEFORE)

    def not_compared(self, left_out: Collection[str]) -> frozenset[str]:
        """The fields, named as comparisons name them, that are not there to compare."""
        untold = self.untold(left_out)
        named = {f"{place}{name}" for kind, name in untold for place in self.places[kind]}
        return frozenset(named.union(NOT_COMPARED, {BEFORE} & set(left_out)))

    def untold(self, left_out: Collection[str]) -> frozenset[tuple[type, str]]:
        """The attributes that nobody may look at."""
        never = {(self.step, name) for name in self.never}
        return frozenset(never.union(*(self.left_out.get(entry, ()) for entry in left_out)))


def _sides(sides: Collection[str], queues: Collection[str]) -> tuple[str, ...]:
    return tuple(f"{side}.{queue}." for side in sides for queue in queues)


_SPYRE: Mapping[str, Attributes] = {
    "tkv": ((Step, "tkv"), (Step, "volume"), (State, "last_tkv")),
    "batch": ((Step, "batch"), (Step, "volume")),
    "blocks": (
        *((State, "pool"), (Sequence, "blocks"), (Sequence, "hit_blocks")),
        *((Chunk, "block_table"), (Chunk, "writes")),
    ),
    "computed": ((Sequence, "computed"), (Sequence, "tkv")),
    "left_padding": ((Sequence, "left_padding"), (Sequence, "tkv")),
    "reserved": ((Sequence, "reserved"),),
    "hit_blocks": ((Sequence, "hit_blocks"),),
    "waited_steps": ((Sequence, "waited_steps"),),
}
_NANO_VLLM: Mapping[str, Attributes] = {
    "batch": ((nano.Step, "batch"),),
    "blocks": ((nano.State, "pool"), (nano.Sequence, "blocks"), (nano.Sequence, "hit_blocks")),
    "computed": ((nano.Sequence, "computed"),),
    "hit_blocks": ((nano.Sequence, "hit_blocks"),),
}
_VLLM_V1: Mapping[str, Attributes] = {
    "planned": ((v1.Step, "planned"),),
    "budget_left": ((v1.Step, "budget_left"),),
    "blocks": ((v1.State, "pool"), (v1.Sequence, "blocks")),
    "computed": ((v1.Sequence, "computed"), (v1.Sequence, "decodes")),
    "prefilling": ((v1.Sequence, "prefilling"),),
    "reported": ((v1.Step, "reported"), (v1.State, "unreported")),
    "statistics": ((v1.Step, "statistics"),),
}

_AROUND = ("before", "after")
_WHOLE = {Step: ("",), State: ("before.", "after."), Chunk: ("chunk.",)}

FIELDS: Mapping[str, Fields] = {
    "spyre": Fields(
        left_out=_SPYRE,
        step=Step,
        state=State,
        places=_WHOLE
        | {
            Sequence: (
                *_sides(_AROUND, ("waiting", "prefilling", "decoding", "paused")),
                "batch.",
            )
        },
        visible=moves.VISIBLE,
    ),
    "nano-vllm": Fields(
        left_out=_NANO_VLLM,
        step=nano.Step,
        state=nano.State,
        places={
            nano.Step: ("",),
            nano.State: ("before.", "after."),
            nano.Sequence: (*_sides(_AROUND, ("waiting", "running")), "batch."),
        },
        visible=nano_vllm_moves.VISIBLE,
        never=("refusal",),  # the states leave one order only
    ),
    "vllm-v1": Fields(
        left_out=_VLLM_V1,
        step=v1.Step,
        state=v1.State,
        places={
            v1.Step: ("",),
            v1.State: ("before.", "planned.", "after."),
            v1.Sequence: _sides(("before", "planned", "after"), ("waiting", "skipped", "running")),
        },
        visible=vllm_v1_moves.VISIBLE,
    ),
}
"""By policy."""


class UntoldError(Exception):
    """A rule asked for something that the driver does not tell."""


class Guarded:
    """A step, state, chunk or row; asking it for what was not told raises `UntoldError`.

    Only the step itself is wrapped where nothing of the states is left out.
    """

    def __init__(self, whole: Any, guard: "Guard") -> None:
        self._whole = whole
        self._guard = guard
        self._names = {name for kind, name in guard.untold if kind is type(whole)}

    def __getattr__(self, name: str) -> Any:
        if name in self._names:
            raise UntoldError(name)
        value = getattr(self._whole, name)
        if name == "happened":
            value = _visible_only(value, self._guard.fields.visible)
        elif not self._guard.states_are_whole:
            value = _guarded(value, self._guard)
        self.__dict__[name] = value  # is found there when the next rule asks
        return value

    def __eq__(self, other: object) -> bool:
        return bool(self._whole == (other._whole if isinstance(other, Guarded) else other))

    def __hash__(self) -> int:
        return hash(self._whole)


class Guard:
    """Wraps what rules are given, so that they cannot ask for what was left out."""

    def __init__(self, fields: Fields, left_out: Collection[str]) -> None:
        self.fields = fields
        self.untold = fields.untold(left_out)
        self.states_are_whole = all(kind is fields.step for kind, _ in self.untold)

    def __call__(self, value: Any) -> Any:
        """The step or state, as rules may see it."""
        if self.states_are_whole and isinstance(value, self.fields.state):
            return value
        return Guarded(value, self)


def _guarded(value: Any, guard: Guard) -> Any:
    if type(value) in guard.fields.places:
        return Guarded(value, guard)
    if isinstance(value, tuple):
        return tuple(_guarded(one, guard) for one in value)
    return value


def _visible_only(happened: Callable[..., Any], visible: Collection[str]) -> Callable[..., Any]:
    def asked(*transitions: str) -> Any:
        for name in transitions:
            if name not in visible:
                raise UntoldError(name)
        return happened(*transitions)

    return asked
