"""What can be run: a system plays a case, action by action.

The reference, an engine, a driver of a released scheduler and a recording of one are systems.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from attrs import field, frozen

from checks.registry import claims_of
from reference.core.guards import GuardError
from spec.core.configuration import PolicyConfig

Json: TypeAlias = dict[str, Any]
Step: TypeAlias = Any  # of the policy's own class, like states, contexts and configurations
StepT = TypeVar("StepT", covariant=True)

# --- what happens around a step -------------------------------------------------------------------


@frozen
class Action:
    """What the environment does around one step, ids of requests.

    `arrive`, then `abort`: before the step. `abort_running`: while the model runs, between the
    scheduler's decision and its update. `ends`: which requests sample the end of sequence; None:
    those that say so. `accepted`: how many of its drafts, by request, of others none; None: as
    configured. `loaded`, `lost`: requests whose external keys and values have come before the step,
    or turn out not to come; where they should come within a step, in it. `time`: the simulated
    clock when the step begins. `skipped`: idle steps before this one that are numbered only.
    """

    arrive: tuple[str, ...] = ()
    abort: tuple[str, ...] = ()
    abort_running: tuple[str, ...] = ()
    ends: tuple[str, ...] | None = None
    accepted: Mapping[str, int] | None = None
    loaded: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    time: float = 0.0
    skipped: int = 0

    def as_json(self) -> Json:
        """The action as the line protocol has it, without what it does not do."""
        listed = ("arrive", "abort", "abort_running", "loaded", "lost")
        known: Json = {name: list(ids) for name in listed if (ids := getattr(self, name))}
        if self.accepted:
            known["accepted"] = dict(self.accepted)
        return known if self.ends is None else known | {"ends": list(self.ends)}


# --- what comes of it -----------------------------------------------------------------------------


@frozen
class Taken:
    """A step that a system took. `record`: what a driver process said of it, as it said it."""

    step: Step
    record: Json = field(factory=dict)


@frozen
class Failure:
    """What a system answered instead of a step: an error that it raised, or its own end.

    `type` and `message`: of the error. `at`: where it was raised, or nothing. `of`: whose error it
    is, "scheduler" or "driver"; nothing where a driver does not say what is under test.
    """

    type: str
    message: str
    at: str = ""
    of: str = ""

    @property
    def cause(self) -> str:
        """Type and function, without what changes with every case."""
        return f"{self.type} {self.at.partition(' ')[2]}".strip()

    def __str__(self) -> str:
        text = f"{self.type}: {self.message}" if self.message else self.type
        return f"{text} ({self.at})" if self.at else text


# --- systems --------------------------------------------------------------------------------------


@frozen
class Hello:
    """How a system introduces itself.

    `release`: of the scheduler behind it. `policy`: whose configurations it takes. `config`: of
    each configuration key that it names, the values that it can do. `abilities`: some of `abort`,
    `abort_running`, `ends`, `order` (its steps say in which order requests were given blocks and
    preempted), `refusal` (which rule kept a request waiting), `tensors` and, of systems in this
    process, `abort_gone` (aborts of requests that have left) and `events` (its steps say which
    transitions they consist of). `unreported`: what its steps leave out, as
    `checks.harness.unreported` names it.
    """

    name: str
    release: str
    policy: str
    config: Mapping[str, Sequence[Any]] = field(factory=dict)
    abilities: frozenset[str] = frozenset()
    unreported: frozenset[str] = frozenset()

    @property
    def pinned(self) -> Json:
        """Keys of which it can do one value only."""
        only = {key: values[0] for key, values in self.config.items() if len(values) == 1}
        set_keys = {key: one for key, one in only.items() if one is not None}
        config = claims_of(self.policy).config.from_mapping(set_keys)
        return {key: None if one is None else getattr(config, key) for key, one in only.items()}

    def can_do(self, config: PolicyConfig) -> bool:
        """True if it implements what the configuration asks for."""
        return config.policy == self.policy and all(
            getattr(config, key) in values for key, values in self.config.items()
        )


class System(Protocol):
    """Anything that schedules."""

    @property
    def hello(self) -> Hello:
        """How it introduces itself."""

    def play(self, case: Any, actions: Iterable[Action]) -> Iterator[Taken | Failure]:
        """A step for each action, or as far as it came; nothing follows a failure.

        Actions are taken from the iterable as they are needed, some ahead of their steps. Steps
        that nothing asks for are not taken.
        """

    def close(self) -> None:
        """Give back what it holds; a system may be played again after it."""


class Scheduler(Protocol[StepT]):
    """A scheduler in this process that serves one case."""

    def arrive(self, request_id: str) -> None:
        """The request is handed in between two steps."""

    def abort(self, request_id: str) -> None:
        """The client goes away between two steps; nothing happens if the request has left."""

    def step(self, index: int, action: Action) -> StepT:
        """One scheduler step, numbered `index`; `action` is what happens around it."""


ENGINE, REFERENCE = "engine", "reference"
ABILITIES_HERE = frozenset({"abort", "abort_gone", "ends", "events"})


@frozen(eq=False)
class InProcess:
    """A system whose schedulers run in this process; `start` makes one for a case.

    Every exception of a scheduler is a failure of the system.
    """

    hello: Hello
    start: Callable[[Any], Scheduler[Step]]

    def open(self) -> "InProcess":
        """The system itself, which needs nothing to be opened."""
        return self

    def close(self) -> None:
        """Nothing is held."""

    def play(self, case: Any, actions: Iterable[Action]) -> Iterator[Taken | Failure]:
        """A step for each action, as soon as it is asked for."""
        try:
            scheduler = self.start(case)
        except Exception as error:  # a system under test may raise anything; it becomes a finding
            yield Raised.by(error)
            return
        for index, action in numbered(actions):
            try:
                step = taken_by(scheduler, index, action)
            except Exception as error:
                yield Raised.by(error)
                return
            yield Taken(step)


@frozen
class Raised(Failure):
    """A failure in this process, with its exception."""

    error: Exception = field(eq=False, kw_only=True)

    @staticmethod
    def by(error: Exception) -> "Raised":
        """The failure of a scheduler that raises this."""
        return Raised(type(error).__name__, str(error), error=error)

    @property
    def guard(self) -> GuardError | None:
        """The guard of the reference at which it stopped, if it did."""
        return self.error if isinstance(self.error, GuardError) else None


def numbered(actions: Iterable[Action]) -> Iterator[tuple[int, Action]]:
    """The actions, each with the number of its step."""
    index = 0
    for action in actions:
        index += action.skipped
        yield index, action
        index += 1


def taken_by(scheduler: Scheduler[Any], index: int, action: Action) -> Step:
    """The step of a scheduler with what happens around it."""
    for newcomer in action.arrive:
        scheduler.arrive(newcomer)
    for leaver in action.abort:
        scheduler.abort(leaver)
    return scheduler.step(index, action)
