"""Words of the claims about admission: the worst case that follows, step by step.

In the worst case no other request joins and every request generates all that it may. A member's
life is its tokens in the KV cache and the decode steps that it has to come; the candidate's first
token comes from its last chunk, so it decodes one step less than it generates.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

from checks.proofs.registry import Integer, Numbers
from checks.proofs.spyre.rows import later, positive
from checks.proofs.unshared import unshared
from spec.core.arithmetic import Number, Truth, every, select
from spec.core.requests import Request
from spec.spyre.admission import Member
from spec.spyre.config import SpyreConfig
from spec.spyre.padding import max_tkv, volume

Life = tuple[Number, Number]
Alive = tuple[int, ...]  # the members, by index, that still decode in some step


def batch_of(integer: Integer, requests: int) -> tuple[list[Member], Member, list[Truth]]:
    """So many requests, the last of them the candidate, and what is given of their lengths."""
    decoding = [
        Member(integer(f"tokens_{index}"), integer(f"remaining_{index}"))
        for index in range(requests - 1)
    ]
    candidate = Member(integer("prompt_len"), integer("max_tokens"))
    lengths = [number for one in (*decoding, candidate) for number in (one.length, one.remaining)]
    return decoding, candidate, positive(*lengths)


def lives_of(decoding: Sequence[Member], candidate: Member) -> list[Life]:
    """The life of each member, the candidate's last."""
    lives = [(member.length, member.remaining) for member in decoding]
    return [*lives, (candidate.length, candidate.remaining - 1)]


def groups(requests: int) -> list[Alive]:
    """Every way to choose one member or more."""
    sizes = range(1, requests + 1)
    return [group for size in sizes for group in combinations(range(requests), size)]


def are_alive(lives: Sequence[Life], alive: Alive, step: Number) -> Truth:
    """Exactly these members decode in this step."""
    return every(
        steps >= step if index in alive else steps < step for index, (_, steps) in enumerate(lives)
    )


def lengths_of(lives: Sequence[Life], alive: Alive) -> list[Number]:
    """Tokens of these members before the first step."""
    return [lives[index][0] for index in alive]


def batch_volume(lengths: Sequence[Number], step: Number, block_size: Number) -> Number:
    """Volume of a step of rows that are all still there, by their tokens before the first step."""
    return volume(len(lengths), max_tkv(later(lengths, step), block_size))


def step_volume(lives: Sequence[Life], step: Number, block_size: Number) -> Number:
    """Volume of the `step`-th decode step of the worst case; 0 once every request has left."""
    found: Number = 0
    for alive in groups(len(lives)):
        now = batch_volume(lengths_of(lives, alive), step, block_size)
        found = select(are_alive(lives, alive, step), now, found)
    return found


def is_first_end(lives: Sequence[Life], alive: Alive, member: int) -> Truth:
    """Of these members none ends before this one."""
    return every(lives[index][1] >= lives[member][1] for index in alive)


def outlasting(lives: Sequence[Life], member: int) -> Iterator[tuple[Alive, Truth]]:
    """Members that may decode until this one's end, and the condition that exactly they do."""
    for alive in groups(len(lives)):
        if member in alive:
            yield alive, are_alive(lives, alive, lives[member][1])


def scenario_of(
    *sizes: tuple[int, int], block_size: int, **keys: Any
) -> tuple[SpyreConfig, list[Request]]:
    """Requests of these prompt and output lengths, which arrive together and share no token."""
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
    """Two requests as `batch_of` names them, at the moment when the candidate ends its prefill.

    The first one has decoded once by then: a token came from its last chunk and one from the step.
    """
    first = numbers["tokens_0"] - 1, numbers["remaining_0"] + 2
    second = numbers["prompt_len"], numbers["max_tokens"]
    return scenario_of(first, second, block_size=block_size, **keys)
