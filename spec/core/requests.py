"""Requests: what a client asks for, and the tokens it consists of.

A prompt is a sequence of named token streams. Equal names give equal tokens, which is how
shared prefixes are written down; a prompt that is not shared is a stream of its own name.
"""

from array import array
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from hashlib import blake2b
from itertools import chain, count, takewhile
from operator import eq
from typing import Any

from attrs import frozen

from spec.core.arithmetic import Number
from spec.core.configuration import PolicyConfig
from spec.core.errors import WorkloadError

np: Any
try:
    import numpy as np
except ModuleNotFoundError:  # a reader's browser: the same tokens, more slowly
    np = None

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

_MANY_TOKENS = 16  # so many are worked out at once more quickly than one by one

BlockKey = bytes  # identifies a full block's tokens and everything before them


def stream_tokens(name: str, count: int) -> "array[int]":
    """The first `count` tokens of the stream `name`: the same for the same name."""
    digest = blake2b(name.encode(), digest_size=8).digest()
    seed, stride = int.from_bytes(digest[:4], "big"), int.from_bytes(digest[4:], "big") | 1
    if np is None:
        return array("q", [(seed + place * stride) & MOST_TOKEN_ID for place in range(count)])
    places = np.arange(count, dtype=np.int64)
    return array("q", ((seed + places * stride) & MOST_TOKEN_ID).tobytes())


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


def attended_sum(tokens: Sequence[int], start: int = 0) -> int:
    """What the model makes of the tokens from position `start` on: their cached words, added up.

    Sums of parts add up to the sum of the whole, modulo 2**64, so a device may add block by block.
    """
    if np is None:
        return sum(map(cached_value, tokens, range(start, start + len(tokens)))) & WORD
    ids: Any = np.array(tokens, np.uint64)
    positions: Any = np.arange(start, start + len(tokens), dtype=np.uint64)
    return int(np.sum(cached_value(ids, positions), dtype=np.uint64))


def sampled_token(attended: int) -> int:
    """The token that the model samples when all that it attends to adds up to `attended`."""
    return attended % VOCABULARY


@frozen
class Prompt:
    """The tokens of a prompt: named streams or literal token ids, in order."""

    parts: tuple[tuple[str, int] | tuple[int, ...], ...]
    length: int

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

    def begins_like(self, other: "Prompt", count: int) -> bool:
        """True if the same parts make up the first `count` tokens of both, so they are equal.

        False says nothing: different parts may hold the same tokens.
        """
        same = takewhile(
            lambda pair: pair[0] == pair[1], zip(self.parts, other.parts, strict=False)
        )
        return sum(_part_length(part) for part, _ in same) >= count

    def tokens(self) -> Sequence[int]:
        """The token ids, made anew at each call so that a long queue costs no memory."""
        return self.first_tokens(self.length)

    def first_tokens(self, count: int) -> Sequence[int]:
        """The first `count` token ids, or all; no more of them are made than asked for."""
        tokens = array("q")
        for part in self.parts:
            tokens.extend(_part_tokens(part, count - len(tokens)))
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


_CACHED = ("_attended", "_sampled", "end", "first_token", "most_tokens")  # of a request


@frozen(kw_only=True)
class Request:
    """What a client asks for; lengths in tokens.

    `arrival` is the step before which the request is handed to the scheduler, `arrival_time`
    the moment on the simulated clock; one of them counts. The request samples end-of-sequence
    as its `output_len`-th token, the client goes away before step `abort_at`. `n` sequences are
    sampled from the prompt; `lora`: the adapter that it is for, 0 for none; `encoder_len`: tokens
    that an encoder reads first; `external`: tokens at its beginning that a connector has;
    `right_drafts`: which of its tokens a drafter foresees, as ones and zeros that repeat themselves
    ("110": the first two of every three), None: as is configured. Only some schedulers serve the
    last five.

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
    right_drafts: str | None = None

    def __attrs_post_init__(self) -> None:
        if self.prompt.length < 1:
            raise WorkloadError("prompt_len", self.prompt.length, "1 or more tokens")
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

    @cached_property
    def most_tokens(self) -> int:
        """Tokens of its prompt and all that it may ever generate."""
        return self.prompt.length + self.max_tokens

    @cached_property
    def _attended(self) -> list[int]:
        """What all its tokens so far add up to, once one was sampled: none of it while it waits."""
        return []

    @cached_property
    def _sampled(self) -> list[int]:
        """The tokens that it has sampled."""
        return []

    @cached_property
    def first_token(self) -> int:
        """The prompt's first token id."""
        return self.prompt.first_tokens(1)[0]

    @cached_property
    def end(self) -> int:
        """Tokens after which the request has all that it will sample."""
        if self.output_len is not None:
            return self.output_len
        return self.max_tokens if self.output is None else len(self.output)

    def output_token(self, index: int) -> int:
        """The `index`-th token that the request samples, as if it were served alone."""
        sampled = self._sampled
        if index < len(sampled):  # the usual case, as every rule about tokens asks
            return sampled[index]
        if self.output is not None and index < len(self.output):
            return self.output[index]
        while len(sampled) <= index:
            self._sample_next()
        return sampled[index]

    def samples(self, tokens: Sequence[int]) -> bool:
        """True if these are its first outputs, as `output_token` has them.

        Many are worked out at once: each follows from those before it, and is asked for only as
        long as they are right.
        """
        known = self._sampled[: len(tokens)]
        new = tokens[len(known) :]
        if np is None or self.output is not None or len(new) < _MANY_TOKENS:
            return all(map(eq, tokens, map(self.output_token, count())))
        first = self.prompt_len + len(known)
        positions: Any = np.arange(first, first + len(new)).astype(np.uint64)
        words = cached_value(np.array(new).astype(np.uint64), positions)
        sums: Any = np.append(np.uint64(self._attended_so_far()), words).cumsum()
        sampled: Any = sampled_token(sums[:-1])
        if [*tokens] != known + sampled.tolist():
            return False
        self._sampled.extend(new)
        self._attended[:] = [int(sums[-1])]
        return True

    def first_tokens(self, count: int) -> list[int]:
        """Its first `count` tokens, prompt and then output."""
        outputs = range(count - self.prompt_len)
        return [*self.prompt.first_tokens(count), *map(self.output_token, outputs)]

    def forget_sampled(self) -> None:
        """Drop its cached values, sampled tokens among them; each is computed again when needed."""
        for name in _CACHED:
            with suppress(AttributeError):  # it was never computed
                object.__delattr__(self, name)

    def _sample_next(self) -> None:
        index, attended = len(self._sampled), self._attended_so_far()
        known = self.output is not None and index < len(self.output)
        token = self.output[index] if known and self.output else sampled_token(attended)
        self._sampled.append(token)
        self._attended[0] = (attended + cached_value(token, self.prompt_len + index)) & WORD

    def _attended_so_far(self) -> int:
        """What its prompt and the tokens that it has sampled add up to."""
        if not self._attended:
            self._attended.append(attended_sum(self.prompt.tokens()))
        return self._attended[0]


