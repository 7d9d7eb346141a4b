"""Wrong formulas in the source of lengths, padding, blocks and admission are noticed by a proof.

The code is put into the function itself, so that the rule, the cited obligations and the machine
all have the wrong one: no cited fact hides it.
"""

from collections.abc import Callable
from typing import Any

import pytest
import z3

from checks.proofs.obligations import OBLIGATIONS
from checks.proofs.prover import prove, prove_all
from checks.proofs.registry import Verdict
from spec.core.arithmetic import cdiv, floor_div, maximum, round_up, select
from spec.core.blocks import block_count
from spec.core.rows import (
    UnlistableRowsError,
    all_of,
    any_of,
    count_of,
    each_of,
    largest_of,
    with_row,
)
from spec.spyre import admission, padding, reservation
from spec.spyre.admission import (
    Life,
    Member,
    decode_lives,
    peak_volume_until,
    rows_until,
    worst_case_volumes,
)
from spec.spyre.padding import (
    batch_width_blocks,
    last_block_offset,
    longest,
    max_tkv,
    padded_length,
    peak_tkv,
    reaches_block_end,
    volume,
)

PATIENCE = 15.0  # seconds; a claim that the solver has not decided by then is not proven either
ANY_ROWS = "PRV-AN"  # obligations about any number of rows: a wrong formula may leave them unknown
SLOW = ("by_the_offset_of_the_longest",)

Formula = Callable[..., Any]
WRONG: list[Any] = []


def wrong_version(right: Formula, *obligations: str) -> Callable[[Formula], Formula]:
    """Register the decorated function as a wrong version, which these obligations notice.

    Its names are those of the right function's module.
    """

    def register(wrong: Formula) -> Formula:
        marks = pytest.mark.thorough if wrong.__name__ in SLOW else ()
        for name in obligations:
            id_ = f"{wrong.__name__} {name}"
            WRONG.append(pytest.param(right, wrong, name, id=id_, marks=marks))
        return wrong

    return register


# --- prompts --------------------------------------------------------------------------------------


@wrong_version(padding.left_padding, "PRV-PAD-3")
def up_to_the_first_token(prompt_len: Any, block_size: Any, chunk_size: Any) -> Any:
    return padded_length(prompt_len, chunk_size) - prompt_len


@wrong_version(padding.right_padding, "PRV-PAD-2")
def a_block_where_none_is_needed(prompt_len: Any, block_size: Any) -> Any:
    return block_size - prompt_len % block_size


@wrong_version(padding.chunk_count, "PRV-CHK-3")
def full_chunks_and_one(prompt_len: Any, chunk_size: Any) -> Any:
    return floor_div(prompt_len, chunk_size) + 1


@wrong_version(padding.chunk_end, "PRV-CHK-1")
def with_the_right_padding(chunk: Any, left: Any, chunk_size: Any, prompt_len: Any) -> Any:
    return (chunk + 1) * chunk_size - left


@wrong_version(padding.active_chunk, "PRV-CHK-4")
def of_started_chunks(computed: Any, left: Any, chunk_size: Any) -> Any:
    return cdiv(left + computed, chunk_size)


# --- rows -----------------------------------------------------------------------------------------


@wrong_version(padding.row_left_padding, "PRV-DEC-2")
def to_the_end_of_the_width(length: Any, width_blocks: Any, block_size: Any) -> Any:
    return width_blocks * block_size - length


@wrong_version(padding.last_block_offset, "PRV-DEC-5")
def none_where_a_block_is_full(length: Any, block_size: Any) -> Any:
    return length - floor_div(length, block_size) * block_size


@wrong_version(padding.reaches_block_end, "PRV-PEAK-1A")
def strictly_later(first: Any, last: Any, block_size: Any) -> Any:
    return floor_div(last, block_size) * block_size > first


@wrong_version(padding.max_tkv, "PRV-DEC-7B")
def of_the_longest_row(lengths: Any, block_size: Any) -> Any:
    return longest(lengths)


@wrong_version(padding.volume, "PRV-EXA-3")
def of_the_rows_alone(batch_size: Any, tkv: Any) -> Any:
    return batch_size * batch_size - tkv


# --- admission ------------------------------------------------------------------------------------


@wrong_version(admission.decode_lives, "PRV-EXA-4A")
def with_a_step_too_many(decoding: Any, candidate: Any) -> Any:
    lives = each_of(decoding, lambda member: Life(member.length, member.remaining))
    return with_row(lives, Life(candidate.length, candidate.remaining))


@wrong_version(admission.exact_volume_holds, "PRV-EXA-6A")
def below_the_limit(decoding: Any, candidate: Any, limit: Any, block_size: Any) -> Any:
    volumes = worst_case_volumes(decoding, candidate, block_size)
    return all_of(volumes, lambda peak: peak < limit)


