"""Token counts: the tokens of a group that a step computes.

Source: vllm-v0, "Calculating New Cached & Uncached Tokens", "Chunking New Tokens Based on Budget".
"""

from attrs import define

from reference.vllm_v0 import block_manager
from reference.vllm_v0.block_manager import EngineEnds
from reference.vllm_v0.decisions import Decisions
from spec.vllm_v0.config import (
    chunk_of,
    uncached_tokens,
)
from spec.vllm_v0.records import Context, Group, State


@define
class Partial:
    """Prompts that share a step's budget, and how many long ones are under way.

    `slots`: prompts that the budget is divided by. `long`: those above the threshold. Source: vLLM
    0.9.2; the text has no more than the keys.
    """

    slots: int
    long: int

    @classmethod
    def of(cls, ctx: Context, state: State) -> "Partial":
        """As a step finds them: those under way, and those that may begin."""
        config = ctx.config
        under_way = [group for group in state.running if group.is_prefill]
        slots, long = len(under_way), sum(is_long(ctx, group) for group in under_way)
        begun = 0
        for group in state.waiting:
            if is_long(ctx, group):
                if long + begun >= config.max_long_partial_prefills:
                    continue
                begun += 1
            slots += 1
        return cls(min(slots, config.max_num_partial_prefills), long)

    def admits(self, run: Decisions, group: Group) -> bool:
        """False where enough prompts are under way, or for a long one enough long ones."""
        config = run.config
        if config.max_num_partial_prefills == 1:
            return True
        is_full = self.long >= config.max_long_partial_prefills
        return _leaves_a_place(run) and not (is_full and is_long(run.ctx, group))

    def note(self, run: Decisions, group: Group) -> None:
        """A prompt begins."""
        self.long += is_long(run.ctx, group)


def _leaves_a_place(run: Decisions) -> bool:
    """True if fewer prompts stay unfinished than may be under way."""
    unfinished = sum(
        group.is_prefill and group.computed + run.scheduled.get(group.id, 0) < group.tokens
        for group in run.state.running
    )
    is_free = unfinished < run.config.max_num_partial_prefills
    return is_free or run.config.choices.begins_with_leftovers


def is_long(ctx: Context, group: Group) -> bool:
    """True if what is left of the prompt is longer than the threshold."""
    return group.tokens - group.computed > ctx.config.long_threshold


def new_tokens(
    run: Decisions, group: Group, share: Partial | None, chunks: bool | None = None
) -> tuple[int, int]:
    """Uncached and cached tokens that the group would compute in this step.

    Source: vllm-v0, "Calculating New Cached & Uncached Tokens" and "Chunking New Tokens Based on
    Budget". `chunks`: prompts are cut, by default where the strategy cuts them.

    Raises:
        EngineEnds: under the release, a prompt comes back from the CPU with more computed tokens
            than the cache had of it.
    """
    cuts = run.config.chunked_prefill if chunks is None else chunks
    if not group.is_prefill:
        return _decoding(run, len(group.unfinished), share, cuts), 0
    missing = group.tokens - group.computed
    known = cached_tokens(run, group)
    is_short = run.config.prefix_caching and known < group.computed
    if group.is_swapped and is_short and not run.config.choices.swaps_in_chunks:
        raise EngineEnds("fewer tokens are cached than computed")
    hit = max(known - group.computed, 0)
    uncached = int(uncached_tokens(missing, hit))
    cached = missing - uncached if hit >= missing else hit
    return (_cut(run, uncached, share) if cuts else uncached), cached


def cached_tokens(run: Decisions, group: Group) -> int:
    """Tokens that the cache has of the group, as they were when this was first asked."""
    if group.cached is not None:
        return group.cached
    return block_manager.cached_tokens(run.ctx, run.state, group)


def _decoding(run: Decisions, count: int, share: Partial | None, cuts: bool) -> int:
    """Tokens of a group of `count` decoding sequences: all of them, or none."""
    choices = run.config.choices
    if count == 1 and cuts and choices.rounds_decodes:
        return _cut(run, 1, share)
    return count if choices.overdraws or count <= run.budget.remaining else 0


def _cut(run: Decisions, tokens: int, share: Partial | None) -> int:
    """The tokens of a prompt that fit this step; all or none under multi-step."""
    config, left = run.config, max(run.budget.remaining, 0)
    if config.is_multi_step:
        return tokens if tokens > config.prompt_limit or tokens <= left else 0
    size = config.block_size if config.prefix_caching else 1
    own = config.token_budget if share is None else config.token_budget // max(share.slots, 1)
    if not config.choices.shares_any_budget:
        own = max(own, size)
    return int(chunk_of(tokens, left, own, size))


def samples(ctx: Context, group: Group, tokens: int) -> bool:
    """True if the group samples: its prompt is complete ("Managing Prefill Sequences & Sampling").

    The text has the first chunk sample, too.
    """
    complete = group.computed + tokens >= group.tokens
    return complete or (group.computed == 0 and ctx.config.choices.samples_first_chunk)
