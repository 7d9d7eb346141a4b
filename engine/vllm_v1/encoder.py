"""The encoder cache, and a draft of it for the planning of a step.

Source: vLLM 0.28.0, `EncoderCacheManager` and `_try_schedule_encoder_inputs`.
"""

from typing import TypeAlias

from attrs import define, field

from engine.vllm_v1.requests import RequestState
from spec.core.requests import Content, Span
from spec.vllm_v1.config import VllmV1Config

Spans: TypeAlias = tuple[int, ...]  # of a request, by their numbers; the first is 0


@define(eq=False)
class EncoderCache:
    """The encodings of images and audio.

    - `room`: tokens of its capacity that no content takes up, and `evictable_tokens`: those of
      contents that may go.
    - `held`: by content, the ids of the requests that refer to it. `evictable`: contents that none
      refers to, the first to go first.
    - `taken`: by request, its spans whose encodings it has taken and not passed.
    - `keeps_repeated`: a request refers to a content until it has passed all of its spans of it.
      `keeps_longer`: so many tokens behind a span it has passed it.
    """

    room: int
    keeps_repeated: bool
    keeps_longer: int
    held: dict[Content, set[str]] = field(factory=dict)
    evictable: dict[Content, None] = field(factory=dict)
    evictable_tokens: int = 0
    taken: dict[str, set[int]] = field(factory=dict)

    @staticmethod
    def of(config: VllmV1Config) -> "EncoderCache":
        """An empty cache."""
        more = config.tokens_read_ahead if config.behaviour.encodes_for_drafter else 0
        return EncoderCache(config.encoder_capacity, config.behaviour.keeps_repeated, more)

    def copy(self) -> "EncoderCache":
        """The same cache, to be changed on its own."""
        return EncoderCache(
            self.room,
            self.keeps_repeated,
            self.keeps_longer,
            {content: {*holders} for content, holders in self.held.items()},
            {**self.evictable},
            self.evictable_tokens,
            {name: {*spans} for name, spans in self.taken.items()},
        )

    def take(self, name: str, number: int, content: Content) -> bool:
        """A request refers to the content for its span of this number; False if it is not there."""
        if content in self.evictable:
            del self.evictable[content]
            self.evictable_tokens -= content.tokens
            self.held[content] = set()
        if content not in self.held:
            return False
        self.held[content].add(name)
        self.taken.setdefault(name, set()).add(number)
        return True

    def add(self, name: str, number: int, content: Content) -> None:
        """The content is encoded for this span of a request; there is room for it."""
        self.room -= content.tokens
        self.held[content] = set()
        self.take(name, number, content)

    def make_room(self, tokens: int) -> list[Content] | None:
        """Evict contents until so many tokens have room, and return them; None if they never do."""
        if tokens > self.room + self.evictable_tokens:
            return None
        gone: list[Content] = []
        while tokens > self.room:
            content = next(iter(self.evictable))
            del self.evictable[content]
            self.evictable_tokens -= content.tokens
            self.room += content.tokens
            gone.append(content)
        return gone

    def pass_by(self, row: RequestState, certain: int) -> None:
        """A request needs no encoding of spans that end within its first `certain` tokens.

        Up to 0.28.0 a drafter may have to read the token behind them, too.
        """
        spans = row.request.encoder_spans
        for number in sorted(self.taken.get(row.id, ())) if spans else ():
            if spans[number].end + self.keeps_longer <= certain:
                self._give_back(row, number)

    def give_back(self, row: RequestState) -> None:
        """A request that does not run any more needs no encoding."""
        for number in sorted(self.taken.get(row.id, ())):
            self._give_back(row, number)

    def _give_back(self, row: RequestState, number: int) -> None:
        name, spans, taken = row.id, row.request.encoder_spans, self.taken[row.id]
        taken.remove(number)
        if not taken:
            del self.taken[name]
        content = spans[number].content
        if self.keeps_repeated and any(spans[other].content == content for other in taken):
            return
        holders = self.held.get(content, set())
        if name not in holders:
            return
        holders.remove(name)
        if not holders:
            del self.held[content]
            self.evictable[content] = None
            self.evictable_tokens += content.tokens


