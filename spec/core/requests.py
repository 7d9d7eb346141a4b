"""Requests: what a client asks for, and the tokens it consists of.

A prompt is a sequence of named token streams. Equal names give equal tokens, which is how
shared prefixes are written down; a prompt that is not shared is a stream of its own name.
"""

from array import array
from collections.abc import Container, Iterable, Mapping, Sequence
from enum import StrEnum
from hashlib import blake2b
from itertools import takewhile
from typing import Any

from attrs import frozen

from spec.core.arithmetic import Number
from spec.core.configuration import PolicyConfig
from spec.core.errors import WorkloadError

MOST_TOKEN_ID = 2**31 - 1  # of a prompt
VOCABULARY = 50_000  # token ids that the model samples: 0 to VOCABULARY - 1
WORD = 2**64 - 1  # the model's numbers are 64-bit words that wrap around
# Words of successive positions lie this far apart. It is 2**64 over the golden ratio, so that even
# the words of a million positions are further from each other than the largest token id.
POSITION_STEP = 0x9E37_79B9_7F4A_7C15
# The mixing of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators",
# OOPSLA 2014): each round is a shift to the right and a multiplication.
MIXING_ROUNDS = ((30, 0xBF58_476D_1CE4_E5B9), (27, 0x94D0_49BB_1331_11EB))
LAST_SHIFT = 31

BlockKey = bytes  # identifies a full block's tokens and everything before them


def stream_tokens(name: str, count: int) -> "array[int]":
    """The first `count` tokens of the stream `name`: the same for the same name."""
    digest = blake2b(name.encode(), digest_size=8).digest()
    seed, stride = int.from_bytes(digest[:4], "big"), int.from_bytes(digest[4:], "big") | 1
    return array("q", [(seed + place * stride) & MOST_TOKEN_ID for place in range(count)])


def cached_value(token: int, position: int) -> int:
    """What the simulated model caches for a token at its real position: one 64-bit word.

    Arrays of 64-bit words give the words of many tokens.

    No two pairs of token id and position have the same word, and words show no pattern: sums of
    them differ as soon as a token or a place does, but for a chance of one in 2**64.
    """
    word = (token + (position + 1) * POSITION_STEP) & WORD
    for shift, factor in MIXING_ROUNDS:
        word = ((word ^ (word >> shift)) * factor) & WORD
    return word ^ (word >> LAST_SHIFT)


def attended_sum(tokens: Sequence[int]) -> int:
    """What the model makes of these tokens, the first at position 0: their words, added up.

    Sums of parts add up to the sum of the whole, modulo 2**64, so a device may add block by block.
    """
    return sum(map(cached_value, tokens, range(len(tokens)))) & WORD


def sampled_token(attended: int) -> int:
    """The token that the model samples when all that it attends to adds up to `attended`."""
    return attended % VOCABULARY


@frozen(order=True)
class Content:
    """What an encoder makes of an image or of audio: as many values as tokens stand for it.

    Equal names and numbers of tokens are equal contents.
    """

    name: str
    tokens: int

    def __str__(self) -> str:
        return f"{self.name}/{self.tokens}"


@frozen
class Span:
    """The tokens of a prompt that stand for a content, from token `offset` on.

    A token of a span reads what the encoder makes, so the content decides what token it is.
    """

    offset: int
    content: Content

    @property
    def end(self) -> int:
        """The position behind its last token."""
        return self.offset + self.content.tokens

    @property
    def as_written(self) -> list[int | str]:
        """Offset, tokens and name, as workload files have them."""
        return [self.offset, self.content.tokens, self.content.name]

    def tokens(self, count: int) -> Sequence[int]:
        """The first `count` token ids of the content, or all."""
        return stream_tokens(self.stream, min(count, self.content.tokens))

    @property
    def stream(self) -> str:
        """The name of the stream of the content's tokens."""
        return f"encoded {self.content}"


