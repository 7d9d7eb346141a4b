"""The vLLM V1 machine with its environment, as a state graph to explore.

In a step the environment decides which requests end early, how many drafts are accepted and how
many are proposed next, which loads fail and which request is aborted; between steps it decides when
and how a load or a send ends, and when a lookup is answered.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import TypeAlias

from attrs import evolve, frozen

from checks.explore.environment import MachineModel
from checks.explore.instance import FEWER_DRAFTS, LEAVES, Instance
from checks.explore.model import STEP, Transition, load_class
from checks.explore.returning import with_blocks_in_order
from checks.remembered import machine_remembering
from reference.vllm_v1.machine import VllmV1Machine
from reference.vllm_v1.step import Environment
from spec.core.errors import ConfigError
from spec.vllm_v1.config import Connector, VllmV1Config
from spec.vllm_v1.records import Context, Flight, Load, State, Step
from spec.vllm_v1.rules.counting import brought

VllmV1Instance: TypeAlias = Instance[VllmV1Config]


@frozen
class Choice:
    """What the environment decides for one request in a step.

    `proposed`: drafts for its next step; None: as many as are configured.
    """

    id: str
    accepted: int = 0
    proposed: int | None = None
    ends: bool = False
    loses: bool = False

    def __str__(self) -> str:
        parts = {
            f"accepts {self.accepted}": self.accepted,
            f"{FEWER_DRAFTS} {self.proposed}": self.proposed is not None,
            "ends": self.ends,
            "loses its load": self.loses,
        }
        words = " and ".join(word for word, is_so in parts.items() if is_so)
        return f"{self.id} {words}" if words else ""


def vllm_v1_model(instance: VllmV1Instance) -> MachineModel[Context, State]:
    """The reachable states of an instance.

    Raises:
        WorkloadError: a request of the instance could never be served.
        ConfigError: clients return while steps are in flight, which may still name them, or where
            there are several groups of layers.
    """
    if instance.returning and instance.config.steps_in_flight:
        raise ConfigError("steps_in_flight", instance.config.steps_in_flight, "0 with returning")
    if instance.returning and instance.config.kv_groups is not None:
        # Blocks are renumbered by the tables of one group.
        raise ConfigError("kv_groups", instance.config.kv_groups, "no such key with returning")
    if instance.config.kv_groups is not None:
        instance = evolve(instance, failing=frozenset())  # lost loads are not modelled beside them
    machine = machine_remembering(
        VllmV1Machine.of(instance.config, instance.requests, instance.external)
    )
    model = MachineModel(
        instance, machine, steps=step_transitions(instance, machine), has_work=has_work
    )
    config = instance.config
    waits = any(request.grammar or request.continued_by for request in instance.requests)
    if config.connector is Connector.ASYNC or config.sends or config.late_lookups or waits:
        between = transfer_transitions(instance, machine)
        model = evolve(model, between=between, later_turns=frozenset(machine.ctx.earlier_turns))
    return evolve(model, canonical=with_blocks_in_order) if instance.returning else model


def has_work(state: State) -> bool:
    """True if a request has arrived and not left, or a step is in flight."""
    return len(state.present) > len(state.awaited) or bool(state.flights)


def _loading(state: State) -> list[str]:
    return [row.id for row in (*state.skipped, *state.draining) if row.load is Load.LOADING]


def _is_transferring(state: State) -> bool:
    loads = any(row.load is Load.LOADING for row in state.skipped)
    return bool(loads or state.draining or state.held_back - state.awaited)


def transfer_transitions(
    instance: VllmV1Instance, machine: VllmV1Machine
) -> Callable[[State], Iterator[Transition[State]]]:
    """Transitions that end a load or a send, answer a lookup, or make a grammar ready.

    They are fair. The turn of a session, which may arrive or not, is not. A load is completed or
    lost. How a send ends makes no difference: what failed to be sent is given back, too.
    """
    fair = {request.id: load_class(place) for place, request in enumerate(instance.requests)}

    def transfers(state: State) -> Iterator[Transition[State]]:
        for id_ in _loading(state):
            yield Transition(f"loaded {id_}", machine.end_load(state, id_), fair=fair[id_])
            if id_ in instance.failing:
                yield Transition(f"lost {id_}", machine.end_load(state, id_, failed=True))
        for id_ in sorted(state.unanswered):
            yield Transition(f"answered {id_}", machine.answer(state, id_), fair=fair[id_])
        for id_ in sorted(state.compiling):
            yield Transition(f"compiled {id_}", machine.compiled(state, id_), fair=fair[id_])
        for id_ in _turns_to_come(instance, machine.ctx, state):
            yield Transition(f"arrive {id_}", machine.arrive(state, id_))
        for row in state.draining:
            if row.sending:
                after = machine.end_send(state, row.id)
                yield Transition(f"sent {row.id}", after, fair=fair[row.id])

    return transfers


def _turns_to_come(instance: VllmV1Instance, ctx: Context, state: State) -> Iterator[str]:
    """The turns that may arrive: those awaited, and those whose earlier turn is under way.

    One that comes `after` another comes when that has ended.
    """
    under_way = {row.id for row in state.present} - state.awaited | state.early
    for request in instance.requests:
        earlier = ctx.earlier_turns.get(request.id)
        may_be_early = request.after is None and request.id not in under_way
        if request.id in state.awaited or (may_be_early and earlier in under_way):
            yield request.id


def step_transitions(
    instance: VllmV1Instance, machine: VllmV1Machine
) -> Callable[[State], Iterator[Transition[State]]]:
    """A step for each combination of the environment's choices, with one leaver at most.

    During a load or a send, a step that changes nothing is left out: the scheduler waits.
    """

    def steps(state: State) -> Iterator[Transition[State]]:
        waits = _is_transferring(state)
        usual = machine.step(state, Environment(ends=lambda _row: False))
        deciding = _deciding(usual)
        choices = [list(_choices(instance, machine.ctx, usual, id_)) for id_ in deciding]
        may_leave = [row.id for row in usual.planned.present if row.id in instance.leavers]
        for leavers in ((), *((id_,) for id_ in may_leave)):
            for combination in product(*choices):
                step = machine.step(state, _environment(combination, leavers))
                if step.after != state or not waits:
                    yield _as_transition(step, combination)

    return steps


def _deciding(step: Step) -> list[str]:
    """The requests for which the environment decides something where the results come."""
    landed = step.results_of
    if landed is None:
        return [*step.scheduled]
    running = {row.id for row in step.after.running}
    return [*dict.fromkeys([*step.outputs, *(id_ for id_ in landed.external if id_ in running)])]


def _choices(
    instance: VllmV1Instance, ctx: Context, usual: Step, request_id: str
) -> Iterator[Choice]:
    """The possible choices for one request; `usual`: the step with default choices."""
    row = next(present for present in usual.planned.present if present.id == request_id)
    drafts = _verified(ctx, usual).get(request_id, 0)
    left = ctx.requests[request_id].max_tokens - row.generated
    for accepted in range(drafts + 1):
        yield Choice(request_id, accepted)
        if request_id in usual.outputs and accepted + 1 < left and not ctx.config.steps_in_flight:
            for proposed in _fewer(instance, request_id):
                yield Choice(request_id, accepted, proposed)
    has_more = left > 1
    if request_id in usual.outputs and has_more and request_id in instance.early_ends:
        yield Choice(request_id, ends=True)
    if request_id in brought(ctx, usual) and request_id in instance.failing:
        yield Choice(request_id, loses=True)


def _verified(ctx: Context, step: Step) -> Mapping[str, int]:
    """Drafts by request whose results come in the step, but for padding."""
    drafts, padded = step.drafts, step.admitted
    if ctx.config.steps_in_flight:
        landed = step.results_of or Flight({})
        drafts, padded = landed.drafts, landed.padded
    return {id_: count for id_, count in drafts.items() if id_ not in padded}


def _fewer(instance: VllmV1Instance, request_id: str) -> range:
    """How many drafts may be proposed for the request where they are not as many as configured."""
    is_allowed = request_id in instance.fewer_drafts
    return range(instance.config.num_speculative_tokens if is_allowed else 0)


def _environment(choices: Iterable[Choice], leavers: tuple[str, ...]) -> Environment:
    by_id = {choice.id: choice for choice in choices}
    return Environment(
        ends=lambda row: by_id[row.id].ends,
        accepted=lambda row, drafts: min(by_id[row.id].accepted, drafts),
        proposes=lambda row, most: _or_all(by_id[row.id].proposed, most),
        loses=lambda request_id: by_id[request_id].loses,
        leavers=leavers,
    )


def _or_all(proposed: int | None, most: int) -> int:
    return most if proposed is None else proposed


def _as_transition(step: Step, choices: Sequence[Choice]) -> Transition[State]:
    """The edge of a step; its label says what the environment decided."""
    decided = [*filter(None, map(str, choices)), *(f"{id_} {LEAVES}" for id_ in step.leavers)]
    ended = tuple(choice.id for choice in choices if choice.ends)
    label = ", ".join(["step", *decided])
    return Transition(label, step.after, record=evolve(step, ended=ended), fair=STEP)
