"""Obligations about admission = shipped: sound with the batch's own tkv, not with another one.

Source: sendnn-inference 2.6.3, last-chunk constraints with pausing off. The rule projects every
member from one tkv, that of the last step, rounds up to whole blocks and adds one more.

With interleaving that tkv is a decode step's, of all rows that still decode and perhaps of some
that left in it. Then the rule is sound, for every batch size: take any step in which the candidate
still decodes, and of the members alive in it the one with the least projected tkv. That projection
is at least the max-tkv of the step (PRV-SHP-1, 2), those alive are projected to be (they reach as
much or more), and the rule compares at least their number times it with the limit (PRV-SHP-3). A
step in which the candidate has left is one of the batch as it was before, admitted earlier.

Without interleaving the last step may have been another request's prefill. Its tkv says nothing
about the batch, and the rule admits too much (PRV-SHP-5).
"""

from collections.abc import Iterator, Sequence
from functools import partial

from checks.proofs.registry import (
    Case,
    Fact,
    Integer,
    Numbers,
    Positive,
    Statement,
    Verdict,
    cite,
)
from checks.proofs.spyre.rows import REAL_BLOCK, cite_layout, cite_width, later, positive
from checks.proofs.spyre.scope import obligation
from checks.proofs.spyre.worst_case import Alive, WorstCase, batch_scenario
from spec.core.arithmetic import Number, Truth, every
from spec.core.requests import Request
from spec.spyre.admission import (
    Member,
    shipped_candidate_future,
    shipped_row_futures,
    shipped_volume_holds,
)
from spec.spyre.config import SpyreConfig
from spec.spyre.padding import max_tkv
from spec.spyre.variants import Admission

_of_the_projection = partial(
    obligation, where="admission=shipped, interleave=true", rules=["SPY-VOL-1"]
)
_ANY_BATCH = (
    "every batch size (the longest row and the one that reaches furthest represent it), "
    f"every length, block {REAL_BLOCK}"
)

# --- sound, with the tkv of the batch -------------------------------------------------------------


def _is_that_of_the_batch(last_tkv: Number, lengths: Sequence[Number], block_size: Number) -> Truth:
    """True if the rule gets the tkv of a step of at least these rows."""
    return every([last_tkv >= max_tkv(lengths, block_size)])


@_of_the_projection("PRV-SHP-1", bounds=_ANY_BATCH, is_step=True)
def projection_covers_every_step_of_a_row(
    tokens: Positive,
    remaining: Positive,
    prompt_len: Positive,
    max_tokens: Number,
    longest: Positive,
    furthest: Positive,
    last_tkv: Number,
    step: Positive,
) -> Statement:
    """A decoding request is projected at least the max-tkv of every step that it takes part in."""
    # `tokens`, `remaining`: of its row; the candidate is among the others or not.
    row, candidate = Member(tokens, remaining), Member(prompt_len, max_tokens)
    (projected,) = shipped_row_futures([row], candidate, REAL_BLOCK, last_tkv)
    batch = [tokens, longest, furthest]
    return Statement(
        [
            max_tkv(later(batch, step), REAL_BLOCK) <= projected,
            max_tkv(later([*batch, prompt_len], step), REAL_BLOCK) <= projected,
        ],
        given=[step <= remaining, _is_that_of_the_batch(last_tkv, batch, REAL_BLOCK)],
    )


@_of_the_projection("PRV-SHP-2", bounds=_ANY_BATCH, is_step=True)
def projection_covers_every_step_of_the_candidate(
    prompt_len: Positive,
    max_tokens: Number,
    longest: Positive,
    furthest: Positive,
    other: Positive,
    last_tkv: Number,
    step: Positive,
) -> Statement:
    """The candidate is projected at least the max-tkv of every step that it takes part in."""
    # Its first token comes from its last chunk.
    candidate, batch = Member(prompt_len, max_tokens), [longest, furthest, other]
    projected = shipped_candidate_future(candidate, REAL_BLOCK, last_tkv)
    return Statement(
        [max_tkv(later([*batch, prompt_len], step), REAL_BLOCK) <= projected],
        given=[step <= max_tokens - 1, _is_that_of_the_batch(last_tkv, batch, REAL_BLOCK)],
    )


