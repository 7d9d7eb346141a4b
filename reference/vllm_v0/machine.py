"""The vLLM V0 machine: first state, arrivals and aborts, steps."""

from collections.abc import Iterable
from typing import Any, ClassVar

from attrs import frozen

from reference.core.block_pool import new_pool
from reference.core.frozen_map import FrozenMap
from reference.core.machine import ReferenceMachine
from reference.vllm_v0 import transitions
from reference.vllm_v0.decisions import Environment
from reference.vllm_v0.step import scheduler_step
from spec.core.requests import Request
from spec.vllm_v0.config import VllmV0Config, refuse_unservable
from spec.vllm_v0.records import Context, Sequence, State, Step, context_of


@frozen
class VllmV0Machine(ReferenceMachine[Context, State]):
    """A scheduler for one configuration and a set of requests that may arrive."""

    transitions: ClassVar[Any] = transitions

    @staticmethod
    def of(config: VllmV0Config, requests: Iterable[Request]) -> "VllmV0Machine":
        """The machine for these requests.

        Raises:
            WorkloadError: a request that could never be served.
        """
        ctx = context_of(config, requests)
        for request in ctx.requests.values():
            refuse_unservable(request, config)
        return VllmV0Machine(ctx)

    def initial(self) -> State:
        """No request has arrived, all blocks are free."""
        config = self.ctx.config
        return State(
            pool=new_pool(config.pool_blocks),
            cpu=new_pool(config.num_cpu_blocks),
            marks=FrozenMap(),
            artificial=config.artificial_preemptions,
        )

    def step(
        self, state: State, environment: Environment, index: int = 0, time: float = 0.0
    ) -> Step:
        """One scheduler step; `environment`: what it does not decide."""
        return scheduler_step(self.ctx, state, environment, index=index, time=time)

    def sequence_ends(self, sequence: Sequence) -> bool:
        """True if the sequence has all that it samples."""
        return sequence.generated >= self.ctx.sequences[sequence.id].end
