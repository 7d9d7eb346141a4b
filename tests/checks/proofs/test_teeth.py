"""Every obligation has teeth: with a wrong formula in its place the claim is refuted."""

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from attrs import evolve, frozen

from checks.proofs.any_rows import row_with_largest
from checks.proofs.nano_vllm import admission as nano_vllm_admission
from checks.proofs.nano_vllm import any_prefill as nano_vllm_any
from checks.proofs.nano_vllm import blocks as nano_vllm
from checks.proofs.obligations import OBLIGATIONS
from checks.proofs.prover import prove
from checks.proofs.registry import Verdict
from checks.proofs.sampling import drawn
from checks.proofs.spyre import (
    alone,
    any_batch,
    any_run,
    any_shipped,
    block_pool,
    decode_batch,
    definitions,
    exact,
    model_length,
    monotonicity,
    overtaking,
    padding,
    peak,
    reservation,
    rows,
    shipped,
    tightness,
)
from checks.proofs.vllm_v1 import any_budget as vllm_v1_any
from checks.proofs.vllm_v1 import blocks as vllm_v1_blocks
from checks.proofs.vllm_v1 import budget as vllm_v1
from checks.proofs.vllm_v1 import drafts as vllm_v1_drafts
from engine.spyre.scheduler import admission as engine
from spec.core import arithmetic, blocks
from spec.core.arithmetic import Number, floor_div, minimum
from spec.core.blocks import block_count, missing_blocks
from spec.core.rows import Rows, each_of
from spec.nano_vllm import formulas as nano
from spec.spyre import admission, variants
from spec.spyre import padding as formulas
from spec.spyre.admission import Member
from spec.spyre.rules import joining
from spec.vllm_v1 import config as v1

TRIES = 1_000
PROVEN = [name for name, about in OBLIGATIONS.items() if about.expected is Verdict.PROVEN]

Formula = Callable[..., Any]


@frozen
class Fault:
    """A wrong version of a formula that an obligation's module imports."""

    module: ModuleType
    name: str
    wrong: Formula


def one_more(formula: Formula) -> Formula:
    return lambda *arguments: formula(*arguments) + 1


def one_less(formula: Formula) -> Formula:
    return lambda *arguments: formula(*arguments) - 1


def always(*_: Any) -> bool:
    return True


def doubled(*batch: Any) -> list[Number]:
    return [2 * number for number in admission.worst_case_volumes(*batch)]


def values_alone(*shape: Number, **sizes: Number) -> Number:
    """A block without the keys."""
    return floor_div(blocks.block_bytes(*shape, **sizes), 2)


def without_the_candidates_end(
    decoding: Sequence[Member], candidate: Member, limit: Number, block_size: Number
) -> Any:
    """As the text stops where the candidate outlives all."""
    *volumes, _ = admission.worst_case_volumes(decoding, candidate, block_size)
    return arithmetic.every(volume <= limit for volume in volumes)


def a_token_longer(row: Any) -> Any:
    return evolve(row, length=row.length + 1)


def without_the_last_step(decoding: Rows, candidate: Member) -> Rows:
    return admission.decode_lives(decoding, evolve(candidate, remaining=candidate.remaining - 1))


def of_the_last_step(lengths: Any, steps: Number, block_size: Number) -> Number:
    """A peak that forgets the steps in between."""
    return formulas.max_tkv(each_of(lengths, lambda length: length + steps), block_size)


def the_last_end(lives: Rows, _step: Number) -> Any:
    """Of all rows one that ends last."""
    return row_with_largest(lives, lambda life: life.steps)


def without_last_row(formula: Formula) -> Formula:
    return lambda lengths, *rest: formula(lengths[:-1], *rest)


def with_argument(index: int, change: Formula, formula: Formula) -> Formula:
    """The formula, given another value in one place."""

    def wrong(*arguments: Any) -> Any:
        before, value, after = arguments[:index], arguments[index], arguments[index + 1 :]
        return formula(*before, change(value), *after)

    return wrong


def two_blocks_short(*given: Any) -> Rows:
    """What the release projects for each row, too little by more than its slack."""
    return each_of(admission.shipped_row_futures(*given), lambda tkv: tkv - 2 * given[2])


def shifted_limit(tokens: int, rule: Formula) -> Formula:
    return with_argument(2, lambda limit: limit + tokens, rule)


def of_each(names: str, fault: Fault) -> dict[str, Fault]:
    return dict.fromkeys(names.split(), fault)


