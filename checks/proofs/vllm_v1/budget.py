"""Obligations about vLLM V1's token budget: how many tokens each request is given.

The argument, for any number of requests. Let `given` be the tokens that the step has handed out so
far and `left` what it still may. They add up to the budget at the start, and every turn keeps it:
of a running request (PRV-V1-BUD-1A), of a waiting one (PRV-V1-BUD-1B), of a victim whose tokens are
taken back (PRV-V1-BUD-1C). All other requests enter only through the sum of their tokens.

Source: vllm-v1, "Token Budget Management", "Chunked Prefill" and "What Counts Toward
num_batched_tokens?".
"""

from functools import partial

from attrs import frozen

from checks.proofs.registry import Natural, Positive, Statement
from checks.proofs.vllm_v1.moves import of_every_run
from checks.proofs.vllm_v1.scope import obligation
from spec.core.arithmetic import Number, Truth, every, implies, maximum, minimum, some
from spec.vllm_v1.config import (
    capped_tokens,
    default_batched_tokens,
    running_tokens,
    waiting_tokens,
)

# --- a request at its turn ------------------------------------------------------------------------


@frozen
class Turn:
    """A request at its turn, and its limits; all in tokens.

    `left`: tokens left of the step's budget. Threshold 0 means no threshold.
    """

    tokens: Number
    computed: Number
    drafts: Number
    threshold: Number
    left: Number
    max_model_len: Number

    @property
    def as_running(self) -> Number:
        """The tokens that it gets while it runs."""
        limits = self.threshold, self.left, self.max_model_len - 1
        return running_tokens(self.tokens, self.drafts, self.computed, *limits)

    @property
    def as_waiting(self) -> Number:
        """The tokens that it gets when it is admitted; `drafts` are padding then."""
        return waiting_tokens(self.tokens + self.drafts, self.computed, self.threshold, self.left)


def is_unfinished(turn: Turn) -> list[Truth]:
    """Conditions of a waiting or running request: a token is not computed, and one not generated.

    Prompt and answer together fit the model length, and a token of the answer is missing.
    """
    naturals = [number >= 0 for number in (turn.computed, turn.drafts, turn.threshold)]
    return [*naturals, turn.computed < turn.tokens, turn.tokens < turn.max_model_len]


def may_be_given_a_token(turn: Turn) -> list[Truth]:
    """Conditions: the request is unfinished, and budget is left."""
    return [*is_unfinished(turn), turn.left >= 1]


ANY_TURN = "every length, draft, threshold, budget and model length"
ANY_REQUESTS = f"any number of requests; {ANY_TURN}"
_of_a_turn = partial(of_every_run, bounds=ANY_TURN, given=may_be_given_a_token)
_of_the_budget = partial(of_every_run, rules=["V1-BUD-1", "V1-BUD-2"])

# --- the budget -----------------------------------------------------------------------------------


def fills_budget(given: Number, left: Number, budget: Number) -> Truth:
    """True if given and left tokens add up to the budget and neither is negative."""
    return every([given >= 0, left >= 0, given + left == budget])


def taken(left: Number, tokens: Number) -> Number:
    """The budget that is left after a request got tokens; unchanged if `tokens` is not positive."""
    return left - maximum(tokens, 0)


def taken_back(left: Number, tokens: Number) -> Number:
    """The budget that is left after a victim's tokens came back."""
    return left + tokens


@_of_the_budget("PRV-V1-BUD-1A", bounds=f"{ANY_REQUESTS}; a running request's turn")
def running_keeps_the_budget(turn: Turn, given: Number, budget: Number) -> Statement:
    """After a running request's turn, what is handed out and what is left are still the budget."""
    # Whatever the request is: behind, caught up, at the end of the model length.
    more = maximum(turn.as_running, 0)
    return Statement(
        fills_budget(given + more, taken(turn.left, turn.as_running), budget),
        given=[fills_budget(given, turn.left, budget)],
    )


@_of_the_budget("PRV-V1-BUD-1B", bounds=f"{ANY_REQUESTS}; an admission", given=is_unfinished)
def admission_keeps_the_budget(turn: Turn, given: Number, budget: Number) -> Statement:
    """After an admission, what is handed out and what is left are still the budget."""
    # Cached tokens are computed ones and take nothing of it.
    return Statement(
        fills_budget(given + turn.as_waiting, taken(turn.left, turn.as_waiting), budget),
        given=[fills_budget(given, turn.left, budget)],
    )


@_of_the_budget("PRV-V1-BUD-1C", bounds="any number of requests; a preemption")
def preemption_keeps_the_budget(
    given: Number, left: Number, budget: Number, victim: Natural
) -> Statement:
    """After a preemption, what is handed out and what is left are still the budget."""
    # `victim`: what the victim was given in this step, nothing for most.
    return Statement(
        fills_budget(given - victim, taken_back(left, victim), budget),
        given=[fills_budget(given, left, budget), victim <= given],
    )


# --- shares ---------------------------------------------------------------------------------------