@frozen
class Prompt:
    """The tokens of a prompt: named streams or literal token ids, in order.

    `spans`: where contents stand in the place of these tokens, in order.
    """

    parts: tuple[tuple[str, int] | tuple[int, ...], ...]
    length: int
    spans: tuple[Span, ...] = ()

    @staticmethod
    def of_stream(name: str, length: int) -> "Prompt":
        """A prompt of `length` tokens that only prompts of the same name share."""
        return Prompt(((name, length),), length)

    @staticmethod
    def of_tokens(tokens: Sequence[int]) -> "Prompt":
        """A prompt given by its token ids."""
        return Prompt((tuple(tokens),), len(tokens))

    @staticmethod
    def of_parts(parts: Sequence[tuple[str, int]]) -> "Prompt":
        """Named streams one after the other, the first N tokens of each."""
        return Prompt(tuple(parts), sum(count for _, count in parts))

    def with_spans(self, spans: Iterable[tuple[int, int, str]]) -> "Prompt":
        """The prompt with contents in it, each with its offset, its tokens and its name."""
        contents = (Span(offset, Content(name, tokens)) for offset, tokens, name in spans)
        return Prompt(self.parts, self.length, tuple(contents))

    def begins_like(self, other: "Prompt", count: int) -> bool:
        """True if the same parts make up the first `count` tokens of both, so they are equal.

        False says nothing: different parts may hold the same tokens.
        """
        same = takewhile(
            lambda pair: pair[0] == pair[1], zip(self.parts, other.parts, strict=False)
        )
        own = [span for span in self.spans if span.offset < count]
        others = [span for span in other.spans if span.offset < count]
        return own == others and sum(_part_length(part) for part, _ in same) >= count

    def tokens(self) -> Sequence[int]:
        """The token ids."""
        return self.first_tokens(self.length)

    def first_tokens(self, count: int) -> Sequence[int]:
        """The first `count` token ids, or all; no more of them are made than asked for."""
        tokens = array("q")
        for part in self.parts:
            tokens.extend(_part_tokens(part, count - len(tokens)))
        for span in self.spans:
            encoded = span.tokens(max(count - span.offset, 0))
            tokens[span.offset : span.offset + len(encoded)] = array("q", encoded)
        return tokens


def _part_length(part: tuple[str, int] | tuple[int, ...]) -> int:
    match part:
        case (str(), int(count)):
            return count
    return len(part)


def _part_tokens(part: tuple[str, int] | tuple[int, ...], most: int) -> Sequence[int]:
    match part:
        case (str(name), int(count)):
            return stream_tokens(name, min(count, most))
        case (*literal,):
            return literal[:most]


