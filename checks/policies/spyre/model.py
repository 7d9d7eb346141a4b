"""The Spyre machine with its environment, as a state graph to explore."""

from collections import defaultdict
from collections.abc import Hashable
from typing import TypeAlias

from attrs import evolve

from checks.explore.environment import EnvironmentModel
from checks.explore.instance import Instance as AnyInstance
from checks.explore.properties import Properties, properties_of_rules
from reference.spyre.machine import SpyreMachine
from spec.spyre.config import SpyreConfig
from spec.spyre.records import Context, Step
from spec.spyre.rules import applicable
from spec.spyre.state import Sequence, State

Instance: TypeAlias = AnyInstance[SpyreConfig]


class SpyreModel(EnvironmentModel[SpyreConfig, State]):
    """The reachable states of an instance; interchangeable requests are not told apart."""

    def __init__(self, instance: Instance, machine: SpyreMachine | None = None) -> None:
        """`machine` replaces the reference, for planted faults.

        Raises:
            WorkloadError: a request of the instance could never be served.
        """
        reference = machine or SpyreMachine.of(instance.config, instance.requests)
        super().__init__(instance, reference)
        self.ctx: Context = reference.ctx
        self._classes = _interchangeable(instance)

    def canonical(self, state: State) -> Hashable:
        """The state with interchangeable requests named in the order of their places."""
        if not self._classes:
            return state
        return _renamed(state, self._classes)


def properties_of(model: SpyreModel) -> Properties[State]:
    """The rules that apply to the instance."""
    return properties_of_rules(applicable(model.instance.config), model.ctx, Step)


# --- symmetry -----------------------------------------------------------------------------------


def _interchangeable(instance: Instance) -> tuple[tuple[str, ...], ...]:
    """Groups of requests that differ in nothing but their id.

    With prefix caching their tokens must be equal too; without, no rule looks at tokens.
    """
    groups: dict[Hashable, list[str]] = defaultdict(list)
    for request in instance.requests:
        tokens = tuple(request.prompt.tokens()) if instance.config.prefix_caching else None
        groups[
            request.prompt_len,
            request.max_tokens,
            tokens,
            request.output,
            request.id in instance.aborts,
            request.id in instance.early_ends,
        ].append(request.id)
    return tuple(tuple(group) for group in groups.values() if len(group) > 1)


def _renamed(state: State, classes: tuple[tuple[str, ...], ...]) -> State:
    """The representative: within a class, names follow the places, first the ones present."""
    order = [one.id for one in (*state.waiting, *state.admitted)]
    order += [*sorted(state.finished), *sorted(state.aborted)]
    names: dict[str, str] = {}
    for group in classes:
        names.update(zip((one for one in order if one in group), group, strict=False))
    if all(old == new for old, new in names.items()):
        return state

    def renamed(queue: tuple[Sequence, ...]) -> tuple[Sequence, ...]:
        return tuple(evolve(one, id=names.get(one.id, one.id)) for one in queue)

    slot = renamed(() if state.prefilling is None else (state.prefilling,))
    return evolve(
        state,
        waiting=renamed(state.waiting),
        prefilling=slot[0] if slot else None,
        decoding=renamed(state.decoding),
        paused=renamed(state.paused),
        finished=frozenset(names.get(one, one) for one in state.finished),
        aborted=frozenset(names.get(one, one) for one in state.aborted),
    )
