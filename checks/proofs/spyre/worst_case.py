"""Words of the claims about admission: the worst case after an admission, step by step.

In the worst case no other request joins and every request generates all tokens that it may. The
life of a member is its tokens in the KV cache and its decode steps to come. The candidate's first
token comes from its last chunk, so that it decodes one step less than it generates tokens.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import combinations
from typing import Any, Self

from attrs import frozen

from checks.proofs.registry import Fact, Integer, Numbers, cite
from checks.proofs.spyre.rows import LETTERS, cite_rows, later, positive
from checks.proofs.unshared import unshared
from spec.core.arithmetic import Number, Truth, every, select
from spec.core.requests import Request
from spec.spyre.admission import Life, Member
from spec.spyre.config import SpyreConfig
from spec.spyre.padding import max_tkv, volume

Alive = tuple[int, ...]  # the members, by index, that still decode in some step


@frozen(slots=False)
class WorstCase:
    """Decoding requests and the candidate that may join them; `lives`: the lives of all."""

    decoding: Sequence[Member]
    candidate: Member

    @classmethod
    def drawn(cls, integer: Integer, requests: int) -> Self:
        """A worst case of `requests` requests, the last of them the candidate."""
        decoding = [
            Member(integer(f"tokens_{index}"), integer(f"remaining_{index}"))
            for index in range(requests - 1)
        ]
        return cls(decoding, Member(integer("prompt_len"), integer("max_tokens")))

    @property
    def given(self) -> list[Truth]:
        """All lengths are positive."""
        members = (*self.decoding, self.candidate)
        return positive(
            *(number for member in members for number in (member.length, member.remaining))
        )

    @cached_property
    def lives(self) -> list[Life]:
        """The life of each member, the candidate's last."""
        lives = [Life(member.length, member.remaining) for member in self.decoding]
        return [*lives, Life(self.candidate.length, self.candidate.remaining - 1)]

    def end(self, member: int) -> Number:
        """The last step of this member."""
        return self.lives[member][1]

    @property
    def groups(self) -> Iterator[Alive]:
        """Every non-empty set of members."""
        return request_groups(len(self.lives))

    @property
    def ends(self) -> Iterator[tuple[Alive, int]]:
        """Every set of members alive at an end, with the member that ends."""
        return possible_ends(len(self.lives))

    def are_alive(self, alive: Alive, step: Number) -> Truth:
        """True if exactly these members decode in this step."""
        return every(
            steps >= step if index in alive else steps < step
            for index, (_, steps) in enumerate(self.lives)
        )

    def lengths(self, alive: Alive) -> list[Number]:
        """Tokens of these members before the first step."""
        return [self.lives[index][0] for index in alive]

    def volume(self, step: Number, block_size: Number) -> Number:
        """Volume of the `step`-th decode step; 0 once every request has left."""
        volume_tokens: Number = 0
        for alive in self.groups:
            now = batch_volume(self.lengths(alive), step, block_size)
            volume_tokens = select(self.are_alive(alive, step), now, volume_tokens)
        return volume_tokens

    def end_first(self, alive: Alive, member: int, step: Number) -> Truth:
        """True if exactly these members decode in this step and none ends before this one."""
        return every([self.are_alive(alive, step), self.is_first_end(alive, member)])

    def is_first_end(self, alive: Alive, member: int) -> Truth:
        """True if none of these members ends before this one."""
        return every(self.end(index) >= self.end(member) for index in alive)


def request_groups(requests: int) -> Iterator[Alive]:
    """Every non-empty set of requests."""
    for size in range(1, requests + 1):
        yield from combinations(range(requests), size)


def possible_ends(requests: int) -> Iterator[tuple[Alive, int]]:
    """Every non-empty set of requests, with one of them."""
    return ((alive, member) for alive in request_groups(requests) for member in alive)


def cite_number(case: WorstCase, alive: Alive, member: int, block_size: Number) -> Fact:
    """The rule's number for this member's end, until which these are alive (PRV-EXA-4)."""
    letter = LETTERS[len(case.lives) - 2]
    own = {"alive": alive, "member": member, "block_size": block_size}
    return cite(f"PRV-EXA-4{letter}", case=case, **own)


def cite_leaving(case: WorstCase, alive: Alive, step: Number, block_size: Number) -> Iterator[Fact]:
    """Members that stay beside these make no step's volume smaller (PRV-MON-2)."""
    for more in case.groups:
        if set(more) > set(alive):
            rows = case.lengths(more)
            yield cite_rows("PRV-MON-2", rows, fewest=2, step=step, block_size=block_size)


def batch_volume(lengths: Sequence[Number], step: Number, block_size: Number) -> Number:
    """Volume of a step in which all rows still decode; `lengths`: tokens before the first step."""
    return volume(len(lengths), max_tkv(later(lengths, step), block_size))


def batch_scenario(
    *sizes: tuple[int, int], block_size: int, **keys: Any
) -> tuple[SpyreConfig, list[Request]]:
    """Requests with these prompt and output lengths, which arrive together and share no token."""
    config = SpyreConfig(
        block_size=block_size,
        chunk_size=block_size * 8,
        max_num_seqs=len(sizes),
        prefix_caching=False,
        **keys,
    )
    return config, unshared(*sizes)


def scenario_of_a_pair(
    numbers: Numbers, block_size: int, **keys: Any
) -> tuple[SpyreConfig, list[Request]]:
    """Two requests as `WorstCase` names them, at the moment when the candidate ends its prefill.

    The first request has decoded once: one token came from its last chunk and one from the step.
    """
    first = numbers["tokens_0"] - 1, numbers["remaining_0"] + 2
    second = numbers["prompt_len"], numbers["max_tokens"]
    return batch_scenario(first, second, block_size=block_size, **keys)
