"""vLLM V1's scheduler, as `spec/chapters/vllm_v1.md` has it."""

from collections.abc import Collection, Mapping
from typing import Any

from engine.core import scheduler
from engine.core.scheduler import Ends
from engine.core.tensors import NO_TOKENS, Tensor
from engine.vllm_v1 import apply, landing
from engine.vllm_v1.plan import Plan
from engine.vllm_v1.planning import plan_step
from engine.vllm_v1.requests import RequestState
from engine.vllm_v1.results import Outcome, Proposes, Results
from engine.vllm_v1.sessions import take_turn
from engine.vllm_v1.state import SchedulerState
from spec.core.requests import Request, refuse_unlike_turns
from spec.vllm_v1.config import VllmV1Config
from spec.vllm_v1.requests import refuse_unservable


class Scheduler(scheduler.Scheduler[SchedulerState, Plan, Outcome]):
    """Each request catches up with its tokens, as far as budget and blocks allow."""

    def __init__(self, config: VllmV1Config) -> None:
        """A scheduler without requests."""
        super().__init__(SchedulerState.of(config))

    def add(self, request: Request, external: int = 0, if_lost: int = 0) -> RequestState | None:
        """A client hands in a request, or the next turn of a session.

        `external`: tokens of it that the connector can bring. `if_lost`: those of them that come
        although the load is lost.

        Raises:
            WorkloadError: it could never be served, or its name was used before, see
                `engine.core.state.LeftNames`.
        """
        noted = self.state.noted
        is_turn = request.id in noted.awaited or request.id in noted.expected
        if request.continued_by is not None:
            noted.expected.add(request.continued_by)
        if is_turn:
            refuse_unservable(request, self.state.config)
            refuse_unlike_turns(request)
            return take_turn(self.state, request)
        newcomer: RequestState = super().add(request)
        newcomer.external, newcomer.if_lost = external, if_lost
        config = self.state.config
        newcomer.unanswered = config.late_lookups and newcomer.is_brought(config.behaviour)
        self.state.noted.arrivals += 1
        if request.grammar:
            self.state.noted.compiling.add(newcomer.id)
        if request.grammar and not config.behaviour.holders_first:
            self.state.queue.remove(newcomer)
            self.state.skip(newcomer)
        return newcomer

    def end_load(self, request_id: str, failed: bool = False) -> bool:
        """The connector reports a load; False if the request does not load."""
        self._planned = None
        return apply.end_load(self.state, request_id, failed)

    def answer(self, request_id: str) -> bool:
        """The connector says what it has of a request; False if that is known."""
        self._planned = None
        return apply.answer(self.state, request_id)

    def compiled(self, request_id: str) -> bool:
        """A request's grammar is ready; False if it was."""
        self._planned = None
        return apply.compiled(self.state, request_id)

    def end_send(self, request_id: str) -> bool:
        """The connector has sent a request's blocks, or given it up; False if it sends none."""
        self._planned = None
        return apply.end_send(self.state, request_id)

    @property
    def has_requests(self) -> bool:
        """True if a request has arrived and not left, or a step is in flight."""
        return super().has_requests or bool(self.state.flights)

    def results_due(self, plan: Plan) -> Plan | None:
        """The step whose results come when this plan is applied, as the device does it.

        The plan itself; where steps may be in flight the oldest of them, or None.
        """
        return landing.results_due(self.state, plan) if self.state.config.steps_in_flight else plan

    def update(
        self,
        plan: Plan,
        tokens: Tensor = NO_TOKENS,
        ends: Ends = None,
        accepted: Mapping[str, int] | None = None,
        lost: Collection[str] = (),
        leavers: tuple[str, ...] = (),
        proposes: Proposes | None = None,
    ) -> Outcome:
        """The device has done the step that is due: apply the plan, and what it sampled.

        `tokens` [samples]: in the order in which the step that is due has the rows, of each as many
        as it has drafts and one more. The others: see `Results`.

        Raises:
            StalePlanError: another plan has been made since, or this one was applied.
            ValueError: not as many tokens as were to be sampled.
        """
        due = self.results_due(plan)
        self._take(plan, tokens, 0 if due is None else due.samples)
        results = Results(ends, accepted or {}, lost, leavers, proposes)
        if self.state.config.steps_in_flight:
            return landing.launch_and_land(self.state, plan, due, tokens, results)
        return self._apply(plan, tokens, results)

    def _newcomer(self, request: Request) -> RequestState:
        refuse_unservable(request, self.state.config)
        newcomer = RequestState.of(request)
        if self.state.by_priority:
            newcomer.arrival = self.state.noted.arrivals
        return newcomer

    def _plan(self) -> Plan:
        return plan_step(self.state)

    def _apply(self, plan: Plan, tokens: Tensor, results: Results) -> Outcome:
        return apply.apply_plan(self.state, plan, tokens, results)

    def _remove(self, request: Any) -> None:
        apply.remove(self.state, request)

    def _restart(self) -> None:
        apply.restart(self.state)
