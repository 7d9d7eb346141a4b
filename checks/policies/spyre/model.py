"""The Spyre machine with its environment, as a state graph to explore."""

from collections.abc import Callable, Hashable

from checks.explore.environment import MachineModel, early_end_model
from checks.explore.instance import Instance
from checks.explore.returning import with_blocks_in_order
from checks.explore.symmetry import place_function, without_names
from reference.spyre.machine import SpyreMachine
from spec.core.requests import Request
from spec.spyre.config import SpyreConfig
from spec.spyre.records import Context
from spec.spyre.state import State


def spyre_model(instance: Instance[SpyreConfig]) -> MachineModel[Context, State]:
    """The reachable states of an instance, up to the names of requests and of blocks.

    Raises:
        WorkloadError: a request of the instance could never be served.
    """
    machine = SpyreMachine.of(instance.config, instance.requests)
    places = place_function(instance, alike_in(instance))
    return early_end_model(instance, machine, canonical_in(instance), places)


def canonical_in(instance: Instance[SpyreConfig]) -> Callable[[State], State]:
    """The state with interchangeable requests and blocks named in the order of their places."""
    named: Callable[[State], State] = without_names(instance, alike_in(instance))
    return lambda state: with_blocks_in_order(named(state))


def alike_in(instance: Instance[SpyreConfig]) -> Callable[[Request], Hashable]:
    """What of a request must be equal for two to be interchangeable.

    With prefix caching that are their tokens, too; without, no rule looks at tokens.
    """

    def alike(one: Request) -> Hashable:
        tokens = tuple(one.prompt.tokens()) if instance.config.prefix_caching else None
        return one.prompt_len, one.max_tokens, one.output, tokens

    return alike