@frozen(kw_only=True)
class Request:
    """What a client asks for; lengths in tokens.

    `arrival` is the step before which the request is handed to the scheduler, `arrival_time` the
    moment on the simulated clock; one of them counts. With `after`, the id of an earlier request,
    `arrival_time` counts from the end of that one. The request samples end-of-sequence as its
    `output_len`-th token, the client goes away before step `abort_at`. `n` sequences are sampled
    from the prompt; `lora`: the adapter that it is for, 0 for none; `encoder_len`: tokens that an
    encoder reads first; `external`: tokens at its beginning that a connector has,
    `external_if_lost`: those of them that come although the load is lost; `right_drafts`: which of
    its tokens a drafter foresees, as ones and zeros that repeat themselves ("110": the first two of
    every three), with "-" for a token that it proposes nothing for, None: as is configured;
    `grammar`: its output must follow a grammar, which is compiled after its arrival; `has_images`:
    images in its prompt are encoded after its arrival; `reads_cache`: false where all of its prompt
    must be computed, for log-probabilities of the prompt or results of each of its tokens;
    `continued_by`: the id of the next turn of its session, a request for which its keys and values
    are kept. Only some schedulers serve the last ten.

    Raises:
        WorkloadError: an empty prompt, no token to generate, no sequence, an impossible output.
    """

    id: str
    prompt: Prompt
    max_tokens: int
    arrival: int = 0
    arrival_time: float | None = None
    output_len: int | None = None
    output: tuple[int, ...] | None = None
    abort_at: int | None = None
    priority: int = 0
    n: int = 1
    lora: int = 0
    encoder_len: int = 0
    external: int = 0
    external_if_lost: int = 0
    right_drafts: str | None = None
    grammar: bool = False
    has_images: bool = False
    reads_cache: bool = True
    continued_by: str | None = None
    after: str | None = None

    def __attrs_post_init__(self) -> None:
        if self.prompt.length < 1:
            raise WorkloadError("prompt_len", self.prompt.length, "1 or more tokens")
        _refuse_wrong_spans(self.prompt)
        if self.max_tokens < 1:
            raise WorkloadError("max_tokens", self.max_tokens, "1 or more tokens")
        if self.n < 1:
            raise WorkloadError("n", self.n, "1 or more sequences")
        upper = f"1 to max_tokens ({self.max_tokens})"
        if self.output_len is not None and not 1 <= self.output_len <= self.max_tokens:
            raise WorkloadError("output_len", self.output_len, upper)
        if self.output is not None and not 1 <= len(self.output) <= self.max_tokens:
            raise WorkloadError("output", list(self.output), f"{upper} token ids")

    @property
    def prompt_len(self) -> int:
        """Tokens of the prompt."""
        return self.prompt.length

    @property
    def encoder_spans(self) -> tuple[Span, ...]:
        """The spans of its prompt that stand for images or audio."""
        return self.prompt.spans

    @property
    def most_tokens(self) -> int:
        """Tokens of its prompt and all that it may ever generate."""
        return self.prompt.length + self.max_tokens

    @property
    def end(self) -> int:
        """Tokens after which the request has all that it will sample."""
        if self.output_len is not None:
            return self.output_len
        return self.max_tokens if self.output is None else len(self.output)

    def output_token(self, index: int) -> int:
        """The `index`-th token that the request samples, as if it were served alone."""
        return self.output_tokens(index + 1)[index]

    def output_tokens(self, count: int) -> list[int]:
        """The first `count` tokens that the request samples: written ones, then the model's."""
        tokens = [*(self.output or ())][:count]
        attended = attended_sum([*self.prompt.tokens(), *tokens])
        while len(tokens) < count:
            token = sampled_token(attended)
            attended = (attended + cached_value(token, self.prompt_len + len(tokens))) & WORD
            tokens.append(token)
        return tokens

    def first_tokens(self, count: int) -> list[int]:
        """Its first `count` tokens, prompt and then output."""
        outputs = self.output_tokens(count - self.prompt_len) if count > self.prompt_len else []
        return [*self.prompt.first_tokens(count), *outputs]

    @property
    def kept_len(self) -> int:
        """Tokens that the next turn of its session begins with: all but its last one."""
        return self.prompt_len + self.end - 1


def _refuse_wrong_spans(prompt: Prompt) -> None:
    """Raise if spans of the prompt are empty, overlap, are out of order or go beyond its end."""
    end = 0
    for place, span in enumerate(prompt.spans):
        if span.content.tokens < 1 or span.offset < end or span.end > prompt.length:
            found = [span.offset, span.content.tokens]
            allowed = f"1 token or more, between token {end} and the prompt's end ({prompt.length})"
            raise WorkloadError(f"encoder_spans[{place}]", found, allowed)
        end = span.end


class Oversized(StrEnum):
    """What becomes of a request that can never be served; the texts are silent.

    `refused`: it is not taken in; ours. `queued`: it waits like any other, as released.
    """

    REFUSED = "refused"
    QUEUED = "queued"


def refuse_above(field: str, value: Number, key: str, most: int) -> None:
    """Raise if what a request needs, named `field`, is more than what the key of that name allows.

    Raises:
        WorkloadError: it is.
    """
    if value > most:
        raise WorkloadError(field, value, f"at most {key} ({most})")


_RARELY_SERVED = {
    "n": 1,
    "lora": 0,
    "encoder_len": 0,
    "external": 0,
    "external_if_lost": 0,
    "right_drafts": None,
    "grammar": False,
    "has_images": False,
    "reads_cache": True,
    "continued_by": None,
    "encoder_spans": (),
}


def refuse_unserved(request: Request, config: PolicyConfig, serves: Container[str]) -> None:
    """Raise if the request asks for what the scheduler does not serve.

    `serves`: keys of a request that few schedulers know, and this one does.

    Raises:
        WorkloadError: it does.
    """
    usual = {name: value for name, value in _RARELY_SERVED.items() if name not in serves}
    _refuse_unusual(request, usual, f"under policy {config.policy}")


