"""What a policy is to whoever serves, explores, judges or shows it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from attrs import field, frozen

from checks.explore.environment import MachineModel
from checks.explore.instance import Instance
from checks.explore.properties import Properties, properties_of_rules
from checks.export.trace.codec import Codec
from checks.harness.paging import PagedWatch
from checks.policies.figures import StepFigures
from engine.core.clock import Work
from spec.core.configuration import PolicyConfig
from spec.core.records import SomeContext, SomeState, SomeStep
from spec.core.requests import Request
from spec.core.rule import Registry

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


def _unlimited(_config: object) -> None:
    return None


def _nothing_more(_given: Mapping[str, str]) -> Mapping[str, str]:
    return {}


@frozen(kw_only=True)
class Policy(Generic[Conf, Ctx, At, By]):
    """A scheduler with its rules, its machine and what its steps cost.

    `context_of`: what its rules look up. `refuse_unservable` raises WorkloadError for a request
    that no run could complete. `reference` and `engine` make schedulers, the latter on a simulated
    device; None where there is no engine. `without_device`: the engine, its tokens as specified.
    `codec`: how its steps and states are written and read.
    `work`: what a step computed. `judged_apart`: beginnings of the ids of rules that a second
    process judges in a long run, so that both have about as much to do. `watch`: a paged device
    that does each step of the reference, too; None where the device is the engine's.

    `model` makes the state graph of an instance of `instances`, the default ones, or of one's own;
    its edges that are steps have a `step` as their record.

    `figures`: how the size of a run's steps is shown; `volume_limit`: on batch size times tkv, in
    tokens, None where nothing limits it. `variables`: environment variables by which the released
    plugin is configured, and the keys that they set. `implied`: settings that make those which are
    given, texts by key, a configuration that can be.
    """

    config: type[Conf]
    registry: Registry[Conf, Ctx, At, By]
    context_of: Callable[[Conf, Iterable[Request]], Ctx]
    refuse_unservable: Callable[[Request, Conf], None]
    reference: Callable[[Conf, Sequence[Request]], Server[By]]
    engine: Callable[[Conf, Sequence[Request]], Server[By]] | None = None
    without_device: Callable[[Conf, Sequence[Request]], Server[By]] | None = None
    codec: Codec[At, By]
    work: Callable[[Conf, By], Work]
    judged_apart: tuple[str, ...]
    watch: Callable[[Ctx], PagedWatch[By]] | None = None
    step: type[By]
    model: Callable[[Instance[Conf]], MachineModel[Ctx, At]]
    instances: tuple[Instance[Conf], ...]
    figures: StepFigures = field(factory=StepFigures)
    volume_limit: Callable[[Conf], int | None] = _unlimited
    variables: Mapping[str, str] = field(factory=dict)
    implied: Callable[[Mapping[str, str]], Mapping[str, str]] = _nothing_more

    @property
    def name(self) -> str:
        """As the key `policy` of a configuration says it."""
        return self.config.name_of_policy()

    def properties_of(self, model: MachineModel[Ctx, At]) -> Properties[At]:
        """The rules that apply to the instance of a model, in the explorer's terms."""
        rules = self.registry.applicable(model.instance.config)
        return properties_of_rules(rules, model.ctx, self.step)
