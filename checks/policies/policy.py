"""What a policy is to whatever serves, explores, compares, judges or shows it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from attrs import field, fields, frozen

from checks.explore.environment import MachineModel, model_of
from checks.explore.instance import Instance
from checks.explore.properties import Properties, properties_of_rules
from checks.export.pages.picture import Picture
from checks.export.trace.codec import Codec
from checks.export.trace.records import Json
from checks.harness.adapter import Adapter, Device
from checks.harness.case import Case
from checks.harness.comparing import Look, Strictness, looks_at
from checks.harness.decoding import PlainDecoder
from checks.harness.difference import ExpectedViolation, KnownDifference
from checks.harness.generating import Generator, generator_of
from checks.harness.reference import Reference
from checks.harness.system import (
    ABILITIES_HERE,
    ENGINE,
    REFERENCE,
    Hello,
    InProcess,
    Scheduler,
    System,
)
from checks.harness.unreported import Fields
from checks.policies.example import Example
from checks.policies.figure import PublishedFigure
from checks.policies.figures import StepFigures, token_figures
from checks.policies.labels import Labels
from checks.policies.later import imported_when_called
from engine.core.clock import CostModel, Prefill, Work
from engine.core.metrics import Summary
from reference.core.machine import Machine
from spec.core.configuration import PolicyConfig
from spec.core.errors import ConfigError
from spec.core.records import PREFILL, SomeContext, SomeState, SomeStep, context_of, state_class
from spec.core.requests import Request, refuse_too_long
from spec.core.rule import Registry

if TYPE_CHECKING:
    from checks.explore.compiled.model import CompiledModel
    from checks.harness.incremental.judging import Looks
    from checks.harness.paging import PagedWatch

ConfigT = TypeVar("ConfigT", bound=PolicyConfig)
ContextT = TypeVar("ContextT", bound=SomeContext)
StateT = TypeVar("StateT", bound=SomeState)
StepT = TypeVar("StepT", bound=SomeStep)

if TYPE_CHECKING:
    CompiledOf = Callable[[Instance[ConfigT]], Callable[[int | None], CompiledModel[StateT]]]

_PLAIN_CONTEXT: Any = context_of  # where ContextT is no class of the policy's own


def _work_of_tokens(_config: object, step: SomeStep) -> Work:
    """In a prefill step tokens of prompts, each part a prefill of its own; else rows."""
    if step.kind == PREFILL:
        parts = tuple(Prefill(one, tokens) for one, tokens in step.scheduled.items())
        return Work(kind=step.kind, chunk_tokens=sum(step.scheduled.values()), prefills=parts)
    return Work(kind=step.kind, rows=len(step.scheduled))


@frozen(kw_only=True)
class Policy(Generic[ConfigT, ContextT, StateT, StepT]):
    """A scheduler with its rules, its machine and what its steps cost.

    Configuration class, registry of rules, class of steps and machine are what a policy is. All
    else follows from these where it is not given: no engine, no device, no known differences, and
    cases, labels, records of drivers and comparisons as they are for any policy.

    Claims: `config`, `registry`, `step` (the class of a step); `context_of`: what rules look up;
    `refuse_unservable` raises WorkloadError for a request that no run could complete.

    Files: `codec`: how its steps and states are written and read; `picture`: how pages draw them;
    `examples`: runs that the book shows. `published`: figures of others, which it
    sets ours beside.
    `variables`: environment variables by which the released
    plugin is configured, and the keys that they set. `implied`: settings that make those which are
    given, texts by key, a configuration that can be.

    Systems: `machine`: the reference for a configuration and requests; raises WorkloadError for
    those that it refuses. `reference` and `engine` make schedulers for a case, the latter on a
    simulated device; None where there is no engine. `engine_under_test`: one whose device takes
    also steps that the configuration may rightly lead to and the hardware would refuse; by default
    the engine; it may be given what makes the device of a configuration, instead of `new_device`.
    `engine_config`: of keys of a configuration of which the engine cannot do all, the
    values that it can. `engine_abilities`: what it can do beyond what all systems here can.
    `tokens_at_once`: of a prompt in one step, if no other request is there; by default the least.

    Explorer: `model` makes the state graph of an instance of `instances`, the default ones, or of
    one's own; those of `large` and of `thorough` have more states than it goes through, and take
    minutes and an hour. `compiled`: of an instance, the same machine on packed numbers, for so many
    words a state; raises InputError where it cannot have the instance.

    Harness: `generate` draws a case, with keys that are pinned; it raises ConfigError where that
    does not succeed. `compared`: as strictly as asked for, where two steps differ. `labels`: what
    is counted. `adapter`: how driver processes are understood; `device`: one of ours for the steps
    of a driver, by default the `watch`. `expected_violations` and `known_differences`: where rules
    need not hold, and what releases do otherwise.

    Runs: `looks`: the parts of a step that suffice to judge it in a long run; None where the whole
    is judged. `work`: what a step computed. `watch`: a paged device that does each step of the
    reference, too; None where the device is the engine's. `figures`: how the size of a run's steps
    is shown; `plot`: the lines of the published plot format, where the policy has figures in it;
    `volume_limit`: on batch size times tkv, in tokens, None where nothing limits it.
    """

    config: type[ConfigT]
    registry: Registry[ConfigT, ContextT, StateT, StepT]
    step: type[StepT]
    machine: Callable[[ConfigT, Iterable[Request]], Machine[ContextT, StateT]]
    context_of: Callable[[ConfigT, Iterable[Request]], ContextT] = _PLAIN_CONTEXT
    refuse_unservable: Callable[[Request, ConfigT], None] = refuse_too_long
    codec: Codec[StateT, StepT] = field()
    picture: Picture = field(factory=Picture)
    variables: Mapping[str, str] = field(factory=dict)
    implied: Callable[[Mapping[str, str]], Mapping[str, str]] = lambda _given: {}
    reference: Callable[[Case], Reference] = field()
    engine: Callable[[Case], Scheduler[StepT]] | None = None
    engine_under_test: Callable[..., Scheduler[StepT]] | None = None
    new_device: Callable[[ConfigT], Any] | None = None
    engine_config: Mapping[str, Sequence[Any]] = field(factory=dict)
    engine_abilities: frozenset[str] = frozenset()
    tokens_at_once: Callable[[ConfigT], int] = lambda _config: 1
    model: Callable[[Instance[ConfigT]], MachineModel[ContextT, StateT]] = field()
    instances: tuple[Instance[ConfigT], ...] = ()
    large: tuple[Instance[ConfigT], ...] = ()
    thorough: tuple[Instance[ConfigT], ...] = ()
    examples: tuple[Example, ...] = ()
    published: tuple[PublishedFigure, ...] = ()
    compiled: "CompiledOf[ConfigT, StateT] | None" = None
    generate: Generator = field()
    compared: Mapping[Strictness, Look] = field()
    labels: Labels = field(factory=Labels)
    adapter: Adapter = field()
    watch: Callable[[ContextT], "PagedWatch[StepT]"] | None = None
    device: Callable[[ContextT], Device] | None = field()
    looks: "Callable[[], Looks] | None" = None
    expected_violations: tuple[ExpectedViolation, ...] = ()
    known_differences: tuple[KnownDifference, ...] = ()
    work: Callable[[ConfigT, StepT], Work] = _work_of_tokens
    figures: Callable[[Summary], StepFigures] = token_figures
    plot: Callable[[ConfigT, Mapping[str, Request], Iterable[StepT]], Iterator[Json]] | None = None
    volume_limit: Callable[[ConfigT], int | None] = lambda _config: None

    @codec.default
    def _plain_codec(self) -> Codec[StateT, StepT]:
        return Codec(state=state_class(self.step), step=self.step)

    @reference.default
    def _plain_reference(self) -> Callable[[Case], Reference]:
        return lambda case: Reference(self.machine(case.config, case.requests), case)

    @model.default
    def _plain_model(self) -> Callable[[Instance[ConfigT]], MachineModel[ContextT, StateT]]:
        machine: Any = self.machine  # of whose steps the environment decides early ends alone
        return lambda one: model_of(one, machine(one.config, one.requests))

    @generate.default
    def _plain_generate(self) -> Generator:
        return generator_of(self.config)

    @compared.default
    def _plain_comparison(self) -> Mapping[Strictness, Look]:
        return looks_at(self.step)

    @adapter.default
    def _plain_adapter(self) -> Adapter:
        def decoder(ctx: ContextT) -> PlainDecoder:
            return PlainDecoder(self.machine(ctx.config, ctx.requests.values()), self.codec)

        return Adapter(fields=Fields(step=self.step), decoder=decoder)

    @device.default
    def _paged_device(self) -> Callable[[ContextT], Device] | None:
        watch = self.watch
        beside = imported_when_called("harness.paging.device", "PagedDevice")
        return watch and (lambda ctx: beside(watch(ctx)))

    @property
    def name(self) -> str:
        """As the key `policy` of a configuration says it."""
        return self.config.name_of_policy()

    @property
    def keys(self) -> tuple[str, ...]:
        """Of its configurations."""
        return tuple(key.name for key in fields(self.config))

    def properties_of(self, model: MachineModel[ContextT, StateT]) -> Properties[StateT]:
        """The rules that apply to the instance of a model, in the explorer's terms."""
        rules = self.registry.applicable(model.instance.config)
        return properties_of_rules(rules, model.ctx, self.step, model.places)

    def differences_of(self, hello: Hello) -> list[KnownDifference]:
        """What the release behind a driver is known to do otherwise."""
        rows = self.known_differences
        return [one for one in rows if one.is_of(hello.name, hello.release)]

    def expected_reason(self, rule: str, config: ConfigT, step: StepT | None = None) -> str | None:
        """Why the rule need not hold in the step, or in none in particular; None if it must."""
        rows = [one for one in self.expected_violations if rule in one.rules and one.where(config)]
        return next((one.reason for one in rows if step is None or one.shows(step)), None)

    @property
    def expected_reasons(self) -> dict[str, str]:
        """Why rules need not hold under some of the configurations, by rule."""
        reasons: dict[str, list[str]] = {}
        for one in self.expected_violations:
            for rule in one.rules:
                reasons.setdefault(rule, []).append(one.reason)
        return {rule: "; or ".join(why) for rule, why in reasons.items()}

    def duration_of(
        self, config: ConfigT, cost: CostModel | None = None
    ) -> Callable[[StepT], float]:
        """What steps take on the simulated clock; `cost`: by default, of steps alone."""
        charged = cost or CostModel.from_mapping({}, config)
        return lambda step: self.work(config, step).duration(charged)

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
        if using == ENGINE:
            abilities = ABILITIES_HERE | self.engine_abilities
            hello = Hello(using, using, self.name, self.engine_config, abilities)
        else:
            hello = Hello(using, using, self.name, abilities=ABILITIES_HERE)
        return InProcess(hello, start)
