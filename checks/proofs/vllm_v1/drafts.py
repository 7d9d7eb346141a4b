"""Obligations about vLLM V1's drafts: what is computed after a rollback.

A step computes a request's own tokens and then its drafts; the rejected ones are taken off again.
Source: vllm-v1, "Speculative Decoding - Rollback Logic". That a fresh request is filled up with
drafts that nobody made, and that all of them are taken off, is vLLM 0.28.0's.
"""

from checks.proofs.registry import Integer, Statement, Verdict, obligation
from checks.proofs.vllm_v1.budget import Turn, turn
from spec.core.arithmetic import Number, Truth, every, maximum, some
from spec.vllm_v1.config import rolled_back, waiting_tokens

_ANY = "every length, draft, threshold, budget and model length"


def verified(one: Turn, new_tokens: Number) -> Number:
    """How many of the new tokens are drafts: those behind the request's own."""
    return maximum(one.computed + new_tokens - one.tokens, 0)


def after_a_step(one: Turn, new_tokens: Number, accepted: Number) -> tuple[Number, Number]:
    """Computed tokens and tokens, where the request has caught up and samples."""
    computed = one.computed + new_tokens
    return (
        rolled_back(computed, verified(one, new_tokens), accepted),
        one.tokens + accepted + 1,
    )


@obligation(
    "PRV-V1-SPC-1",
    "Whoever samples is one token behind after the step, whatever was accepted: what is computed "
    "is never negative and never past the tokens.",
    bounds=_ANY,
    rules=["V1-SPC-3", "V1-SPC-2", "V1-PRG-1"],
)
def rollback_leaves_one_token(integer: Integer) -> Statement:
    """With drafts and without."""
    one, accepted = turn(integer), integer("accepted")
    new_tokens = one.as_running
    computed, tokens = after_a_step(one, new_tokens, accepted)
    return Statement(
        given=[
            *one.is_unfinished,
            one.left >= 1,
            one.computed + new_tokens >= one.tokens,
            accepted >= 0,
            accepted <= verified(one, new_tokens),
        ],
        claim=every([computed >= 0, computed == tokens - 1]),
    )


@obligation(
    "PRV-V1-SPC-2",
    "A chunk that is not the last verifies no draft and leaves its request behind.",
    bounds=_ANY,
    rules=["V1-SPC-1", "V1-SPC-3"],
)
def chunks_verify_nothing(integer: Integer) -> Statement:
    """So nothing is rolled back there."""
    one = turn(integer)
    new_tokens = one.as_running
    end = one.computed + new_tokens
    return Statement(
        given=[*one.is_unfinished, one.left >= 1, end < one.tokens],
        claim=every([verified(one, new_tokens) == 0, end > one.computed]),
    )


@obligation(
    "PRV-V1-SPC-3",
    "No more drafts are verified than were proposed, and all of a request's own tokens come first.",
    bounds=_ANY,
    rules=["V1-SPC-1"],
)
def drafts_are_those_proposed(integer: Integer) -> Statement:
    """Running, or fresh and filled up."""
    one = turn(integer)

    def fits(new_tokens: Number) -> Truth:
        drafts = verified(one, new_tokens)
        own = new_tokens - drafts
        return every([drafts <= one.drafts, own >= 1, one.computed + own <= one.tokens])

    return Statement(
        given=[*one.is_unfinished, one.left >= 1],
        claim=every([fits(one.as_running), fits(one.as_waiting)]),
    )


# --- a fresh request that is filled up ------------------------------------------------------------


def padded_and_rolled_back(integer: Integer) -> Number:
    """Computed tokens of a fresh request after its first step, all of its padding taken off.

    It has one token to compute and is filled up with `drafts`, for which there is budget; the
    threshold may cut them, the rollback of 0.28.0 does not ask whether it did.
    """
    computed, drafts = integer("computed"), integer("drafts")
    new_tokens = waiting_tokens(computed + 1 + drafts, computed, integer("threshold"), 1 + drafts)
    return rolled_back(computed + new_tokens, drafts, 0)


def _fresh(integer: Integer) -> list[Truth]:
    return [integer("computed") >= 0, integer("drafts") >= 1, integer("threshold") >= 0]


@obligation(
    "PRV-V1-SPC-4",
    "As 0.28.0 fills a fresh request up and rolls the padding back, it is left with all of its "
    "tokens computed, where the threshold is off or lets one token and all drafts through.",
    bounds="every length, number of drafts and threshold",
    rules=["V1-SPC-3"],
)
def padding_is_rolled_back(integer: Integer) -> Statement:
    """Its one token was computed; the one that it samples is to come."""
    threshold, drafts = integer("threshold"), integer("drafts")
    return Statement(
        given=[*_fresh(integer), some([threshold == 0, threshold >= 1 + drafts])],
        claim=padded_and_rolled_back(integer) == integer("computed") + 1,
    )


@obligation(
    "PRV-V1-SPC-5",
    "As 0.28.0 fills a fresh request up and rolls the padding back, what is computed is never "
    "negative, whatever the threshold.",
    bounds="every length, number of drafts and threshold",
    rules=["V1-SPC-3"],
    expected=Verdict.REFUTED,
)
def padding_is_rolled_back_at_any_threshold(integer: Integer) -> Statement:
    """False where the threshold cuts the padding: more is taken off than was computed."""
    return Statement(given=_fresh(integer), claim=padded_and_rolled_back(integer) >= 0)
