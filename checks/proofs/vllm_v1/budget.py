"""Obligations about vLLM V1's token budget: who is given how many tokens.

The argument, for any number of requests. Let `given` be the tokens that the step has handed out so
far and `left` what it still may. They add up to the budget at the start, and every turn keeps it:
of a running request (PRV-V1-BUD-1A), of a waiting one (PRV-V1-BUD-1B), of a victim whose tokens are
taken back (PRV-V1-BUD-1C). All other requests enter only through the sum of their tokens.

Source: vllm-v1, "Token Budget Management", "Chunked Prefill" and "What Counts Toward
num_batched_tokens?".
"""

from attrs import frozen

from checks.proofs.registry import Integer, Statement, obligation
from spec.core.arithmetic import Number, Truth, every, implies, maximum, minimum
from spec.vllm_v1.config import (
    capped_tokens,
    default_batched_tokens,
    running_tokens,
    waiting_tokens,
)

# --- a request at its turn ------------------------------------------------------------------------


@frozen
class Turn:
    """A request when it is looked at, and what limits it; all in tokens.

    `left`: of the step's budget. Threshold 0 is none.
    """

    tokens: Number
    computed: Number
    drafts: Number
    threshold: Number
    left: Number
    max_model_len: Number

    @property
    def as_running(self) -> Number:
        """What it is given while it runs."""
        return running_tokens(
            self.tokens,
            self.drafts,
            self.computed,
            self.threshold,
            self.left,
            self.max_model_len,
        )

    @property
    def as_waiting(self) -> Number:
        """What it is given when it is admitted; `drafts` are padding then."""
        return waiting_tokens(self.tokens + self.drafts, self.computed, self.threshold, self.left)

    @property
    def is_unfinished(self) -> list[Truth]:
        """What is true of whoever waits or runs: a token is to compute, and another to come.

        Prompt and answer fit the model length together, and of the answer one token is missing.
        """
        return [
            self.computed >= 0,
            self.computed < self.tokens,
            self.tokens < self.max_model_len,
            self.drafts >= 0,
            self.threshold >= 0,
        ]


def turn(integer: Integer) -> Turn:
    """Any request at its turn."""
    names = ("tokens", "computed", "drafts", "threshold", "left", "max_model_len")
    return Turn(*(integer(name) for name in names))


_ANY = "every length, draft, threshold, budget and model length"
_ALL = f"any number of requests; {_ANY}"


# --- the budget -----------------------------------------------------------------------------------


def adds_up(given: Number, left: Number, budget: Number) -> Truth:
    """What is handed out and what is left are the budget, neither of them negative."""
    return every([given >= 0, left >= 0, given + left == budget])


def taken(left: Number, tokens: Number) -> Number:
    """What is left of the budget after a request was given tokens; none where it gets none."""
    return left - maximum(tokens, 0)


def taken_back(left: Number, tokens: Number) -> Number:
    """What is left of the budget after a victim's tokens came back."""
    return left + tokens


@obligation(
    "PRV-V1-BUD-1A",
    "After a running request's turn, what is handed out and what is left are still the budget.",
    bounds=_ALL,
    rules=["V1-BUD-1", "V1-BUD-2"],
)
def running_keeps_the_budget(integer: Integer) -> Statement:
    """Whatever the request is: behind, caught up, at the end of the model length."""
    one, given, budget = turn(integer), integer("given"), integer("budget")
    more = maximum(one.as_running, 0)
    return Statement(
        given=[adds_up(given, one.left, budget)],
        claim=adds_up(given + more, taken(one.left, one.as_running), budget),
    )


@obligation(
    "PRV-V1-BUD-1B",
    "After an admission, what is handed out and what is left are still the budget.",
    bounds=_ALL,
    rules=["V1-BUD-1", "V1-BUD-2"],
)
def admission_keeps_the_budget(integer: Integer) -> Statement:
    """Cached tokens are computed ones and take nothing of it."""
    one, given, budget = turn(integer), integer("given"), integer("budget")
    return Statement(
        given=[*one.is_unfinished, adds_up(given, one.left, budget)],
        claim=adds_up(given + one.as_waiting, taken(one.left, one.as_waiting), budget),
    )


@obligation(
    "PRV-V1-BUD-1C",
    "After a preemption, what is handed out and what is left are still the budget.",
    bounds="any number of requests",
    rules=["V1-BUD-1", "V1-BUD-2"],
)
def preemption_keeps_the_budget(integer: Integer) -> Statement:
    """`victim`: what the victim was given in this step, nothing for most."""
    given, left, budget = integer("given"), integer("left"), integer("budget")
    victim = integer("victim")
    return Statement(
        given=[adds_up(given, left, budget), victim >= 0, victim <= given],
        claim=adds_up(given - victim, taken_back(left, victim), budget),
    )


# --- shares ---------------------------------------------------------------------------------------


@obligation(
    "PRV-V1-BUD-2",
    "While budget is left, a running request is given at least one token at its turn.",
    bounds=_ANY,
    rules=["V1-BUD-3"],
)
def running_gets_a_token(integer: Integer) -> Statement:
    """The model length never stands in the way: the last position is the one never computed."""
    one = turn(integer)
    return Statement(given=[*one.is_unfinished, one.left >= 1], claim=one.as_running >= 1)


