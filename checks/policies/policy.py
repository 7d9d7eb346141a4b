"""What a policy is to whatever serves, explores, compares, judges or shows it."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from attrs import field, frozen

from checks.explore.environment import MachineModel
from checks.explore.instance import Instance
from checks.explore.properties import Properties, properties_of_rules
from checks.export.trace.codec import Codec
from checks.export.trace.records import Json
from checks.harness.adapter import Adapter, Device
from checks.harness.case import Case
from checks.harness.choices import Choices
from checks.harness.comparing import Look, Strictness
from checks.harness.difference import ExpectedViolation, KnownDifference
from checks.harness.paging import PagedWatch
from checks.harness.reference import Reference
from checks.harness.system import ABILITIES_HERE, Hello, InProcess, Scheduler, System
from checks.policies import policy_named
from checks.policies.figures import StepFigures
from engine.core.clock import Work
from spec.core.configuration import PolicyConfig
from spec.core.errors import ConfigError
from spec.core.records import SomeContext, SomeState, SomeStep
from spec.core.requests import Request
from spec.core.rule import Registry

ConfigT = TypeVar("ConfigT", bound=PolicyConfig)
ContextT = TypeVar("ContextT", bound=SomeContext)
StateT = TypeVar("StateT", bound=SomeState)
StepT = TypeVar("StepT", bound=SomeStep)

ENGINE, REFERENCE = "engine", "reference"


def _unlimited(_config: object) -> None:
    return None


def _nothing_more(_given: Mapping[str, str]) -> Mapping[str, str]:
    return {}


@frozen(kw_only=True)
class Labels:
    """What is counted of a policy's steps.

    `actions`: all kinds that there are. `add` counts a step, with how many requests ended before
    their `max_tokens`. `phase`: where a request is in a state.
    """

    actions: tuple[str, ...]
    add: Callable[[Counter[str], Any, int], None]
    phase: Callable[[Any, str], str]


@frozen(kw_only=True)
class Policy(Generic[ConfigT, ContextT, StateT, StepT]):
    """A scheduler with its rules, its machine and what its steps cost.

    Claims: `config`, `registry`, `step` (the class of a step); `context_of`: what rules look up;
    `refuse_unservable` raises WorkloadError for a request that no run could complete.

    Files: `codec`: how its steps and states are written and read. `variables`: environment
    variables by which the released plugin is configured, and the keys that they set. `implied`:
    settings that make those which are given, texts by key, a configuration that can be.

    Systems: `reference` and `engine` make schedulers for a case, the latter on a simulated device;
    None where there is no engine. `engine_under_test`: one whose device takes also steps that the
    configuration may rightly lead to and the hardware would refuse; by default the engine.
    `without_device`: the engine, its tokens as specified.
    `tokens_at_once`: of a prompt in one step, if no other request is there.

    Explorer: `model` makes the state graph of an instance of `instances`, the default ones, or of
    one's own.

    Harness: `generate` draws a case, with keys that are pinned; it raises ConfigError where that
    does not succeed. `compared`: as strictly as asked for, where two steps differ. `labels`: what
    is counted. `adapter`: how driver processes are understood; `device`: one of ours for the steps
    of a driver. `expected_violations` and `known_differences`: where rules need not hold, and what
    releases do otherwise.

    Runs: `work`: what a step computed. `judged_apart`: beginnings of the ids of rules that a second
    process judges in a long run, so that both have about as much to do. `watch`: a paged device
    that does each step of the reference, too; None where the device is the engine's. `figures`: how
    the size of a run's steps is shown; `plot`: the lines of the published plot format, where the
    policy has figures in it; `volume_limit`: on batch size times tkv, in tokens, None
    where nothing limits it.
    """

    config: type[ConfigT]
    registry: Registry[ConfigT, ContextT, StateT, StepT]
    step: type[StepT]
    context_of: Callable[[ConfigT, Iterable[Request]], ContextT]
    refuse_unservable: Callable[[Request, ConfigT], None]
    codec: Codec[StateT, StepT]
    variables: Mapping[str, str] = field(factory=dict)
    implied: Callable[[Mapping[str, str]], Mapping[str, str]] = _nothing_more
    reference: Callable[[Case], Reference]
    engine: Callable[[Case], Scheduler[StepT]] | None = None
    engine_under_test: Callable[[Case], Scheduler[StepT]] | None = None
    without_device: Callable[[Case], Scheduler[StepT]] | None = None
    tokens_at_once: Callable[[ConfigT], int]
    model: Callable[[Instance[ConfigT]], MachineModel[ContextT, StateT]]
    instances: tuple[Instance[ConfigT], ...]
    generate: Callable[[Choices, Mapping[str, Any]], Case]
    compared: Mapping[Strictness, Look]
    labels: Labels
    adapter: Adapter
    device: Callable[[ContextT], Device] | None = None
    expected_violations: tuple[ExpectedViolation, ...] = ()
    known_differences: tuple[KnownDifference, ...] = ()
    work: Callable[[ConfigT, StepT], Work]
    judged_apart: tuple[str, ...] = ()
    watch: Callable[[ContextT], PagedWatch[StepT]] | None = None
    figures: StepFigures = field(factory=StepFigures)
    plot: Callable[[ConfigT, Mapping[str, Request], Iterable[StepT]], Iterator[Json]] | None = None
    volume_limit: Callable[[ConfigT], int | None] = _unlimited

    @property
    def name(self) -> str:
        """As the key `policy` of a configuration says it."""
        return self.config.name_of_policy()

    def properties_of(self, model: MachineModel[ContextT, StateT]) -> Properties[StateT]:
        """The rules that apply to the instance of a model, in the explorer's terms."""
        rules = self.registry.applicable(model.instance.config)
        return properties_of_rules(rules, model.ctx, self.step)

    def expected_reason(self, rule: str, config: ConfigT) -> str | None:
        """Why the rule need not hold under this configuration, or None if it must."""
        rows = self.expected_violations
        return next((one.reason for one in rows if one.rule == rule and one.where(config)), None)

    @property
    def expected_reasons(self) -> dict[str, str]:
        """Why rules need not hold under some of the configurations, by rule."""
        reasons: dict[str, list[str]] = {}
        for one in self.expected_violations:
            reasons.setdefault(one.rule, []).append(one.reason)
        return {rule: "; or ".join(why) for rule, why in reasons.items()}

    def system(self, using: str) -> System:
        """The reference or the engine, as a system under test.

        Raises:
            ConfigError: there is no such system, or the policy has no engine.
        """
        engine = self.engine_under_test or self.engine
        start = {REFERENCE: self.reference, ENGINE: engine}.get(using)
        if start is None:
            allowed = REFERENCE if self.engine is None else f"{ENGINE}, {REFERENCE}"
            raise ConfigError("system", using, f"{allowed} of {self.name}")
        return InProcess(Hello(using, using, self.name, abilities=ABILITIES_HERE), start)


@frozen
class Own:
    """From where a process has the reference or the engine of a policy: a campaign's source."""

    policy: str
    using: str

    def open(self) -> System:
        """The system, see `Policy.system`."""
        return policy_named(self.policy).system(self.using)
