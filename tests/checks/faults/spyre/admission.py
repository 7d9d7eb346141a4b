"""Faults of arrival and admission: the choice of the next request, and its conditions."""

from collections.abc import Sequence
from typing import Any

from attrs import evolve

from reference.spyre import admission, machine, step, transitions
from spec.core.blocks import block_count
from spec.core.records import DECODE
from spec.spyre import admission as formulas
from spec.spyre import variants
from spec.spyre.padding import max_tkv
from spec.spyre.records import Context, Step
from spec.spyre.state import Sequence as Row
from spec.spyre.state import State
from tests.checks.faults.patches import (
    Wrong,
    always,
    backwards,
    changed,
    configured,
    kept,
    last,
    last_to_front,
    one_block_less,
    plus,
    result,
)
from tests.checks.faults.spyre.table import fault

REVERSED = changed(waiting=backwards)
ONE_BLOCK_LESS = changed(pool=one_block_less)

# --- arrive, admit -------------------------------------------------------------------------------

fault(transitions, "arrive", on="layout", rules="LIF-1")(
    result(waiting=lambda queue: (*queue, queue[-1])),
    "arrives twice: a request that arrives is put into the queue twice",
)
fault(transitions, "arrive", on="layout", rules="BLK-8, LIF-7, LIF-9")(
    result(waiting=last(computed=1)),
    "arrives computed: a request arrives with its first token computed",
)
fault(transitions, "admit", on="layout", rules="LIF-1, LIF-3, LIF-4, SPY-PRI-13")(
    kept("waiting"), "admitted and waits: an admitted request stays in the waiting queue as well"
)
fault(transitions, "admit", on="layout", rules="LIF-2, SPY-PRI-13")(
    result(waiting=()), "queue is cleared: what waits behind an admitted request is forgotten"
)
fault(transitions, "arrive", on="layout", rules="LIF-7, LIF-9")(
    result(waiting=last_to_front),
    "arrives in front: a request that arrives is put before all that wait",
)
fault(transitions, "arrive", on="layout", rules="LIF-7, LIF-9")(
    result(waiting=lambda queue: queue[-1:]),
    "arrives alone: what waits when a request arrives is forgotten",
)
fault(transitions, "arrive", on="layout", rules="LIF-7, LIF-8, LIF-9")(
    result(waiting=last(prefill_len=plus(-1))),
    "arrives shortened: the last token of a prompt is dropped when its request arrives",
)


# --- priority rules ------------------------------------------------------------------------------

fault(step, "choose_prefill", of="admit", on="exact", rules="SPY-PRI-5")(
    lambda right, ctx, state: right(ctx, REVERSED(state)),
    "last come first served: the queue is served from its end",
)
fault(step, "choose_prefill", of="admit", on="shipped", rules="SPY-PRI-7, SPY-PRI-14")(
    lambda right, ctx, state: right(ctx, REVERSED(state)),
    "overtakes the willing: requests are stepped over that nothing refuses",
)
fault(admission, "_priority_refusal", of="admit", on="exact", rules="SPY-PRI-3")(
    configured(interleave=False),
    "prefills not interleaved: prefill steps follow each other although interleaving is on",
)
fault(admission, "_priority_refusal", of="admit", on="pausing", rules="SPY-PAU-4")(
    lambda right, ctx, state, row: right(ctx, evolve(state, paused=()), row),
    "paused not looked at: prefills are scheduled although a request is paused",
)


@fault(
    machine,
    "scheduler_step",
    of="admit",
    on="shared prefix",
    rules="SPY-PRI-1, SPY-PRI-2, SPY-ADM-2, LIF-5, SPY-PRI-13",
)
def newcomer_takes_the_slot(right: Wrong, ctx: Context, state: State, *rest: Any) -> Any:
    """A new request takes the prefill slot; the ongoing prefill goes back to the queue."""
    if state.prefilling is None or not state.waiting:
        return right(ctx, state, *rest)
    waiting = (*state.waiting, state.prefilling)
    done: Step = right(ctx, evolve(state, prefilling=None, waiting=waiting), *rest)
    return evolve(done, before=state)


