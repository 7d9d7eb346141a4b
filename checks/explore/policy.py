"""What the explorer asks of a policy: its machine, and the instances that are explored."""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from attrs import field, frozen

from checks.explore.environment import MachineModel, model_of
from checks.explore.instance import Instance
from checks.registry import POLICIES, part_of
from reference.core import machine
from spec.core.configuration import PolicyConfig
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
    that it refuses. `model`: the state graph of an instance. `instances`: the default ones; those
    of `large` and of `thorough` have more states than the reference goes through, and take minutes
    and an hour. `compiled`: of an instance, the same machine on packed numbers, for so many words a
    state; raises InputError where it cannot have the instance.
    """

    of: Callable[[ConfigT, Iterable[Request]], machine.Machine[ContextT, StateT]]
    model: Callable[[Instance[ConfigT]], MachineModel[ContextT, StateT]] = field()
    instances: tuple[Instance[ConfigT], ...] = ()
    large: tuple[Instance[ConfigT], ...] = ()
    thorough: tuple[Instance[ConfigT], ...] = ()
    compiled: "CompiledOf[ConfigT, StateT] | None" = None

    @model.default
    def _plain_model(self) -> Callable[[Instance[ConfigT]], MachineModel[ContextT, StateT]]:
        start: Any = self.of  # of whose steps the environment decides early ends alone
        return lambda instance: model_of(instance, start(instance.config, instance.requests))


def machine_of(policy: str) -> Machine[Any, Any, Any]:
    """The machine of the policy of this name."""
    part: Machine[Any, Any, Any] = part_of(policy, "machine")
    return part


def offered(
    policies: Iterable[str] | None = None, *, large: bool = False, thorough: bool = False
) -> Iterator[Instance[Any]]:
    """The default instances of policies, by default of all; or those that need another machine.

    Those are the large ones and, if `thorough`, also those that take an hour.
    """
    for part in map(machine_of, POLICIES if policies is None else policies):
        if large:
            yield from (*part.large, *(part.thorough * thorough))
        else:
            yield from part.instances
