"""The encoder cache: which encodings are there, which requests refer to them, which may go.

Source: vLLM 0.28.0, `EncoderCacheManager` and `_try_schedule_encoder_inputs`.
"""

from collections.abc import Iterable

from attrs import evolve, frozen

from reference.core.guards import require
from spec.core.requests import Content, Span
from spec.vllm_v1.records import Context, EncoderCache, Sequence, State


@frozen
class Wanted:
    """What the tokens of one request ask of the encoder in a step.

    `cache`: the encoder cache with the contents that were found taken, and those evicted that must
    make room. `tokens`: how many of the request's tokens can be computed. `new`: its spans that
    are to be encoded; `repeated`: those of contents that are among them already. `evicted`:
    contents that made room.
    """

    cache: EncoderCache
    tokens: int
    new: tuple[int, ...] = ()
    repeated: tuple[int, ...] = ()
    evicted: tuple[Content, ...] = ()


def want(
    ctx: Context, cache: EncoderCache, row: Sequence, start: int, tokens: int, budget: int
) -> Wanted:
    """The spans that `tokens` tokens from `start` on read, as far as they can be had.

    The tokens are cut in front of the first span that exceeds the budget or the room, or that they
    would split where this must not be. A drafter may also read the token behind them; from 0.33.0
    on it does without an encoding that cannot be had.
    """
    spans = ctx.requests[row.id].encoder_spans
    end, wanted = start + tokens, Wanted(cache, tokens)
    ahead = ctx.config.tokens_read_ahead
    for index, span in enumerate(spans):
        if not start < span.end or not span.offset < end + ahead:
            continue
        pending = [spans[earlier].content for earlier in wanted.new]
        keeps_whole = ctx.config.behaviour.keeps_whole
        if keeps_whole and _is_split(ctx, span, start, end, start <= span.offset):
            return _cut(wanted, span, start, ahead)
        if span.content in pending:
            wanted = evolve(wanted, repeated=(*wanted.repeated, index))
        elif span.content in wanted.cache.contents:
            wanted = evolve(wanted, cache=taken(wanted.cache, row.id, index, span.content))
        elif not keeps_whole and _is_split(ctx, span, start, end, start < span.offset):
            return _cut(wanted, span, start, ahead)
        else:
            left = budget - sum(content.tokens for content in pending)
            room = _with_room(ctx, wanted, [*pending, span.content])
            if span.content.tokens > left or room is None:
                is_read = ctx.config.behaviour.encodes_for_drafter
                return _cut(wanted, span, start, ahead if is_read else 0)
            wanted = evolve(room, new=(*wanted.new, index))
    return wanted


def _is_split(ctx: Context, span: Span, start: int, end: int, begins_here: bool) -> bool:
    """True if the tokens from `start` to `end` begin a span, do not end it, and must."""
    return ctx.config.disable_chunked_mm_input and begins_here and end < span.end


def _cut(wanted: Wanted, span: Span, start: int, ahead: int) -> Wanted:
    """Only the tokens in front of a span; none where some of its tokens are found in the cache.

    A drafter that reads so many tokens ahead must not come to it either.
    """
    return evolve(wanted, tokens=min(wanted.tokens, max(span.offset - ahead - start, 0)))


def _with_room(ctx: Context, wanted: Wanted, contents: Iterable[Content]) -> Wanted | None:
    """The same with room for these contents: none refers to those that go, the oldest first.

    None if there is not enough even without all of those.
    """
    cache, needed = wanted.cache, sum(content.tokens for content in contents)
    needed += sum(content.tokens for content, _ in cache.held)
    kept = [*cache.evictable]
    if needed > ctx.config.encoder_capacity:
        return None
    gone: list[Content] = []
    while needed + sum(content.tokens for content in kept) > ctx.config.encoder_capacity:
        gone.append(kept.pop(0))
    cache = evolve(cache, evictable=tuple(kept))
    return evolve(wanted, cache=cache, evicted=(*wanted.evicted, *gone))


def encoded(ctx: Context, wanted: Wanted, row: Sequence) -> EncoderCache:
    """The encoder cache with the contents that the step encodes for the request.

    From 0.33.0 on its further spans of these contents refer to them, too.
    """
    spans, cache = ctx.requests[row.id].encoder_spans, wanted.cache
    # guard
    total = sum(content.tokens for content in cache.contents)
    total += sum(spans[index].content.tokens for index in wanted.new)
    require(total <= ctx.config.encoder_capacity, "encoded", "V1-ENC-4")
    # effect
    repeated = wanted.repeated if ctx.config.behaviour.keeps_repeated else ()
    for index in (*wanted.new, *repeated):
        cache = taken(cache, row.id, index, spans[index].content)
    return cache


def taken(cache: EncoderCache, request_id: str, index: int, content: Content) -> EncoderCache:
    """A request refers to a content, for this span of it."""
    holders = {*cache.holders(content), request_id}
    spans = {*cache.taken_by(request_id), index}
    others = tuple(other for other in cache.evictable if other != content)
    with_spans = _with_taken(cache, request_id, spans)
    return evolve(_with_holders(with_spans, content, holders), evictable=others)


def passed(ctx: Context, state: State, request_id: str) -> State:
    """A request needs no encoding of spans all of whose tokens are certain to be computed.

    Up to 0.28.0 the token that a drafter reads behind them must be, too.
    """
    spans, cache = ctx.requests[request_id].encoder_spans, state.encoder
    if not spans:
        return state
    row = next(row for row in state.present if row.id == request_id)
    more = ctx.config.tokens_read_ahead if ctx.config.behaviour.encodes_for_drafter else 0
    for index in cache.taken_by(request_id):
        if spans[index].end + more <= row.computed - row.placeholders:
            cache = _given_back(ctx, cache, request_id, index)
    return evolve(state, encoder=cache)


def given_back(ctx: Context, state: State, request_id: str) -> State:
    """A request that does not run needs no encoding: what it took may go, unless others need it."""
    cache = state.encoder
    for index in cache.taken_by(request_id):
        cache = _given_back(ctx, cache, request_id, index)
    return evolve(state, encoder=cache)


def _given_back(ctx: Context, cache: EncoderCache, request_id: str, index: int) -> EncoderCache:
    """A request does not need the encoding for this span any more.

    Up to 0.28.0 it does not refer to the content any more, from 0.33.0 on it may for another span.
    """
    spans = ctx.requests[request_id].encoder_spans
    content = spans[index].content
    others = {*cache.taken_by(request_id)} - {index}
    cache = _with_taken(cache, request_id, others)
    repeats = any(spans[other].content == content for other in others)
    holders = {*cache.holders(content)}
    if request_id not in holders or (repeats and ctx.config.behaviour.keeps_repeated):
        return cache
    cache = _with_holders(cache, content, holders - {request_id})
    if holders == {request_id}:
        return evolve(cache, evictable=(*cache.evictable, content))
    return cache


def _with_taken(cache: EncoderCache, request_id: str, spans: Iterable[int]) -> EncoderCache:
    now = {**dict(cache.taken), request_id: tuple(sorted(spans))}
    return evolve(cache, taken=tuple(sorted(item for item in now.items() if item[1])))


def _with_holders(cache: EncoderCache, content: Content, holders: Iterable[str]) -> EncoderCache:
    now = {**dict(cache.held), content: tuple(sorted(holders))}
    return evolve(cache, held=tuple(sorted(item for item in now.items() if item[1])))