fault(step, "choose_prefill", of="admit", on="layout", rules="guard SPY-PRI-1")(
    lambda right, ctx, state: right(
        ctx, evolve(state, prefilling=None) if state.waiting else state
    ),
    "newcomer before the prefill: the waiting are looked at even while a prefill is in progress",
)
fault(step, "choose_prefill", of="admit", on="layout", rules="SPY-PRI-4, SPY-RES-4")(
    lambda right, ctx, state: right(ctx, state) if state.decoding else (None, "SPY-RES-1"),
    "idle although pending: without a decoding row none is admitted, as if for lack of blocks",
)
fault(step, "choose_prefill", of="admit", on="layout", rules="SPY-PRI-6")(
    lambda right, ctx, state: (None, None) if state.decoding else right(ctx, state),
    "decodes first: while a request decodes, no prefill is looked for",
)
fault(admission, "_priority_refusal", of="admit", on="layout", rules="SPY-PRI-6")(
    lambda right, ctx, state, row: "SPY-PRI-3" if state.decoding else right(ctx, state, row),
    "interleaved with none: interleaving is given as the reason after a decode step too",
)
fault(step, "choose_prefill", of="admit", on="exact", rules="SPY-PRI-6")(
    lambda right, *given: (
        right(*given)[0],
        right(*given)[1] and right(*given)[1].replace("SPY-VOL-4", "SPY-VOL-2"),
    ),
    "refused for another rule: a condition is named that this admission does not have",
)
fault(step, "choose_prefill", of="admit", on="layout", rules="SPY-VOL-4")(
    lambda right, ctx, state: (
        (None, "SPY-VOL-4") if state.decoding and not state.waiting else right(ctx, state)
    ),
    "limit named for none: a decode step names the volume rule though the request would fit",
)
fault(step, "_at_rest", of="admit", on="exact", rules="SPY-PRI-12")(
    lambda right, ctx, state, _kind, tkv: right(ctx, state, DECODE, tkv),
    "prefills not noted: every step is noted as a decode step: no prefill seems to follow one",
)
fault(step, "_at_rest", of="admit", on="shipped", rules="SPY-VOL-5")(
    lambda right, ctx, state, kind, _tkv: right(ctx, state, kind, 0),
    "tkv not noted: the shipped rule gets no tkv of the step before",
)
fault(admission, "_priority_refusal", of="admit", on="pausing", rules="SPY-PRI-6")(
    lambda right, ctx, state, row: "SPY-PAU-4" if state.paused else right(ctx, state, row),
    "paused before all: a paused request keeps others from their prefill even if none runs",
)


# --- first-chunk and last-chunk conditions -------------------------------------------------------

fault(admission, "_chunk_refusal", of="admit", on="exact", rules="SPY-ADM-1")(
    configured(max_num_seqs=plus(1)),
    "one slot too many: the check for a free slot compares with `>` where `>=` is meant",
)
fault(
    admission, "_chunk_refusal", of="admit", on="two slots for three", rules="SPY-ADM-1, SPY-ADM-3"
)(
    configured(max_num_seqs=plus(1)),
    "one row too many: a request joins a batch whose slots are all taken",
)
fault(admission, "last_chunk_refusal", of="admit", on="exact, not interleaved", rules="SPY-VOL-4")(
    lambda right, ctx, state, row: right(ctx, state, row) if row is state.prefilling else None,
    "judged a chunk too late: a first chunk that is the last is not judged as the last",
)
fault(admission, "_as_admitted", of="admit", on="hit up to the last chunk", rules="SPY-VOL-4")(
    lambda _right, _ctx, _state, row: row,
    "judged without the hit: what the last chunk is ignores what is cached",
)


@fault(admission, "_chunk_refusal", of="admit", on="exact, not interleaved", rules="SPY-ADM-4")
def judged_a_chunk_too_early(right: Wrong, ctx: Context, state: State, sequence: Row) -> Any:
    """The last-chunk conditions are judged before the first chunk too."""
    refusal = right(ctx, state, sequence)
    if refusal is None and sequence is not state.prefilling:
        return admission.last_chunk_refusal(ctx, state, sequence)
    return refusal


