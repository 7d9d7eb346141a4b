"""Spyre's scheduler, as `spec/chapters/spyre.md` has it."""

from math import inf
from typing import Any

from engine.core import scheduler
from engine.core.blocks import BlockManager
from engine.core.scheduler import Ends
from engine.core.tensors import Tensor
from engine.spyre.scheduler import apply
from engine.spyre.scheduler.admission import LastChunk
from engine.spyre.scheduler.decode import plan_decode
from engine.spyre.scheduler.plan import IdlePlan, Outcome, Plan
from engine.spyre.scheduler.prefill import plan_prefill
from engine.spyre.scheduler.requests import Line, RequestState, WaitingQueue
from engine.spyre.scheduler.state import SchedulerState
from spec.core.errors import ConfigError
from spec.core.requests import Request
from spec.spyre.config import SpyreConfig, refuse_unservable
from spec.spyre.variants import Queue, Reading


class Scheduler(scheduler.Scheduler[SchedulerState, Plan, Outcome]):
    """Continuous batching under Spyre's constraints."""

    def __init__(self, config: SpyreConfig) -> None:
        """A scheduler without requests.

        Raises:
            ConfigError: a reading other than the text's: the engine has none of 2.6.3's defects.
        """
        if config.reading is not Reading.TEXT:
            raise ConfigError("reading", config.reading, f"{Reading.TEXT}; the engine has no other")
        queue = WaitingQueue(by_shape=config.queue is Queue.OVERTAKING, line=_line(config))
        blocks = BlockManager(config.pool_blocks)
        super().__init__(SchedulerState(config, blocks, queue, LastChunk(config)))

    def add(self, request: Request) -> RequestState:
        """Add a request at the end of the waiting queue; its grammar and images are not ready.

        Raises:
            WorkloadError: as the base class.
        """
        newcomer: RequestState = super().add(request)
        self.state.awaited.add(request)
        return newcomer

    def compiled(self, request_id: str) -> bool:
        """A request's grammar is ready; False if it was."""
        return self._made_ready(self.state.awaited.compiling, request_id)

    def encoded(self, request_id: str) -> bool:
        """The encoder is done with the images of a request; False if it was, or has none."""
        return self._made_ready(self.state.awaited.encoding, request_id)

    def unencodable(self, request_id: str) -> bool:
        """The images of a request cannot be encoded: it leaves; False if it waits for none."""
        return request_id in self.state.awaited.encoding and self.abort(request_id)

    def _made_ready(self, awaited: set[str], request_id: str) -> bool:
        self._planned = None
        if request_id not in awaited:
            return False
        awaited.discard(request_id)
        return True

    def _newcomer(self, request: Request) -> RequestState:
        refuse_unservable(request, self.state.config)
        return RequestState.of(request)

    def _plan(self) -> Plan:
        """The plan of the next step, and whose images the encoder is given with it."""
        plan = self._plan_work()
        plan.given = self.state.awaited.next_given(self.state.config.max_num_seqs)
        return plan

    def _plan_work(self) -> Plan:
        """A prefill of one chunk if a request may have it, else a decode, else nothing.

        Source: spyre, "Priority rules".
        """
        state = self.state
        prefill, refusal = plan_prefill(state)
        if prefill is not None:
            return prefill
        if len(state.decoding) or len(state.paused):
            return plan_decode(state, refusal)
        return IdlePlan(refusal)

    def _apply(self, plan: Plan, tokens: Tensor, ends: Ends) -> Outcome:
        return apply.apply_plan(self.state, plan, tokens, ends)

    def _remove(self, request: Any) -> None:
        apply.remove(self.state, request)

    def _restart(self) -> None:
        apply.restart(self.state)


def _line(config: SpyreConfig) -> Line | None:
    """What is chosen by its width and not by its place; `shortest` has no end."""
    if not config.queue.is_by_width:
        return None
    most = config.max_overtakes + 1 if config.queue is Queue.ALIGNED else inf
    share = config.max_batch_tkv_limit // config.max_num_seqs
    return Line(share + config.chunk_size, most)