@wrong_version(admission.rows_until, "PRV-EXA-4A", "PRV-ANY-5A")
def with_stand_ins_a_token_too_long(lives: Any, steps: Any) -> Any:
    own = largest_of(lives, lambda life: select(life.steps == steps, life.length, 0))
    return each_of(lives, lambda life: select(life.steps >= steps, life.length, own + 1))


@wrong_version(admission._projected_end, "PRV-SHP-2", "PRV-ANS-2")
def without_slack(end: Any, block_size: Any) -> Any:
    return round_up(end - 1, block_size)


# --- blocks ---------------------------------------------------------------------------------------


@wrong_version(reservation.worst_case_blocks, "PRV-RES-4")
def of_the_prompt(prefill_len: Any, remaining: Any, block_size: Any) -> Any:
    return block_count(prefill_len, block_size)


@wrong_version(reservation.may_reserve, "PRV-RES-1")
def without_what_is_promised(worst_case: Any, shared: Any, free: Any, reserved: Any) -> Any:
    return worst_case - shared <= free


@wrong_version(reservation.still_promised, "PRV-RES-2")
def with_all_that_was_promised(promised: Any, handed_out: Any) -> Any:
    return promised


# --- the peak of the rows until an end ------------------------------------------------------------


@wrong_version(padding.peak_tkv, "PRV-ANY-2A")
def of_the_last_step_alone(lengths: Any, steps: Any, block_size: Any) -> Any:
    return max_tkv(each_of(lengths, lambda length: length + steps), block_size)


@wrong_version(padding.peak_tkv, "PRV-ANY-5A")
def of_the_whole_last_block(lengths: Any, steps: Any, block_size: Any) -> Any:
    return (
        batch_width_blocks(each_of(lengths, lambda length: length + steps), block_size) * block_size
    )


@wrong_version(padding.peak_tkv, "PRV-ANY-5A")
def filled_before_the_final_width(lengths: Any, steps: Any, block_size: Any) -> Any:
    final = each_of(lengths, lambda length: length + steps)
    fills = any_of(
        lengths, lambda length: reaches_block_end(length + 1, length + steps, block_size)
    )
    width = batch_width_blocks(final, block_size)
    return select(fills, width * block_size, max_tkv(final, block_size))


@wrong_version(padding.peak_tkv, "PRV-ANY-2A")
def filled_by_the_longest_only(lengths: Any, steps: Any, block_size: Any) -> Any:
    final = each_of(lengths, lambda length: length + steps)
    width = batch_width_blocks(final, block_size)
    first = maximum((width - 1) * block_size + 1 - longest(lengths), 1)
    fills = reaches_block_end(longest(lengths) + first, longest(lengths) + steps, block_size)
    return select(fills, width * block_size, max_tkv(final, block_size))


# --- the rows until an end ------------------------------------------------------------------------


@wrong_version(admission.rows_until, "PRV-ANY-5A")
def with_rows_that_have_left(lives: Any, steps: Any) -> Any:
    return each_of(lives, lambda life: life.length)


@wrong_version(admission.rows_until, "PRV-ANY-2A")
def of_those_that_end_then(lives: Any, steps: Any) -> Any:
    own = largest_of(lives, lambda life: select(life.steps == steps, life.length, 0))
    return each_of(lives, lambda life: select(life.steps == steps, life.length, own))


# --- how many rows --------------------------------------------------------------------------------


@wrong_version(admission.peak_volume_until, "PRV-ANY-3A")
def of_those_that_outlast_the_end(lives: Any, steps: Any, block_size: Any) -> Any:
    rows = count_of(lives, lambda life: life.steps > steps)
    return volume(rows, peak_tkv(rows_until(lives, steps), steps, block_size))


@wrong_version(admission.peak_volume_until, "PRV-ANY-7A")
def of_everyone(lives: Any, steps: Any, block_size: Any) -> Any:
    rows = count_of(lives, lambda life: life.length >= 1)
    return volume(rows, peak_tkv(rows_until(lives, steps), steps, block_size))


@wrong_version(admission.exact_volume_holds, "PRV-ANY-3A")
def up_to_twice_the_limit(decoding: Any, candidate: Any, limit: Any, block_size: Any) -> Any:
    volumes = worst_case_volumes(decoding, candidate, block_size)
    return all_of(volumes, lambda peak: peak <= 2 * limit)


@wrong_version(admission.worst_case_volumes, "PRV-ANY-3A")
def but_for_the_next_step(decoding: Any, candidate: Any, block_size: Any) -> Any:
    lives = decode_lives(decoding, candidate)
    return each_of(
        lives,
        lambda life: select(life.steps > 1, peak_volume_until(lives, life.steps, block_size), 0),
    )


