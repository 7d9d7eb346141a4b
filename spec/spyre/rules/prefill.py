"""Rules of the prefill: padding of the prompt, chunks, the first token.

Source: spyre, sections "Key concepts", "Padding" and "Prefill padding".
"""

from collections.abc import Iterator

from spec.core.records import PREFILL
from spec.core.words import by_name
from spec.spyre.records import Chunk, Context, Step
from spec.spyre.rules.observed import (
    Continued,
    cached_prompt_tokens,
    continued,
    counted_after_chunk,
    entering,
    last_chunk,
    prefix_hits,
)
from spec.spyre.rules.registry import of_chunk, of_step, spyre, witness
from spec.spyre.state import PADDING_BLOCK
from spec.spyre.variants import Reading


@of_step("SPY-KEY-1", spyre("Key concepts"))
@witness(lambda ctx, _step: ctx.config.blocks_per_chunk > 1)
def chunk_is_whole_blocks(ctx: Context, _step: Step) -> Iterator[str]:
    """The chunk size is a multiple of the block size."""
    # The configuration never changes, so every step shows the same.
    if ctx.config.chunk_size % ctx.config.block_size:
        yield f"chunk {ctx.config.chunk_size} is no multiple of block {ctx.config.block_size}"


@of_chunk("SPY-PAD-1", spyre("Right-alignment"), witness=lambda chunk: chunk.chunks > 1)
def padded_prompt_is_whole_chunks(ctx: Context, step: Step, chunk: Chunk) -> Iterator[str]:
    """Left padding, prompt and right padding together are a whole number of chunks."""
    # The padded length is what the step's chunk says of its prompt.
    length = entering(step, chunk.id).prefill_len
    padded = chunk.left_padding + length + chunk.right_padding
    if padded != chunk.chunks * ctx.config.chunk_size:
        yield f"padded length {padded}, {chunk.chunks} chunks of {ctx.config.chunk_size}"


@of_chunk("SPY-PAD-2", spyre("Right-alignment"), witness=lambda chunk: chunk.right_padding > 0)
def right_padding_fills_one_block(ctx: Context, step: Step, chunk: Chunk) -> Iterator[str]:
    """A prompt is right-padded to the next block boundary and no further."""
    # Right padding is less than a block and ends on a block boundary.
    padding, size = chunk.right_padding, ctx.config.block_size
    length = entering(step, chunk.id).prefill_len
    if not 0 <= padding < size or (length + padding) % size:
        yield f"right padding {padding} after {length} tokens, block {size}"


@of_chunk("SPY-PAD-3", spyre("Right-alignment"), witness=lambda chunk: chunk.left_padding > 0)
def left_padding_is_whole_blocks(ctx: Context, _step: Step, chunk: Chunk) -> Iterator[str]:
    """A prompt is left-padded by whole blocks, fewer than a chunk holds."""
    # No token of a block is shifted by padding inside it.
    padding = chunk.left_padding
    if padding % ctx.config.block_size or not 0 <= padding < ctx.config.chunk_size:
        yield f"left padding {padding}, block {ctx.config.block_size}"


@of_step("SPY-PAD-4", spyre("Padding, Prefill Alignment"))
@witness(lambda ctx, step: last_chunk(step) is not None and ctx.config.blocks_per_chunk > 1)
def no_empty_block_on_the_right(ctx: Context, step: Step) -> Iterator[str]:
    """The last block of a prompt's final chunk holds at least one of its tokens."""
    # Judged by the block table: what its last block covers must reach into the prompt.
    chunk = last_chunk(step)
    if chunk is None:
        return
    covered = len(chunk.block_table) * ctx.config.block_size - chunk.left_padding
    if chunk.end <= covered - ctx.config.block_size or chunk.end > covered:
        yield f"tokens end at {chunk.end}, the block table covers {covered}"


@of_chunk(
    "SPY-PAD-5",
    spyre("Padding, Rectangular Decode"),
    witness=lambda chunk: PADDING_BLOCK in chunk.block_table,
)
def padding_is_block_zero(ctx: Context, _step: Step, chunk: Chunk) -> Iterator[str]:
    """Left padding is always block 0, and block 0 stands for nothing else in a prompt's table."""
    # The table is the padding blocks followed by the request's own.
    padding = chunk.left_padding // ctx.config.block_size
    table = chunk.block_table
    if any(table[:padding]) or not all(table[padding:]):
        yield f"block table {list(table)} with {padding} padding blocks"


