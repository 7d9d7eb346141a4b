"""Tokens and block keys that are worked out once, for searches and runs that ask for them often.

The specification says what a request samples and what its blocks are known by. A context made here
gives the same answers and remembers them.
"""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from operator import eq
from typing import Any, TypeVar

from attrs import evolve, field, fields, frozen

from spec.core.requests import (
    WORD,
    BlockKey,
    BlockKeys,
    Prompt,
    Request,
    attended_sum,
    cached_value,
    sampled_token,
)

np: Any
tensors: Any
try:
    import numpy as np

    from engine.core import tensors
except ModuleNotFoundError:  # a reader's browser: the same tokens, more slowly
    np = tensors = None

AnyT = TypeVar("AnyT")
RememberedT = TypeVar("RememberedT", bound="RememberedRequest")

_MANY_TOKENS = 16  # from this number on computing them at once is faster than one by one


def remembering(ctx: AnyT) -> AnyT:
    """The context with requests and keys that remember what they worked out."""
    given: Any = ctx
    known = {id_: RememberedRequest.of(each) for id_, each in given.keys.requests.items()}
    changes: dict[str, Any] = {"keys": RememberedKeys(given.keys.block_size, known, given.keys)}
    for name in ("requests", "sequences"):  # of some policies a request has several sequences
        if hasattr(given, name):
            changes[name] = {id_: known[id_] for id_ in getattr(given, name)}
    return evolve(given, **changes)  # type: ignore[no-any-return]


def machine_remembering(machine: AnyT) -> AnyT:
    """The reference machine with such a context."""
    given: Any = machine
    return evolve(given, ctx=remembering(given.ctx))  # type: ignore[no-any-return]


def forget(ctx: Any, request_id: str) -> None:
    """Drop what the context remembers of a request that has left."""
    ctx.keys.forget(request_id)
    ctx.requests[request_id].forget()


@frozen(kw_only=True)
class RememberedRequest(Request):
    """A request that works out each token that it samples once.

    `_attended`: what its tokens so far add up to, once one was sampled; nothing while it waits.
    """

    _sampled: list[int] = field(factory=list, init=False, eq=False, repr=False)
    _attended: list[int] = field(factory=list, init=False, eq=False, repr=False)

    @staticmethod
    def of(request: Request) -> "RememberedRequest":
        """The same request."""
        return (
            request
            if isinstance(request, RememberedRequest)
            else remembered_as(RememberedRequest, request)
        )

    def output_token(self, index: int) -> int:
        """The `index`-th token that the request samples."""
        sampled = self._sampled
        if index < len(sampled):  # the usual case, as every rule about tokens asks
            return sampled[index]
        if self.output is not None and index < len(self.output):
            return self.output[index]
        while len(sampled) <= index:
            self._sample_next()
        return sampled[index]

    def output_tokens(self, count: int) -> list[int]:
        """The first `count` tokens that the request samples."""
        return [*map(self.output_token, range(count))]

    def first_tokens(self, count: int) -> list[int]:
        """Its first `count` tokens, prompt and then output."""
        outputs = self.output_tokens(count - self.prompt_len)
        return [*_prompt_tokens(self.prompt, 0, count).tolist(), *outputs]

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
        words = tensors.cached_values(np.array(new), np.arange(first, first + len(new)))
        sums = np.append(np.uint64(self._attended_so_far()), words).cumsum()
        if [*tokens] != known + tensors.sampled_tokens(sums[:-1]).tolist():
            return False
        self._sampled.extend(new)
        self._attended[:] = [int(sums[-1])]
        return True

    def forget(self) -> None:
        """Drop the sampled tokens; they are worked out again if they are asked for."""
        self._attended.clear()
        self._sampled.clear()

    def _sample_next(self) -> None:
        index, attended = len(self._sampled), self._attended_so_far()
        known = self.output is not None and index < len(self.output)
        token = self.output[index] if known and self.output else sampled_token(attended)
        self._sampled.append(token)
        self._attended[0] = (attended + cached_value(token, self.prompt_len + index)) & WORD

    def _attended_so_far(self) -> int:
        """What its prompt and the tokens that it has sampled add up to."""
        if not self._attended:
            tokens = _prompt_tokens(self.prompt, 0, self.prompt_len)
            self._attended.append(_attended_sum(tokens))
        return self._attended[0]


def remembered_as(kind: type[RememberedT], request: Request) -> RememberedT:
    """The same request, as one of this class."""
    return kind(**{key.name: getattr(request, key.name) for key in fields(Request)})


@frozen
class RememberedKeys(BlockKeys):
    """Block keys, each worked out once; `plain`: how they are made."""

    requests: Mapping[str, RememberedRequest]
    _plain: BlockKeys
    _known: dict[str, list[BlockKey]] = field(factory=dict, init=False, eq=False, repr=False)

    def of(self, request_id: str, blocks: int) -> Sequence[BlockKey]:
        """Keys of the request's first `blocks` blocks, prompt and sampled tokens alike."""
        keys = self._known.setdefault(request_id, [])
        if len(keys) < blocks:
            request = self.requests[request_id]
            keys += self._plain.keys_behind(
                keys[-1] if keys else self._plain.root(request),
                self._tokens_behind(request, len(keys) * self.block_size, blocks),
            )
        return keys[:blocks]

    def learn(self, request_id: str, hashes: Iterable[str]) -> None:
        """Take a server's own hashes as the next keys of a request."""
        self._known.setdefault(request_id, []).extend(text.encode() for text in hashes)

    def forget(self, request_id: str) -> None:
        """Drop the keys of a request that has left."""
        self._known.pop(request_id, None)

    def _tokens_behind(self, request: RememberedRequest, start: int, blocks: int) -> Any:
        """The tokens from `start` up to the end of a block; all full ones that the prompt has."""
        length = request.prompt_len
        if start < length:
            blocks = max(blocks, length // self.block_size)
        end = blocks * self.block_size
        outputs = map(request.output_token, range(max(start - length, 0), end - length))
        tokens = array("q", outputs)
        return array("q", _prompt_tokens(request.prompt, start, end).tobytes()) + tokens


def _prompt_tokens(prompt: Prompt, start: int, end: int) -> Any:
    """Tokens `start` to `end`, as far as the prompt goes; a tensor or an array."""
    if tensors is None:
        return prompt.first_tokens(end)[start:]
    return tensors.prompt_tokens(prompt, start, end)


def _attended_sum(tokens: Any) -> int:
    if tensors is None:
        return attended_sum(tokens)
    return int(tensors.cached_values(tokens, np.arange(len(tokens))).sum())
