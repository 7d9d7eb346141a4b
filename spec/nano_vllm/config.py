"""The configuration of a nano-vLLM scheduler, and the formulas of its text.

Source: nano-vllm, the sections named at each function, and the released commit 9e8507e that the
text describes; "later commit" is bb823b3. Lengths are in tokens; every formula takes integers or
solver terms.
"""

from array import array
from collections.abc import Mapping, Sequence
from enum import StrEnum
from hashlib import blake2b
from typing import Any, ClassVar

from attrs import frozen

from spec.core.arithmetic import Number, Truth, floor_div, select
from spec.core.configuration import PolicyConfig, checked_keys
from spec.core.errors import ConfigError, WorkloadError
from spec.core.requests import BlockKey, BlockKeys, Request
from spec.spyre.padding import block_count


class TokenGate(StrEnum):
    """What an admission adds to the tokens of the step before they are held against the budget.

    `full_length`: all tokens of the sequence, as released; once it is admitted, only those that
    are not cached count. `new_tokens`: only those that are not cached, as "Why Prefix Caching
    Matters in Practice" says and the later commit does.
    """

    FULL_LENGTH = "full_length"
    NEW_TOKENS = "new_tokens"


class MemoryGate(StrEnum):
    """How many free blocks an admission asks for.

    `all_blocks`: as many as the sequence has, found in the cache or not, as text and release say.
    `new_blocks`: without those that somebody else holds already, as the later commit does.
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
    up, as in the later commit.
    """

    ALL_CACHED = "all_cached"
    LAST_COMPUTED = "last_computed"


class GraphSizes(StrEnum):
    """The batch sizes for which decoding was captured.

    `powers_of_two`: as "CUDA Graphs" says. `released`: 1, 2, 4, 8, then the multiples of 16 up
    to the largest batch.
    """

    POWERS_OF_TWO = "powers_of_two"
    RELEASED = "released"