def _shipped_is_sound(
    case: WorstCase, limit: Positive, step: Positive, last_tkv: Number
) -> Statement:
    """Head-on for {requests} requests: with the tkv of the batch, `shipped` keeps the limit in
    every step in which the one that it admits takes part.
    """
    decoding, candidate = case.decoding, case.candidate
    lengths = [member.length for member in decoding]
    first, second, third = (lengths * 3)[:3]  # of fewer rows some stand for several
    newcomer = {"prompt_len": candidate.length, "max_tokens": candidate.remaining}
    moment = {"last_tkv": last_tkv, "step": step}

    def projected(index: int) -> Fact:
        """The fact that this member's projection covers every step beside all others."""
        if index == len(decoding):
            return cite(
                "PRV-SHP-2", longest=first, furthest=second, other=third, **newcomer, **moment
            )
        row, others = decoding[index], [*lengths[:index], *lengths[index + 1 :]]
        longest, furthest = ([*others, row.length] * 2)[:2]
        own = {"tokens": row.length, "remaining": row.remaining}
        return cite("PRV-SHP-1", longest=longest, furthest=furthest, **own, **newcomer, **moment)

    everyone = later(case.lengths(tuple(range(len(case.lives)))), step)

    def known(alive: Alive) -> Iterator[Fact]:
        """Facts: the max-tkv of these rows is at most that of all, and at most any projection."""
        now = later(case.lengths(alive), step)
        yield from (*cite_layout(everyone, REAL_BLOCK), *cite_width(now, everyone, REAL_BLOCK))
        yield from map(projected, alive)

    newest = len(decoding)
    return Statement(
        case.volume(step, REAL_BLOCK) <= limit,
        given=[
            *case.given,
            step <= candidate.remaining - 1,
            candidate.length + candidate.remaining - 1 <= limit,
            _is_that_of_the_batch(last_tkv, lengths, REAL_BLOCK),
            shipped_volume_holds(decoding, candidate, limit, REAL_BLOCK, last_tkv),
        ],
        cases=[
            Case(case.are_alive(alive, step), known(alive))
            for alive in case.groups
            if newest in alive
        ],
    )


for _letter, _count in (("A", 2), ("B", 3), ("C", 4)):
    _of_the_projection(
        f"PRV-SHP-3{_letter}",
        bounds=f"every batch of {_count} requests, every length and limit, block {REAL_BLOCK}",
        requests=_count,
    )(_shipped_is_sound)


# --- not sound, with the tkv of another request's prefill -----------------------------------------

BLOCK = 2  # tokens; small enough to be followed by hand
_NAMES = ("first", "second", "third")


def _stale_scenario(numbers: Numbers) -> tuple[SpyreConfig, list[Request]]:
    """Three requests arrive together; without interleaving their prefills run back to back."""
    return batch_scenario(
        *((numbers[f"{name}_prompt"], numbers[f"{name}_max_tokens"]) for name in _NAMES),
        block_size=BLOCK,
        max_model_len=BLOCK * 32,
        max_batch_tkv_limit=numbers["limit"],
        admission=Admission.SHIPPED,
        interleave=False,
    )


@obligation(
    "PRV-SHP-4",
    where="admission=shipped, interleave=false",
    bounds=f"three requests, prompts up to {BLOCK * 8} tokens, block {BLOCK}",
    rules=["SPY-PAU-6"],
    expected=Verdict.REFUTED,
    scenario=_stale_scenario,
)
def shipped_keeps_the_limit_without_interleaving(
    integer: Integer, limit: Number, step: Positive
) -> Statement:
    """Without interleaving, too, `shipped` keeps the limit: prefills that run back to back leave it
    the tkv of the last of them.
    """
    # False: the tkv of a short prompt hides that the batch is wide.
    prompts = [integer(f"{name}_prompt") for name in _NAMES]
    outputs = [integer(f"{name}_max_tokens") for name in _NAMES]
    members = list(map(Member, prompts, outputs))
    rows = [
        Member(member.length, member.remaining - 1) for member in members
    ]  # each has yielded a token
    return Statement(
        WorstCase(rows[:2], members[2]).volume(step, BLOCK) <= limit,
        given=[
            *positive(*prompts),
            *(most >= 2 for most in outputs),
            *(prompt <= BLOCK * 8 for prompt in prompts),
            *(member.length + member.remaining <= BLOCK * 32 for member in members),
            *(member.length + member.remaining - 1 <= limit for member in members),
            shipped_volume_holds(rows[:1], members[1], limit, BLOCK, prompts[0]),
            shipped_volume_holds(rows[:2], members[2], limit, BLOCK, prompts[1]),
        ],
    )
