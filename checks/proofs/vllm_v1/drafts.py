"""Obligations about vLLM V1's drafts: the computed tokens after a rollback.

A step computes a request's own tokens and then its drafts; rejected drafts are rolled back.
Source: vllm-v1, "Speculative Decoding - Rollback Logic". vLLM 0.28.0 pads a fresh request with
drafts that no drafter made, and rolls all of them back.
"""

from functools import partial

from checks.proofs.registry import Natural, Positive, Statement, Verdict
from checks.proofs.vllm_v1.budget import ANY_TURN, Turn, may_be_given_a_token
from checks.proofs.vllm_v1.moves import of_every_run
from checks.proofs.vllm_v1.scope import obligation
from spec.core.arithmetic import Number, Truth, every, maximum, some
from spec.vllm_v1.config import rolled_back, waiting_tokens

_of_a_turn = partial(of_every_run, bounds=ANY_TURN, given=may_be_given_a_token)


def verified(turn: Turn, new_tokens: Number) -> Number:
    """The number of drafts among the new tokens: those after the request's own."""
    return maximum(turn.computed + new_tokens - turn.tokens, 0)


def after_a_step(turn: Turn, new_tokens: Number, accepted: Number) -> tuple[Number, Number]:
    """Computed tokens and all tokens after a step in which the request samples."""
    computed = turn.computed + new_tokens
    left = rolled_back(computed, verified(turn, new_tokens), accepted)
    return left, turn.tokens + accepted + 1


@_of_a_turn(
    "PRV-V1-SPC-1",
    bounds=f"{ANY_TURN}; a running request that samples",
    rules=["V1-SPC-3", "V1-SPC-2", "V1-PRG-1"],
)
def rollback_leaves_one_token(turn: Turn, accepted: Natural) -> Statement:
    """A request that samples is one token behind after the step, whatever was accepted: what is
    computed is never negative and never past the tokens.
    """
    new_tokens = turn.as_running
    computed, tokens = after_a_step(turn, new_tokens, accepted)
    return Statement(
        [computed >= 0, computed == tokens - 1],
        given=[turn.computed + new_tokens >= turn.tokens, accepted <= verified(turn, new_tokens)],
    )


@_of_a_turn(
    "PRV-V1-SPC-2",
    bounds=f"{ANY_TURN}; a chunk of a running request that is not the last",
    rules=["V1-SPC-1", "V1-SPC-3"],
)
def chunks_verify_nothing(turn: Turn) -> Statement:
    """A chunk that is not the last verifies no draft and leaves its request behind."""
    end = turn.computed + turn.as_running
    claim = [verified(turn, turn.as_running) == 0, end > turn.computed]
    return Statement(claim, given=[end < turn.tokens])


@_of_a_turn("PRV-V1-SPC-3", rules=["V1-SPC-1"])
def drafts_are_those_proposed(turn: Turn) -> Statement:
    """No more drafts are verified than were proposed, and all of a request's own tokens come
    first.
    """

    def fits(new_tokens: Number) -> Truth:
        drafts = verified(turn, new_tokens)
        own = new_tokens - drafts
        return every([drafts <= turn.drafts, own >= 1, turn.computed + own <= turn.tokens])

    return Statement([fits(turn.as_running), fits(turn.as_waiting)])


# --- a fresh request that is filled up ------------------------------------------------------------


def padded_and_rolled_back(computed: Number, drafts: Number, threshold: Number) -> Number:
    """Computed tokens of a fresh request after its first step, with all padding rolled back.

    It has one token to compute and is padded with `drafts`, which the budget allows. The threshold
    may cut them; the rollback of 0.28.0 ignores that.
    """
    new_tokens = waiting_tokens(computed + 1 + drafts, computed, threshold, 1 + drafts)
    return rolled_back(computed + new_tokens, drafts, 0)


_of_fresh = partial(
    obligation,
    where="release=0.28.0",
    bounds="every length, number of drafts and threshold",
    rules=["V1-SPC-3"],
)


@_of_fresh(
    "PRV-V1-SPC-4",
    bounds="every length and number of drafts; no threshold, or one that lets a token and all "
    "drafts through",
)
def padding_is_rolled_back(computed: Natural, drafts: Positive, threshold: Natural) -> Statement:
    """As 0.28.0 fills a fresh request up and rolls the padding back, it is left with all of its
    tokens computed, where the threshold is off or lets one token and all drafts through.
    """
    # Its one token was computed; the one that it samples is to come.
    return Statement(
        padded_and_rolled_back(computed, drafts, threshold) == computed + 1,
        given=[some([threshold == 0, threshold >= 1 + drafts])],
    )


@_of_fresh("PRV-V1-SPC-5", expected=Verdict.REFUTED)
def padding_is_rolled_back_at_any_threshold(
    computed: Natural, drafts: Positive, threshold: Natural
) -> Statement:
    """As 0.28.0 fills a fresh request up and rolls the padding back, what is computed is never
    negative, whatever the threshold.
    """
    # False where the threshold cuts the padding: more is taken off than was computed.
    return Statement(padded_and_rolled_back(computed, drafts, threshold) >= 0)
