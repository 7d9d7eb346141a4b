"""The explorer's part of a policy: its machine and the instances to explore."""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from attrs import field, frozen

from checks.explore.environment import MachineModel, early_end_model
from checks.explore.instance import Instance
from checks.registry import POLICIES, part_of
from reference.core import machine
from spec.core.configuration import PolicyConfig
from spec.core.errors import InputError
from spec.core.records import SomeContext, SomeState
from spec.core.requests import Request

ConfigT = TypeVar("ConfigT", bound=PolicyConfig)
ContextT = TypeVar("ContextT", bound=SomeContext)
StateT = TypeVar("StateT", bound=SomeState)

AnyModel: TypeAlias = MachineModel[Any, Any]

if TYPE_CHECKING:
    from checks.explore.compiled.model import CompiledModel

    CompiledOf = Callable[[Instance[ConfigT]], Callable[[int | None], CompiledModel[StateT]]]


@frozen(kw_only=True)
class Machine(Generic[ConfigT, ContextT, StateT]):
    """The machine of a policy and its state graphs.

    `of`: the reference machine for a configuration and requests; raises WorkloadError for requests
    that it refuses. `model`: the state graph of an instance. `instances`: the default instances;
    `large` and `thorough` instances have too many states for the reference and take minutes or an
    hour. `worlds`: instances that released schedulers can be configured for, see
    `checks.harness.campaigns.worlds`. `compiled`: for an instance, a function from the words of a
    state to the compiled machine; raises InputError if that does not support the instance.
    """

    of: Callable[[ConfigT, Iterable[Request]], machine.Machine[ContextT, StateT]]
    model: Callable[[Instance[ConfigT]], MachineModel[ContextT, StateT]] = field()
    instances: tuple[Instance[ConfigT], ...] = ()
    large: tuple[Instance[ConfigT], ...] = ()
    thorough: tuple[Instance[ConfigT], ...] = ()
    worlds: tuple[Instance[ConfigT], ...] = ()
    compiled: "CompiledOf[ConfigT, StateT] | None" = None

    @model.default
    def _plain_model(self) -> Callable[[Instance[ConfigT]], MachineModel[ContextT, StateT]]:
        start: Any = self.of  # the environment decides only early ends
        return lambda instance: early_end_model(instance, start(instance.config, instance.requests))


def machine_of(policy: str) -> Machine[Any, Any, Any]:
    """The machine of the policy of this name."""
    part: Machine[Any, Any, Any] = part_of(policy, "machine")
    return part


def refuse_lost_loads(instance: Instance[Any], option: str) -> None:
    """Refuse the option of this name, with which loads may be lost, where none is ever lost.

    Raises:
        InputError: no request has external tokens, or lost loads are not modelled here.
    """
    if not machine_of(instance.config.policy).model(instance).instance.failing:
        allowed = "requests with external tokens, and a configuration in which loads may be lost"
        raise InputError(option, True, allowed)


def offered(
    policies: Iterable[str] | None = None, *, large: bool = False, thorough: bool = False
) -> Iterator[Instance[Any]]:
    """The default instances of policies, by default of all policies.

    With `large` the large instances instead and, with `thorough`, those that take an hour, too.
    """
    for part in map(machine_of, POLICIES if policies is None else policies):
        if large:
            yield from (*part.large, *(part.thorough * thorough))
        else:
            yield from part.instances
