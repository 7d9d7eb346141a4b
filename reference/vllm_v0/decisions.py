"""The decisions of a step as they accumulate, and those that the environment makes."""

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
    accepted: Callable[[Group, int], int]
    preempts: Callable[[Group], bool]


def seqs_of(ctx: Context, group: Group) -> int:
    """Sequences that the group counts for: those that it will have, or those that it has."""
    will_fork = ctx.config.choices.counts_siblings and group.generated == 0
    return ctx.requests[group.id].n if will_fork else len(group.unfinished)


@define
class Spending:
    """What a step has scheduled so far of what it may (vllm-v0, "Scheduling Budget").

    `remaining`: tokens; `free_seqs`: sequences. `batched`, `cached`, `seqs`: as in `Budget`.
    `overlooked`: groups whose sequences are not counted any more.
    """

    remaining: int
    free_seqs: int
    batched: dict[str, int] = field(factory=dict)
    cached: dict[str, int] = field(factory=dict)
    seqs: dict[str, int] = field(factory=dict)
    overlooked: set[str] = field(factory=set)

    def count(self, request_id: str, seqs: int, tokens: int = 0, cached: int = 0) -> None:
        """Count a group's sequences and tokens, in the place of those counted before."""
        self.refund(request_id)
        self.batched[request_id], self.cached[request_id] = tokens, cached
        self.remaining -= tokens
        if request_id not in self.overlooked:
            self.seqs[request_id] = seqs
            self.free_seqs -= seqs

    def refund(self, request_id: str) -> None:
        """Count a group no longer."""
        self.remaining += self.batched.pop(request_id, 0)
        self.free_seqs += self.seqs.pop(request_id, 0)
        self.cached.pop(request_id, None)

    def admits(self, tokens: int, seqs: int) -> bool:
        """True if these uncached tokens and sequences fit the budget."""
        return tokens <= self.remaining and seqs <= self.free_seqs


@define
class Decisions(Run[Context, State]):
    """A step while it is being decided.

    `scheduled`: tokens of each group with those that are cached, in the order of the decisions.
    `new`, `swapped_in`, `running`: where these came from. `chunked`: those that compute a prompt.
    `loras`: adapters in the batch. `infeasible`: swapped groups that are ignored, reported
    behind the others. `refusal`: the rule that ended the walk over the waiting queue.
    All others are as in `Step`.
    """

    env: Environment = field(kw_only=True)
    budget: Spending = field(init=False)
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
    infeasible: list[str] = field(factory=list)
    swaps_out: Pairs = ()
    swaps_in: Pairs = ()
    copies: Pairs = ()
    refusal: str | None = None

    def __attrs_post_init__(self) -> None:
        self.budget = Spending(self.config.token_budget, self.config.max_num_seqs)

    @property
    def config(self) -> VllmV0Config:
        """The configuration."""
        return self.ctx.config

    @property
    def preempts(self) -> bool:
        """True if a running group gave its blocks up for want of slots."""
        return len(self.preempted) + len(self.swapped_out) > len(self.by_priority)

    def count(self, group: Group, tokens: int = 0, cached: int = 0) -> None:
        """A running group takes its places in the budget, and its adapter one in the batch."""
        self.budget.count(group.id, seqs_of(self.ctx, group), tokens, cached)
        self.loras.add(self.ctx.requests[group.id].lora)

    def schedule(self, group: Group, tokens: int, cached: int = 0) -> None:
        """A group computes `tokens` tokens beyond its cached ones."""
        self.scheduled[group.id] = tokens + cached
        if group.is_prefill:
            self.chunked.add(group.id)
        self.count(group, tokens, cached)

    def spent(self) -> Budget:
        """What was counted."""
        limits = self.config.token_budget, self.config.max_num_seqs
        return Budget(*limits, self.budget.batched, self.budget.cached, self.budget.seqs)