FAULTS: Mapping[str, Fault] = {
    "PRV-PAD-1": Fault(padding, "left_padding", one_more(formulas.left_padding)),
    "PRV-PAD-2": Fault(padding, "right_padding", one_more(formulas.right_padding)),
    "PRV-PAD-3": Fault(padding, "left_padding", one_less(formulas.left_padding)),
    "PRV-PAD-4": Fault(padding, "padded_length", one_more(formulas.padded_length)),
    "PRV-CHK-1": Fault(padding, "chunk_end", one_less(formulas.chunk_end)),
    "PRV-CHK-2": Fault(padding, "chunk_end", one_more(formulas.chunk_end)),
    "PRV-CHK-3": Fault(padding, "chunk_count", one_more(formulas.chunk_count)),
    "PRV-CHK-4": Fault(padding, "active_chunk", one_more(formulas.active_chunk)),
    "PRV-DEC-1A": Fault(decode_batch, "batch_width_blocks", one_more(formulas.batch_width_blocks)),
    "PRV-DEC-1B": Fault(decode_batch, "batch_width_blocks", one_less(formulas.batch_width_blocks)),
    **of_each(
        "PRV-DEC-2 PRV-DEC-4 PRV-DEC-6",
        Fault(decode_batch, "row_left_padding", one_more(formulas.row_left_padding)),
    ),
    "PRV-DEC-3": Fault(decode_batch, "row_left_padding", one_less(formulas.row_left_padding)),
    "PRV-DEC-5": Fault(decode_batch, "block_count", one_more(block_count)),
    **of_each(
        "PRV-DEC-7A PRV-TKV-1A",
        Fault(decode_batch, "last_block_offset", one_more(formulas.last_block_offset)),
    ),
    **of_each("PRV-DEC-7B PRV-DEC-8A", Fault(decode_batch, "max_tkv", one_more(formulas.max_tkv))),
    "PRV-DEC-7C": Fault(decode_batch, "max_tkv", without_last_row(formulas.max_tkv)),
    **of_each(
        "PRV-DEC-8B PRV-DEC-8C PRV-TKV-2 PRV-TKV-3 PRV-TKV-4 PRV-TKV-5A "
        "PRV-TKV-6 PRV-TKV-7 PRV-TKV-8A PRV-TKV-8B PRV-TKV-8C PRV-TKV-8D PRV-TKV-8E PRV-TKV-8F",
        Fault(decode_batch, "row_left_padding", lambda row, width, size: width * size - row),
    ),
    "PRV-TKV-1B": Fault(
        decode_batch, "batch_width_blocks", without_last_row(formulas.batch_width_blocks)
    ),
    "PRV-TKV-5B": Fault(decode_batch, "row_left_padding", lambda row, width, size: row),
    "PRV-MON-1A": Fault(monotonicity, "max_tkv", without_last_row(formulas.max_tkv)),
    **of_each(
        "PRV-MON-1B PRV-MON-2A PRV-MON-2B PRV-MON-2C",
        Fault(monotonicity, "max_tkv", lambda lengths, _size: lengths[-1]),
    ),
    "PRV-MON-1C": Fault(monotonicity, "volume", lambda rows, tkv: rows - tkv),
    "PRV-PEAK-1A": Fault(rows, "reaches_block_end", lambda *_: False),
    "PRV-PEAK-1B": Fault(rows, "last_block_offset", lambda row, size: -row),
    "PRV-PEAK-1C": Fault(rows, "batch_width_blocks", lambda lengths, size: -lengths[0]),
    "PRV-PEAK-1D": Fault(rows, "max_tkv", one_more(formulas.max_tkv)),
    **of_each("PRV-PEAK-1E PRV-PEAK-2A", Fault(peak, "peak_tkv", one_less(formulas.peak_tkv))),
    "PRV-PEAK-1F": Fault(peak, "peak_tkv", without_last_row(formulas.peak_tkv)),
    "PRV-PEAK-1G": Fault(rows, "floor_div", arithmetic.cdiv),
    **of_each(
        "PRV-PEAK-2B PRV-PEAK-2C PRV-PEAK-2D PRV-PEAK-4B PRV-PEAK-4C PRV-PEAK-4D",
        Fault(peak, "peak_tkv", of_the_last_step),
    ),
    **of_each(
        "PRV-PEAK-3A PRV-PEAK-3C", Fault(peak, "last_full_step", one_more(rows.last_full_step))
    ),
    **of_each("PRV-PEAK-3B PRV-PEAK-3D", Fault(peak, "peak_tkv", one_more(formulas.peak_tkv))),
    "PRV-PEAK-4A": Fault(peak, "peak_tkv", lambda lengths, steps, size: lengths[0] - steps),
    "PRV-EXA-1": Fault(exact, "negate", always),
    "PRV-EXA-2": Fault(exact, "peak_tkv", without_last_row(formulas.peak_tkv)),
    "PRV-EXA-3": Fault(exact, "volume", lambda rows, tkv: rows - tkv),
    **of_each("PRV-EXA-4A PRV-EXA-4B PRV-EXA-4C", Fault(exact, "worst_case_volumes", doubled)),
    **of_each(
        "PRV-EXA-5A PRV-EXA-5B PRV-EXA-5C",
        Fault(exact, "exact_volume_holds", without_the_candidates_end),
    ),
    "PRV-EXA-6A": Fault(
        exact, "exact_volume_holds", shifted_limit(-1, admission.exact_volume_holds)
    ),
    **of_each("PRV-EXA-6B PRV-EXA-6C", Fault(exact, "exact_volume_holds", lambda *_: False)),
    "PRV-EXA-7": Fault(exact, "exact_volume_holds", shifted_limit(1, admission.exact_volume_holds)),
    "PRV-ANY-1": Fault(any_batch, "first_end", the_last_end),
    **of_each("PRV-ANY-2A PRV-ANY-2B", Fault(any_batch, "peak_tkv", of_the_last_step)),
    **of_each("PRV-ANY-3A PRV-ANY-3B", Fault(any_batch, "exact_volume_holds", always)),
    **of_each("PRV-ANY-5A PRV-ANY-5B", Fault(any_batch, "peak_tkv", one_more(formulas.peak_tkv))),
    "PRV-ANY-6": Fault(any_batch, "alive_count", lambda _lives, step: step),
    **of_each("PRV-ANY-7A PRV-ANY-7B", Fault(any_batch, "exact_volume_holds", lambda *_: False)),
    "PRV-ANY-4": Fault(any_batch, "alive_count", lambda _lives, _step: 0),
    "PRV-ANY-8": Fault(any_run, "those_that_stay", lambda rows: each_of(rows, a_token_longer)),
    "PRV-ANY-9": Fault(
        any_run,
        "after_a_token",
        lambda rows: each_of(rows, lambda row: admission.Life(row.length + 2, row.steps - 1)),
    ),
    "PRV-ANY-10": Fault(any_run, "batch_tkv", one_more(definitions.batch_tkv)),
    "PRV-ANY-11": Fault(any_batch, "exact_volume_holds", always),
    "PRV-ANY-12": Fault(any_run, "volume", lambda rows, tkv: rows + tkv),
    "PRV-DEF-1": Fault(definitions, "decode_lives", without_the_last_step),
    "PRV-DEF-2": Fault(definitions, "volume", lambda rows, tkv: rows * tkv + rows),
    "PRV-DEF-3": Fault(definitions, "batch_width_blocks", one_more(formulas.batch_width_blocks)),
    "PRV-DEF-4": Fault(definitions, "max_tkv", one_less(formulas.max_tkv)),
    "PRV-DEF-5": Fault(definitions, "row_left_padding", one_more(formulas.row_left_padding)),
    "PRV-ANS-1": Fault(any_shipped, "max_tkv", lambda lengths, size: -formulas.longest(lengths)),
    **of_each("PRV-ANS-2 PRV-ANS-3", Fault(any_shipped, "shipped_row_futures", two_blocks_short)),
    "PRV-ANS-4": Fault(any_shipped, "max_tkv", one_more(formulas.max_tkv)),
    "PRV-ANS-5": Fault(any_shipped, "step_volume", lambda *_: 10**6),
    **of_each("PRV-ANS-6 PRV-ANS-8", Fault(any_shipped, "shipped_volume_holds", always)),
    "PRV-ANS-7": Fault(any_shipped, "step_volume", lambda lives, *_: len(lives)),
    **of_each(
        "PRV-TIG-1 PRV-TIG-2",
        Fault(tightness, "worst_case_blocks", lambda length, more, size: block_count(length, size)),
    ),
    "PRV-LEN-1": Fault(model_length, "is_kept_length", always),
    "PRV-LEN-5": Fault(model_length, "is_kept_length", always),
    "PRV-IDL-1": Fault(
        variants, "exact_volume_holds", shifted_limit(-1, admission.exact_volume_holds)
    ),
    "PRV-IDL-2": Fault(
        variants, "model_length_holds", shifted_limit(-2, admission.model_length_holds)
    ),
    "PRV-IDL-3": Fault(
        variants, "shipped_volume_holds", shifted_limit(-2, admission.shipped_volume_holds)
    ),
    "PRV-IDL-4": Fault(alone, "may_reserve", lambda worst, _shared, free, _reserved: worst < free),
    "PRV-LEN-2": Fault(model_length, "max_tkv", without_last_row(formulas.max_tkv)),
    "PRV-POOL-1": Fault(
        block_pool, "touched", lambda block: evolve(block, references=block.references + 1)
    ),
    "PRV-POOL-2": Fault(
        block_pool, "allocated", lambda block: evolve(block, references=1, is_free=0)
    ),
    "PRV-POOL-3": Fault(
        block_pool,
        "released",
        lambda block: evolve(block, references=block.references - 1, is_free=1),
    ),
    "PRV-POOL-4": Fault(
        block_pool, "registered", lambda block: evolve(block, is_free=1, is_cached=1)
    ),
    "PRV-ALN-1": Fault(overtaking, "chosen_from", lambda _cohort, waiting, _most: waiting),
    "PRV-ALN-2": Fault(
        overtaking, "overtakes_left", lambda ahead, cohort, max_overtakes: cohort - ahead
    ),
    "PRV-ALN-3": Fault(
        overtaking,
        "overtakes_left",
        lambda ahead, cohort, max_overtakes: max_overtakes - cohort,
    ),
    "PRV-RES-1": Fault(
        reservation, "may_reserve", lambda worst, shared, free, _: worst - shared <= free
    ),
    "PRV-RES-2": Fault(reservation, "still_promised", lambda promised, handed_out: promised),
    "PRV-RES-3": Fault(reservation, "_promises_hold", lambda free, reserved: reserved == free),
    "PRV-RES-4": Fault(
        reservation, "worst_case_blocks", lambda prompt, more, size: (prompt + more - 2) / size
    ),
    "PRV-RES-5": Fault(
        reservation, "worst_case_blocks", lambda prompt, more, size: (prompt + more) / size + 2
    ),
    **of_each("PRV-SHP-1 PRV-SHP-2", Fault(shipped, "_is_that_of_the_batch", always)),
    "PRV-SHP-3A": Fault(
        shipped, "shipped_volume_holds", shifted_limit(128, admission.shipped_volume_holds)
    ),
    **of_each("PRV-SHP-3B PRV-SHP-3C", Fault(shipped, "shipped_volume_holds", always)),
    "PRV-JDG-1": Fault(engine, "exact_volume_holds", always),
    "PRV-JDG-2": Fault(engine, "surely_exceed", lambda *_: np.array([True])),
    "PRV-JDG-3": Fault(joining, "worst_case_fits_by_ends", always),
    "PRV-JDG-4": Fault(joining, "model_length_fits", always),
    "PRV-JDG-5": Fault(joining, "shipped_projection_fits", always),
    "PRV-V1-BUD-1A": Fault(
        vllm_v1, "running_tokens", with_argument(4, lambda _budget: 10**9, v1.running_tokens)
    ),
    "PRV-V1-BUD-1B": Fault(
        vllm_v1, "waiting_tokens", with_argument(3, lambda _budget: 10**9, v1.waiting_tokens)
    ),
    "PRV-V1-ANY-1": Fault(
        vllm_v1, "running_tokens", with_argument(4, lambda _budget: 10**9, v1.running_tokens)
    ),
    "PRV-V1-ANY-2": Fault(
        vllm_v1, "waiting_tokens", with_argument(3, lambda _budget: 10**9, v1.waiting_tokens)
    ),
    "PRV-V1-ANY-3": Fault(vllm_v1_any, "taken_back", lambda left, tokens: left),
    "PRV-V1-BUD-1C": Fault(vllm_v1, "taken_back", lambda left, tokens: left),
    "PRV-V1-BUD-2": Fault(
        vllm_v1, "running_tokens", with_argument(5, lambda most: most - 1, v1.running_tokens)
    ),
    **of_each(
        "PRV-V1-BUD-3 PRV-V1-SPC-3", Fault(vllm_v1, "running_tokens", one_more(v1.running_tokens))
    ),
    "PRV-V1-BUD-4": Fault(vllm_v1, "waiting_tokens", one_more(v1.waiting_tokens)),
    "PRV-V1-BUD-5": Fault(vllm_v1, "running_tokens", lambda *_: 1),
    "PRV-V1-BUD-6": Fault(vllm_v1, "default_batched_tokens", lambda max_model_len: 2_048),
    "PRV-V1-CHK-1": Fault(vllm_v1, "capped_tokens", minimum),
    "PRV-V1-CHK-2": Fault(vllm_v1, "waiting_tokens", one_less(v1.waiting_tokens)),
    **of_each(
        "PRV-V1-KV-1 PRV-V1-KV-3 PRV-V1-KV-7",
        Fault(vllm_v1_blocks, "missing_blocks", one_more(missing_blocks)),
    ),
    "PRV-V1-KV-2": Fault(vllm_v1_blocks, "slots_end", lambda tokens, *_: tokens - 1),
    "PRV-V1-KV-4": Fault(vllm_v1_blocks, "hit_blocks_at_most", floor_div),
    "PRV-V1-KV-5": Fault(vllm_v1_blocks, "block_index", one_less(blocks.block_index)),
    "PRV-V1-KV-6": Fault(vllm_v1_blocks, "largest_end", one_less(v1.largest_end)),
    "PRV-V1-KV-8": Fault(vllm_v1_blocks, "largest_end", one_more(v1.largest_end)),
    "PRV-V1-KV-9": Fault(vllm_v1_blocks, "profiled_blocks", one_more(v1.profiled_blocks)),
    "PRV-V1-KV-10": Fault(vllm_v1_blocks, "block_bytes", values_alone),
    "PRV-V1-SPC-1": Fault(
        vllm_v1_drafts, "rolled_back", lambda computed, drafts, accepted: computed - drafts
    ),
    "PRV-V1-SPC-2": Fault(vllm_v1_drafts, "verified", lambda row, new_tokens: new_tokens),
    "PRV-V1-SPC-4": Fault(vllm_v1_drafts, "rolled_back", one_less(v1.rolled_back)),
    **of_each(
        "PRV-NANO-SLT-1 PRV-NANO-SLT-2",
        Fault(nano_vllm, "slot", lambda block, _position, size: block * size),
    ),
    "PRV-NANO-SLT-3": Fault(
        nano_vllm, "slot", lambda block, position, size: block + position % size
    ),
    "PRV-NANO-SLT-4": Fault(
        nano_vllm, "slot", with_argument(0, lambda block: block + 1, blocks.slot)
    ),
    "PRV-NANO-SLT-5": Fault(nano_vllm, "block_count", floor_div),
    "PRV-NANO-DEC-1": Fault(nano_vllm, "starts_block", lambda length, size, *_: length % size == 0),
    "PRV-NANO-DEC-4": Fault(nano_vllm, "can_append", always),
    "PRV-NANO-DEC-5": Fault(nano_vllm, "fills_block", lambda length, size: length % size == 1),
    "PRV-NANO-DEC-6": Fault(nano_vllm, "can_append", lambda free, *_: free >= 1),
    "PRV-NANO-ADM-1": Fault(
        nano_vllm_admission, "counted_tokens", lambda length, cached, gate: cached
    ),
    **of_each(
        "PRV-NANO-ANY-1A PRV-NANO-ANY-1B",
        Fault(nano_vllm_any, "counted_tokens", lambda length, cached, gate: cached),
    ),
    "PRV-NANO-ADM-2": Fault(nano_vllm_admission, "can_allocate", always),
    "PRV-NANO-ADM-3": Fault(
        nano_vllm_admission, "can_allocate", lambda free, blocks, *_: free > blocks
    ),
    "PRV-NANO-PFX-1": Fault(
        nano_vllm_admission, "counted_tokens", lambda length, cached, gate: length
    ),
    "PRV-NANO-PFX-3": Fault(
        nano_vllm_admission, "lookup_blocks", lambda length, size, reading: floor_div(length, size)
    ),
    **of_each(
        "PRV-NANO-GRA-1 PRV-NANO-GRA-2",
        Fault(
            nano_vllm_admission, "captured_sizes", lambda *given: nano.captured_sizes(*given)[:-1]
        ),
    ),
    **of_each(
        "PRV-NANO-GRA-4 PRV-NANO-GRA-5",
        Fault(
            nano_vllm_admission,
            "captured_sizes",
            lambda largest, sizes: nano.captured_sizes(2 * largest, sizes),
        ),
    ),
}


@pytest.mark.parametrize("name", PROVEN)
def test_a_wrong_formula_is_refuted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On random numbers or in the solver."""
    fault = FAULTS[name]
    monkeypatch.setattr(fault.module, fault.name, fault.wrong)
    is_broken = any(not statement.claim for _, statement in drawn(OBLIGATIONS[name], TRIES))
    assert is_broken or prove(OBLIGATIONS[name]).verdict is Verdict.REFUTED


def test_every_fault_belongs_to_an_obligation() -> None:
    assert sorted(FAULTS) == sorted(PROVEN)
