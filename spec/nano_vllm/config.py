"""The configuration of a nano-vLLM scheduler: every key and, where texts differ, each reading.

Source: nano-vllm, the sections named at each choice, and the released commit 9e8507e that the text
describes; "later commit" is bb823b3. Lengths are in tokens.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, ClassVar

from attrs import frozen

from spec.core.blocks import block_count
from spec.core.configuration import PolicyConfig, checked_keys
from spec.core.errors import ConfigError
from spec.core.requests import Oversized, Request, refuse_above, refuse_too_long


class TokenGate(StrEnum):
    """What an admission adds to the tokens of the step before they are compared with the budget.

    `full_length`: all tokens of the sequence, as released; once it is admitted, only those that
    are not cached count. `new_tokens`: only those that are not cached, as "Why Prefix Caching
    Matters in Practice" says and the later commit does.
    """

    FULL_LENGTH = "full_length"
    NEW_TOKENS = "new_tokens"


class MemoryGate(StrEnum):
    """How many free blocks an admission asks for.

    `all_blocks`: as many as the sequence has, found in the cache or not, as text and release say.
    `new_blocks`: without those that another sequence holds already, as the later commit does.
    """

    ALL_BLOCKS = "all_blocks"
    NEW_BLOCKS = "new_blocks"


class SequenceLimit(StrEnum):
    """What `max_num_seqs` limits; the text has no such limit.

    `batch`: the sequences of one step, as released. `running`: the running queue.
    """

    BATCH = "batch"
    RUNNING = "running"


class NewBlock(StrEnum):
    """When a running sequence needs a new block.

    `after_boundary`: when its length, the newest token counted, is one more than a multiple of
    the block, as released. `at_boundary`: when it is such a multiple, as the figure "One Decode
    Step: What Happens" can be read ("256 tokens so far", "at boundary").
    """

    AFTER_BOUNDARY = "after_boundary"
    AT_BOUNDARY = "at_boundary"


class HitCheck(StrEnum):
    """What makes a block that the lookup table names a hit.

    `nothing`: being named, as "With Prefix Cache: Reuse the Work" says. `tokens`: holding the
    tokens that are looked for, as released; those before them are not compared. `hash`: still
    carrying the hash that is looked for; ours.
    """

    NOTHING = "nothing"
    TOKENS = "tokens"
    HASH = "hash"


class FullHit(StrEnum):
    """What becomes of a sequence whose blocks are all full and cached; the text does not say.

    `all_cached`: nothing is computed, as released. `last_computed`: its last block is not looked
    up, as in the later commit. `last_decoded`: it runs, but is in no prefill; its last token is
    what it decodes first, as in nano-vllm-voxcpm.
    """

    ALL_CACHED = "all_cached"
    LAST_COMPUTED = "last_computed"
    LAST_DECODED = "last_decoded"


class Prefill(StrEnum):
    """Whether the tokens of a prefill may be cut to the budget.

    `whole`: all of them are computed in one step, as text and release say. `first_chunked`: the
    first sequence of a prefill step computes as many as the budget allows and stays in front of
    waiting, with all its blocks, until the rest is computed, as in the later commit.
    """

    WHOLE = "whole"
    FIRST_CHUNKED = "first_chunked"


class Hashing(StrEnum):
    """When a full block gets its hash.

    `allocated`: when it is handed out, or when decoding begins to fill it, as released; the lookup
    table forgets nothing. `computed`: at the end of the step that computed its last token, as in
    the later commit; the lookup table forgets a block that is handed out again.
    """

    ALLOCATED = "allocated"
    COMPUTED = "computed"


class GraphSizes(StrEnum):
    """The batch sizes for which decoding was captured.

    `powers_of_two`: as "CUDA Graphs" says. `released`: 1, 2, 4, 8, then the multiples of 16 up
    to the largest batch.
    """

    POWERS_OF_TWO = "powers_of_two"
    RELEASED = "released"


@frozen(kw_only=True, field_transformer=checked_keys)
class NanoVllmConfig(PolicyConfig):
    """What a nano-vLLM scheduler is configured with; lengths in tokens.

    The defaults are the released ones, but for `oversized`.

    - `policy`: which scheduler; "nano-vllm".
    - `block_size`: tokens per KV block.
    - `num_blocks`: KV blocks of the pool; None: enough for `max_num_seqs` at full length.
    - `max_num_seqs`: the sequence limit.
    - `max_num_batched_tokens`: the budget of a prefill step.
    - `max_model_len`: longest prompt plus output.
    - `token_gate`, `memory_gate`: what an admission is held against.
    - `sequence_limit`: what `max_num_seqs` limits.
    - `new_block`: when a running sequence needs a new block.
    - `hit_check`: what makes a block a hit.
    - `full_hit`: what becomes of a sequence that is cached as a whole.
    - `prefill`: whether the tokens of a prefill may be cut to the budget.
    - `hashing`: when a full block gets its hash.
    - `graph_sizes`: the batch sizes for which decoding was captured.
    - `oversized`: what becomes of a request that can never be served.
    - `prefill_time`, `decode_time`: how long a step takes on the simulated clock.

    Raises:
        ConfigError: a value of the wrong type or outside its range, a budget that is less than
            the model length though no prefill is cut (the release refuses it, too), or two
            readings that exclude each other.
    """

    # With blocks of 1 no length is one more than a multiple of the block.
    LEAST: ClassVar[Mapping[str, int]] = {"block_size": 2}
    LATER: ClassVar[tuple[str, ...]] = ("prefill", "hashing")

    policy: str = "nano-vllm"
    block_size: int = 256
    num_blocks: int | None = None
    max_num_seqs: int = 512
    max_num_batched_tokens: int = 16_384
    max_model_len: int = 4_096
    token_gate: TokenGate = TokenGate.FULL_LENGTH
    memory_gate: MemoryGate = MemoryGate.ALL_BLOCKS
    sequence_limit: SequenceLimit = SequenceLimit.BATCH
    new_block: NewBlock = NewBlock.AFTER_BOUNDARY
    hit_check: HitCheck = HitCheck.TOKENS
    full_hit: FullHit = FullHit.ALL_CACHED
    prefill: Prefill = Prefill.WHOLE
    hashing: Hashing = Hashing.ALLOCATED
    graph_sizes: GraphSizes = GraphSizes.RELEASED
    oversized: Oversized = Oversized.REFUSED
    prefill_time: float = 8.0
    decode_time: float = 1.0

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        is_whole = self.prefill is Prefill.WHOLE
        if is_whole and self.max_num_batched_tokens < self.max_model_len:
            allowed = f"at least max_model_len ({self.max_model_len})"
            raise ConfigError("max_num_batched_tokens", self.max_num_batched_tokens, allowed)
        # Its last token fills a block, so that it would be handed one behind all of its tokens.
        is_early = self.new_block is NewBlock.AT_BOUNDARY
        if is_early and self.full_hit is FullHit.LAST_DECODED:
            raise ConfigError("full_hit", self.full_hit, "with new_block at_boundary another one")


def documented(**overrides: Any) -> NanoVllmConfig:
    """Every choice as the text reads to the letter."""
    values: dict[str, Any] = {
        "token_gate": TokenGate.NEW_TOKENS,
        "sequence_limit": SequenceLimit.RUNNING,
        "new_block": NewBlock.AT_BOUNDARY,
        "hit_check": HitCheck.NOTHING,
        "graph_sizes": GraphSizes.POWERS_OF_TWO,
        "oversized": Oversized.QUEUED,
    }
    return NanoVllmConfig(**(values | overrides))


def repaired(**overrides: Any) -> NanoVllmConfig:
    """The choices under which what the text promises holds."""
    values: dict[str, Any] = {
        "token_gate": TokenGate.NEW_TOKENS,
        "sequence_limit": SequenceLimit.RUNNING,
        "hit_check": HitCheck.HASH,
        "full_hit": FullHit.LAST_COMPUTED,
        "graph_sizes": GraphSizes.POWERS_OF_TWO,
    }
    return NanoVllmConfig(**(values | overrides))


def newest(**overrides: Any) -> NanoVllmConfig:
    """The choices of the later commit."""
    values: dict[str, Any] = {
        "token_gate": TokenGate.NEW_TOKENS,
        "memory_gate": MemoryGate.NEW_BLOCKS,
        "full_hit": FullHit.LAST_COMPUTED,
        "prefill": Prefill.FIRST_CHUNKED,
        "hashing": Hashing.COMPUTED,
    }
    return NanoVllmConfig(**(values | overrides))


def refuse_unservable(request: Request, config: NanoVllmConfig) -> None:
    """Raise if no scheduler could ever serve the request, unless such ones are queued.

    The key and value of its last token are never written, so that token needs no slot.

    Raises:
        WorkloadError: it exceeds the model length or the whole pool.
    """
    if config.oversized is Oversized.QUEUED:
        return
    refuse_too_long(request, config)
    blocks = block_count(request.prompt_len + request.max_tokens - 1, config.block_size)
    refuse_above("blocks of prompt_len + max_tokens - 1", blocks, "num_blocks", config.pool_blocks)
