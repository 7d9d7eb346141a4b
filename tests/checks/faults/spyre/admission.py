"""Faults of arrival and admission: who comes next, and what must hold before."""

from collections.abc import Sequence
from typing import Any

from attrs import evolve

from reference.spyre import admission, machine, step, transitions
from reference.spyre.transitions import Moved
from spec.core.blocks import block_count
from spec.core.records import DECODE
from spec.spyre import admission as formulas
from spec.spyre import variants
from spec.spyre.admission import Member
from spec.spyre.padding import max_tkv
from spec.spyre.records import Context, Step
from spec.spyre.state import Sequence as Row
from spec.spyre.state import State
from tests.checks.faults.planting import Right
from tests.checks.faults.spyre.table import fault, with_config

# --- arrive, admit -------------------------------------------------------------------------------


@fault(transitions, "arrive", on="layout", caught_by="LIF-1")
def arrives_twice(right: Right, ctx: Context, state: State, request_id: str) -> State:
    """A request that arrives is put into the queue twice."""
    state = right(ctx, state, request_id)
    return evolve(state, waiting=(*state.waiting, state.waiting[-1]))


@fault(transitions, "arrive", on="layout", caught_by="BLK-8, LIF-7")
def arrives_computed(right: Right, ctx: Context, state: State, request_id: str) -> State:
    """A request arrives with its first token computed."""
    *others, newcomer = right(ctx, state, request_id).waiting
    return evolve(state, waiting=(*others, evolve(newcomer, computed=1)))


@fault(transitions, "admit", on="layout", caught_by="LIF-1, LIF-4")
def admitted_and_waits(right: Right, ctx: Context, state: State, sequence: Row) -> Moved:
    """An admitted request stays in the waiting queue as well."""
    moved, events = right(ctx, state, sequence)
    return evolve(moved, waiting=state.waiting), events


@fault(transitions, "admit", on="layout", caught_by="LIF-2")
def queue_is_cleared(right: Right, ctx: Context, state: State, sequence: Row) -> Moved:
    """Whoever waits behind an admitted request is forgotten."""
    moved, events = right(ctx, state, sequence)
    return evolve(moved, waiting=()), events


@fault(transitions, "arrive", on="layout", caught_by="LIF-7")
def arrives_in_front(right: Right, ctx: Context, state: State, request_id: str) -> State:
    """A request that arrives is put before all that wait."""
    *others, newcomer = right(ctx, state, request_id).waiting
    return evolve(state, waiting=(newcomer, *others))


@fault(transitions, "arrive", on="layout", caught_by="LIF-7")
def arrives_alone(right: Right, ctx: Context, state: State, request_id: str) -> State:
    """Whoever waits when a request arrives is forgotten."""
    return evolve(state, waiting=right(ctx, state, request_id).waiting[-1:])


@fault(transitions, "arrive", on="layout", caught_by="LIF-7, LIF-8")
def arrives_shortened(right: Right, ctx: Context, state: State, request_id: str) -> State:
    """The last token of a prompt is dropped when its request arrives."""
    *others, newcomer = right(ctx, state, request_id).waiting
    shorter = evolve(newcomer, prefill_len=newcomer.prefill_len - 1)
    return evolve(state, waiting=(*others, shorter))


# --- priority rules ------------------------------------------------------------------------------


@fault(step, "choose_prefill", of="admit", on="exact", caught_by="SPY-PRI-5")
def last_come_first_served(right: Right, ctx: Context, state: State) -> Any:
    """The queue is served from its end."""
    return right(ctx, evolve(state, waiting=state.waiting[::-1]))


@fault(step, "choose_prefill", of="admit", on="shipped", caught_by="SPY-PRI-7")
def overtakes_the_willing(right: Right, ctx: Context, state: State) -> Any:
    """With overtaking, requests are stepped over that nothing refuses."""
    return right(ctx, evolve(state, waiting=state.waiting[::-1]))


@fault(admission, "_priority_refusal", of="admit", on="exact", caught_by="SPY-PRI-3")
def prefills_not_interleaved(right: Right, ctx: Context, state: State, sequence: Row) -> Any:
    """Prefill steps follow each other although interleaving is on."""
    return right(with_config(ctx, interleave=False), state, sequence)


@fault(admission, "_priority_refusal", of="admit", on="pausing", caught_by="SPY-PAU-4")
def paused_not_looked_at(right: Right, ctx: Context, state: State, sequence: Row) -> Any:
    """Prefills are scheduled although somebody is paused."""
    return right(ctx, evolve(state, paused=()), sequence)


