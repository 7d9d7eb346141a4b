"""The three queues: the groups that a step takes from running, swapped and waiting."""

from collections.abc import Iterable

from attrs import evolve

from reference.vllm_v0 import block_manager, swapping, transitions
from reference.vllm_v0.block_manager import EngineEnds, Fit
from reference.vllm_v0.decisions import Decisions, seqs_of
from reference.vllm_v0.preemption import preempt, swapped_go_first
from reference.vllm_v0.tokens import Partial, cached_tokens, new_tokens
from spec.vllm_v0.config import (
    lookahead_slots,
)
from spec.vllm_v0.records import Group


def schedule_running(run: Decisions, share: Partial | None) -> None:
    """Each running group goes on, in queue order; the last one gives way where slots are lacking.

    Source: vllm-v0, "Scheduling Active Sequences".
    """
    place = 0
    while place < len(run.state.running):
        group = run.state.running[place]
        if group.id not in run.scheduled:  # else it has been admitted in this step
            tokens, _ = new_tokens(run, group, share)
            if tokens == 0 or not make_room(run, group):
                break
            take_slots(run, place)
            run.schedule(run.state.running[place], tokens)
            run.running.append(group.id)
        place += 1


def make_room(run: Decisions, group: Group) -> bool:
    """Preempt from the end of the queue until the group finds its slots; False: it is a victim."""
    while not can_append(run, group):
        victim = [
            candidate for candidate in run.state.running if candidate.id not in run.scheduled
        ][-1]
        refund(run, group, victim)
        preempt(run, victim)
        if victim.id == group.id:
            return False
    return True


def refund(run: Decisions, group: Group, victim: Group) -> None:
    """The victim does not count any more; the release takes the group instead that lacks slots.

    By default it counts the sequences of that group no more in this step, and its adapter is taken
    out of the batch even where others have it.
    """
    if run.config.choices.refunds_victims:
        run.budget.refund(victim.id)
        return
    run.budget.refund(group.id)
    run.loras.discard(run.ctx.requests[group.id].lora)
    if not run.config.chunked_prefill:
        run.budget.overlooked.add(group.id)


def can_append(run: Decisions, group: Group) -> bool:
    """True if slots can be had for the group, unless it is preempted for a test."""
    if run.state.artificial and run.env.preempts(group):
        run.state = evolve(run.state, artificial=run.state.artificial - 1)
        return False
    lookahead = lookahead_slots(group.is_prefill, run.config)
    return block_manager.can_append_slots(run.ctx, run.state, group, lookahead)


def take_slots(run: Decisions, place: int) -> None:
    """Unseen tokens and the lookahead of the running group at this place get slots."""
    lookahead = lookahead_slots(run.state.running[place].is_prefill, run.config)
    run.copies += run.make(transitions.append, place, lookahead)


def schedule_swapped(run: Decisions) -> None:
    """Swapped groups come back from the front of their queue until one does not fit.

    Source: vllm-v0, "Managing Swapped-Out Sequences". One whose adapter is one too many is passed
    over, one that will never fit leaves.
    """
    for group in run.state.swapped:
        chunks = run.config.chunked_prefill and run.config.choices.swaps_in_chunks
        lookahead = lookahead_slots(group.is_prefill, run.config)
        fit = swapping.can_swap_in(run.ctx, run.state, group, lookahead)
        if fit is Fit.NEVER:
            frees = run.config.choices.frees_infeasible
            run.take(transitions.ignore, group, "V0-SWP-7", frees)
            run.infeasible.append(group.id)
            continue
        if fit is Fit.LATER:
            break
        if _lora_is_one_too_many(run, group):
            continue
        tokens, cached = new_tokens(run, group, share=None, chunks=chunks)
        if tokens == 0 or not run.budget.admits(tokens, seqs_of(run.ctx, group)):
            if run.config.prefix_caching and run.config.choices.forgets_refused:
                run.take(transitions.forget, group)
            break
        run.swaps_in += run.make(transitions.swap_in, group)
        take_slots(run, len(run.state.running) - 1)
        run.schedule(run.state.running[-1], tokens, cached)
        run.swapped_in.append(group.id)


def _lora_is_one_too_many(run: Decisions, group: Group) -> bool:
    """True if the group's adapter does not fit beside those of the batch; 0 is no adapter."""
    lora, batched = run.ctx.requests[group.id].lora, run.loras - {0}
    is_new = lora > 0 and lora not in batched
    return run.config.max_loras > 0 and is_new and len(batched) >= run.config.max_loras


def schedule_prefills(run: Decisions, share: Partial | None) -> None:
    """Waiting groups are admitted in queue order until one does not fit.

    Source: vllm-v0, "Managing Prompt Prefill Requests". Groups that gave way in this step are not
    looked at.
    """
    if run.budget.remaining <= 0:
        return
    for place, group in enumerate(waiting := run.state.waiting):
        if not passed_delay(run, waiting[place:]) or swapped_go_first(run, group):
            break
        if group.id in run.preempted or (share is not None and not share.admits(run, group)):
            continue
        if group.is_swapped:
            raise EngineEnds("a waiting group has no waiting sequence")
        refusal = _refusal(run, group, share)
        if refusal is None:
            _admit(run, group, share)
        elif refusal in ("V0-ADM-2", "V0-ADM-3"):
            run.take(transitions.ignore, group, refusal)
            run.ignored.append(group.id)
        elif refusal != "V0-ADM-5":
            run.refusal = run.refusal or refusal
            if run.config.choices.blocked_by_long:
                break


def _refusal(run: Decisions, group: Group, share: Partial | None) -> str | None:
    """The rule that keeps a waiting group from being admitted."""
    tokens, cached = new_tokens(run, group, share)
    whole = tokens + cached if run.config.choices.limits_chunks else group.tokens
    if whole > run.config.prompt_limit:
        return "V0-ADM-3"
    lookahead = lookahead_slots(True, run.config)
    fit = block_manager.can_allocate(run.ctx, run.state, group, lookahead)
    if fit is not Fit.NOW:
        return "V0-ADM-2" if fit is Fit.NEVER else "V0-ADM-1"
    if _lora_is_one_too_many(run, group):
        return "V0-ADM-5"
    admits = run.budget.admits(tokens, seqs_of(run.ctx, group))
    return None if tokens and admits else "V0-BUD-1"


def _admit(run: Decisions, group: Group, share: Partial | None) -> None:
    """The group gets its blocks and its first chunk."""
    tokens, cached = new_tokens(run, group, share)
    known = cached_tokens(run, group) if run.config.prefix_caching else None
    run.take(transitions.admit, evolve(group, cached=known), tokens + cached)
    if lookahead_slots(True, run.config):
        take_slots(run, len(run.state.running) - 1)
    if share is not None:
        share.note(run, group)
    run.schedule(run.state.running[-1], tokens, cached)
    run.new.append(group.id)


def passed_delay(run: Decisions, rest: Iterable[Group]) -> bool:
    """True if prompts have waited long enough for others (vllm-v0, "Delaying Scheduling").

    Where nothing is left to run there is nothing to wait for. `rest`: those of the waiting groups
    that were not looked at yet.
    """
    config = run.config
    counted = rest if config.choices.delays_by_rest else run.state.waiting
    waiting = [group for group in counted if group.id not in run.preempted]
    if config.delay_factor == 0 or not waiting:
        return True
    last_prefill = config.prefill_time if run.state.has_prefilled else 0.0
    is_late = max(group.waited for group in waiting) > config.delay_factor * last_prefill
    gone = run.scheduled if config.choices.forgets_scheduled else run.new
    return is_late or not any(group.id not in gone for group in run.state.running)
