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

from collections.abc import Sequence
from functools import partial

from checks.proofs.registry import Integer, Numbers, Statement, Verdict, obligation
from checks.proofs.spyre.rows import REAL_BLOCK, later, positive
from checks.proofs.spyre.worst_case import (
    Alive,
    are_alive,
    batch_of,
    groups,
    lengths_of,
    lives_of,
    step_volume,
)
from spec.core.arithmetic import Number, Truth, every, implies
from spec.core.requests import Prompt, Request
from spec.spyre.admission import Member, shipped_future_tkvs, shipped_volume_holds
from spec.spyre.config import SpyreConfig
from spec.spyre.padding import max_tkv
from spec.spyre.variants import Admission

_RULES = ["SPY-VOL-1", "SPY-VOL-3"]

# --- sound, with the tkv of the batch -------------------------------------------------------------


def _is_that_of_the_batch(last_tkv: Number, lengths: Sequence[Number], block_size: Number) -> Truth:
    """The tkv that the rule is given is one of a step of all these rows, perhaps of more."""
    return every([last_tkv >= max_tkv(lengths, block_size)])


@obligation(
    "PRV-SHP-1",
    "A decoding request is projected at least the max-tkv of every step that it takes part in.",
    bounds="every batch size (the longest row and the one that reaches furthest represent it), "
    f"every length, block {REAL_BLOCK}",
    rules=_RULES,
)
def projection_covers_every_step_of_a_row(integer: Integer) -> Statement:
    """`tokens`, `remaining`: of the row; the candidate is among the others or not."""
    row = Member(integer("tokens"), integer("remaining"))
    candidate = Member(integer("prompt_len"), integer("max_tokens"))
    longest, furthest = integer("longest"), integer("furthest")
    last_tkv, step = integer("last_tkv"), integer("step")
    given = positive(row.length, row.remaining, longest, furthest, step, candidate.length)
    projected, _ = shipped_future_tkvs([row], candidate, REAL_BLOCK, last_tkv)
    batch = [row.length, longest, furthest]
    return Statement(
        given=[
            *given,
            step <= row.remaining,
            _is_that_of_the_batch(last_tkv, batch, REAL_BLOCK),
        ],
        claim=every(
            [
                max_tkv(later(batch, step), REAL_BLOCK) <= projected,
                max_tkv(later([*batch, candidate.length], step), REAL_BLOCK) <= projected,
            ]
        ),
    )


@obligation(
    "PRV-SHP-2",
    "The candidate is projected at least the max-tkv of every step that it takes part in.",
    bounds="every batch size (the longest row and the one that reaches furthest represent it), "
    f"every length, block {REAL_BLOCK}",
    rules=_RULES,
)
def projection_covers_every_step_of_the_candidate(integer: Integer) -> Statement:
    """Its first token comes from its last chunk."""
    candidate = Member(integer("prompt_len"), integer("max_tokens"))
    longest, furthest = integer("longest"), integer("furthest")
    last_tkv, step = integer("last_tkv"), integer("step")
    projected = shipped_future_tkvs([], candidate, REAL_BLOCK, last_tkv)[-1]
    batch = [longest, furthest]
    return Statement(
        given=[
            *positive(longest, furthest, step, candidate.length),
            step <= candidate.remaining - 1,
            _is_that_of_the_batch(last_tkv, batch, REAL_BLOCK),
        ],
        claim=every([max_tkv(later([*batch, candidate.length], step), REAL_BLOCK) <= projected]),
    )


def _no_more_than_projected(
    futures: Sequence[Number], lives: Sequence[tuple[Number, Number]], alive: Alive, step: Number
) -> Truth:
    """The max-tkv of the rows alive in this step, than what any of them is projected."""
    tkv = max_tkv(later(lengths_of(lives, alive), step), REAL_BLOCK)
    return every(tkv <= futures[index] for index in alive)


