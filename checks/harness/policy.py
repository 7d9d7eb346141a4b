"""The evidence part of a policy: its systems, comparisons, labels and known differences."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from attrs import field, frozen

from checks.export.trace.codec import Codec
from checks.harness.adapter import Adapter, Device
from checks.harness.case import Case
from checks.harness.comparing import Look, Strictness
from checks.harness.decoding import PlainDecoder
from checks.harness.difference import ExpectedViolation, KnownDifference
from checks.harness.generating import Generator
from checks.harness.labels import Labels
from checks.harness.reference import Reference
from checks.harness.system import ABILITIES_HERE, ENGINE, REFERENCE, Hello, InProcess, Scheduler
from checks.harness.unreported import Fields
from checks.registry import imported_when_called, part_of
from checks.remembered import machine_remembering
from reference.core.machine import Machine
from spec.core.configuration import PolicyConfig
from spec.core.errors import ConfigError
from spec.core.records import SomeContext, SomeStep
from spec.core.requests import Request

if TYPE_CHECKING:
    from checks.harness.incremental.looks import Looks
    from checks.harness.paging import PagedWatch

ConfigT = TypeVar("ConfigT", bound=PolicyConfig)
ContextT = TypeVar("ContextT", bound=SomeContext)
StepT = TypeVar("StepT", bound=SomeStep)
MachineOf = Callable[[Any, Iterable[Request]], Machine[Any, Any]]


@frozen(kw_only=True)
class Engine(Generic[ConfigT, StepT]):
    """The engine of a policy, on a simulated device.

    `start`: makes a scheduler for a case. `simulated`: makes one without a device, whose steps are
    decisions (`engine.core.decisions`), or records if its second argument is true; None if the
    engine needs its device. `under_test`: the same with a device that also accepts
    steps which the configuration allows and the hardware refuses; by default `start`. It may be
    called with a device factory that replaces `new_device`. `config`: the supported values of
    configuration keys that the engine supports in part. `abilities`: in addition to those of every
    system in this process.
    """

    start: Callable[[Case], Scheduler[StepT]]
    simulated: Callable[[Case, bool], Scheduler[Any]] | None = None
    under_test: Callable[..., Scheduler[StepT]] = field()
    new_device: Callable[[ConfigT], Any] | None = None
    config: Mapping[str, Sequence[Any]] = field(factory=dict)
    abilities: frozenset[str] = frozenset()

    @under_test.default
    def _same(self) -> Callable[..., Scheduler[StepT]]:
        return self.start


def steps_alone(request: Request, tokens_at_once: int = 1, steps_of_a_token: int = 1) -> int:
    """The most steps of a request that is served alone.

    `tokens_at_once`: of its prompt, in one step. `steps_of_a_token`: from one token of its answer
    to the next.
    """
    return 1 + request.prompt_len // tokens_at_once + steps_of_a_token * request.max_tokens


@frozen(kw_only=True)
class Evidence(Generic[ConfigT, ContextT, StepT]):
    """The systems of a policy, and how their steps are compared and counted.

    Systems: `reference` makes a scheduler for a case. `engine`: None if the policy has none.
    `steps_alone`: the most steps of a request that is served alone. `watch`: a paged device that
    repeats each step of the reference; None if the engine has a device of its own. `device`: the
    simulated device for the steps of a driver; by default the `watch`.

    Comparisons: `generate` draws a case with pinned keys and raises ConfigError if that fails.
    `compared`: the compared fields for each strictness. `labels`: the counted actions. `looks`: the
    parts of a step that suffice to judge it in a long run; None if each step is judged whole.
    `adapter`: how driver processes are understood. `expected_violations`: rules that need not hold.
    `known_differences`: documented differences of releases.
    """

    reference: Callable[[Case], Reference]
    engine: Engine[ConfigT, StepT] | None = None
    steps_alone: Callable[[ConfigT, Request], int] = lambda _config, request: steps_alone(request)
    watch: Callable[[ContextT], "PagedWatch[StepT]"] | None = None
    device: Callable[[ContextT], Device] | None = field()
    generate: Generator
    compared: Mapping[Strictness, Look]
    looks: "Callable[[], Looks] | None" = None
    labels: Labels = field(factory=Labels)
    adapter: Adapter
    expected_violations: tuple[ExpectedViolation, ...] = ()
    known_differences: tuple[KnownDifference, ...] = ()

    @device.default
    def _paged_device(self) -> Callable[[ContextT], Device] | None:
        watch = self.watch
        beside = imported_when_called("harness.paging.device", "PagedDevice")
        return watch and (lambda ctx: beside(watch(ctx)))

    def release_differences(self, hello: Hello) -> list[KnownDifference]:
        """The known differences of the release behind a driver."""
        rows = self.known_differences
        return [row for row in rows if row.covers(hello.name, hello.release)]

    def expected_reason(self, rule: str, config: ConfigT, step: StepT | None = None) -> str | None:
        """Why the rule need not hold in the step, or under the configuration; None if it must."""
        rows = [row for row in self.expected_violations if rule in row.rules and row.where(config)]
        return next((row.reason for row in rows if step is None or row.shows(step)), None)

    def expected_reasons(self, config: ConfigT | None = None) -> dict[str, str]:
        """Why rules need not hold under this configuration, or under any, by rule."""
        reasons: dict[str, list[str]] = {}
        for row in self.expected_violations:
            for rule in row.rules if config is None or row.where(config) else ():
                reasons.setdefault(rule, []).append(row.reason)
        return {rule: "; or ".join(why) for rule, why in reasons.items()}


AnyEvidence: TypeAlias = Evidence[Any, Any, Any]


def evidence_of(policy: str) -> AnyEvidence:
    """The evidence part of the policy of this name."""
    part: AnyEvidence = part_of(policy, "evidence")
    return part


def plain_reference(machine_of: MachineOf) -> Callable[[Case], Reference]:
    """Makes the reference of a policy whose environment only ends requests."""
    return lambda case: Reference(machine_remembering(machine_of(case.config, case.requests)), case)


def plain_adapter(machine_of: MachineOf, codec: Codec[Any, Any]) -> Adapter:
    """The adapter for drivers whose records have the fields of full traces."""

    def decoder(ctx: Any) -> PlainDecoder:
        return PlainDecoder(machine_of(ctx.config, ctx.requests.values()), codec)

    return Adapter(fields=Fields(step=codec.step), decoder=decoder)


def system_of(policy: str, using: str) -> InProcess:
    """The reference or the engine of a policy, as a system under test.

    Raises:
        ConfigError: there is no such system, or the policy has no engine.
    """
    evidence = evidence_of(policy)
    if using == REFERENCE:
        hello = Hello(using, using, policy, abilities=ABILITIES_HERE)
        return InProcess(hello, evidence.reference)
    engine = evidence.engine
    if using != ENGINE or engine is None:
        allowed = REFERENCE if engine is None else f"{ENGINE}, {REFERENCE}"
        raise ConfigError("system", using, f"{allowed} of {policy}")
    hello = Hello(using, using, policy, engine.config, ABILITIES_HERE | engine.abilities)
    return InProcess(hello, engine.under_test)


@frozen
class Own:
    """The reference or the engine of a policy, as the source of a campaign's system."""

    policy: str
    using: str

    def open(self) -> InProcess:
        """The system, see `system_of`."""
        return system_of(self.policy, self.using)
