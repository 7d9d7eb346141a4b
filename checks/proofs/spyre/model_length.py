"""Obligations about the model length: which lengths no tkv exceeds, and why the others are.

The text has a maximum-length constraint at a request's last chunk. Release 2.6.3 dropped it with
the argument that left padding is always taken back in time. That is so if and only if no row can
reach into a block of which the model length ends in the middle: a row that has begun such a block
is within the model length, but another row, further in its own last block, is drawn along.

A request's last token is sampled and never written, so a row reaches at most one token less than
the model length. Therefore besides the multiples of the block also the lengths one above a
multiple are safe (PRV-LEN-1), and every other is exceeded by some batch of two (PRV-LEN-2).

In a run, the tokens of a row and its decode steps to come are less than the model length together:
a request joins with its prompt and one step less than it may generate tokens, and a decode step
turns a step to come into a token. So no step of a run exceeds a safe length (PRV-LEN-5).
"""

from functools import partial

from checks.proofs.any_rows import row_where_not, row_with_largest
from checks.proofs.registry import Numbers, Positive, Statement, Verdict, cite
from checks.proofs.spyre.definitions import ANY, AnyLives, have_tokens, some_alive
from checks.proofs.spyre.moves import COVERED_UNDER_ANY_RULE, of_every_run
from checks.proofs.spyre.rows import cite_layout, cite_width, later
from checks.proofs.spyre.scope import obligation
from checks.proofs.spyre.worst_case import WorstCase, scenario_of_a_pair
from spec.core.arithmetic import Number, Truth, negate
from spec.core.requests import Request
from spec.core.rows import Rows, all_of, each_of
from spec.spyre.admission import Life, model_length_holds
from spec.spyre.config import SpyreConfig
from spec.spyre.padding import is_kept_length, last_block_offset, max_tkv
from spec.spyre.variants import Admission

BLOCK = 4  # tokens; the smallest block size at which a length can be exceeded is 3

# --- every length --------------------------------------------------------------------------------


@obligation(
    "PRV-LEN-1",
    bounds="every batch size (the longest row and the one that reaches furthest represent it), "
    "every block size; model lengths of one block or less, of whole blocks, or of one token more",
    rules=["SPY-LEN-1"],
)
def safe_lengths_are_kept(
    longest: Positive, furthest: Positive, max_model_len: Number, block_size: Positive
) -> Statement:
    """If the model length is a multiple of the block, or one more, no tkv exceeds it, once every
    request's prompt and output fit.
    """
    # `longest` and `furthest`: rows in any step; their last token is never written.
    return Statement(
        max_tkv([longest, furthest], block_size) <= max_model_len,
        given=[
            longest <= max_model_len - 1,
            furthest <= max_model_len - 1,
            is_kept_length(max_model_len, block_size),
        ],
    )


@obligation("PRV-LEN-2", bounds="every other model length, every block size", rules=[])
def other_lengths_are_exceeded(max_model_len: Positive, block_size: Positive) -> Statement:
    """Every other model length is exceeded by a batch of two requests that fit it."""
    # One row has begun the block in which the length ends, the other has filled its first.
    begun = max_model_len - last_block_offset(max_model_len, block_size) + 1
    return Statement(
        [
            begun >= 1,
            begun <= max_model_len - 1,
            block_size <= max_model_len - 1,
            max_tkv([begun, block_size], block_size) > max_model_len,
        ],
        given=[negate(is_kept_length(max_model_len, block_size))],
        known=[
            *cite_layout([max_model_len, begun, block_size], block_size),
            *cite_width([begun], [max_model_len], block_size),
        ],
    )


# --- every run -----------------------------------------------------------------------------------


def end_within(rows: Rows, max_model_len: Number) -> Truth:
    """Tokens and decode steps to come of each row are less than the model length together."""

    def ends(life: Life) -> Truth:
        return life.length + life.steps <= max_model_len - 1

    row_where_not(rows, ends)
    return all_of(rows, ends)


@of_every_run(
    "PRV-LEN-5",
    where=COVERED_UNDER_ANY_RULE,
    bounds=f"{ANY}, every block size; model lengths of one block or less, of whole blocks, or of "
    "one token more",
    rules=["SPY-LEN-1"],
)
def no_step_exceeds_a_safe_length(
    lives: AnyLives, max_model_len: Number, block_size: Positive
) -> Statement:
    """If all rows end within a safe model length, no tkv of a decode step exceeds it, and after the
    step all rows still end within it.
    """
    rows = lives.rows
    after = each_of(rows, lambda life: Life(life.length + 1, life.steps - 1))
    lengths = each_of(after, lambda life: life.length)
    longest = row_with_largest(lengths, lambda length: length)
    furthest = row_with_largest(lengths, lambda length: last_block_offset(length, block_size))
    sizes = {"max_model_len": max_model_len, "block_size": block_size}
    return Statement(
        [max_tkv(lengths, block_size) <= max_model_len, end_within(after, max_model_len)],
        given=[
            some_alive(rows, 1),
            all_of(rows, lambda life: life.steps >= 1),
            have_tokens(rows),
            end_within(rows, max_model_len),
            is_kept_length(max_model_len, block_size),
        ],
        known=[cite("PRV-LEN-1", longest=longest, furthest=furthest, **sizes)],
        rows=rows,
    )


# --- and therefore -------------------------------------------------------------------------------


def _scenario(admission: Admission, numbers: Numbers) -> tuple[SpyreConfig, list[Request]]:
    """Under a limit that never binds."""
    length = numbers["max_model_len"]
    return scenario_of_a_pair(numbers, block_size=BLOCK, max_model_len=length, admission=admission)


def _some_length_is_kept(
    case: WorstCase, max_model_len: Number, step: Positive, admission: Admission
) -> Statement:
    """Under any model length no tkv exceeds it, {condition}."""
    # A pair under any model length up to eight blocks.
    (first,), candidate = case.decoding, case.candidate
    holds = model_length_holds(case.decoding, candidate, max_model_len, BLOCK)
    return Statement(
        max_tkv(later([first.length, candidate.length], step), BLOCK) <= max_model_len,
        given=[
            *case.given,
            max_model_len <= BLOCK * 8,
            first.length >= 2,
            first.length + first.remaining + 1 <= max_model_len,
            candidate.length + candidate.remaining <= max_model_len,
            step <= first.remaining,
            step <= candidate.remaining - 1,
            *([holds] if admission is Admission.DOCUMENTED else []),
        ],
    )


for _id, _admission, _condition in (
    ("PRV-LEN-3", Admission.EXACT, "without a condition of its own, as in 2.6.3"),
    ("PRV-LEN-4", Admission.DOCUMENTED, "with the text's condition"),
):
    obligation(
        _id,
        where=f"admission={_admission}",
        bounds=f"one decoding request and one candidate, model lengths up to {BLOCK * 8}, "
        f"block {BLOCK}",
        rules=["SPY-LEN-1"],
        expected=Verdict.REFUTED,
        scenario=partial(_scenario, _admission),
        admission=_admission,
        condition=_condition,
        requests=2,
    )(_some_length_is_kept)
