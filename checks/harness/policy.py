"""What the harness asks of a policy: the systems that it plays, and how it compares and counts."""

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
from reference.core.machine import Machine
from spec.core.configuration import PolicyConfig
from spec.core.errors import ConfigError
from spec.core.records import SomeContext, SomeStep
from spec.core.requests import Request

if TYPE_CHECKING:
    from checks.harness.paging import PagedWatch

ConfigT = TypeVar("ConfigT", bound=PolicyConfig)
ContextT = TypeVar("ContextT", bound=SomeContext)
StepT = TypeVar("StepT", bound=SomeStep)
MachineOf = Callable[[Any, Iterable[Request]], Machine[Any, Any]]


@frozen(kw_only=True)
class Engine(Generic[ConfigT, StepT]):
    """The engine of a policy, on a simulated device.

    `start` makes a scheduler for a case. `under_test`: one whose device takes also steps that the
    configuration may rightly lead to and the hardware would refuse; by default the same. It may be
    given what makes the device of a configuration, instead of `new_device`. `config`: of keys of a
    configuration of which the engine cannot do all, the values that it can. `abilities`: what it
    can do beyond what all systems here can.
    """

    start: Callable[[Case], Scheduler[StepT]]
    under_test: Callable[..., Scheduler[StepT]] = field()
    new_device: Callable[[ConfigT], Any] | None = None
    config: Mapping[str, Sequence[Any]] = field(factory=dict)
    abilities: frozenset[str] = frozenset()

    @under_test.default
    def _same(self) -> Callable[..., Scheduler[StepT]]:
        return self.start


@frozen(kw_only=True)
class Evidence(Generic[ConfigT, ContextT, StepT]):
    """What the steps of a policy are compared with, and what is counted and excused.

    Systems: `reference` makes a scheduler for a case; `engine`: None where there is none.
    `tokens_at_once`: of a prompt in one step, if no other request is there; by default the least.
    `watch`: a paged device that does each step of the reference, too; None where the device is the
    engine's. `device`: one of ours for the steps of a driver, by default the `watch`.

    Comparisons: `generate` draws a case, with keys that are pinned; it raises ConfigError where
    that does not succeed. `compared`: as strictly as asked for, where two steps differ. `labels`:
    what is counted. `adapter`: how driver processes are understood. `expected_violations` and
    `known_differences`: where rules need not hold, and what releases do otherwise.
    """

    reference: Callable[[Case], Reference]
    engine: Engine[ConfigT, StepT] | None = None
    tokens_at_once: Callable[[ConfigT], int] = lambda _config: 1
    watch: Callable[[ContextT], "PagedWatch[StepT]"] | None = None
    device: Callable[[ContextT], Device] | None = field()
    generate: Generator
    compared: Mapping[Strictness, Look]
    labels: Labels = field(factory=Labels)
    adapter: Adapter
    expected_violations: tuple[ExpectedViolation, ...] = ()
    known_differences: tuple[KnownDifference, ...] = ()

    @device.default
    def _paged_device(self) -> Callable[[ContextT], Device] | None:
        watch = self.watch
        beside = imported_when_called("harness.paging.device", "PagedDevice")
        return watch and (lambda ctx: beside(watch(ctx)))

    def differences_of(self, hello: Hello) -> list[KnownDifference]:
        """What the release behind a driver is known to do otherwise."""
        rows = self.known_differences
        return [row for row in rows if row.is_of(hello.name, hello.release)]

    def expected_reason(self, rule: str, config: ConfigT, step: StepT | None = None) -> str | None:
        """Why the rule need not hold in the step, or in none in particular; None if it must."""
        rows = [row for row in self.expected_violations if rule in row.rules and row.where(config)]
        return next((row.reason for row in rows if step is None or row.shows(step)), None)

    @property
    def expected_reasons(self) -> dict[str, str]:
        """Why rules need not hold under some of the configurations, by rule."""
        reasons: dict[str, list[str]] = {}
        for row in self.expected_violations:
            for rule in row.rules:
                reasons.setdefault(rule, []).append(row.reason)
        return {rule: "; or ".join(why) for rule, why in reasons.items()}


AnyEvidence: TypeAlias = Evidence[Any, Any, Any]


def evidence_of(policy: str) -> AnyEvidence:
    """What the steps of the policy of this name are compared with."""
    part: AnyEvidence = part_of(policy, "evidence")
    return part


def plain_reference(machine_of: MachineOf) -> Callable[[Case], Reference]:
    """Makes the reference of a policy whose environment does no more than end requests."""
    return lambda case: Reference(machine_of(case.config, case.requests), case)


def plain_adapter(machine_of: MachineOf, codec: Codec[Any, Any]) -> Adapter:
    """For drivers whose records have fields of step and state as full traces write them."""

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
