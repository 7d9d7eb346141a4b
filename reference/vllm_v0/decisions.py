"""A step while it is being decided, and what the environment decides in it."""

from collections.abc import Callable

from attrs import define, field, frozen

from reference.core.run import Run
from spec.vllm_v0.config import (
    VllmV0Config,
)
from spec.vllm_v0.records import Budget, Context, Group, Pairs, Sequence, State


@frozen
class Environment:
    """What the scheduler does not decide.

    `ends`: does the sequence sample end-of-sequence as its last token? `accepted`: how many of the
    tokens that a group speculates on are right? `preempts`: does the check for free slots fail
    without a reason, as long as the configuration has such failures left?
    """

    ends: Callable[[Sequence], bool]
    accepted: Callable[[Group, int], int] = lambda _group, _slots: 0
    preempts: Callable[[Group], bool] = lambda _group: False


def seqs_of(ctx: Context, group: Group) -> int:
    """Sequences that the group counts for: those that it will have, or those that it has."""
    is_forked = len(group.sequences) > 1
    will_fork = ctx.config.choices.counts_siblings and group.generated == 0
    return ctx.requests[group.id].n if will_fork and not is_forked else len(group.unfinished)


@define(kw_only=True)
class Decisions(Run[Context, State]):
    """A step while it is being decided.

    `scheduled`: tokens of each group with those that are cached, in the order of the decisions.
    `new`, `swapped_in`, `running`: where these came from. `chunked`: those that compute a prompt.
    `loras`: adapters in the batch. `slots_taken`: prompts that may still begin, and long ones under
    way, see `Partial`. `refusal`: the rule that ended the walk over the waiting queue.
    """

    env: Environment
    budget: Budget
    scheduled: dict[str, int] = field(factory=dict)
    new: list[str] = field(factory=list)
    swapped_in: list[str] = field(factory=list)
    running: list[str] = field(factory=list)
    chunked: set[str] = field(factory=set)
    loras: set[int] = field(factory=set)
    preempted: list[str] = field(factory=list)
    swapped_out: list[str] = field(factory=list)
    by_priority: list[str] = field(factory=list)
    ignored: list[str] = field(factory=list)
    swaps_out: Pairs = ()
    swaps_in: Pairs = ()
    copies: Pairs = ()
    refusal: str | None = None

    @property
    def config(self) -> VllmV0Config:
        """The configuration."""
        return self.ctx.config

    @property
    def preempts(self) -> bool:
        """True if a running group gave its blocks up for want of slots."""
        return len(self.preempted) + len(self.swapped_out) > len(self.by_priority)

    def group(self, request_id: str) -> Group:
        """The running group of this name."""
        return next(one for one in self.state.running if one.id == request_id)

    def schedule(self, group: Group, tokens: int, cached: int = 0) -> None:
        """Note that a group computes so many tokens beyond those that are cached."""
        self.scheduled[group.id] = tokens + cached
        if group.is_prefill:
            self.chunked.add(group.id)
        self.budget = self.budget.counted(group.id, seqs_of(self.ctx, group), tokens, cached)
        self.loras.add(self.ctx.requests[group.id].lora)
