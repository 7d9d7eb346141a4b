"""vLLM V1's scheduler with a device, a drafter and a connector."""

from collections.abc import Callable, Collection, Mapping
from typing import Protocol, TypeAlias

import numpy as np
from attrs import frozen

from engine.core import serving
from engine.core.faults import DeviceFailedError
from engine.core.scheduler import Ends
from engine.core.tensors import NO_TOKENS, Tensor
from engine.paged.inputs import PagedInput
from engine.vllm_v1.model_input import step_input
from engine.vllm_v1.plan import Admission, Blocks, Plan, Turn
from engine.vllm_v1.requests import RequestState
from engine.vllm_v1.results import Missing, Outcome, Proposes, as_prescribed
from engine.vllm_v1.scheduler import Scheduler
from spec.core.requests import Request
from spec.vllm_v1.config import VllmV1Config
from spec.vllm_v1.records import Load


class Device(Protocol):
    """A device that computes a batch of rows."""

    def compute(self, inputs: PagedInput) -> Tensor:
        """Compute the new tokens of every row: the sampled tokens [samples].

        Raises:
            ConstraintError: the device cannot do this step.
            DeviceFailedError: the device failed.
        """


# Proposes the next tokens of a row, at most the given number: [drafts].
Drafter: TypeAlias = Callable[[RequestState, int], Tensor]
# Brings the keys and values of a request's `tokens` from position `start` on to its blocks.
Connector: TypeAlias = Callable[[Tensor, int, Blocks], None]


@frozen
class Statistics(serving.Statistics):
    """The engine after a step: requests by queue, blocks that none holds."""

    running: int


StepResult: TypeAlias = serving.StepResult[Plan, Outcome, Statistics]


def without_drafts(_row: RequestState, count: int) -> Tensor:
    """A drafter that always proposes token 0."""
    return np.zeros(count, np.int64)


def without_connector(_tokens: Tensor, _start: int, _blocks: Blocks) -> None:
    """A connector that brings nothing."""