fault(variants, "exact_volume_holds", of="admit", on="exact, longer blocks", rules="SPY-VOL-4")(
    always(True), "exact limit ignored: exact admission lets every request join"
)
fault(variants, "exact_volume_holds", of="admit", on="exact", rules="SPY-VOL-4")(
    lambda right, decoding, row, limit, size: right(decoding, row, limit - 1, size),
    "exact limit below: exact admission compares with `<` where `<=` is meant",
)
fault(variants, "exact_volume_holds", of="admit", on="exact, not interleaved", rules="SPY-VOL-4")(
    lambda right, decoding, row, *limits: right(decoding, evolve(row, remaining=1), *limits),
    "exact forgets the candidate: the projection lets the new request leave with its first token",
)


@fault(formulas, "peak_tkv", of="admit", on="peak before the end", rules="SPY-VOL-4")
def exact_looks_at_the_end(
    _right: Wrong, lengths: Sequence[int], steps: int, block_size: int
) -> Any:
    """The formula of exact admission takes the last step's tkv for the peak."""
    return max_tkv([length + steps for length in lengths], block_size)


fault(variants, "shipped_volume_holds", of="admit", on="shipped", rules="SPY-VOL-3")(
    lambda right, *given: right(*given[:-1], 0),
    "shipped without last tkv: it projects from the new request's length, not from the last tkv",
)
fault(formulas, "round_up", of="admit", on="a block of slack", rules="SPY-VOL-3")(
    lambda right, value, multiple: right(value, multiple) - multiple,
    "shipped without slack: the formula of the shipped rule lacks its block of slack on both sides",
)
fault(variants, "documented_volume_holds", of="admit", on="documented", rules="SPY-VOL-2")(
    lambda right, decoding, row, limit, size: right(
        decoding, changed(remaining=plus(size))(row), limit, size
    ),
    "documented with slack for all: the new request gets a block of slack too",
)
fault(variants, "model_length_holds", of="admit", on="documented, length", rules="SPY-LEN-2")(
    always(True), "model length ignored: the documented rule does not look at the model length"
)
fault(formulas, "joined_tkvs", of="admit", on="half a block of length", rules="SPY-LEN-2")(
    lambda _right, decoding, row, _size: [member.length for member in (*decoding, row)],
    "model length without padding: the formula forgets the padding that joining brings",
)


# --- reserve -------------------------------------------------------------------------------------

fault(transitions, "reserve", on="dry pool", rules="SPY-RES-2")(
    lambda _right, _ctx, state: (state, ()),
    "nothing reserved: an admitted request is promised nothing",
)
fault(transitions, "worst_case_blocks", of="reserve", on="dry pool", rules="SPY-RES-2")(
    lambda _right, ctx, row: block_count(row.prefill_len, ctx.config.block_size),
    "output not reserved: blocks are set aside for the prompt, not for what will be generated",
)
fault(transitions, "still_promised", of="reserve", on="dry pool", rules="SPY-RES-2")(
    lambda _right, promised, _blocks: promised,
    "promised for ever: blocks that were handed out stay promised",
)
fault(admission, "reserved_blocks", of="reserve", on="dry pool", rules="guard SPY-RES-1")(
    always(0), "promised to two: blocks that are promised already are promised again"
)
fault(admission, "_block_refusal", of="reserve", on="dry pool", rules="SPY-RES-4")(
    lambda right, ctx, state, row: right(ctx, ONE_BLOCK_LESS(state), row),
    "last block not promised: a request waits for a block more than it needs",
)
fault(admission, "_block_refusal", of="chunk", on="preemption", rules="BLK-9")(
    lambda right, ctx, state, row: right(
        ctx, ONE_BLOCK_LESS(state) if state.decoding else state, row
    ),
    "last block not used: while others decode, a chunk waits for a block more than it needs",
)
