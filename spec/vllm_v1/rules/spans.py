"""Counts for the rules about images and audio in prompts, by definition."""

from collections.abc import Iterable
from itertools import takewhile

from spec.core.requests import Content, Span
from spec.vllm_v1.config import VllmV1Config
from spec.vllm_v1.records import Context, EncoderCache, Sequence, Step
from spec.vllm_v1.rules.counting import (
    blocks_to_find,
    cached_throughout,
    share,
    token_limit,
    up_to_a_state,
)


def spans_of(ctx: Context, request_id: str) -> tuple[Span, ...]:
    """The spans of a request's prompt."""
    return ctx.requests[request_id].encoder_spans


def total(contents: Iterable[Content]) -> int:
    """The tokens of these contents."""
    return sum(content.tokens for content in contents)


def encoder_budget(config: VllmV1Config) -> int:
    """The tokens that a step may encode: by default as many as it may compute."""
    own = config.max_num_encoder_input_tokens
    return token_limit(config) if own is None else own


def encoder_capacity(config: VllmV1Config) -> int:
    """The tokens that the encoder cache holds: by default as many as a step may compute."""
    return token_limit(config) if config.encoder_cache_size is None else config.encoder_cache_size


def encoded(ctx: Context, step: Step) -> list[Content]:
    """The contents that the step encodes, in the order of the decisions."""
    return [spans_of(ctx, id_)[index].content for id_, spans in step.encoded for index in spans]


def positions_of(row: Sequence, step: Step) -> range:
    """Positions of a request that the step computes."""
    return range(row.computed, row.computed + step.scheduled.get(row.id, 0))


def positions_read(ctx: Context, row: Sequence, step: Step) -> range:
    """The same, and the one behind them if a drafter reads ahead."""
    positions = positions_of(row, step)
    ahead = 1 if ctx.config.drafter_reads_ahead and positions else 0
    return range(positions.start, positions.stop + ahead)


def stops_at_span(ctx: Context, row: Sequence, position: int) -> bool:
    """True if a token of a span is read next at this position: the tokens may be cut there.

    Whether they had to be is V1-ENC-8's.
    """
    return bool(_spans_at(ctx, row, position))


def _spans_at(ctx: Context, row: Sequence, position: int) -> list[Span]:
    """The spans of which the next token is one, or the one that a drafter reads behind it."""
    read = {position, position + 1} if ctx.config.drafter_reads_ahead else {position}
    return [span for span in spans_of(ctx, row.id) if not read.isdisjoint(_places(span))]


def _places(span: Span) -> range:
    return range(span.offset, span.end)


def waits_for_encoding(ctx: Context, step: Step, row: Sequence, position: int, end: int) -> bool:
    """True if the request's tokens must stop at this position and not at `end`.

    The span there is not encoded and exceeds what the step leaves of the encoder's budget, or of
    the room beside what requests refer to; or it must not be split and would be.
    """
    spans = _spans_at(ctx, row, position)
    return any(_is_in_the_way(ctx, step, span, position, end) for span in spans)


def _is_in_the_way(ctx: Context, step: Step, span: Span, position: int, end: int) -> bool:
    """True if the span is not to be read behind this position, or is to be read whole."""
    if ctx.config.disable_chunked_mm_input and position <= span.offset and end < span.end:
        return True
    encoder, tokens = step.planned.encoder, span.content.tokens
    if span.content in encoder.contents:
        return False
    if position < span.offset and not ctx.config.behaviour.encodes_for_drafter:
        return False
    held = total(content for content, _ in encoder.held)
    exceeds = total(encoded(ctx, step)) + tokens > encoder_budget(ctx.config)
    return exceeds or held + tokens > encoder_capacity(ctx.config)


def lacks_encoding(ctx: Context, step: Step, row: Sequence) -> set[bool]:
    """Whether a waiting request cannot compute its first token without an encoding.

    What it finds in the cache may have been cached before or after it was looked at: both answers
    are possible where they differ.
    """
    if not spans_of(ctx, row.id):
        return {False}
    most = _cached(ctx, step, row)
    first = 0 if ctx.config.groups else cached_throughout(ctx, step, row)  # others may have less
    answers = set[bool]()
    for start in range(first, max(first, most) + 1, ctx.config.block_size):
        whole = range(start, start + share(ctx, step, row.tokens - start, step.budget_left))
        for end in _ends(ctx, row, whole, most):
            answers.add(waits_for_encoding(ctx, step, row, start, end))
    return answers


def _ends(ctx: Context, row: Sequence, positions: range, cached: int) -> set[int]:
    """Where the first chunk of a waiting request may end.

    `cached`: tokens of the first group; where the others have less of them a state is kept.
    """
    junctions = range(0, cached + 1, ctx.config.block_size)
    return {up_to_a_state(ctx, row, positions, junction).stop for junction in junctions}


def _cached(ctx: Context, step: Step, row: Sequence) -> int:
    """Tokens of a waiting request that it may find in the cache, in blocks that are cached before
    the step or when all is decided.
    """
    if not ctx.config.prefix_caching:
        return 0
    cached = {*step.before.pool.cached, *step.planned.pool.cached}
    keys = ctx.keys.of(row.id, blocks_to_find(ctx, row))
    return len([*takewhile(cached.__contains__, keys)]) * ctx.config.block_size


def given_up(ctx: Context, encoder: EncoderCache, turns: Iterable[tuple[str, int]]) -> EncoderCache:
    """The encoder cache once requests need their spans of these numbers no more, one by one.

    Up to 0.28.0 a request then does not refer to the content, from 0.33.0 on it does if it has
    taken it for another span. What none refers to may go, behind all that may.
    """
    taken = {id_: [*numbers] for id_, numbers in encoder.taken}
    held = {content: [*holders] for content, holders in encoder.held}
    evictable = [*encoder.evictable]
    for id_, number in turns:
        taken[id_].remove(number)
        spans = spans_of(ctx, id_)
        content = spans[number].content
        is_needed = content in [spans[other].content for other in taken[id_]]
        if id_ in held.get(content, ()) and not (is_needed and ctx.config.behaviour.keeps_repeated):
            held[content].remove(id_)
            evictable += [] if held[content] else [content]
    return EncoderCache(
        tuple((content, tuple(holders)) for content, holders in held.items() if holders),
        tuple(evictable),
        tuple((id_, tuple(numbers)) for id_, numbers in taken.items() if numbers),
    )
