"""Wrong formulas in the source about many rows: each leaves an obligation unproven.

The code is put into the function itself, so that the rule, the cited obligations and the machine
all have the wrong one: no fact hides it.
"""

from collections.abc import Callable
from typing import Any

import pytest

from checks.proofs.obligations import OBLIGATIONS
from checks.proofs.prover import prove
from checks.proofs.registry import Verdict
from spec.core.arithmetic import maximum, round_up, select
from spec.core.rows import (
    UnlistableRowsError,
    all_of,
    any_of,
    count_of,
    each_of,
    largest_of,
    with_row,
)
from spec.spyre import admission, padding
from spec.spyre.admission import (
    decode_lives,
    peak_volume_until,
    projected_volumes,
    rows_until,
    worst_case_volumes,
)
from spec.spyre.padding import (
    batch_width_blocks,
    last_block_offset,
    longest,
    max_tkv,
    peak_tkv,
    reaches_block_end,
    volume,
)

PATIENCE = 15.0  # seconds; what the solver has not decided by then is not proven either

WrongOnes = list[tuple[Callable[..., Any], Callable[..., Any], str]]
WRONG: WrongOnes = []


def instead_of(right: Callable[..., Any], unproven: str) -> Callable[..., Any]:
    """The decorated function is written in the place of the right one.

    Its names are those of the right one's module. `unproven`: the obligation that notices.
    """

    def listed(wrong: Callable[..., Any]) -> Callable[..., Any]:
        WRONG.append((right, wrong, unproven))
        return wrong

    return listed


# --- the peak of the rows until an end ------------------------------------------------------------


@instead_of(peak_tkv, "PRV-ANY-2A")
def of_the_last_step_alone(lengths: Any, steps: Any, block_size: Any) -> Any:
    return max_tkv(each_of(lengths, lambda length: length + steps), block_size)


@instead_of(peak_tkv, "PRV-ANY-5A")
def of_the_whole_last_block(lengths: Any, steps: Any, block_size: Any) -> Any:
    return (
        batch_width_blocks(each_of(lengths, lambda length: length + steps), block_size) * block_size
    )


@instead_of(peak_tkv, "PRV-ANY-5A")
def filled_before_the_final_width(lengths: Any, steps: Any, block_size: Any) -> Any:
    final = each_of(lengths, lambda length: length + steps)
    fills = any_of(
        lengths, lambda length: reaches_block_end(length + 1, length + steps, block_size)
    )
    width = batch_width_blocks(final, block_size)
    return select(fills, width * block_size, max_tkv(final, block_size))


@instead_of(peak_tkv, "PRV-ANY-2A")
def filled_by_the_longest_only(lengths: Any, steps: Any, block_size: Any) -> Any:
    final = each_of(lengths, lambda length: length + steps)
    width = batch_width_blocks(final, block_size)
    first = maximum((width - 1) * block_size + 1 - longest(lengths), 1)
    fills = reaches_block_end(longest(lengths) + first, longest(lengths) + steps, block_size)
    return select(fills, width * block_size, max_tkv(final, block_size))


# --- the rows until an end ------------------------------------------------------------------------


@instead_of(rows_until, "PRV-ANY-5A")
def with_stand_ins_a_token_too_long(lives: Any, steps: Any) -> Any:
    own = largest_of(lives, lambda life: select(life.steps == steps, life.length, 0))
    return each_of(lives, lambda life: select(life.steps >= steps, life.length, own + 1))


@instead_of(rows_until, "PRV-ANY-5A")
def with_rows_that_have_left(lives: Any, steps: Any) -> Any:
    return each_of(lives, lambda life: life.length)


@instead_of(rows_until, "PRV-ANY-2A")
def of_those_that_end_then(lives: Any, steps: Any) -> Any:
    own = largest_of(lives, lambda life: select(life.steps == steps, life.length, 0))
    return each_of(lives, lambda life: select(life.steps == steps, life.length, own))


# --- how many rows --------------------------------------------------------------------------------


@instead_of(peak_volume_until, "PRV-ANY-3A")
def of_those_that_outlast_the_end(lives: Any, steps: Any, block_size: Any) -> Any:
    rows = count_of(lives, lambda life: life.steps > steps)
    return volume(rows, peak_tkv(rows_until(lives, steps), steps, block_size))


@instead_of(peak_volume_until, "PRV-ANY-7A")
def of_everyone(lives: Any, steps: Any, block_size: Any) -> Any:
    rows = count_of(lives, lambda life: life.length >= 1)
    return volume(rows, peak_tkv(rows_until(lives, steps), steps, block_size))


@instead_of(admission.exact_volume_holds, "PRV-ANY-3A")
def up_to_twice_the_limit(decoding: Any, candidate: Any, limit: Any, block_size: Any) -> Any:
    volumes = worst_case_volumes(decoding, candidate, block_size)
    return all_of(volumes, lambda peak: peak <= 2 * limit)


@instead_of(worst_case_volumes, "PRV-ANY-3A")
def but_for_the_next_step(decoding: Any, candidate: Any, block_size: Any) -> Any:
    lives = decode_lives(decoding, candidate)
    return each_of(
        lives,
        lambda life: select(life.steps > 1, peak_volume_until(lives, life.steps, block_size), 0),
    )


# --- the shape of a batch -------------------------------------------------------------------------


@instead_of(padding.max_tkv, "PRV-ANY-8")
def by_the_offset_of_the_longest(lengths: Any, block_size: Any) -> Any:
    width = batch_width_blocks(lengths, block_size)
    return (
        (width - 1) * block_size + 2 * block_size - last_block_offset(longest(lengths), block_size)
    )


# --- projections ----------------------------------------------------------------------------------


@instead_of(projected_volumes, "PRV-ANS-5")
def of_those_projected_further(future_tkvs: Any, candidate_tkv: Any) -> Any:
    everyone = with_row(future_tkvs, candidate_tkv)
    return each_of(everyone, lambda tkv: volume(count_of(everyone, lambda other: other > tkv), tkv))


@instead_of(projected_volumes, "PRV-ANS-5")
def without_the_candidate(future_tkvs: Any, candidate_tkv: Any) -> Any:
    return each_of(
        future_tkvs,
        lambda tkv: select(
            tkv <= candidate_tkv,
            volume(count_of(future_tkvs, lambda other: other >= tkv), tkv),
            0,
        ),
    )


@instead_of(admission._projected_end, "PRV-ANS-2")
def without_slack(end: Any, block_size: Any) -> Any:
    return round_up(end - 1, block_size)


@instead_of(peak_tkv, "PRV-ANY-2A")
def of_five_rows(lengths: Any, steps: Any, block_size: Any) -> Any:
    return max_tkv([length + steps for length in lengths[:5]], block_size)


def verdict_of(name: str) -> Verdict:
    """What is proven of a formula that lists the rows is nothing."""
    try:
        return prove(OBLIGATIONS[name], PATIENCE).verdict
    except UnlistableRowsError:
        return Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("right", "wrong", "unproven"), WRONG, ids=[wrong.__name__ for _, wrong, _ in WRONG]
)
def test_a_wrong_formula_leaves_an_obligation_unproven(
    right: Callable[..., Any],
    wrong: Callable[..., Any],
    unproven: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(right, "__code__", wrong.__code__)

    assert verdict_of(unproven) in {Verdict.REFUTED, Verdict.UNKNOWN}
