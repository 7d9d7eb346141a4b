"""Decisions of a step of nano-vLLM, from its plan."""

from collections.abc import Mapping

from engine.core import decisions
from engine.core.clock import Prefill, Work, attended
from engine.core.scheduler import Outcome
from engine.nano_vllm.observing import Observer
from engine.nano_vllm.plan import Plan, PrefillPlan
from engine.nano_vllm.scheduler import Scheduler
from engine.nano_vllm.state import SchedulerState


class DecisionObserver(decisions.DecisionObserver[SchedulerState, Plan, Outcome]):
    """Watches one scheduler step by step."""

    _scheduler: Scheduler

    def _state_observer(self) -> Observer:
        return Observer(self._scheduler)

    def _work(self, plan: Plan, _outcome: Outcome) -> tuple[Work, int, int]:
        """All rows of a prefill step begin and end their prefill in it."""
        if not isinstance(plan, PrefillPlan):
            rows = len(plan.batch.ids)
            read = plan.batch.computed(self._state.running.steps - 1)
            work = Work(kind=plan.kind, rows=rows, cached_tokens=read, attended_tokens=read + rows)
            return work, rows, rows
        size = self._state.config.block_size
        prefills = tuple(
            Prefill(row.request.id, row.request.prefill_len, len(row.hits) * size)
            for row in plan.admissions
        )
        new = sum(prefill.tokens - prefill.reused for prefill in prefills)
        work = Work(
            kind=plan.kind,
            chunk_tokens=new,
            cached_tokens=sum(prefill.reused for prefill in prefills),
            attended_tokens=sum(
                attended(prefill.reused, prefill.tokens - prefill.reused) for prefill in prefills
            ),
            prefills=prefills,
        )
        return work, new, len(prefills)

    def _transitions(self, plan: Plan) -> Mapping[str, int]:
        if isinstance(plan, PrefillPlan) or not plan.moves:
            return {}
        return {"preempt": sum(block is None for _, block in plan.moves)}
