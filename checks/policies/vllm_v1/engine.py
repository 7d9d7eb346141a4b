"""The engine as a scheduler that serves one case, on the paged device or as specified."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias

import numpy as np
from attrs import define, evolve, field

from checks.harness.case import Case
from checks.harness.own_engine import EngineScheduler
from checks.harness.paging.rows import Load
from checks.harness.paging.watch import receive_load
from checks.harness.system import Action
from checks.policies.vllm_v1.reference import External, accepted_drafts, externals
from engine.core.tensors import Tensor
from engine.paged.device import PagedDevice
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
    """What each row that samples in the step samples next if it is served alone.

    Behind its drafts, too, as if all of them were accepted.
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
    """A drafter whose drafts are right as far as the environment accepts them.

    `accepted`: drafts of the next step, by request, of others none; None: as each request says, or
    as configured.
    """

    config: VllmV1Config
    accepted: Mapping[str, int] | None = None

    def __call__(self, row: RequestState, count: int) -> Tensor:
        """The row's next tokens, wrong from the first on that is not accepted."""
        tokens = np.array(_outputs(row, row.tokens - row.request.prompt_len, count), np.int64)
        right = self.right(row, count)
        tokens[right:] = (tokens[right:] + 1) % VOCABULARY
        return tokens

    def right(self, row: RequestState, count: int) -> int:
        """How many of the row's next drafts are right."""
        if self.accepted is not None:
            return min(self.accepted.get(row.id, 0), count)
        first = row.tokens - row.request.prompt_len
        return accepted_drafts(self.config, row.request, first, count)


def connector_of(device: PagedDevice, block_size: int) -> Connector:
    """Brings what another instance, which is a device of its own, has computed."""

    def bring(tokens: Tensor, start: int, blocks: Blocks) -> None:
        receive_load(device, Load(tokens, start, blocks), block_size)

    return bring


class SpecifiedEngine(Engine):
    """The engine without a device: each request samples what it samples when served alone."""

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
        return sampled_alone(self.scheduler, plan), right


@define
class VllmV1Engine(EngineScheduler[Engine, Step]):
    """The engine with a drafter and a connector."""

    drafter: Foreseen = field(kw_only=True)
    external: Mapping[str, External] = field(kw_only=True)

    def arrive(self, request_id: str) -> None:
        """The request is handed in between two steps."""
        has = self.external.get(request_id)
        self.engine.add(self._by_id[request_id], 0 if has is None else has.tokens)

    def step(self, index: int, action: Action) -> Step:
        """One scheduler step, after the loads that end before it.

        Raises:
            ConstraintError: the device refuses the step.
            RuntimeError: the device failed, which by default it does not.
        """
        named = (*action.loaded, *action.lost)
        if action.accepted is None:
            # Nothing is said: what the workload names has come, not as a client has only just left.
            state, leaving = self.engine.scheduler.state, action.abort
            loading = [one for one in (*state.skipped, *state.draining) if one.id not in leaving]
            named = (*named, *(one.id for one in loading if one.request.external))
        ended = [
            Event("load_failed" if one in action.lost else "loaded", one, "")
            for one in dict.fromkeys(named)
            if self.engine.end_load(one, one in action.lost)
        ]
        self.drafter.accepted = action.accepted
        step = super().step(index, action)
        return evolve(step, events=(*ended, *step.events)) if ended else step

    def _taken(self, action: Action) -> Any:
        return self.engine.step(action.ends, action.lost, action.abort_running)


def new_device(config: VllmV1Config) -> PagedDevice:
    """A paged device of the sizes of the configuration."""
    return PagedDevice(paged_shape(config))


NewDevice: TypeAlias = Callable[[VllmV1Config], Any]


def engine(case: Case) -> VllmV1Engine:
    """The engine on the paged device."""
    return on_device(new_device(case.config), case)


def engine_under_test(case: Case, device: NewDevice = new_device) -> VllmV1Engine:
    """The engine on such a device, if that can do all that the configuration leads to.

    Blocks are hashed when a step is planned. What is then not computed, of a load that is lost or a
    victim by priority, is a false hit, which the device refuses.

    Raises:
        WorkloadError: a request that could never be served.
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
    connector = connector_of(device, config.block_size)
    return _observed(Engine(config, device, drafter, connector), drafter, case)


def without_device(case: Case) -> VllmV1Engine:
    """The engine, where the device's part is what the specification says of the tokens."""
    drafter = Foreseen(case.config)
    return _observed(SpecifiedEngine(case.config, drafter), drafter, case)


def _observed(serving: Engine, drafter: Foreseen, case: Case) -> VllmV1Engine:
    return VllmV1Engine(
        serving,
        StepObserver(serving.scheduler),
        case.requests,
        drafter=drafter,
        external=externals(case),
    )
