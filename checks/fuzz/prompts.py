"""Prompts that have something to do with each other."""

from attrs import define, field

from checks.fuzz.dice import Dice
from spec.core.requests import Prompt, Request

_STREAMS = ("a", "b")  # few, so that prompts often begin alike


def _own(request_id: str) -> str:
    """A stream for one request and those that repeat its prompt; `prompt_len` has no repeats."""
    return f"r{request_id}"


@define
class Prompts:
    """Draws prompts; `known` are the requests drawn so far, which new ones may resemble.

    `shared`, `repeated`, `continued`: shares of prompts that begin like others, are the same as
    another, contain another's output.
    """

    dice: Dice
    shared: float
    repeated: float
    continued: float
    known: list[Request] = field(factory=list)

    def draw(self, request_id: str, length: int, most: int) -> Prompt:
        """A prompt of about `length` tokens, and of at most `most`."""
        if self.known and self.dice.chance(self.repeated):
            return self.dice.one_of(self.known).prompt
        if self.known and self.dice.chance(self.continued):
            return self._continued(self.dice.one_of(self.known), length, most)
        if self.dice.chance(self.shared):
            return self._nested(request_id, length)
        return Prompt.of_stream(_own(request_id), length)

    def _continued(self, other: Request, length: int, most: int) -> Prompt:
        """Another's prompt and output, as in a conversation's next turn, and perhaps more."""
        answered = self.dice.between(1, other.end)
        tokens = [*other.prompt.tokens(), *map(other.output_token, range(answered))]
        tokens += [self.dice.between(0, 2) for _ in range(length - len(tokens))]
        return Prompt.of_tokens(tokens[:most])

    def _nested(self, request_id: str, length: int) -> Prompt:
        """A common stream, then another or one of the request's own."""
        first = self.dice.between(1, length)
        parts = [(self.dice.one_of(_STREAMS), first)]
        if first < length:
            own = self.dice.chance(0.5)
            name = _own(request_id) if own else self.dice.one_of(_STREAMS)
            parts.append((name, length - first))
        return Prompt.of_parts(parts)