class Oversized(StrEnum):
    """What becomes of a request that pool or model length can never hold; the text is silent.

    `refused`: it is not taken in; ours. `queued`: it waits like any other, as released.
    """

    REFUSED = "refused"
    QUEUED = "queued"


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
    - `graph_sizes`: the batch sizes for which decoding was captured.
    - `oversized`: what becomes of a request that can never be served.
    - `prefill_time`, `decode_time`: how long a step takes on the simulated clock.

    Raises:
        ConfigError: a value of the wrong type or outside its range, or a budget that is less
            than the model length (the release refuses it, too).
    """

    LEAST: ClassVar[Mapping[str, int]] = {
        "block_size": 2,  # with 1 no length is one more than a multiple of the block
        "num_blocks": 1,
        "max_num_seqs": 1,
        "max_num_batched_tokens": 1,
        "max_model_len": 1,
    }

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
    graph_sizes: GraphSizes = GraphSizes.RELEASED
    oversized: Oversized = Oversized.REFUSED
    prefill_time: float = 8.0
    decode_time: float = 1.0

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if self.max_num_batched_tokens < self.max_model_len:
            allowed = f"at least max_model_len ({self.max_model_len})"
            raise ConfigError("max_num_batched_tokens", self.max_num_batched_tokens, allowed)


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


# --- blocks of a sequence -------------------------------------------------------------------------


def sequence_blocks(length: Number, block_size: Number) -> Number:
    """Blocks of a sequence of `length` tokens ("What Blocks Look Like in GPU Memory")."""
    return block_count(length, block_size)


def starts_block(length: Number, block_size: Number, reading: NewBlock) -> Truth:
    """True if the newest of `length` tokens needs a new block ("The Decode Path", step 2)."""
    return length % block_size == (1 if reading is NewBlock.AFTER_BOUNDARY else 0)


def fills_block(length: Number, block_size: Number) -> Truth:
    """True if the newest of `length` tokens fills its block, which is then hashed."""
    return length % block_size == 0


def lookup_blocks(length: Number, block_size: Number, reading: FullHit) -> Number:
    """Leading blocks that are looked up at an admission: the full ones, and maybe not the last."""
    return floor_div(length - (1 if reading is FullHit.LAST_COMPUTED else 0), block_size)


# --- the gates ------------------------------------------------------------------------------------


def counted_tokens(length: Number, cached: Number, gate: TokenGate) -> Number:
    """What a sequence of `length` tokens, `cached` of them cached, weighs in the token gate."""
    return length if gate is TokenGate.FULL_LENGTH else length - cached


def within_budget(batched: Number, counted: Number, budget: Number) -> Truth:
    """Gate 1 ("Admission Checks"): the step's tokens and the sequence's fit the budget."""
    return batched + counted <= budget


def can_allocate(free: Number, blocks: Number, shared: Number, gate: MemoryGate) -> Truth:
    """Gate 2 ("Admission Checks"): there are enough free blocks.

    `shared`: blocks that are found in the cache and held by somebody.
    """
    return free >= (blocks if gate is MemoryGate.ALL_BLOCKS else blocks - shared)


def can_append(free: Number, length: Number, block_size: Number, reading: NewBlock) -> Truth:
    """True if the free blocks suffice for the newest token ("BlockManager")."""
    return free >= select(starts_block(length, block_size, reading), 1, 0)


# --- what the runner is handed --------------------------------------------------------------------


def slot(block: Number, position: Number, block_size: Number) -> Number:
    """Where `block` holds the token at `position` of its sequence ("Block Tables")."""
    return block * block_size + position % block_size


def block_index(position: Number, block_size: Number) -> Number:
    """Place in the block table of the token at `position` ("Block Tables")."""
    return floor_div(position, block_size)


def captured_sizes(largest: int, reading: GraphSizes) -> tuple[int, ...]:
    """Batch sizes for which decoding is captured where batches have up to `largest` sequences.

    Source: "CUDA Graphs"; the released commit.
    """
    if reading is GraphSizes.POWERS_OF_TWO:
        return tuple(1 << bits for bits in range((largest - 1).bit_length() + 1))
    return (1, 2, 4, 8, *range(16, largest + 1, 16))


def graph_batch_size(batch: int, largest: int, reading: GraphSizes) -> int | None:
    """The captured size that a decode batch is padded to; None if no size holds it."""
    return next((size for size in captured_sizes(largest, reading) if size >= batch), None)


def block_bytes(
    layers: Number, heads: Number, head_dim: Number, element_bytes: Number, block_size: Number
) -> Number:
    """Bytes of one block: keys and values of every layer ("Physical KV Cache")."""
    return layers * 2 * heads * head_dim * element_bytes * block_size


# --- what is hashed -------------------------------------------------------------------------------

_CONTENT_BYTES = 8


class ContentKeys(BlockKeys):
    """Keys that tell a block's hash, which is chained, and its own tokens, which are not.

    The released block carries both: the lookup table maps the hash, the hit check compares the
    tokens. `content` is the part of a key that stands for the tokens.
    """

    def __init__(self, requests: Mapping[str, Request], block_size: int) -> None:
        """`requests` by id; `block_size` in tokens."""
        super().__init__(requests, block_size)
        self._contents: dict[str, list[bytes]] = {}

    def of(self, request_id: str, blocks: int) -> Sequence[BlockKey]:
        """Keys of the request's first `blocks` blocks, prompt and sampled tokens alike."""
        contents = self._contents.setdefault(request_id, [])
        if len(contents) < blocks:
            contents += self._contents_from(request_id, len(contents), blocks)
        hashes = super().of(request_id, blocks)
        return [hash_ + content for hash_, content in zip(hashes, contents, strict=False)]

    def forget(self, request_id: str) -> None:
        """Drop what is kept for a request that has left."""
        super().forget(request_id)
        self._contents.pop(request_id, None)

    def _contents_from(self, request_id: str, first: int, end: int) -> list[bytes]:
        size = self._block_size
        tokens = leading_tokens(self._requests[request_id], end * size)
        return [_digest(tokens[index * size : (index + 1) * size]) for index in range(first, end)]


def content(key: BlockKey) -> bytes:
    """The part of a key that is equal for blocks of equal tokens, whatever comes before them."""
    return key[-_CONTENT_BYTES:]


def leading_tokens(request: Request, count: int) -> list[int]:
    """The first `count` tokens of the request, prompt and then output."""
    outputs = range(max(count - request.prompt_len, 0))
    return [*request.prompt.tokens()[:count], *(request.output_token(index) for index in outputs)]


def _digest(tokens: Sequence[int]) -> bytes:
    return blake2b(array("q", tokens).tobytes(), digest_size=_CONTENT_BYTES).digest()


# --- what rules may look up -----------------------------------------------------------------------


@frozen
class NanoVllmContext:
    """The configuration, the requests by id, the keys of their blocks."""

    config: NanoVllmConfig
    requests: Mapping[str, Request]
    keys: BlockKeys

    @staticmethod
    def of(config: NanoVllmConfig, requests: Mapping[str, Request]) -> "NanoVllmContext":
        """The context with the keys that belong to it."""
        return NanoVllmContext(config, requests, ContentKeys(requests, config.block_size))


def refuse_oversized(request: Request, config: NanoVllmConfig) -> None:
    """Raise if no scheduler could ever serve the request under this configuration.

    The key and value of its last token are never written, so that token needs no slot.

    Raises:
        WorkloadError: it exceeds the model length or the whole pool.
    """
    total = request.prompt_len + request.max_tokens
    if total > config.max_model_len:
        allowed = f"at most max_model_len ({config.max_model_len})"
        raise WorkloadError("prompt_len + max_tokens", total, allowed)
    blocks = sequence_blocks(total - 1, config.block_size)
    if blocks > config.pool_blocks:
        allowed = f"at most num_blocks ({config.pool_blocks})"
        raise WorkloadError("blocks of prompt_len + max_tokens - 1", blocks, allowed)