@fault(
    machine,
    "scheduler_step",
    of="admit",
    on="shared prefix",
    caught_by="SPY-PRI-1, SPY-PRI-2, SPY-ADM-2, LIF-5",
)
def newcomer_takes_the_slot(right: Right, ctx: Context, state: State, *rest: Any) -> Any:
    """A new request takes the prefill slot; the ongoing prefill goes back to the queue."""
    if state.prefilling is None or not state.waiting:
        return right(ctx, state, *rest)
    waiting = (*state.waiting, state.prefilling)
    done: Step = right(ctx, evolve(state, prefilling=None, waiting=waiting), *rest)
    return evolve(done, before=state)


@fault(step, "choose_prefill", of="admit", on="layout", caught_by="guard SPY-PRI-1")
def newcomer_before_the_prefill(right: Right, ctx: Context, state: State) -> Any:
    """The waiting are looked at even while a prefill is in progress."""
    return right(ctx, evolve(state, prefilling=None) if state.waiting else state)


@fault(step, "choose_prefill", of="admit", on="layout", caught_by="SPY-PRI-4, SPY-RES-4")
def idle_although_pending(right: Right, ctx: Context, state: State) -> Any:
    """While nobody decodes nobody is admitted, allegedly for lack of blocks."""
    return right(ctx, state) if state.decoding else (None, "SPY-RES-1")


@fault(step, "choose_prefill", of="admit", on="layout", caught_by="SPY-PRI-6")
def decodes_first(right: Right, ctx: Context, state: State) -> Any:
    """While somebody decodes, no prefill is looked for."""
    return (None, None) if state.decoding else right(ctx, state)


@fault(admission, "_priority_refusal", of="admit", on="layout", caught_by="SPY-PRI-6")
def interleaved_with_nobody(right: Right, ctx: Context, state: State, sequence: Row) -> Any:
    """Interleaving is given as the reason after a decode step too."""
    return "SPY-PRI-3" if state.decoding else right(ctx, state, sequence)


@fault(step, "_at_rest", of="admit", on="exact", caught_by="SPY-PRI-3")
def prefills_not_noted(right: Right, ctx: Context, state: State, _kind: str, tkv: int) -> Any:
    """Every step is noted as a decode step, so that prefills seem never to follow each other."""
    return right(ctx, state, DECODE, tkv)


@fault(step, "_at_rest", of="admit", on="shipped", caught_by="SPY-VOL-3")
def tkv_not_noted(right: Right, ctx: Context, state: State, kind: str, _tkv: int) -> Any:
    """The shipped rule is told no tkv of the step before."""
    return right(ctx, state, kind, 0)


@fault(admission, "_priority_refusal", of="admit", on="pausing", caught_by="SPY-PRI-6")
def paused_before_all(right: Right, ctx: Context, state: State, sequence: Row) -> Any:
    """Who is paused keeps others from their prefill even if nobody runs."""
    return "SPY-PAU-4" if state.paused else right(ctx, state, sequence)


# --- first-chunk and last-chunk conditions -------------------------------------------------------


@fault(admission, "_chunk_refusal", of="admit", on="exact", caught_by="SPY-ADM-1")
def one_slot_too_many(right: Right, ctx: Context, state: State, sequence: Row) -> Any:
    """The check for a free slot compares with `>` where `>=` is meant."""
    slots = ctx.config.max_num_seqs + 1
    return right(with_config(ctx, max_num_seqs=slots), state, sequence)


@fault(
    admission, "last_chunk_refusal", of="admit", on="exact, not interleaved", caught_by="SPY-VOL-4"
)
def judged_a_chunk_too_late(right: Right, ctx: Context, state: State, sequence: Row) -> Any:
    """The last-chunk conditions are not judged if the first chunk is the last."""
    return right(ctx, state, sequence) if sequence is state.prefilling else None


@fault(admission, "_as_admitted", of="admit", on="hit up to the last chunk", caught_by="SPY-VOL-4")
def judged_without_the_hit(_right: Right, _ctx: Context, _state: State, sequence: Row) -> Row:
    """Whether the next chunk is the last is judged as if nothing were cached."""
    return sequence


@fault(admission, "_chunk_refusal", of="admit", on="exact, not interleaved", caught_by="SPY-ADM-4")
def judged_a_chunk_too_early(right: Right, ctx: Context, state: State, sequence: Row) -> Any:
    """The last-chunk conditions are judged before the first chunk too."""
    refusal = right(ctx, state, sequence)
    if refusal is None and sequence is not state.prefilling:
        return admission.last_chunk_refusal(ctx, state, sequence)
    return refusal


@fault(variants, "exact_volume_holds", of="admit", on="exact, longer blocks", caught_by="SPY-VOL-4")
def exact_limit_ignored(_right: Right, *_arguments: Any) -> bool:
    """Exact admission lets everybody join."""
    return True


