"""Decisions of a step of vLLM V1, from its plan."""

from collections.abc import Mapping

from engine.core import decisions
from engine.core.clock import Prefill, Work, attended
from engine.vllm_v1.observing import Observer
from engine.vllm_v1.plan import Admission, Plan, Turn
from engine.vllm_v1.results import Outcome
from engine.vllm_v1.scheduler import Scheduler
from engine.vllm_v1.state import SchedulerState
from spec.core.records import DECODE, IDLE, PREFILL


class DecisionObserver(decisions.DecisionObserver[SchedulerState, Plan, Outcome]):
    """Watches one scheduler step by step."""

    _scheduler: Scheduler

    def _state_observer(self) -> Observer:
        return Observer(self._scheduler)

    def _work(self, plan: Plan, _outcome: Outcome) -> tuple[Work, int, int]:
        """Rows of a batch decode; each other turn is a chunk, or decodes with its drafts."""
        rows = tokens = read = chunk_tokens = 0
        if plan.batch is not None:
            rows = tokens = len(plan.batch.ids)
            read = plan.batch.computed(self._state.running.steps - 1)
        pairs, turns, chunks = read + rows, plan.turns, 0
        for turn in turns:
            tokens += turn.new
            read += turn.computed
            pairs += attended(turn.computed, turn.new)
            if _decodes(turn):
                rows += 1
            else:
                chunks += 1
                chunk_tokens += turn.new
        kind = PREFILL if chunks else DECODE if rows else IDLE
        work = Work(
            kind=kind,
            chunk_tokens=chunk_tokens,
            rows=rows,
            cached_tokens=read,
            attended_tokens=pairs,
            prefills=tuple(
                Prefill(turn.row.id, turn.tokens, turn.computed)
                for turn in turns
                if isinstance(turn, Admission)
            ),
        )
        return work, tokens, rows + chunks

    def _transitions(self, plan: Plan) -> Mapping[str, int]:
        return {"preempt": len(plan.preempted)} if plan.preempted else {}


def _decodes(turn: Turn) -> bool:
    """True if only the newest token of the row was not computed."""
    tokens = turn.tokens + turn.awaited
    return turn.computed == tokens - 1 and tokens > turn.row.request.prompt_len