def _refuse_unusual(request: Request, usual: Mapping[str, Any], where: str) -> None:
    """Raise if the request has another value of one of these keys than the usual one."""
    for name, value in usual.items():
        found = getattr(request, name)
        if found != value:
            if name == "encoder_spans":
                found = [span.as_written for span in request.encoder_spans]
            allowed = "no such key" if value in (None, ()) else value
            raise WorkloadError(name, found, f"{allowed} {where}")


def refuse_too_long(request: Request, config: PolicyConfig, serves: Container[str] = ()) -> None:
    """Raise if prompt and output of the request exceed the model length.

    `serves`: as for `refuse_unserved`.

    Raises:
        WorkloadError: they do, or the request asks for what the scheduler does not serve.
    """
    refuse_unserved(request, config, serves)
    total = request.prompt_len + request.max_tokens
    refuse_above("prompt_len + max_tokens", total, "max_model_len", config.max_model_len)


def refuse_broken_session(request: Request, requests: Mapping[str, Request]) -> None:
    """Raise unless the next turn of a session begins with the tokens that are kept of this one.

    `requests`: by id.

    Raises:
        WorkloadError: a session goes on with a request that does not exist, does not come after the
            turn before, or has other tokens or no more of them; or a turn has a grammar, images or
            audio, or reads no cache.
    """
    if request.continued_by is None:
        return
    refuse_unlike_turns(request)
    turn = requests.get(request.continued_by)
    if turn is None or turn.after not in (None, request.id) or _comes_first(turn, request):
        allowed = f"a request that comes after {request.id!r}"
        raise WorkloadError("continued_by", request.continued_by, allowed)
    refuse_unlike_turns(turn)
    kept = request.kept_len
    begins_alike = turn.prompt.first_tokens(kept) == array("q", request.first_tokens(kept))
    if turn.prompt_len <= kept or not begins_alike:
        allowed = f"the {kept} tokens of {request.id!r} without its last, and more behind them"
        raise WorkloadError("prompt", f"{turn.prompt_len} tokens of {turn.id!r}", allowed)


def refuse_unlike_turns(request: Request) -> None:
    """Raise if a turn of a session has what no model has of them.

    Raises:
        WorkloadError: it has a grammar, images or audio, or reads no cache.
    """
    usual = {name: _RARELY_SERVED[name] for name in ("grammar", "reads_cache", "encoder_spans")}
    _refuse_unusual(request, usual, "of a turn of a session")


def _comes_first(turn: Request, earlier: Request) -> bool:
    """True if the turn may arrive before the earlier one."""
    if turn.after is not None:
        return False
    moments = (turn.arrival_time, earlier.arrival_time)
    if earlier.after is not None or (moments[0] is None) != (moments[1] is None):
        return True
    return (turn.arrival_time or turn.arrival) < (earlier.arrival_time or earlier.arrival)


@frozen
class BlockKeys:
    """Chained keys of the full blocks of requests.

    The key of a block covers its own tokens and, through the key before it, all earlier ones:
    two blocks have equal keys if and only if everything up to their ends is equal. `requests`: by
    id. `block_size`: in tokens. Source: spyre, "Prefix caching"; nano-vllm and vllm-v1, block
    hashes.
    """

    requests: Mapping[str, Request]
    block_size: int

    def of(self, request_id: str, blocks: int) -> Sequence[BlockKey]:
        """Keys of the request's first `blocks` blocks, prompt and sampled tokens alike."""
        request = self.requests[request_id]
        tokens = array("q", request.first_tokens(blocks * self.block_size))
        return self.keys_behind(self.root(request), tokens)

    def keys_behind(self, parent: BlockKey, tokens: "array[int]") -> list[BlockKey]:
        """Keys of successive full blocks of tokens; `parent`: of the block before them."""
        keys = []
        for start in range(0, len(tokens), self.block_size):
            own = tokens[start : start + self.block_size]
            parent = self.key_behind(parent, own.tobytes())
            keys.append(parent)
        return keys

    def root(self, _request: Request) -> BlockKey:
        """The parent of a request's first key."""
        return b""

    @staticmethod
    def key_behind(parent: BlockKey, tokens: bytes) -> BlockKey:
        """The key of a block; `parent`: of the one before it, `tokens`: its 64-bit token ids."""
        return blake2b(parent + tokens, digest_size=16).digest()
