"""Records of the steps of any scheduler, and protocols of its states, requests and context.

Each policy has classes of its own in its `records`: its requests and states have at least what
`SomeSequence` and `SomeState` say, and its step is a `StepRecord`. What serves, measures or shows
steps of every policy asks for no more than this.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from attrs import field, fields, frozen

from spec.core.blocks import BlockPool
from spec.core.configuration import PolicyConfig
from spec.core.requests import BlockKeys, Request

PREFILL, DECODE, IDLE = "prefill", "decode", "idle"  # the kinds of a step

ConfigT = TypeVar("ConfigT", bound=PolicyConfig)

HISTORY: Mapping[str, bool] = MappingProxyType({"history": True})
"""Metadata of a field that says what happened, and that no scheduler keeps: it is not compared."""


class SomeTable(Protocol):
    """A block table that a request holds, or gave back."""

    __slots__ = ()

    @property
    def id(self) -> str:
        """The name of the request."""

    @property
    def blocks(self) -> tuple[int, ...]:
        """Its block table."""
        return ()


class SomeSequence(SomeTable, Protocol):
    """A request inside a scheduler; lengths in tokens."""

    __slots__ = ()

    @property
    def computed(self) -> int:
        """Tokens whose keys and values are in the cache."""

    @property
    def generated(self) -> int:
        """Tokens sampled so far."""


class SomeState(Protocol):
    """A scheduler at rest."""

    __slots__ = ()

    @property
    def pool(self) -> BlockPool:
        """The KV blocks."""

    @property
    def waiting(self) -> Sequence[SomeSequence]:
        """The waiting queue."""

    @property
    def running(self) -> Sequence[SomeSequence]:
        """The running queue."""

    @property
    def present(self) -> Sequence[SomeSequence]:
        """Every request that has arrived and has not left."""
        return (*self.waiting, *self.running)

    @property
    def finished(self) -> Set[str]:
        """The requests that have left with all tokens."""

    @property
    def aborted(self) -> Set[str]:
        """The requests whose client has gone away."""

    @property
    def is_idle(self) -> bool:
        """True if no request is pending."""
        return not self.present


@frozen
class Event:
    """One transition inside a step, with the id of the rule that allowed or caused it.

    `id`: the request; empty where the transition is of the whole batch. `before` and `after`: the
    values around it, where it changes one (tkv, blocks).
    """

    transition: str
    id: str
    rule: str
    before: Any = None
    after: Any = None


@frozen(kw_only=True)
class StepRecord:
    """One scheduler step: the state it started from, what it did, the state it left.

    Each policy narrows the states to its own. `before` includes the arrivals and aborts since the
    step before. `time`: simulated clock when it began. `scheduled`: tokens computed, by request.
    `outputs`: tokens sampled, by request. `finished`: the requests that left with all tokens, in
    the order of leaving. `aborted`: those whose client left since the step before. `refusal`: the
    rule that first kept a request from being scheduled. `events`: the transitions that made up the
    step, in order. `ended`: the requests that sampled the end of sequence where the environment
    decided so and not the request.
    """

    index: int
    time: float
    before: SomeState
    after: SomeState
    scheduled: Mapping[str, int] = field(factory=dict)
    outputs: Mapping[str, Sequence[int]] = field(factory=dict)
    finished: tuple[str, ...] = ()
    aborted: tuple[str, ...] = ()
    refusal: str | None = None
    events: tuple[Event, ...] = ()
    ended: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """Prefill, decode or idle; each policy says which."""
        raise NotImplementedError

    def happened(self, *transitions: str) -> list[Event]:
        """The events of these kinds, in order."""
        return [event for event in self.events if event.transition in transitions]


@frozen
class Context(Generic[ConfigT]):
    """What rules may look up: the configuration, the requests by id, the keys of their blocks."""

    config: ConfigT
    requests: Mapping[str, Request]
    keys: BlockKeys


def state_class(step: type[StepRecord]) -> Any:
    """The class of the states that steps of this class lie between."""
    return fields(step).before.type


def context_of(config: ConfigT, requests: Iterable[Request]) -> Context[ConfigT]:
    """What rules may look up under this configuration."""
    by_id = {request.id: request for request in requests}
    return Context(config, by_id, BlockKeys(by_id, config.block_size))


SomeStep: TypeAlias = StepRecord
SomeContext: TypeAlias = Context[Any]
