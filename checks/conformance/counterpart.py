"""What conformance must know of a policy to hold its drivers against its reference."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from attrs import evolve, frozen

from checks.conformance.leftout import Fields
from checks.fuzz.cases import Case
from checks.fuzz.compare import Difference, Strictness
from checks.harness.driver.protocol import Action, Json
from checks.policies import AnyPolicy
from spec.core.records import Event

Step: TypeAlias = Any  # of the policy's own class, like states, contexts and configurations


class Machine(Protocol):
    """The reference serving one case; its states are its own business."""

    @property
    def ctx(self) -> Any:
        """What rules may look up."""

    def initial(self) -> Any:
        """Nobody has arrived."""

    def arrive(self, state: Any, request_id: str) -> Any:
        """A request is handed in between two steps."""

    def abort(self, state: Any, request_id: str) -> Any:
        """A client goes away between two steps."""

    def step(self, state: Any, *, index: int, time: float) -> Step:
        """One scheduler step."""


class Teller(Protocol):
    """Makes steps of a driver's records of one episode, in their order."""

    def step(self, record: Json, action: Action, index: int, time: float) -> Step:
        """The step of a record; `action` is what was done around it."""


class Device(Protocol):
    """A device of ours for the steps of one episode, in their order."""

    @property
    def steps(self) -> int:
        """That it did."""

    def wrong(self, record: Json, step: Step) -> tuple[str, str] | None:
        """What is wrong with a driver's step, if the device can tell: a name and a sentence."""


@frozen(kw_only=True)
class Counts:
    """What is counted of a policy's steps.

    `actions`: all kinds that there are. `add` counts a step, with how many ended before their
    `max_tokens`. `phase`: where a request is.
    """

    actions: tuple[str, ...]
    add: Callable[[Counter[str], Step, int], None]
    phase: Callable[[Any, str], str]


def nothing_else(_step: Step) -> Mapping[str, Any]:
    """There are neither drafts nor a connector."""
    return {}


def no_totals(_step: Step, _record: Json) -> Iterator[Difference]:
    """Nothing is told twice."""
    return iter(())


def leave_after(
    machine: Machine, _state: Any, step: Step, leaving: Sequence[str]
) -> tuple[Step, tuple[str, ...]]:
    """Clients that leave while a step runs are gone after it, and without their tokens.

    Where somebody finishes in the step, the order of the two shows in the free list: there nobody
    leaves while it runs.
    """
    present = {row.id for row in step.after.present}
    leavers = tuple(one for one in leaving if one in present and not step.finished)
    after = step.after
    for one in leavers:
        after = machine.abort(after, one)
    outputs = {one: tokens for one, tokens in step.outputs.items() if one not in leavers}
    return evolve(step, after=after, outputs=outputs), leavers


@frozen(kw_only=True)
class Counterpart:
    """How the drivers of one policy are held against its reference.

    `draw`: the case of seed and episode, without pinned keys, for whoever can do a configuration.
    `simpler`: cases with less in them. `machine`: the reference for a case. `tokens_at_once`: of a
    prompt in one step, if nobody else is there. `surroundings`: what drafter and connector did in
    a step, fields of an action. `leave`: the step from a state once those of these clients who can
    have left while it ran, and who did. `teller` and `device`: for the context of an episode.
    `differences`: of the driver's step and the reference's, what came first at the front.
    `totals`: where a record counts otherwise than its own requests and blocks add up to. `fields`:
    what drivers may leave out. `moves`: the events that show in a step, for a block size.
    `rules_know_leavers`: they hold, too, of a step whose clients left while it ran.
    """

    policy: AnyPolicy
    draw: Callable[[int, int, Mapping[str, Any], Callable[[Any], bool]], Case]
    simpler: Callable[[Case], Iterator[Case]]
    machine: Callable[[Case], Machine]
    tokens_at_once: Callable[[Any], int]
    surroundings: Callable[[Step], Mapping[str, Any]] = nothing_else
    leave: Callable[[Any, Any, Step, Sequence[str]], tuple[Step, tuple[str, ...]]] = leave_after
    teller: Callable[[Any], Teller]
    differences: Callable[
        [Any, Step, Step, Json, Strictness, Collection[str]], tuple[Difference, ...]
    ]
    totals: Callable[[Step, Json], Iterator[Difference]] = no_totals
    fields: Fields
    moves: Callable[[Step, int], tuple[Event, ...]]
    device: Callable[[Any], Device]
    counts: Counts
    rules_know_leavers: bool = False
