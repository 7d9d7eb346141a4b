"""nano-vLLM's scheduler; its rules are in `spec/chapters/nano_vllm.md`."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from engine.core import scheduler
from engine.core.decoding import RequestState
from engine.core.requests import WaitingQueue
from engine.core.scheduler import Ends, Outcome
from engine.core.tensors import Tensor
from engine.nano_vllm import apply
from engine.nano_vllm.blocks import BlockManager
from engine.nano_vllm.decode import plan_decode
from engine.nano_vllm.plan import Plan, PrefillPlan
from engine.nano_vllm.prefill import plan_admissions
from engine.nano_vllm.running import Running
from engine.nano_vllm.state import SchedulerState
from spec.core.errors import ConfigError
from spec.core.requests import Request
from spec.nano_vllm.config import FullHit, Hashing, NanoVllmConfig, Prefill, refuse_unservable

REFERENCE_ALONE: Mapping[str, StrEnum] = MappingProxyType(
    {
        "full_hit": FullHit.LAST_DECODED,
        "prefill": Prefill.FIRST_CHUNKED,
        "hashing": Hashing.COMPUTED,
    }
)
"""The readings of the configuration that this scheduler does not have."""


class Scheduler(scheduler.Scheduler[SchedulerState, Plan, Outcome]):
    """Prefill all requests that can be admitted, else decode ("The Entire Logic")."""

    def __init__(self, config: NanoVllmConfig) -> None:
        """A scheduler without requests.

        Raises:
            ConfigError: the configuration selects a reading that only the reference implements.
        """
        for key, alone in REFERENCE_ALONE.items():
            if getattr(config, key) is alone:
                others = " or ".join(value for value in type(alone) if value is not alone)
                allowed = f"{others}: the reference alone has this reading"
                raise ConfigError(key, alone, allowed)
        running = Running(config.max_num_seqs, config.block_size)
        blocks = BlockManager(config.pool_blocks)
        super().__init__(SchedulerState(config, blocks, WaitingQueue(), running))

    def _newcomer(self, request: Request) -> RequestState:
        refuse_unservable(request, self.state.config)
        return RequestState.of(request)

    def _plan(self) -> Plan:
        admissions, refusal = plan_admissions(self.state)
        if admissions:
            return PrefillPlan(admissions, refusal)
        return plan_decode(self.state, refusal)

    def _apply(self, plan: Plan, tokens: Tensor, ends: Ends) -> Outcome:
        if isinstance(plan, PrefillPlan):
            return apply.apply_prefill(self.state, plan, tokens, ends)
        return apply.apply_decode(self.state, plan, tokens, ends)

    def _remove(self, request: Any) -> None:
        apply.remove(self.state, request)

    def _restart(self) -> None:
        apply.restart(self.state)
