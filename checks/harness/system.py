"""Systems under test: a system plays a case, action by action.

Systems are the reference, an engine, a driver of a released scheduler and a recording of one.
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

# --- actions --------------------------------------------------------------------------------------


@frozen
class Action:
    """The actions of the environment in one step, as request ids.

    `arrive`, then `abort`: before the step. `abort_running`: aborts while the model runs, between
    the scheduler's decision and its update. `ends`: requests that sample the end of sequence; None:
    as their `output_len` says. `accepted`: accepted draft tokens by request, 0 for others; None: as
    the case says. `proposed`: draft tokens for the next step by request, as many as configured for
    others. `loaded`, `lost`: requests whose load of external keys and values has succeeded or
    failed before the step, or in it if loads are synchronous. `sent`: requests that have left and
    whose blocks have been sent before the step. `answered`: requests of which the connector says
    before the step what it has. `compiled`, `encoded`, `unencodable`: requests whose grammars are
    ready, whose images are encoded, or turn out to be unencodable, before the step. `time`: the
    simulated clock at the begin of the step. `skipped`: idle steps before this one that are counted
    and not taken. `earlier`: the driver's step after the same actions in another episode; an equal
    record is not decoded again, and the step is that one.
    """

    arrive: tuple[str, ...] = ()
    abort: tuple[str, ...] = ()
    abort_running: tuple[str, ...] = ()
    ends: tuple[str, ...] | None = None
    accepted: Mapping[str, int] | None = None
    proposed: Mapping[str, int] = field(factory=dict)
    loaded: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    sent: tuple[str, ...] = ()
    answered: tuple[str, ...] = ()
    compiled: tuple[str, ...] = ()
    encoded: tuple[str, ...] = ()
    unencodable: tuple[str, ...] = ()
    time: float = 0.0
    skipped: int = 0
    earlier: "Taken | None" = field(default=None, eq=False, repr=False)

    def as_json(self) -> Json:
        """The action in the line protocol, without empty fields."""
        clients = ("arrive", "abort", "abort_running")
        transfers = ("loaded", "lost", "sent", "answered")
        listed = (*clients, *transfers, "compiled", "encoded", "unencodable")
        fields: Json = {name: list(ids) for name in listed if (ids := getattr(self, name))}
        if self.accepted:
            fields["accepted"] = dict(self.accepted)
        if self.proposed:
            fields["proposed"] = dict(self.proposed)
        return fields if self.ends is None else fields | {"ends": list(self.ends)}


# --- results --------------------------------------------------------------------------------------


@frozen
class Taken:
    """A step that a system took.

    `record`: the driver process's record of it, unchanged. `device`: a copy of the memory of the
    simulated device behind it, if that is kept.
    """

    step: Step
    record: Json = field(factory=dict)
    device: Any = field(default=None, eq=False, repr=False)


@frozen
class Failure:
    """A system's failure instead of a step: an error that it raised, or the end of its process.

    `type` and `message`: of the error. `at`: where it was raised, or empty. `of`: its origin,
    "scheduler" or "driver"; empty if the driver does not declare the modules under test.
    """

    type: str
    message: str
    at: str = ""
    of: str = ""

    @property
    def cause(self) -> str:
        """Type and function of the error, which are the same in every case."""
        return f"{self.type} {self.at.partition(' ')[2]}".strip()

    def __str__(self) -> str:
        text = f"{self.type}: {self.message}" if self.message else self.type
        return f"{text} ({self.at})" if self.at else text


# --- systems --------------------------------------------------------------------------------------


@frozen
class Hello:
    """The first line of a system: its name, release, policy and abilities.

    `release`: of the scheduler under test. `config`: the supported values of each configuration key
    that it restricts. `abilities`: some of `abort`, `abort_running`, `ends`, `fewer_drafts`
    (actions say how many drafts are proposed), `grammars` (requests may have one), `encodings`
    (requests may have images), `reads_cache` (requests may read none), `encoder_spans` (prompts may
    have images or audio in them), `lookups` (steps report what newcomers asked the caches for and
    found), `order` (steps report the order of block allocations and preemptions), `refusal` (steps
    report the rule that kept a request waiting), `sessions` (requests may be turns of one),
    `tensors` and, for systems in this process, `abort_gone` (aborts of requests that have left) and
    `events` (steps report their transitions).
    `unreported`: fields that its steps leave out, named as in `checks.harness.unreported`.
    """

    name: str
    release: str
    policy: str
    config: Mapping[str, Sequence[Any]] = field(factory=dict)
    abilities: frozenset[str] = frozenset()
    unreported: frozenset[str] = frozenset()

    @property
    def pinned(self) -> Json:
        """Configuration keys for which the system supports one value, with that value."""
        only = {key: values[0] for key, values in self.config.items() if len(values) == 1}
        set_keys = {key: value for key, value in only.items() if value is not None}
        config = claims_of(self.policy).config.from_mapping(set_keys)
        return {key: None if value is None else getattr(config, key) for key, value in only.items()}

    def can_do(self, config: PolicyConfig) -> bool:
        """True if the system supports the configuration."""
        return config.policy == self.policy and all(
            getattr(config, key) in values for key, values in self.config.items()
        )


class System(Protocol):
    """A scheduler that the harness can run."""

    @property
    def hello(self) -> Hello:
        """Name, release, policy and abilities."""

    def play(self, case: Any, actions: Iterable[Action]) -> Iterator[Taken | Failure]:
        """A step for each action; a failure is the last result.

        Actions are taken from the iterable as needed, some ahead of their steps. A step is taken
        when its result is requested.
        """

    def close(self) -> None:
        """Release the resources of the system; it may be played again."""


class Scheduler(Protocol[StepT]):
    """A scheduler in this process that serves one case."""

    def arrive(self, request_id: str) -> None:
        """Add a request between two steps."""

    def abort(self, request_id: str) -> None:
        """Abort a request between two steps; no effect if it has left."""

    def step(self, index: int, action: Action) -> StepT:
        """Take the scheduler step `index`; `action`: the environment's actions in it."""


