"""The Spyre machine with its environment, as a state graph to explore."""

from collections.abc import Callable, Hashable, Iterator

from attrs import evolve

from checks.explore.environment import MachineModel, early_end_model
from checks.explore.instance import Instance
from checks.explore.model import Transition, load_class
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
    places = place_function(instance, request_likeness(instance))
    model = early_end_model(instance, machine, canonical_state(instance), places)
    if any(request.grammar or request.has_images for request in instance.requests):
        return evolve(model, between=preparations(instance, machine))
    return model


def preparations(
    instance: Instance[SpyreConfig], machine: SpyreMachine
) -> Callable[[State], Iterator[Transition[State]]]:
    """Transitions that make a grammar ready, encode images, or fail to; the last are not fair."""
    fair = {request.id: load_class(place) for place, request in enumerate(instance.requests)}

    def ready(state: State) -> Iterator[Transition[State]]:
        for id_ in sorted(state.compiling):
            yield Transition(f"compiled {id_}", machine.compiled(state, id_), fair=fair[id_])
        for id_ in sorted(state.encoding):
            yield Transition(f"encoded {id_}", machine.encoded(state, id_), fair=fair[id_])
            yield Transition(f"unencodable {id_}", machine.unencodable(state, id_))

    return ready


def canonical_state(instance: Instance[SpyreConfig]) -> Callable[[State], State]:
    """A function that names interchangeable requests and blocks in the order of their places."""
    named: Callable[[State], State] = without_names(instance, request_likeness(instance))
    return lambda state: with_blocks_in_order(named(state))


def request_likeness(instance: Instance[SpyreConfig]) -> Callable[[Request], Hashable]:
    """A function whose value is equal for interchangeable requests.

    With prefix caching their tokens must be equal, too; without, no rule looks at tokens.
    """

    def alike(request: Request) -> Hashable:
        tokens = tuple(request.prompt.tokens()) if instance.config.prefix_caching else None
        awaited = request.grammar, request.has_images
        return request.prompt_len, request.max_tokens, request.output, awaited, tokens

    return alike
