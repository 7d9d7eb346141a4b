"""Rules of prefix caching: what is hashed, found, reused, computed again.

Source: spyre, sections "Padding" (prefix caching) and "Prefix caching".
"""

from collections.abc import Iterator
from functools import partial

from spec.core.judging import begin_alike, ids
from spec.core.records import Event
from spec.spyre.config import SpyreConfig
from spec.spyre.records import Chunk, Context, Step
from spec.spyre.rules.observed import Continued, by_id, continued, entering
from spec.spyre.rules.registry import always, of_chunk, of_step, spyre, witness
from spec.spyre.state import PADDING_BLOCK, State


def _caching(config: SpyreConfig) -> bool:
    return config.prefix_caching


def _hit(step: Step) -> Event | None:
    """The step's prefix hit, if it admitted a request that had one."""
    return next(iter(step.happened("prefix_hit")), None)


_always = partial(always, applies=_caching)
_of_step, _of_chunk = partial(of_step, applies=_caching), partial(of_chunk, applies=_caching)


def _has_hit(_ctx: Context, step: Step) -> bool:
    return _hit(step) is not None


@_always("SPY-PFX-1", spyre("Padding, Prefix caching"))
@witness(
    lambda ctx, step: any(
        row.computed % ctx.config.block_size and row.blocks[0] in step.after.pool.keys
        for row in step.after.decoding
    )
)
def only_full_blocks_are_cached(ctx: Context, state: State) -> Iterator[str]:
    """Only blocks that are full of computed tokens can be found in the cache."""
    # A request's blocks that it has not filled yet have no key, unless they are hits.
    for row in state.admitted:
        full = max(row.computed // ctx.config.block_size, row.hit_blocks)
        early = [block for block in row.blocks[full:] if block in state.pool.keys]
        if early:
            yield f"request {row.id}: blocks {early} cached, {row.computed} tokens computed"


@_always("SPY-PFX-2", spyre("Padding, Prefix caching"), witness=_has_hit)
def keys_are_chained(ctx: Context, state: State) -> Iterator[str]:
    """A block is known by its tokens and all tokens before it: equal keys mean equal prefixes."""
    # Each cached block in a request's table has the key of that request at that place.
    for row in state.admitted:
        keys = ctx.keys.of(row.id, row.computed // ctx.config.block_size)
        for block, key in zip(row.blocks, keys, strict=False):
            if state.pool.keys.get(block, key) != key:
                yield f"request {row.id}: block {block} holds other tokens"


@_of_step("SPY-PFX-3", spyre("Skipping full chunks"))
@witness(lambda _, step: step.chunk is not None and step.chunk.cached_tokens > 0)
def whole_cached_chunks_are_skipped(ctx: Context, step: Step) -> Iterator[str]:
    """Whole chunks whose blocks are all cached are skipped, and no part of a chunk is."""
    # What is skipped ends on a chunk boundary; the next chunk is not fully cached or is last.
    chunk = step.chunk
    if chunk is None or not step.happened("admit"):
        return
    skipped = chunk.left_padding + chunk.cached_tokens if chunk.cached_tokens else 0
    hit = len(event.after) if (event := _hit(step)) else 0
    cached_until = chunk.left_padding + hit * ctx.config.block_size
    more = hit and cached_until >= (chunk.chunk + 1) * ctx.config.chunk_size
    if skipped % ctx.config.chunk_size or (more and not chunk.is_last):
        yield f"{chunk.cached_tokens} tokens reused of {hit} cached blocks"


@_of_step("SPY-PFX-4", spyre("Skipping full chunks"))
@witness(
    lambda ctx, step: (
        step.chunk is not None
        and step.happened("admit")
        and step.chunk.is_last
        and step.chunk.cached_tokens + step.chunk.inner_padding
        >= entering(step, step.chunk.id).prefill_len - ctx.config.block_size
    )
)
def last_chunk_is_always_computed(ctx: Context, step: Step) -> Iterator[str]:
    """The last chunk of a prompt is computed even if all its blocks are cached."""
    # A prompt's first token never comes without its last chunk in the same step.
    rows = by_id(step.before.admitted)
    for request_id in step.outputs:
        row = rows.get(request_id) or entering(step, request_id)
        prompt_done = row.computed >= row.prefill_len
        computes = step.chunk is not None and step.chunk.id == request_id and step.chunk.is_last
        if not prompt_done and not computes:
            yield f"request {request_id} sampled with {row.computed} tokens computed"
    if step.chunk is not None:
        last = (step.chunk.chunks - 1) * ctx.config.chunk_size - step.chunk.left_padding
        if step.chunk.cached_tokens > max(last, 0):
            yield f"{step.chunk.cached_tokens} tokens reused, the last chunk starts at {last}"


@_of_chunk("SPY-PFX-5", spyre("Boundary chunk"), witness=lambda chunk: chunk.inner_padding > 0)
def cached_blocks_are_not_written(ctx: Context, step: Step, chunk: Chunk) -> Iterator[str]:
    """Where a chunk is computed again, its writes to cached blocks go to the dummy block; all other
    blocks of the prompt are written.
    """
    # Compared position by position with the chunk's part of the block table.
    size = ctx.config.block_size
    hit = len(event.after) * size if (event := _hit(step)) else 0
    if step.happened("admit") and chunk.cached_tokens + chunk.inner_padding != hit:
        yield f"{chunk.cached_tokens} + {chunk.inner_padding} of {hit} cached tokens"
    first = chunk.chunk * ctx.config.blocks_per_chunk
    kept = (chunk.left_padding + chunk.cached_tokens + chunk.inner_padding) // size
    own = chunk.block_table[first:]
    expected = tuple(
        PADDING_BLOCK if first + index < kept else block for index, block in enumerate(own)
    )
    if chunk.writes != expected:
        yield f"writes to {list(chunk.writes)}, expected {list(expected)}"


@_of_step("SPY-PFX-6", spyre("Boundary chunk"))
@witness(lambda _, step: step.chunk is not None and step.chunk.inner_padding > 0)
def cached_blocks_are_read(ctx: Context, step: Step) -> Iterator[str]:
    """Attention reads the cached blocks themselves, also in a chunk that is computed again."""
    # The table names, at each cached position, a block that was cached under its key.
    hit = _hit(step)
    if hit is None or step.chunk is None:
        return
    padding = step.chunk.left_padding // ctx.config.block_size
    table = step.chunk.block_table[padding : padding + len(hit.after)]
    keys = ctx.keys.of(hit.id, len(table))
    for block, key in zip(table, keys, strict=True):
        if step.before.pool.keys.get(block) != key:
            yield f"request {hit.id} reads block {block} for other tokens"


@_of_step("SPY-PFX-7", spyre("Boundary chunk"))
@witness(
    lambda ctx, step: (
        (hit := _hit(step)) is not None
        and len(hit.after) > 0
        and (len(hit.after) + 1) * ctx.config.block_size == entering(step, hit.id).prefill_len
    )
)
def only_the_last_block_is_duplicated(ctx: Context, step: Step) -> Iterator[str]:
    """Every cached block of a prompt is shared, only the block of its last token is duplicated."""
    # The first block that was not taken from the cache is not in it, or is the last one. Nor have
    # others filled it with the same tokens, whatever the cache knows it by.
    for event in step.happened("admit"):
        length = entering(step, event.id).prefill_len
        full = (length - 1) // ctx.config.block_size
        taken = len(hit.after) if (hit := _hit(step)) else 0
        keys = ctx.keys.of(event.id, full)
        if taken > full or (taken < full and keys[taken] in step.before.pool.cached):
            yield f"request {event.id} shares {taken} of {full} full blocks"
        end = (taken + 1) * ctx.config.block_size
        for other in step.before.admitted if taken < full else ():
            if other.computed >= end and _begin_alike(ctx, event.id, other.id, end):
                yield f"request {event.id} shares {taken} blocks, {other.id} has its first {end}"


@_always("SPY-PFX-8", spyre("Visualization - Prefix Caching"))
@witness(lambda ctx, step: (hit := _hit(step)) is not None and _hits_output(ctx, step, hit))
def full_blocks_are_cached(ctx: Context, state: State) -> Iterator[str]:
    """Blocks of generated tokens can be reused by a later prompt."""
    # Every full block of an admitted request, of prompt or output, has its key in the pool.
    for row in state.admitted:
        full = row.blocks[: row.computed // ctx.config.block_size]
        if missing := [block for block in full if block not in state.pool.keys]:
            yield f"request {row.id}: full blocks {missing} are not cached"


def _hits_output(ctx: Context, step: Step, hit: Event) -> bool:
    """True if the hit covers a block that holds tokens another request generated."""
    size, blocks = ctx.config.block_size, len(hit.after)
    keys = list(ctx.keys.of(hit.id, blocks))
    return any(
        done != hit.id
        and blocks > (prompt := ctx.requests[done].prompt_len) // size
        and blocks * size <= prompt + ctx.requests[done].max_tokens
        and list(ctx.keys.of(done, blocks)) == keys
        for done in step.before.finished
    )


@_of_step("SPY-PFX-10", spyre("Padding, Prefix caching"))
@witness(
    lambda _, step: (
        (hit := _hit(step)) is not None
        and any(hit.after[-1] in row.blocks for row in step.before.admitted)
    )
)
def sharers_have_equal_tokens(ctx: Context, step: Step) -> Iterator[str]:
    """Requests that share a block have the same tokens up to its end."""
    # Judged by the tokens themselves, not by the keys, whenever a block gets another holder.
    hit = _hit(step)
    if hit is None:
        return
    for other in step.before.admitted:
        held = {*other.blocks}
        shared = [place for place, block in enumerate(hit.after) if block in held]
        if not shared:
            continue
        end = (max(shared) + 1) * ctx.config.block_size
        if not _begin_alike(ctx, hit.id, other.id, end):
            yield f"{hit.id} and {other.id} share {len(shared)} blocks, their tokens differ"


def _begin_alike(ctx: Context, id_: str, other: str, count: int) -> bool:
    """True if the first tokens of two requests are the same, those of prompt and answer."""
    return begin_alike(ctx.requests[id_], ctx.requests[other], count)


@of_step("SPY-PFX-9", spyre("Padding, Prefix caching"))
@witness(lambda _, step: step.chunk is not None and step.chunk.start > 0)
def chunks_start_at_blocks(ctx: Context, step: Step) -> Iterator[str]:
    """Prompts are aligned to block boundaries: every chunk starts at a block of the prompt."""
    # So that equal tokens always fill equal blocks, whatever the padding before them.
    if step.chunk is not None and step.chunk.start % ctx.config.block_size:
        yield f"chunk starts at token {step.chunk.start}, block {ctx.config.block_size}"


@of_step("SPY-PFX-11", spyre("Boundary chunk"), given=continued)
@witness(lambda _, step: any(row.hit_blocks for row in step.before.decoding))
def hits_are_remembered(_ctx: Context, step: Step, rows: Continued) -> Iterator[str]:
    """How many cached blocks a request found is remembered from its admission on, as long as it is
    admitted.
    """
    # Without a prefix hit, and without prefix caching, none.
    hits = {event.id: len(event.after) for event in step.happened("prefix_hit")}
    admitted = ids(step.happened("admit"))
    for before, after in rows:
        due = hits.get(after.id, 0) if after.id in admitted else before.hit_blocks
        if after.hit_blocks != due:
            yield f"request {after.id}: {after.hit_blocks} cached blocks found, due are {due}"