def refuse_above(field: str, value: Number, key: str, most: int) -> None:
    """Raise if what a request needs, named `field`, is more than what the key of that name allows.

    Raises:
        WorkloadError: it is.
    """
    if value > most:
        raise WorkloadError(field, value, f"at most {key} ({most})")


_RARELY_SERVED = {"n": 1, "lora": 0, "encoder_len": 0, "external": 0, "right_drafts": None}


def refuse_too_long(request: Request, config: PolicyConfig, serves: Container[str] = ()) -> None:
    """Raise if prompt and output of the request exceed the model length.

    `serves`: keys of a request that few schedulers know, and this one does.

    Raises:
        WorkloadError: they do, or the request asks for what the scheduler does not serve.
    """
    for name, usual in _RARELY_SERVED.items():
        if name not in serves and (value := getattr(request, name)) != usual:
            allowed = "no such key" if usual is None else usual
            raise WorkloadError(name, value, f"{allowed} under policy {config.policy}")
    total = request.prompt_len + request.max_tokens
    refuse_above("prompt_len + max_tokens", total, "max_model_len", config.max_model_len)


class BlockKeys:
    """Chained keys of the full blocks of requests, each worked out once.

    The key of a block covers its own tokens and, through the key before it, all earlier ones:
    two blocks have equal keys if and only if everything up to their ends is equal. Source:
    spyre, "Prefix caching"; nano-vllm and vllm-v1, block hashes.
    """

    def __init__(self, requests: Mapping[str, Request], block_size: int) -> None:
        """`requests` by id; `block_size` in tokens."""
        self._requests = requests
        self._block_size = block_size
        self._keys: dict[str, list[BlockKey]] = {}

    def of(self, request_id: str, blocks: int) -> Sequence[BlockKey]:
        """Keys of the request's first `blocks` blocks, prompt and sampled tokens alike."""
        keys = self._keys.setdefault(request_id, [])
        if len(keys) < blocks:
            self._extend(request_id, keys, blocks)
        return keys[:blocks]

    def forget(self, request_id: str) -> None:
        """Drop what is kept for a request that has left."""
        self._keys.pop(request_id, None)

    def _extend(self, request_id: str, keys: list[BlockKey], blocks: int) -> None:
        request = self._requests[request_id]
        start = len(keys) * self._block_size
        prompt: Sequence[int] = ()
        if start < request.prompt_len:  # its tokens are made anew, so all of its blocks are done
            prompt = request.prompt.tokens()
            blocks = max(blocks, request.prompt_len // self._block_size)
        first_output = max(start - request.prompt_len, 0)
        sampled = range(first_output, blocks * self._block_size - request.prompt_len)
        outputs = [request.output_token(index) for index in sampled]
        tokens = array("q", chain(prompt[start:], outputs))
        for index in range(blocks - len(keys)):
            own = tokens[index * self._block_size : (index + 1) * self._block_size]
            parent = keys[-1] if keys else b""
            keys.append(self.key_behind(parent, own.tobytes()))

    @staticmethod
    def key_behind(parent: BlockKey, tokens: bytes) -> BlockKey:
        """The key of a block; `parent`: of the one before it, `tokens`: its 64-bit token ids."""
        return blake2b(parent + tokens, digest_size=16).digest()
