"""Decisions of a Spyre step, from its plan."""

from collections.abc import Mapping

from engine.core import decisions
from engine.core.clock import Prefill, Work, attended
from engine.spyre.observing import Observer
from engine.spyre.scheduler import DecodePlan, Outcome, Plan, PrefillPlan, Scheduler
from engine.spyre.scheduler.state import SchedulerState
from spec.spyre.padding import volume


class DecisionObserver(decisions.DecisionObserver[SchedulerState, Plan, Outcome]):
    """Watches one scheduler step by step."""

    _scheduler: Scheduler

    def _state_observer(self) -> Observer:
        return Observer(self._scheduler)

    def _work(self, plan: Plan, outcome: Outcome) -> tuple[Work, int, int]:
        """A chunk reads the tokens before it; a row all of its tokens but the newest."""
        match plan:
            case PrefillPlan():
                return self._chunk(plan, outcome.tkv)
            case DecodePlan(rows=batch):
                rows, real = len(batch), batch.total_computed
                size = int(volume(rows, plan.tkv))
                work = Work(
                    kind=plan.kind,
                    rows=rows,
                    cached_tokens=real - rows,
                    attended_tokens=real,
                    volume=size,
                    padding=size - real,
                )
                return work, rows, rows
        return Work(kind=plan.kind), 0, 0

    def _chunk(self, plan: PrefillPlan, tkv: int) -> tuple[Work, int, int]:
        chunk = plan.chunk
        new = chunk.end - chunk.start
        began = Prefill(chunk.id, tkv, chunk.cached_tokens, chunk.inner_padding)
        work = Work(
            kind=plan.kind,
            chunk_tokens=new,
            cached_tokens=chunk.start,
            attended_tokens=attended(chunk.start, new),
            prefills=(began,) if plan.is_new else (),
            volume=int(volume(1, tkv)),
            padding=self._state.config.chunk_size - new,
        )
        return work, new, 1

    def _transitions(self, plan: Plan) -> Mapping[str, int]:
        if isinstance(plan, PrefillPlan):
            return {}
        counts = {"pause": len(plan.newly_paused)}
        if isinstance(plan, DecodePlan):
            counts |= {"preempt": len(plan.preempted), "jump_tkv": plan.jumps}
        return {name: count for name, count in counts.items() if count}