ENGINE, REFERENCE = "engine", "reference"
ABILITIES_HERE = frozenset(
    {
        *("abort", "abort_gone", "ends", "events"),
        *("fewer_drafts", "grammars", "encodings", "reads_cache", "encoder_spans", "sessions"),
    }
)


@frozen(eq=False)
class InProcess:
    """A system whose schedulers run in this process; `start` makes one for a case.

    Every exception of a scheduler is a failure of the system.
    """

    hello: Hello
    start: Callable[[Any], Scheduler[Step]]

    def open(self) -> "InProcess":
        """The system itself: there is nothing to open."""
        return self

    def close(self) -> None:
        """There is nothing to release."""

    def play(self, case: Any, actions: Iterable[Action]) -> Iterator[Taken | Failure]:
        """A step for each action, when it is requested."""
        try:
            scheduler = self.start(case)
        except Exception as error:  # a system under test may raise anything; it becomes a finding
            yield Raised.by(error)
            return
        for index, action in numbered(actions):
            try:
                step = take_step(scheduler, index, action)
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
        """The failure of a scheduler that raised this error."""
        return Raised(type(error).__name__, str(error), error=error)

    @property
    def guard(self) -> GuardError | None:
        """The guard at which the reference stopped, or None."""
        return self.error if isinstance(self.error, GuardError) else None


def numbered(actions: Iterable[Action]) -> Iterator[tuple[int, Action]]:
    """The actions, each with its step index."""
    index = 0
    for action in actions:
        index += action.skipped
        yield index, action
        index += 1


def take_step(scheduler: Scheduler[Any], index: int, action: Action) -> Step:
    """Take one step of a scheduler, after the arrivals and aborts of the action."""
    for newcomer in action.arrive:
        scheduler.arrive(newcomer)
    for leaver in action.abort:
        scheduler.abort(leaver)
    return scheduler.step(index, action)
