"""The engine serving one case, on the paged device or with specified tokens."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias

import numpy as np
from attrs import define, evolve, field

from checks.harness.case import Case, External
from checks.harness.own_engine import EngineScheduler, has_token_ids
from checks.harness.paging.rows import Load
from checks.harness.paging.watch import receive_load
from checks.harness.speculation import proposed
from checks.harness.system import Action
from checks.policies.vllm_v1.reference import accepted_drafts, externals
from engine.core.tensors import Tensor
from engine.paged.device import PagedDevice
from engine.vllm_v1.decisions import DecisionObserver
from engine.vllm_v1.model_input import paged_shape
from engine.vllm_v1.observing import StepObserver
from engine.vllm_v1.plan import Blocks, Plan
from engine.vllm_v1.requests import RequestState
from engine.vllm_v1.scheduler import Scheduler
from engine.vllm_v1.serving import Connector, Engine, without_connector
from spec.core.records import Event
from spec.core.requests import VOCABULARY
from spec.vllm_v1.config import Connector as Loading
from spec.vllm_v1.config import Scheduling, VllmV1Config
from spec.vllm_v1.records import Step


def sampled_alone(scheduler: Scheduler, plan: Plan) -> Tensor:
    """The next tokens of each row that samples in the step, as if it were served alone.

    They include tokens after its drafts, as if all drafts were accepted.
    """
    tokens = scheduler.state.running.tokens
    wanted = [(row, tokens(row), 1) for row in (plan.batch.rows if plan.batch else ())]
    wanted += [(turn.row, turn.tokens, turn.samples) for turn in plan.turns]
    return np.array(
        [
            token
            for row, length, count in wanted
            for token in _outputs(row, length - row.request.prompt_len, count)
        ],
        np.int64,
    )


def _outputs(row: RequestState, first: int, count: int) -> list[int]:
    return [row.request.output_token(first + place) for place in range(count)]


@define
class Foreseen:
    """A drafter that makes as many right drafts as the environment accepts.

    `accepted`: the number of right drafts of the next step by request, 0 for others; None: by each
    request's `right_drafts`, or as configured. `proposed`: the number of drafts for the step after
    it, as many as are configured for others.
    """

    config: VllmV1Config
    accepted: Mapping[str, int] | None = None
    proposed: Mapping[str, int] = field(factory=dict)

    def __call__(self, row: RequestState, count: int) -> Tensor:
        """The row's next `count` tokens; those after the accepted ones are wrong."""
        tokens = np.array(_outputs(row, row.tokens - row.request.prompt_len, count), np.int64)
        right = self.right(row, count)
        tokens[right:] = (tokens[right:] + 1) % VOCABULARY
        return tokens

    def right(self, row: RequestState, count: int) -> int:
        """The number of right drafts among the row's next `count` drafts."""
        if self.accepted is not None:
            return min(self.accepted.get(row.id, 0), count)
        first = row.tokens - row.request.prompt_len
        return accepted_drafts(self.config, row.request, first, count)

    def proposes(self, row: RequestState, most: int) -> int:
        """The number of drafts for the row's next tokens, `most` at most."""
        if self.accepted is not None:
            return min(self.proposed.get(row.id, most), most)
        first = row.tokens - row.request.prompt_len
        return proposed(row.request.right_drafts or "0", first, most)


def device_connector(device: PagedDevice, block_size: int) -> Connector:
    """A connector that loads the keys and values of another instance onto the device."""

    def bring(tokens: Tensor, start: int, blocks: Blocks) -> None:
        receive_load(device, Load(tokens, start, blocks), block_size)

    return bring


class SpecifiedEngine(Engine):
    """The engine without a device: each request samples the tokens of a run alone."""

    def __init__(self, config: VllmV1Config, drafter: Foreseen) -> None:
        self.scheduler = Scheduler(config)
        self._drafter = drafter
        self._connector = without_connector
        self._foreseen = drafter

    def _verified(
        self, plan: Plan, _lost: Collection[str]
    ) -> tuple[Tensor, Mapping[str, int] | None]:
        drafted = (turn for turn in plan.turns if turn.drafts)
        right = {turn.row.id: self._foreseen.right(turn.row, turn.drafts) for turn in drafted}
        return self._sampled(plan), right

    def _sampled(self, plan: Plan) -> Tensor:
        return sampled_alone(self.scheduler, plan)


class SimulatedEngine(SpecifiedEngine):
    """The engine without a device, for requests of named streams: each samples token 0."""

    def __init__(self, config: VllmV1Config, drafter: Foreseen) -> None:
        super().__init__(config, drafter)
        self.scheduler.state.name_by_streams()

    def _sampled(self, plan: Plan) -> Tensor:
        return np.zeros(plan.samples, np.int64)