@obligation(
    "PRV-V1-BUD-3",
    "A running request is never given more than it is behind, drafts included, than the threshold, "
    "or than the model length leaves before its last position.",
    bounds=_ANY,
    rules=["V1-BUD-3", "V1-CHK-1", "V1-SPC-1"],
)
def running_gets_no_more_than_it_may(integer: Integer) -> Statement:
    """Each limit by itself."""
    one = turn(integer)
    end = one.computed + one.as_running
    return Statement(
        given=[*one.is_unfinished, one.left >= 1],
        claim=every(
            [
                end <= one.tokens + one.drafts,
                end <= one.max_model_len - 1,
                implies(one.threshold > 0, one.as_running <= one.threshold),
            ]
        ),
    )


@obligation(
    "PRV-V1-BUD-4",
    "An admitted request is given at least one token, never more than its tokens less the cached "
    "ones, and never more than the threshold.",
    bounds=_ANY,
    rules=["V1-BUD-5", "V1-CHK-1"],
)
def admitted_gets_its_share(integer: Integer) -> Statement:
    """Padding, where it is fresh, counts like its own tokens."""
    one = turn(integer)
    return Statement(
        given=[*one.is_unfinished, one.left >= 1],
        claim=every(
            [
                one.as_waiting >= 1,
                one.computed + one.as_waiting <= one.tokens + one.drafts,
                implies(one.threshold > 0, one.as_waiting <= one.threshold),
            ]
        ),
    )


def pace(share: Number, threshold: Number) -> Number:
    """Tokens by which a request gets on in each step that leaves it `share` of the budget."""
    return capped_tokens(share, threshold)


def lacking(tokens: Number, computed: Number) -> Number:
    """Tokens that are not computed; none if drafts are computed beyond them."""
    return maximum(tokens - computed, 0)


@obligation(
    "PRV-V1-BUD-5",
    "A request catches up in finitely many steps: one that lacks at most n paces has caught up "
    "after n steps, where the pace is what each step leaves it, cut to the threshold.",
    bounds=f"{_ANY}; any number of steps",
    rules=["V1-BUD-3", "V1-BUD-5"],
)
def requests_catch_up(integer: Integer) -> Statement:
    """One step of n: `rest` are the paces of the steps to come. Admitted in it or running."""
    one, share, rest = turn(integer), integer("share"), integer("rest")
    step = pace(share, one.threshold)
    before = lacking(one.tokens, one.computed)
    return Statement(
        given=[
            *one.is_unfinished,
            share >= 1,
            one.left >= share,
            rest >= 0,
            before <= rest + step,
        ],
        claim=every(
            [
                step >= 1,
                lacking(one.tokens, one.computed + one.as_running) <= rest,
                lacking(one.tokens, one.computed + one.as_waiting) <= rest,
            ]
        ),
    )


@obligation(
    "PRV-V1-BUD-6",
    "With the budget that the text takes where none is configured, any request that fits the model "
    "length can be computed in one step.",
    bounds="every length and model length",
    rules=[],
)
def default_budget_holds_a_full_context(integer: Integer) -> Statement:
    """And it is 2,048 tokens at least."""
    tokens, computed = integer("tokens"), integer("computed")
    max_model_len = integer("max_model_len")
    budget = default_batched_tokens(max_model_len)
    return Statement(
        given=[computed >= 0, computed < tokens, tokens <= max_model_len],
        claim=every(
            [waiting_tokens(tokens, computed, 0, budget) == tokens - computed, budget >= 2_048]
        ),
    )


# --- the threshold, and prompts that must not be cut ----------------------------------------------


@obligation(
    "PRV-V1-CHK-1",
    "A threshold of 0 caps nothing, and any other caps at the threshold exactly.",
    bounds="every length and threshold",
    rules=["V1-CHK-1"],
)
def threshold_of_zero_is_off(integer: Integer) -> Statement:
    """Below 0 is off too, as in the text's comparison; the configuration refuses it."""
    behind, threshold = integer("behind"), integer("threshold")
    return Statement(
        given=[behind >= 0],
        claim=every(
            [
                implies(threshold <= 0, capped_tokens(behind, threshold) == behind),
                implies(
                    threshold > 0,
                    capped_tokens(behind, threshold) == minimum(behind, threshold),
                ),
            ]
        ),
    )


@obligation(
    "PRV-V1-CHK-2",
    "Without chunked prefill, whoever is let in fits the budget of an empty step uncut, also when "
    "it has been preempted and computes its answer again.",
    bounds=_ANY,
    rules=["V1-CHK-2"],
)
def whoever_is_let_in_can_be_admitted(integer: Integer) -> Statement:
    """`total`: prompt and longest answer, whose last token is never computed."""
    one, total, budget = turn(integer), integer("total"), integer("budget")
    return Statement(
        given=[
            *one.is_unfinished,
            one.tokens < total,
            capped_tokens(total - 1, one.threshold) <= budget,
        ],
        claim=waiting_tokens(one.tokens, one.computed, one.threshold, budget)
        == capped_tokens(one.tokens - one.computed, one.threshold),
    )