def _shipped_is_sound(integer: Integer, requests: int) -> Statement:
    """In any step in which the candidate takes part; alone it is served by itself."""
    decoding, candidate, given = batch_of(integer, requests)
    lives = lives_of(decoding, candidate)
    limit, step, last_tkv = integer("limit"), integer("step"), integer("last_tkv")
    futures = shipped_future_tkvs(decoding, candidate, REAL_BLOCK, last_tkv)
    known = [
        implies(
            are_alive(lives, alive, step),
            _no_more_than_projected(futures, lives, alive, step),  # PRV-SHP-1, 2
        )
        for alive in groups(requests)
    ]
    tokens = [member.length for member in decoding]
    return Statement(
        given=[
            *positive(step, limit),
            *given,
            step <= candidate.remaining - 1,
            candidate.length + candidate.remaining - 1 <= limit,
            _is_that_of_the_batch(last_tkv, tokens, REAL_BLOCK),
            shipped_volume_holds(decoding, candidate, limit, REAL_BLOCK, last_tkv),
        ],
        known=known,
        claim=step_volume(lives, step, REAL_BLOCK) <= limit,
    )


for _letter, _count in (("A", 2), ("B", 3), ("C", 4)):
    obligation(
        f"PRV-SHP-3{_letter}",
        f"Head-on for {_count} requests: with the tkv of the batch, `shipped` keeps the limit in "
        "every step in which the one that it admits takes part.",
        bounds=f"every batch of {_count} requests, every length and limit, block {REAL_BLOCK}",
        rules=_RULES,
    )(partial(_shipped_is_sound, requests=_count))


# --- not sound, with the tkv of another request's prefill -----------------------------------------

BLOCK = 2  # tokens; small enough to be followed by hand
_NAMES = ("first", "second", "third")


def _stale_scenario(numbers: Numbers) -> tuple[SpyreConfig, list[Request]]:
    """Three requests arrive together; without interleaving their prefills run back to back."""
    config = SpyreConfig(
        block_size=BLOCK,
        chunk_size=BLOCK * 8,
        max_model_len=BLOCK * 32,
        max_num_seqs=len(_NAMES),
        max_batch_tkv_limit=numbers["limit"],
        admission=Admission.SHIPPED,
        interleave=False,
        prefix_caching=False,
    )
    requests = [
        Request(
            id=str(index),
            prompt=Prompt.of_stream(f"own:{index}", numbers[f"{name}_prompt"]),
            max_tokens=numbers[f"{name}_max_tokens"],
        )
        for index, name in enumerate(_NAMES)
    ]
    return config, requests


@obligation(
    "PRV-SHP-4",
    "Without interleaving, too, `shipped` keeps the limit: prefills that run back to back leave it "
    "the tkv of the last of them.",
    bounds=f"three requests, prompts up to {BLOCK * 8} tokens, block {BLOCK}",
    rules=["SPY-PAU-6"],
    expected=Verdict.REFUTED,
    scenario=_stale_scenario,
)
def shipped_keeps_the_limit_without_interleaving(integer: Integer) -> Statement:
    """False: the tkv of a short prompt hides that the batch is wide."""
    prompts = [integer(f"{name}_prompt") for name in _NAMES]
    outputs = [integer(f"{name}_max_tokens") for name in _NAMES]
    limit, step = integer("limit"), integer("step")
    # Each last chunk yields a token.
    rows = [Member(prompt, most - 1) for prompt, most in zip(prompts, outputs, strict=True)]
    *_, third = [Member(prompt, most) for prompt, most in zip(prompts, outputs, strict=True)]
    second = Member(prompts[1], outputs[1])
    lives = lives_of(rows[:2], third)
    return Statement(
        given=[
            *positive(*prompts, step),
            *(most >= 2 for most in outputs),
            *(prompt <= BLOCK * 8 for prompt in prompts),
            *(prompt + most <= BLOCK * 32 for prompt, most in zip(prompts, outputs, strict=True)),
            *(prompt + most - 1 <= limit for prompt, most in zip(prompts, outputs, strict=True)),
            shipped_volume_holds(rows[:1], second, limit, BLOCK, prompts[0]),
            shipped_volume_holds(rows[:2], third, limit, BLOCK, prompts[1]),
        ],
        claim=step_volume(lives, step, BLOCK) <= limit,
    )
