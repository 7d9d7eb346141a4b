"""What can be seen of any scheduler, whatever its policy: a request, a state, a step, a context.

Each policy has classes of its own, in its `records`. What serves, measures or shows steps of every
policy asks for no more than this.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from spec.core.blocks import BlockPool
from spec.core.configuration import PolicyConfig
from spec.core.records import Event
from spec.core.requests import BlockKeys, Request


class SomeSequence(Protocol):
    """A request inside a scheduler; lengths in tokens."""

    @property
    def id(self) -> str:
        """Its name."""

    @property
    def computed(self) -> int:
        """Tokens whose keys and values are in the cache."""

    @property
    def generated(self) -> int:
        """Tokens sampled so far."""

    @property
    def blocks(self) -> tuple[int, ...]:
        """Its block table."""


class SomeState(Protocol):
    """A scheduler at rest."""

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

    @property
    def finished(self) -> frozenset[str]:
        """Who has left with all tokens."""

    @property
    def aborted(self) -> frozenset[str]:
        """Whose client has gone away."""

    @property
    def is_idle(self) -> bool:
        """True if no request is pending."""


class SomeStep(Protocol):
    """A scheduler step; its fields mean the same in every policy."""

    @property
    def index(self) -> int:
        """Its number, from 0."""

    @property
    def time(self) -> float:
        """The simulated clock when it began."""

    @property
    def kind(self) -> str:
        """Prefill, decode or idle."""

    @property
    def before(self) -> SomeState:
        """What it started from."""

    @property
    def after(self) -> SomeState:
        """What it left."""

    @property
    def scheduled(self) -> Mapping[str, int]:
        """Tokens computed, by request."""

    @property
    def outputs(self) -> Mapping[str, Sequence[int]]:
        """Tokens sampled, by request."""

    @property
    def finished(self) -> tuple[str, ...]:
        """Who left with all tokens."""

    @property
    def aborted(self) -> tuple[str, ...]:
        """Whose client has gone away since the step before."""

    @property
    def refusal(self) -> str | None:
        """The rule that first kept somebody from being scheduled."""

    @property
    def events(self) -> tuple[Event, ...]:
        """The transitions that made up the step."""


class SomeContext(Protocol):
    """What rules may look up."""

    @property
    def config(self) -> PolicyConfig:
        """The configuration."""

    @property
    def requests(self) -> Mapping[str, Request]:
        """The requests by id."""

    @property
    def keys(self) -> BlockKeys:
        """The keys of their blocks."""
