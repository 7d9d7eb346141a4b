"""What a policy is to whoever serves, explores, judges or shows it."""

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from attrs import frozen

from engine.work import Work
from spec.policies.configuration import PolicyConfig
from spec.policies.observable import SomeContext, SomeState, SomeStep
from spec.requests import Request
from spec.rules.rule import Registry

Conf = TypeVar("Conf", bound=PolicyConfig)
Ctx = TypeVar("Ctx", bound=SomeContext)
At = TypeVar("At", bound=SomeState)
By = TypeVar("By", bound=SomeStep)
Made = TypeVar("Made", bound=SomeStep, covariant=True)


class Server(Protocol[Made]):
    """A scheduler that runs step by step, for requests that it was told of when it was made."""

    def arrive(self, request_id: str) -> None:
        """The request is handed in between two steps."""

    def abort(self, request_id: str) -> None:
        """The client goes away between two steps; nothing happens if the request has left."""

    def step(self, index: int, time: float) -> Made:
        """One scheduler step, numbered `index`, begun at `time` on the simulated clock."""


@frozen(kw_only=True)
class Policy(Generic[Conf, Ctx, At, By]):
    """A scheduler with its rules, its machine and what its steps cost.

    `context_of`: what its rules look up. `refuse_unservable` raises WorkloadError for a request
    that no run could complete. `reference` and `engine` make schedulers, the latter on a simulated
    device; None where there is no engine. `work`: what a step computed. `about_blocks`: beginnings
    of the ids of rules that look into the block pool, about half of the work of judging.
    """

    config: type[Conf]
    registry: Registry[Conf, Ctx, At, By]
    context_of: Callable[[Conf, Iterable[Request]], Ctx]
    refuse_unservable: Callable[[Request, Conf], None]
    reference: Callable[[Conf, Sequence[Request]], Server[By]]
    engine: Callable[[Conf, Sequence[Request]], Server[By]] | None = None
    work: Callable[[Conf, By], Work]
    about_blocks: tuple[str, ...]

    @property
    def name(self) -> str:
        """As the key `policy` of a configuration says it."""
        return self.config.name_of_policy()