@define
class VllmV1Engine(EngineScheduler[Engine, Step]):
    """The engine with a drafter and a connector."""

    drafter: Foreseen = field(kw_only=True)
    external: Mapping[str, External] = field(kw_only=True)
    _may_propose_fewer: bool = field(init=False)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self._may_propose_fewer = any(
            "-" in (request.right_drafts or "") for request in self.requests
        )

    def arrive(self, request_id: str) -> None:
        """Hand in the request between two steps."""
        external = self.external.get(request_id, External(0))
        self.engine.add(self._by_id[request_id], external.tokens, external.if_lost)

    def step(self, index: int, action: Action) -> Step:
        """One scheduler step, after the loads and sends that end before it.

        Raises:
            ConstraintError: the device refuses the step.
            RuntimeError: the device failed; the default device never does.
        """
        named, sent = (*action.loaded, *action.lost), action.sent
        unanswered = sorted(self.engine.scheduler.state.unanswered)
        answered = action.answered if action.accepted is not None else unanswered
        compiling = sorted(self.engine.scheduler.state.noted.compiling)
        compiled = action.compiled if action.accepted is not None else compiling
        if action.accepted is None:
            # By default the workload's external tokens have come, and what has left is sent, but
            # not of requests that were just aborted.
            state, leaving = self.engine.scheduler.state, action.abort
            sending = (row.id for row in state.draining if row.sending)
            sent = (*sent, *(id_ for id_ in sending if id_ not in leaving))
            loading = [row for row in (*state.skipped, *state.draining) if row.id not in leaving]
            named = (*named, *(row.id for row in loading if row.request.external))
        ended = [Event("compiled", id_, "") for id_ in compiled if self.engine.compiled(id_)]
        ended += [Event("answered", id_, "") for id_ in answered if self.engine.answer(id_)]
        ended += [
            Event("load_failed" if id_ in action.lost else "loaded", id_, "")
            for id_ in dict.fromkeys(named)
            if self.engine.end_load(id_, id_ in action.lost)
        ]
        ended += [Event("sent", id_, "") for id_ in sent if self.engine.end_send(id_)]
        self.drafter.accepted, self.drafter.proposed = action.accepted, action.proposed
        step = super().step(index, action)
        if ended and isinstance(step, Step):
            return evolve(step, events=(*ended, *step.events))
        return step

    def _taken(self, action: Action) -> Any:
        is_full = not (action.proposed or (action.accepted is None and self._may_propose_fewer))
        proposes = None if is_full else self.drafter.proposes
        return self.engine.step(action.ends, action.lost, action.abort_running, proposes)


def new_device(config: VllmV1Config) -> PagedDevice:
    """A paged device with the sizes of the configuration."""
    return PagedDevice(paged_shape(config))


NewDevice: TypeAlias = Callable[[VllmV1Config], Any]


def engine(case: Case) -> VllmV1Engine:
    """The engine on the paged device."""
    return on_device(new_device(case.config), case)


def engine_under_test(case: Case, device: NewDevice = new_device) -> VllmV1Engine:
    """The engine on such a device, if the device supports the configuration; else without one.

    Blocks are hashed when a step is planned. If a load is then lost, or a request preempted by
    priority, hashed blocks are not computed; a later hit on them is false, and the device refuses.

    Raises:
        WorkloadError: a request could never be served.
    """
    config: VllmV1Config = case.config
    by_priority = config.scheduling is Scheduling.PRIORITY
    may_lose = by_priority or config.connector is Loading.SYNC
    if config.prefix_caching and may_lose:
        return without_device(case)
    return on_device(device(case.config), case)


def on_device(device: PagedDevice, case: Case) -> VllmV1Engine:
    """The engine on this device."""
    config, drafter = case.config, Foreseen(case.config)
    connector = device_connector(device, config.block_size)
    return _observed(Engine(config, device, drafter, connector), drafter, case)


def without_device(case: Case) -> VllmV1Engine:
    """The engine without a device, with the tokens of the specification."""
    drafter = Foreseen(case.config)
    return _observed(SpecifiedEngine(case.config, drafter), drafter, case)


def simulated(case: Case, records: bool = False) -> VllmV1Engine:
    """The engine without a device; `records`: its steps are records, else decisions."""
    drafter = Foreseen(case.config)
    kind = SpecifiedEngine if has_token_ids(case.requests) else SimulatedEngine
    return _observed(kind(case.config, drafter), drafter, case, records=records)


def _observed(
    serving: Engine, drafter: Foreseen, case: Case, *, records: bool = True
) -> VllmV1Engine:
    observer: Any = (StepObserver if records else DecisionObserver)(serving.scheduler)
    return VllmV1Engine(
        serving,
        observer,
        case.requests,
        drafter=drafter,
        external=externals(case),
    )