@define(eq=False)
class Wanted:
    """The encodings that tokens of a request read, as far as they can be had.

    `tokens`: how many of its tokens can be computed. `new`: its spans to be encoded. `repeated`:
    those of contents that are among them already.
    """

    tokens: int
    new: Spans = ()
    repeated: Spans = ()


class EncoderDraft:
    """The encoder cache after the decisions of a plan so far; the state's own is unchanged.

    `encoded`: by row, the spans that the step encodes. `evicted`: contents that made room for them.
    """

    def __init__(self, cache: EncoderCache, config: VllmV1Config) -> None:
        """Nothing is planned."""
        self.encoded: dict[RequestState, Spans] = {}
        self.evicted: list[Content] = []
        self._cache, self._config = cache, config
        self._own: EncoderCache | None = None
        self._budget = config.encoder_budget

    @property
    def changed(self) -> EncoderCache | None:
        """The encoder cache if it has changed."""
        return self._own

    @property
    def gone(self) -> list[Content]:
        """The contents that are not cached any more."""
        cache = self._own or self._cache
        return [
            content
            for content in self.evicted
            if content not in cache.held and content not in cache.evictable
        ]

    def _to_change(self) -> EncoderCache:
        if self._own is None:
            self._own = self._cache.copy()
        return self._own

    def want(self, row: RequestState, start: int, tokens: int) -> Wanted:
        """What `tokens` tokens of the row from `start` on read: what is cached it takes at once.

        What must go to make room goes at once, too. A drafter may read the token behind them; from
        0.33.0 on it does without an encoding that cannot be had.
        """
        spans, end, wanted = row.request.encoder_spans, start + tokens, Wanted(tokens)
        ahead = self._config.tokens_read_ahead
        encodes_for_drafter = self._config.behaviour.encodes_for_drafter
        for number, span in enumerate(spans):
            if start < span.end and span.offset < end + ahead:
                is_split = self._is_split(span, start, end)
                is_had = self._is_had(row, number, wanted, is_split)
                if not is_had:
                    less = ahead if is_split or encodes_for_drafter else 0
                    before = min(tokens, max(span.offset - less - start, 0))
                    return Wanted(before, wanted.new, wanted.repeated)
        return wanted

    def _is_had(self, row: RequestState, number: int, wanted: Wanted, is_split: bool) -> bool:
        """True if the encoding of a span can be had by tokens that split it, or do not."""
        spans = row.request.encoder_spans
        span, keeps_whole = spans[number], self._config.behaviour.keeps_whole
        if keeps_whole and is_split:
            return False
        pending = [spans[earlier].content for earlier in wanted.new]
        if span.content in pending:
            wanted.repeated += (number,)
            return True
        if self._to_change().take(row.id, number, span.content):
            return True
        if is_split:
            return False
        before = sum(content.tokens for content in pending)
        if before + span.content.tokens > self._budget:
            return False
        evicted = self._to_change().make_room(before + span.content.tokens)
        if evicted is None:
            return False
        self.evicted += evicted
        wanted.new += (number,)
        return True

    def _is_split(self, span: Span, start: int, end: int) -> bool:
        """True if the tokens from `start` to `end` begin a span, do not end it, and must."""
        first = span.offset + 1 if self._config.behaviour.keeps_whole else span.offset
        return self._config.disable_chunked_mm_input and start < first and end < span.end

    def encode(self, row: RequestState, wanted: Wanted) -> None:
        """The step encodes what the row wants; from 0.33.0 on all its spans of it refer to it."""
        if not wanted.new:
            return
        spans, cache = row.request.encoder_spans, self._to_change()
        for number in wanted.new:
            cache.add(row.id, number, spans[number].content)
            self._budget -= spans[number].content.tokens
        for number in wanted.repeated if cache.keeps_repeated else ():
            cache.take(row.id, number, spans[number].content)
        self.encoded[row] = wanted.new

    def give_back(self, row: RequestState) -> None:
        """A row is preempted, or a waiting request refused: it needs no encoding.

        What the step was to encode for a victim is not encoded, and counts as cached all the same.
        """
        spans = row.request.encoder_spans
        if not spans:
            return
        self._to_change().give_back(row)
        for number in self.encoded.pop(row, ()):
            self._budget += spans[number].content.tokens