@_of_a_turn("PRV-V1-BUD-2", bounds=f"{ANY_TURN}; a running request", rules=["V1-BUD-3"])
def running_gets_a_token(turn: Turn) -> Statement:
    """While budget is left, a running request is given at least one token at its turn."""
    # The model length never stands in the way: the last position is the one never computed.
    return Statement(turn.as_running >= 1)


@_of_a_turn(
    "PRV-V1-BUD-3",
    bounds=f"{ANY_TURN}; a running request",
    rules=["V1-BUD-3", "V1-CHK-1", "V1-SPC-1"],
)
def running_gets_no_more_than_it_may(turn: Turn) -> Statement:
    """A running request is never given more than it is behind, drafts included, than the threshold,
    or than the model length leaves before its last position.
    """
    end = turn.computed + turn.as_running
    return Statement(
        [
            end <= turn.tokens + turn.drafts,
            end <= turn.max_model_len - 1,
            implies(turn.threshold > 0, turn.as_running <= turn.threshold),
        ]
    )


@_of_a_turn(
    "PRV-V1-BUD-4", bounds=f"{ANY_TURN}; an admitted request", rules=["V1-BUD-5", "V1-CHK-1"]
)
def admitted_gets_its_share(turn: Turn) -> Statement:
    """An admitted request is given at least one token, never more than its tokens less the cached
    ones, and never more than the threshold.
    """
    # Padding, where it is fresh, counts like its own tokens.
    return Statement(
        [
            turn.as_waiting >= 1,
            turn.computed + turn.as_waiting <= turn.tokens + turn.drafts,
            implies(turn.threshold > 0, turn.as_waiting <= turn.threshold),
        ]
    )


def pace(share: Number, threshold: Number) -> Number:
    """Tokens that a request computes in each step that leaves it `share` of the budget."""
    return capped_tokens(share, threshold)


def lacking(tokens: Number, computed: Number) -> Number:
    """Tokens that are not computed; 0 if drafts beyond them are computed."""
    return maximum(tokens - computed, 0)


@_of_a_turn(
    "PRV-V1-BUD-5",
    bounds=f"{ANY_TURN}; any number of steps",
    given=is_unfinished,
    rules=[],
)
def catching_up_is_finite(turn: Turn, share: Positive, rest: Natural) -> Statement:
    """A request catches up in finitely many steps: one that lacks at most n paces has caught up
    after n steps, where the pace is what each step leaves it, cut to the threshold.
    """
    # One step of n: `rest` are the paces of the steps to come. Admitted in it or running.
    step = pace(share, turn.threshold)
    before = lacking(turn.tokens, turn.computed)
    return Statement(
        [
            step >= 1,
            lacking(turn.tokens, turn.computed + turn.as_running) <= rest,
            lacking(turn.tokens, turn.computed + turn.as_waiting) <= rest,
        ],
        given=[turn.left >= share, before <= rest + step],
    )


@obligation("PRV-V1-BUD-6", bounds="every length and model length", rules=[])
def default_budget_holds_a_full_context(
    tokens: Number, computed: Natural, max_model_len: Number
) -> Statement:
    """With the budget that the text takes where none is configured, any request that fits the model
    length can be computed in one step; it is no larger than that needs, or 2,048.
    """
    budget = default_batched_tokens(max_model_len)
    is_one_of_them = some([budget == max_model_len, budget == 2_048])
    in_one_step = waiting_tokens(tokens, computed, 0, budget) == tokens - computed
    return Statement(
        [in_one_step, budget >= 2_048, is_one_of_them],
        given=[computed < tokens, tokens <= max_model_len],
    )


# --- the threshold, and prompts that must not be cut ----------------------------------------------


@obligation("PRV-V1-CHK-1", bounds="every length and threshold", rules=["V1-CHK-1"])
def threshold_of_zero_is_off(behind: Natural, threshold: Number) -> Statement:
    """A threshold of 0 caps nothing, and any other caps at the threshold exactly."""
    # Below 0 is off too, as in the text's comparison; the configuration refuses it.
    capped = capped_tokens(behind, threshold)
    at_it = implies(threshold > 0, capped == minimum(behind, threshold))
    return Statement([implies(threshold <= 0, capped == behind), at_it])


@_of_a_turn(
    "PRV-V1-CHK-2",
    where="chunked_prefill=false",
    bounds=f"{ANY_TURN}; a step with its whole budget",
    given=is_unfinished,
    rules=["V1-CHK-2"],
)
def what_is_let_in_can_be_admitted(turn: Turn, total: Number, budget: Number) -> Statement:
    """Without chunked prefill, a request that is let in fits the budget of an empty step uncut,
    also when it has been preempted and computes its answer again.
    """
    # `total`: prompt and longest answer, whose last token is never computed.
    uncut = capped_tokens(turn.tokens - turn.computed, turn.threshold)
    return Statement(
        waiting_tokens(turn.tokens, turn.computed, turn.threshold, budget) == uncut,
        given=[turn.tokens < total, capped_tokens(total - 1, turn.threshold) <= budget],
    )
