"""Requests: what a client asks for, and the tokens it consists of.

A prompt is a sequence of named token streams. Equal names give equal tokens, which is how
shared prefixes are written down; a prompt that nobody shares is a stream of its own name.
"""

from array import array
from collections.abc import Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from itertools import chain

from attrs import field, frozen

from spec.config import Config
from spec.errors import WorkloadError
from spec.padding import block_count

VOCABULARY = 50_000  # token ids that the model samples: 0 to VOCABULARY - 1
_MODULUS = 2**61 - 1
_MULTIPLIER = 1_000_003

BlockKey = bytes  # identifies a full block's tokens and everything before them


def stream_tokens(name: str, count: int) -> Sequence[int]:
    """The first `count` tokens of the stream `name`: the same for the same name."""
    digest = blake2b(name.encode(), digest_size=8).digest()
    seed, stride = int.from_bytes(digest[:4], "big"), int.from_bytes(digest[4:], "big") | 1
    return [(seed + index * stride) & 0x7FFF_FFFF for index in range(count)]


def sampled_token(state: int) -> int:
    """The token that the model samples when its tokens folded to `state`."""
    return state % VOCABULARY


def fold_tokens(tokens: Sequence[int], state: int = 0) -> int:
    """All tokens so far, in order, as one number: what the simulated model knows of them."""
    for token in tokens:
        state = (state * _MULTIPLIER + token + 1) % _MODULUS
    return state


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

    def tokens(self) -> Sequence[int]:
        """The token ids, made anew at each call so that a long queue costs no memory."""
        return array("q", chain.from_iterable(_part_tokens(part) for part in self.parts))


def _part_tokens(part: tuple[str, int] | tuple[int, ...]) -> Sequence[int]:
    match part:
        case (str(name), count):
            return stream_tokens(name, count)
    return part  # literal token ids


@frozen(kw_only=True, slots=False)
class Request:
    """What a client asks for; lengths in tokens.

    `arrival` is the step before which the request is handed to the scheduler, `arrival_time`
    the moment on the simulated clock; one of them counts. The request samples end-of-sequence
    as its `output_len`-th token, the client goes away before step `abort_at`.

    Raises:
        WorkloadError: an empty prompt, no token to generate, an impossible output.
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
    _folded: list[int] = field(factory=list, init=False, eq=False, repr=False)
    _sampled: list[int] = field(factory=list, init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        if self.prompt.length < 1:
            raise WorkloadError("prompt_len", self.prompt.length, "1 or more tokens")
        if self.max_tokens < 1:
            raise WorkloadError("max_tokens", self.max_tokens, "1 or more tokens")
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
    def end(self) -> int:
        """Tokens after which the request has all that it will sample."""
        if self.output_len is not None:
            return self.output_len
        return self.max_tokens if self.output is None else len(self.output)

    def output_token(self, index: int) -> int:
        """The `index`-th token that the request samples, as if it were served alone."""
        if self.output is not None and index < len(self.output):
            return self.output[index]
        while len(self._sampled) <= index:
            self._sample_next()
        return self._sampled[index]

    def _sample_next(self) -> None:
        count = len(self._sampled)
        if not self._folded:
            self._folded.append(fold_tokens(self.prompt.tokens()))
        known = self.output is not None and count < len(self.output)
        token = self.output[count] if known and self.output else sampled_token(self._folded[0])
        self._sampled.append(token)
        self._folded[0] = fold_tokens((token,), self._folded[0])


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
        prompt = request.prompt.tokens() if start < request.prompt_len else ()
        first_output = max(start - request.prompt_len, 0)
        sampled = max(blocks * self._block_size - request.prompt_len, 0)
        outputs = [request.output_token(index) for index in range(first_output, sampled)]
        tokens = array("q", chain(prompt[start:], outputs))
        for index in range(blocks - len(keys)):
            own = tokens[index * self._block_size : (index + 1) * self._block_size]
            parent = keys[-1] if keys else b""
            keys.append(blake2b(parent + own.tobytes(), digest_size=16).digest())


def refuse_unservable(request: Request, config: Config) -> None:
    """Raise if no scheduler could ever serve the request under this configuration.

    Raises:
        WorkloadError: it exceeds the model length, the volume limit or the whole pool.
    """
    total = request.prompt_len + request.max_tokens
    if total > config.max_model_len:
        allowed = f"at most max_model_len ({config.max_model_len})"
        raise WorkloadError("prompt_len + max_tokens", total, allowed)
    if total - 1 > config.max_batch_tkv_limit:
        allowed = f"at most max_batch_tkv_limit ({config.max_batch_tkv_limit})"
        raise WorkloadError("prompt_len + max_tokens - 1 (its largest tkv)", total - 1, allowed)
    blocks = block_count(total, config.block_size)
    if blocks > config.pool_blocks:
        allowed = f"at most num_blocks ({config.pool_blocks})"
        raise WorkloadError("blocks of prompt_len + max_tokens", blocks, allowed)