# --- the shape of a batch -------------------------------------------------------------------------


@wrong_version(padding.max_tkv, "PRV-ANY-8")
def by_the_offset_of_the_longest(lengths: Any, block_size: Any) -> Any:
    width = batch_width_blocks(lengths, block_size)
    return (
        (width - 1) * block_size + 2 * block_size - last_block_offset(longest(lengths), block_size)
    )


# --- projections ----------------------------------------------------------------------------------


@wrong_version(admission.projected_volumes, "PRV-ANS-5")
def of_those_projected_further(future_tkvs: Any, candidate_tkv: Any) -> Any:
    everyone = with_row(future_tkvs, candidate_tkv)
    return each_of(everyone, lambda tkv: volume(count_of(everyone, lambda other: other > tkv), tkv))


@wrong_version(admission.projected_volumes, "PRV-ANS-5")
def without_the_candidate(future_tkvs: Any, candidate_tkv: Any) -> Any:
    return each_of(
        future_tkvs,
        lambda tkv: select(
            tkv <= candidate_tkv,
            volume(count_of(future_tkvs, lambda other: other >= tkv), tkv),
            0,
        ),
    )


@wrong_version(padding.peak_tkv, "PRV-ANY-2A")
def of_five_rows(lengths: Any, steps: Any, block_size: Any) -> Any:
    return max_tkv([length + steps for length in lengths[:5]], block_size)


def verdict(name: str) -> Verdict:
    """The verdict on an obligation; unknown if its formula lists the rows."""
    try:
        return prove(OBLIGATIONS[name], PATIENCE).verdict
    except UnlistableRowsError:
        return Verdict.UNKNOWN


@pytest.mark.parametrize(("right", "wrong", "name"), WRONG)
def test_a_wrong_formula_leaves_an_obligation_unproven(
    right: Formula, wrong: Formula, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(right, "__code__", wrong.__code__)
    allowed = {Verdict.REFUTED, Verdict.UNKNOWN} if name.startswith(ANY_ROWS) else {Verdict.REFUTED}
    assert verdict(name) in allowed


# --- and none hides behind a citation -------------------------------------------------------------


def verdicts(*names: str) -> dict[str, Verdict]:
    return {outcome.obligation: outcome.verdict for outcome in prove_all(names, 20.0)}


@pytest.mark.thorough
def test_a_stand_in_that_is_a_token_too_long_is_hidden_by_no_fact(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows (1, 1), (1, 2), candidate (1, 4), block 2: the peak is 6, the formula says 8."""
    monkeypatch.setattr(admission.rows_until, "__code__", with_stand_ins_a_token_too_long.__code__)
    rows, candidate = [Member(1, 1), Member(1, 2)], Member(1, 4)
    assert max(worst_case_volumes(rows, candidate, 2)) == 8
    found = verdicts("PRV-EXA-6A")
    assert found["PRV-EXA-4A"] is Verdict.REFUTED
    assert found["PRV-EXA-6A"] is not Verdict.PROVEN


def too_low_for_three_rows(lengths: Any, steps: Any, block_size: Any) -> Any:
    """Right at block 64 and at small ones."""
    final = each_of(lengths, lambda length: length + steps)
    width = batch_width_blocks(final, block_size)
    first_at_width = maximum((width - 1) * block_size + 1 - longest(lengths), 1)
    fills = any_of(
        lengths,
        lambda length: reaches_block_end(length + first_at_width, length + steps, block_size),
    )
    right = select(fills, width * block_size, max_tkv(final, block_size))
    if len(lengths) < 3:
        return right
    is_small = select(block_size == 64, True, block_size <= 8)
    return select(is_small, right, right - 1)


@pytest.mark.thorough
def test_a_peak_that_is_wrong_at_other_blocks_than_were_discharged_is_refuted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An obligation that cites it rests on one that is not proven."""
    monkeypatch.setattr(padding.peak_tkv, "__code__", too_low_for_three_rows.__code__)
    assert prove(OBLIGATIONS["PRV-PEAK-2C"], 15.0).verdict is Verdict.REFUTED
    assert "PRV-PEAK-2C" in OBLIGATIONS["PRV-EXA-5B"].statement(z3.Int).cites


@pytest.mark.thorough
def test_a_peak_that_is_wrong_at_other_blocks_is_hidden_by_no_fact(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(padding.peak_tkv, "__code__", too_low_for_three_rows.__code__)
    found = verdicts("PRV-EXA-5B")
    assert found["PRV-PEAK-2C"] is Verdict.REFUTED
    assert found["PRV-EXA-5B"] is not Verdict.PROVEN
