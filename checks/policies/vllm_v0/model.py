"""The vLLM V0 machine with its environment, as a state graph to explore.

In a step the environment decides which sequences end early, how many speculated tokens of each
group are right, and which group is preempted artificially, while such preemptions are left.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, combinations, product
from typing import TypeAlias

from attrs import evolve

from checks.explore.environment import MachineModel
from checks.explore.instance import Instance
from checks.explore.model import STEP, Transition
from checks.explore.returning import numbers_in_order, renumbered
from checks.remembered import machine_remembering
from reference.vllm_v0.decisions import Environment
from reference.vllm_v0.machine import VllmV0Machine
from spec.vllm_v0.config import VllmV0Config
from spec.vllm_v0.records import Context, Group, State, Step
from spec.vllm_v0.records import Sequence as Row

VllmV0Instance: TypeAlias = Instance[VllmV0Config]


def vllm_v0_model(instance: VllmV0Instance) -> MachineModel[Context, State]:
    """The reachable states of an instance.

    Raises:
        WorkloadError: a request of the instance could never be served.
    """
    machine = machine_remembering(VllmV0Machine.of(instance.config, instance.requests))

    def steps(state: State) -> Iterator[Transition[State]]:
        """A step for each combination of what the environment may decide."""
        if state.failure:
            return
        for victim in (None, *_may_be_preempted(state)):
            usual = machine.step(state, _environment((), {}, victim))
            for accepted in _accepted(instance, usual):
                taken = machine.step(state, _environment((), accepted, victim))
                for ending in _endings(instance, machine.ctx.owners, taken):
                    step = machine.step(state, _environment(ending, accepted, victim))
                    yield _as_transition(step, ending, accepted, victim)

    model = MachineModel(instance, machine, steps)
    return evolve(model, canonical=_with_blocks_in_order) if instance.returning else model


def _with_blocks_in_order(state: State) -> State:
    """The state with the blocks of both pools renumbered, see `with_blocks_in_order`."""
    groups = state.present
    if state.pool.keys or any(group.cross for group in groups):
        return state
    gpu, cpu = (
        numbers_in_order(pool, [group.blocks for group in groups if group.is_swapped is is_cpu])
        for pool, is_cpu in ((state.pool, False), (state.cpu, True))
    )

    def numbered(queue: tuple[Group, ...]) -> tuple[Group, ...]:
        return tuple(
            evolve(group, sequences=_numbered(group.sequences, cpu if group.is_swapped else gpu))
            for group in queue
        )

    return evolve(
        state,
        pool=renumbered(state.pool, gpu),
        cpu=renumbered(state.cpu, cpu),
        waiting=numbered(state.waiting),
        running=numbered(state.running),
        swapped=numbered(state.swapped),
    )


def _numbered(rows: tuple[Row, ...], numbers: Mapping[int, int]) -> tuple[Row, ...]:
    return tuple(evolve(row, blocks=tuple(numbers[block] for block in row.blocks)) for row in rows)


def _environment(
    ending: Sequence[str], accepted: Mapping[str, int], victim: str | None
) -> Environment:
    return Environment(
        ends=lambda sequence: sequence.id in ending,
        accepted=lambda group, slots: min(accepted.get(group.id, 0), slots),
        preempts=lambda group: group.id == victim,
    )


def _may_be_preempted(state: State) -> Iterable[str]:
    return [group.id for group in state.running] if state.artificial else ()


def _accepted(instance: VllmV0Instance, usual: Step) -> Iterator[dict[str, int]]:
    """Each combination of numbers of right tokens, by group that speculates."""
    config = instance.config
    slots = 0 if config.is_multi_step else config.num_lookahead_slots
    groups = [id_ for id_ in usual.sampling if slots and id_ not in usual.prefills]
    for combination in product(range(slots + 1), repeat=len(groups)):
        yield dict(zip(groups, combination, strict=True))


def _endings(
    instance: VllmV0Instance, owners: Mapping[str, str], taken: Step
) -> Iterable[tuple[str, ...]]:
    """Each set of sampling sequences that may end early and would not finish anyway."""
    unfinished = {row.id for group in taken.after.present for row in group.unfinished}
    sampled = [id_ for id_ in taken.sampled if id_ in unfinished]
    may_end = [id_ for id_ in sampled if owners[id_] in instance.early_ends]
    return chain.from_iterable(combinations(may_end, count) for count in range(len(may_end) + 1))


def _as_transition(
    step: Step, ending: tuple[str, ...], accepted: Mapping[str, int], victim: str | None
) -> Transition[State]:
    """The edge of a step; its label says what the environment decided."""
    decided = [f"{id_} ends" for id_ in ending]
    decided += [f"{id_} accepts {count}" for id_, count in accepted.items() if count]
    decided += [f"{victim} finds no slot"] if victim is not None else []
    label = ", ".join(["step", *decided])
    record = evolve(step, ended=ending)
    return Transition(label, step.after, record=record, fair=STEP if victim is None else 0)