@fault(variants, "exact_volume_holds", of="admit", on="exact", caught_by="SPY-VOL-4")
def exact_limit_below(
    right: Right, decoding: list[Member], candidate: Member, limit: int, block_size: int
) -> Any:
    """Exact admission compares with `<` where `<=` is meant."""
    return right(decoding, candidate, limit - 1, block_size)


@fault(
    variants, "exact_volume_holds", of="admit", on="exact, not interleaved", caught_by="SPY-VOL-4"
)
def exact_forgets_the_candidate(
    right: Right, decoding: list[Member], candidate: Member, limit: int, block_size: int
) -> Any:
    """Exact admission projects as if the new request left with its first token."""
    return right(decoding, evolve(candidate, remaining=1), limit, block_size)


@fault(formulas, "peak_tkv", of="admit", on="peak before the end", caught_by="SPY-VOL-4")
def exact_looks_at_the_end(
    _right: Right, lengths: Sequence[int], steps: int, block_size: int
) -> Any:
    """The formula of exact admission takes the last step's tkv for the peak."""
    return max_tkv([length + steps for length in lengths], block_size)


@fault(variants, "shipped_volume_holds", of="admit", on="shipped", caught_by="SPY-VOL-3")
def shipped_without_last_tkv(right: Right, *arguments: Any) -> Any:
    """The shipped rule projects from the new request's length, not from the last tkv."""
    *others, _last_tkv = arguments
    return right(*others, 0)


@fault(formulas, "round_up", of="admit", on="a block of slack", caught_by="SPY-PAU-6")
def shipped_without_slack(right: Right, value: int, multiple: int) -> Any:
    """The formula of the shipped rule lacks its block of slack on both sides."""
    return right(value, multiple) - multiple


@fault(variants, "documented_volume_holds", of="admit", on="documented", caught_by="SPY-VOL-2")
def documented_with_slack_for_all(
    right: Right, decoding: list[Member], candidate: Member, limit: int, block_size: int
) -> Any:
    """The documented rule gives the new request a block of slack too."""
    longer = evolve(candidate, remaining=candidate.remaining + block_size)
    return right(decoding, longer, limit, block_size)


@fault(variants, "model_length_holds", of="admit", on="documented, length", caught_by="SPY-LEN-2")
def model_length_ignored(_right: Right, *_arguments: Any) -> bool:
    """The documented rule does not look at the model length."""
    return True


@fault(formulas, "joined_tkvs", of="admit", on="half a block of length", caught_by="SPY-LEN-1")
def model_length_without_padding(
    _right: Right, decoding: Sequence[Member], candidate: Member, _block_size: int
) -> Any:
    """The model-length formula forgets the padding that joining brings."""
    return [member.length for member in (*decoding, candidate)]


# --- reserve -------------------------------------------------------------------------------------


@fault(transitions, "reserve", on="dry pool", caught_by="SPY-RES-2")
def nothing_reserved(_right: Right, _ctx: Context, state: State) -> Moved:
    """An admitted request is promised nothing."""
    return state, ()


@fault(transitions, "worst_case_blocks", of="reserve", on="dry pool", caught_by="SPY-RES-2")
def output_not_reserved(_right: Right, ctx: Context, sequence: Row) -> int:
    """Blocks are set aside for the prompt, not for what will be generated."""
    return int(block_count(sequence.prefill_len, ctx.config.block_size))


@fault(transitions, "still_promised", of="reserve", on="dry pool", caught_by="SPY-RES-2")
def promised_for_ever(_right: Right, promised: int, _handed_out: int) -> int:
    """Blocks that were handed out stay promised."""
    return promised


@fault(admission, "reserved_blocks", of="reserve", on="dry pool", caught_by="guard SPY-RES-1")
def promised_to_two(_right: Right, _state: State) -> int:
    """Blocks that are promised already are promised again."""
    return 0


def _one_block_less(state: State) -> State:
    return evolve(state, pool=evolve(state.pool, free=state.pool.free[1:]))


@fault(admission, "_block_refusal", of="reserve", on="dry pool", caught_by="SPY-RES-4")
def last_block_not_promised(right: Right, ctx: Context, state: State, sequence: Row) -> Any:
    """A request waits for a block more than it needs."""
    return right(ctx, _one_block_less(state), sequence)


@fault(admission, "_block_refusal", of="chunk", on="preemption", caught_by="BLK-9")
def last_block_not_used(right: Right, ctx: Context, state: State, sequence: Row) -> Any:
    """While others decode, a chunk waits for a block more than it needs."""
    return right(ctx, _one_block_less(state) if state.decoding else state, sequence)
