"""Words of the claims about admission: the worst case that follows, step by step.

In the worst case nobody else joins and every request generates all that it may. A member's life is
its tokens in the KV cache and the decode steps that it has to come; the candidate's first token
comes from its last chunk, so it decodes one step less than it generates.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations

from checks.proofs.registry import Integer, Numbers
from checks.proofs.spyre.rows import later, positive
from spec.core.arithmetic import Number, Truth, every, select
from spec.core.requests import Prompt, Request
from spec.spyre.admission import Member
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
    """Volume of the `step`-th decode step of the worst case; 0 once everybody has left."""
    found: Number = 0
    for alive in groups(len(lives)):
        now = batch_volume(lengths_of(lives, alive), step, block_size)
        found = select(are_alive(lives, alive, step), now, found)
    return found


def is_first_end(lives: Sequence[Life], alive: Alive, member: int) -> Truth:
    """Of these members nobody ends before this one."""
    return every(lives[index][1] >= lives[member][1] for index in alive)


def outlasting(lives: Sequence[Life], member: int) -> Iterator[tuple[Alive, Truth]]:
    """Who may decode until this member's end, and the condition that exactly they do."""
    for alive in groups(len(lives)):
        if member in alive:
            yield alive, are_alive(lives, alive, lives[member][1])


def requests_of_a_pair(numbers: Numbers) -> list[Request]:
    """Two requests as `batch_of` names them, at the moment when the candidate ends its prefill.

    The first one has decoded once by then: a token came from its last chunk and one from the step.
    """
    first = Request(
        id="0",
        prompt=Prompt.of_stream("own:0", numbers["tokens_0"] - 1),
        max_tokens=numbers["remaining_0"] + 2,
    )
    second = Request(
        id="1",
        prompt=Prompt.of_stream("own:1", numbers["prompt_len"]),
        max_tokens=numbers["max_tokens"],
    )
    return [first, second]