@of_step("SPY-CHK-1", spyre("Chunked Prefill"))
@witness(lambda _, step: step.chunk is not None and not step.chunk.is_last)
def one_chunk_a_step(ctx: Context, step: Step) -> Iterator[str]:
    """A prefill step computes one chunk and no more."""
    # The step's table ends with its chunk, its tokens fit in one chunk.
    if step.kind != PREFILL:
        return
    if step.chunk is None:
        yield "a prefill step without a chunk"
        return
    blocks = (step.chunk.chunk + 1) * ctx.config.blocks_per_chunk
    tokens = step.chunk.end - step.chunk.start
    if len(step.chunk.block_table) != blocks or not 0 < tokens <= ctx.config.chunk_size:
        yield f"{tokens} tokens, {len(step.chunk.block_table)} blocks up to chunk {blocks}"


@of_step("SPY-CHK-2", spyre("Padding, Prefill Alignment"))
@witness(lambda _, step: step.kind == PREFILL and step.before.decoding)
def prefill_is_alone(_ctx: Context, step: Step) -> Iterator[str]:
    """A prefill has batch size one and shares its step with no decode."""
    # Only the chunk's request is scheduled.
    if step.chunk is not None:
        own = {step.chunk.id: step.chunk.end - step.chunk.start}
        if dict(step.scheduled) != own or step.batch:
            yield f"scheduled {by_name(step.scheduled)} in the prefill of {step.chunk.id}"


@of_chunk(
    "SPY-CHK-3",
    spyre("Chunked Prefill"),
    witness=lambda chunk: chunk.chunk > 0 and chunk.left_padding > 0,
)
def active_chunk_follows_computed(ctx: Context, step: Step, chunk: Chunk) -> Iterator[str]:
    """The active chunk is given by the tokens already computed, offset by the left padding."""
    # Computed tokens plus padding fill exactly the chunks before the active one.
    done = cached_prompt_tokens(step, chunk)
    before = chunk.chunk * ctx.config.chunk_size
    filled = done + chunk.left_padding if done else 0
    if filled != before:
        yield f"chunk {chunk.chunk} after {done} computed tokens"


@of_chunk("SPY-CHK-4", spyre("Chunked Prefill"), witness=lambda chunk: chunk.is_last)
def last_chunk_alone_yields_a_token(_ctx: Context, step: Step, chunk: Chunk) -> Iterator[str]:
    """The last chunk of a prompt yields one token, no other chunk yields any."""
    # The prompt must be complete, and only then.
    complete = chunk.end == entering(step, chunk.id).prefill_len
    counts = {id_: len(tokens) for id_, tokens in step.outputs.items()}
    if complete != chunk.is_last or counts != ({chunk.id: 1} if complete else {}):
        yield f"tokens {counts} from chunk {chunk.chunk + 1} of {chunk.chunks}"


@of_chunk("SPY-CHK-5", spyre("Key concepts, Chunk size"), witness=lambda chunk: chunk.chunk > 0)
def chunks_partition_the_prompt(ctx: Context, step: Step, chunk: Chunk) -> Iterator[str]:
    """The chunks of a prompt follow each other without gap or overlap."""
    # Each starts where the one before ended and ends on a chunk boundary or with the prompt.
    length = entering(step, chunk.id).prefill_len
    aligned = (chunk.left_padding + chunk.end) % ctx.config.chunk_size == 0
    if chunk.start != cached_prompt_tokens(step, chunk) or not (aligned or chunk.end == length):
        yield f"tokens {chunk.start} to {chunk.end} after {cached_prompt_tokens(step, chunk)}"


@of_step("SPY-CHK-6", spyre("Chunked Prefill"), given=continued)
@witness(lambda _, step: step.chunk is not None and step.happened("join"))
def prefill_keeps_its_length(_ctx: Context, _step: Step, rows: Continued) -> Iterator[str]:
    """What the prefill of a request covers is fixed while it waits, and stays so once it is
    admitted.
    """
    # LIF-8 says what it is before that: the prompt, and what was generated before a preemption.
    for before, after in rows:
        if after.prefill_len != before.prefill_len:
            yield f"request {after.id}: prefill of {after.prefill_len}, was {before.prefill_len}"


@of_chunk("SPY-CHK-7", spyre("Chunked Prefill"), witness=lambda chunk: not chunk.is_last)
def chunk_is_computed(ctx: Context, step: Step, chunk: Chunk) -> Iterator[str]:
    """After a chunk that is not the last, the tokens up to its end count as computed; in 2.6.3, the
    cached ones and as many as the chunk has room for.
    """
    # After the last chunk it is the whole prompt, see LIF-8.
    row, due = step.after.prefilling, chunk.end
    if ctx.config.reading is Reading.RELEASED:
        found = entering(step, chunk.id)
        cached = len(prefix_hits(ctx, step.before, found)) * ctx.config.block_size
        due = counted_after_chunk(ctx, found, max(found.computed, cached))
    if row is not None and row.id == chunk.id and row.computed != due:
        yield f"request {row.id}: {row.computed} tokens computed, due are {due}"