class Engine(serving.Engine[Device, Plan, Outcome, Statistics]):
    """Serves requests on one device."""

    scheduler: Scheduler

    def __init__(
        self,
        config: VllmV1Config,
        device: Device,
        drafter: Drafter = without_drafts,
        connector: Connector = without_connector,
    ) -> None:
        """An engine without requests."""
        super().__init__(Scheduler(config), device)
        self._drafter = drafter
        self._connector = connector

    def add(self, request: Request, external: int = 0, if_lost: int = 0) -> None:
        """A client hands in a request; `external`: tokens of it that the connector can bring.

        `if_lost`: those of them that come although the load is lost.

        Raises:
            WorkloadError: it could never be served, or its name was used before, see
                `engine.core.state.LeftNames`.
        """
        self.scheduler.add(request, external, if_lost)

    def end_load(self, request_id: str, failed: bool = False) -> bool:
        """The connector reports a load; False if the request does not load."""
        state = self.scheduler.state
        row = next((request for request in state.skipped if request.id == request_id), None)
        if row is not None and row.load is Load.LOADING:
            start = row.registered * state.config.block_size
            end = row.computed
            if failed:
                end = row.valid_after_loss(start, end, state.config.block_size)
            self._bring(row, start, end, row.blocks)
        return self.scheduler.end_load(request_id, failed)

    def answer(self, request_id: str) -> bool:
        """The connector says what it has of a request; False if that is known."""
        return self.scheduler.answer(request_id)

    def compiled(self, request_id: str) -> bool:
        """A request's grammar is ready; False if it was."""
        return self.scheduler.compiled(request_id)

    def end_send(self, request_id: str) -> bool:
        """The connector has sent a request's blocks, or given it up; False if it sends none."""
        return self.scheduler.end_send(request_id)

    def step(
        self,
        ends: Ends = None,
        lost: Collection[str] = (),
        leavers: tuple[str, ...] = (),
        proposes: Proposes | None = None,
    ) -> StepResult:
        """Plan a step, execute on the device the one whose results are due, apply both.

        That is the planned step itself; where steps may be in flight, the oldest of them or none.

        `ends`: the requests that sample the end of sequence in the step that is due; by default
        each ends where it says that it does. `lost`: requests whose external tokens should come
        within it and do not. `leavers`: requests whose clients go away while the model runs.
        `proposes`: how many drafts each row has in its next step; by default as many as are
        configured.

        Raises:
            ConstraintError: the device refuses the tensors; nothing has changed.
        """
        plan = self.scheduler.schedule()
        due = self.scheduler.results_due(plan)
        try:
            tokens, accepted = self._verified(due, lost) if due else (NO_TOKENS, None)
        except DeviceFailedError as failed:
            return serving.StepResult(plan, None, failed.kind, self._statistics())
        outcome = self.scheduler.update(plan, tokens, ends, accepted, lost, leavers, proposes)
        return serving.StepResult(plan, outcome, None, self._statistics())

    def _computed(self, plan: Plan) -> Tensor:
        return self._verified(plan, ())[0]

    def _verified(
        self, plan: Plan, lost: Collection[str]
    ) -> tuple[Tensor, Mapping[str, int] | None]:
        """The tokens that the device samples, and the number of accepted drafts by request."""
        state = self.scheduler.state
        drafts = {turn.row: self._drafts(turn) for turn in plan.turns if turn.drafts}
        computing = self._computing(plan, lost)
        given = step_input(state, plan, computing, drafts)
        sampled = NO_TOKENS if given is None else self._device.compute(given)
        if len(computing) == len(plan.turns) and not drafts:
            return sampled, None
        tokens = [sampled[: len(plan.batch.ids)] if plan.batch is not None else NO_TOKENS]
        sampled, accepted = sampled[len(tokens[0]) :], {}
        for turn in plan.turns:
            own = np.zeros(turn.samples, np.int64)
            if turn in computing:
                own, sampled = sampled[: turn.samples], sampled[turn.samples :]
                own = as_prescribed(turn, own)
            if turn.drafts:
                accepted[turn.row.id] = _accepted(drafts[turn.row], own)
            tokens.append(own)
        return np.concatenate(tokens), accepted

    def _drafts(self, turn: Turn) -> Tensor:
        """The row's drafts; those of a new request are only padding."""
        drafter = without_drafts if isinstance(turn, Admission) else self._drafter
        return drafter(turn.row, turn.drafts)

    def _computing(self, plan: Plan, lost: Collection[str]) -> list[Turn]:
        """The turns without missing blocks, after the connector has filled its blocks."""
        state = self.scheduler.state
        loads = [
            admission
            for admission in plan.turns
            if isinstance(admission, Admission) and admission.external
        ]
        for admission in loads:
            row, end = admission.row, admission.computed
            start = end - admission.external
            if row.id in lost:
                end = row.valid_after_loss(start, end, state.config.block_size)
            self._bring(row, start, end, admission.table)
        missing = Missing(
            [admission for admission in loads if admission.row.id in lost], state.config.block_size
        )
        return [turn for turn in plan.turns if missing.valid_tokens(turn) is None]

    def _bring(self, row: RequestState, start: int, end: int, blocks: Blocks) -> None:
        """The connector fills the request's blocks with its tokens from `start` to `end`."""
        if start < end:
            self._connector(self.scheduler.state.request_tokens(row, 0, end), start, blocks)

    def _statistics(self) -> Statistics:
        state = self.scheduler.state
        return Statistics(
            waiting=len(state.queue) + len(state.skipped),
            free_blocks=state.blocks.free.count,
            running=len(state.running.members),
        )


def _accepted(drafts: Tensor, sampled: Tensor) -> int:
    """Number of leading drafts that equal the sampled tokens."""
    wrong = np.flatnonzero(drafts != sampled[: len(drafts)])
    return int(wrong[0]) if len(wrong) else len(drafts)
