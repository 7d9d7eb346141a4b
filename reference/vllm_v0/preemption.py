"""Preemption: choice of the victim, and recomputation or swap.

Source: vllm-v0, "Preempting Sequences" and "Handling High-Priority Requests".
"""

from functools import partial

from attrs import evolve

from reference.vllm_v0 import block_manager, swapping, transitions
from reference.vllm_v0.block_manager import EngineEnds, Fit
from reference.vllm_v0.decisions import Decisions, seqs_of
from reference.vllm_v0.tokens import new_tokens
from reference.vllm_v0.transitions import rank
from spec.vllm_v0.config import (
    PreemptionMode,
    Scheduling,
)
from spec.vllm_v0.records import Group
from spec.vllm_v0.variants import Strategy


def preempt(run: Decisions, victim: Group) -> None:
    """A running group gives its blocks up (vllm-v0, "Preempting Sequences").

    Raises:
        EngineEnds: under the release, it can neither be recomputed nor swapped out.
    """
    if preemption_mode(run, victim) is PreemptionMode.RECOMPUTE:
        run.take(transitions.recompute, victim)
        run.preempted.append(victim.id)
    elif swapping.can_swap_out(run.ctx, run.state, victim):
        run.swaps_out += run.make(transitions.swap_out, victim)
        run.swapped_out.append(victim.id)
    elif run.config.choices.needs_cpu_space:
        raise EngineEnds("the CPU has no space for a victim")
    else:
        run.take(transitions.ignore, victim, "V0-PRE-6")
        run.ignored.append(victim.id)


def preemption_mode(run: Decisions, victim: Group) -> PreemptionMode:
    """How a group gives way: recompute takes a single sequence ("Decision Logic")."""
    mode, is_single = run.config.preemption_mode, len(victim.unfinished) == 1
    if mode is PreemptionMode.RECOMPUTE and not is_single and run.config.choices.recomputes_by_word:
        raise EngineEnds("a group of several sequences cannot be recomputed")
    if mode is PreemptionMode.SWAP and is_single and not run.config.choices.needs_cpu_space:
        has_space = swapping.can_swap_out(run.ctx, run.state, victim)
        return PreemptionMode.SWAP if has_space else PreemptionMode.RECOMPUTE
    if mode is PreemptionMode.SWAP or not is_single:
        return PreemptionMode.SWAP
    return PreemptionMode.RECOMPUTE


def preempt_by_priority(run: Decisions) -> None:
    """The least urgent running groups give way to the front of waiting where that does not fit.

    Then both queues are in the order of urgency (vllm-v0, "Handling High-Priority Requests").
    """
    by_rank = partial(rank, run.ctx)
    sort_running(run)
    if run.state.waiting:
        front = run.state.waiting[0]
        tokens, _ = new_tokens(run, front, share=None)
        while run.state.running and by_rank(run.state.running[-1]) > by_rank(front):
            if front.is_swapped:
                raise EngineEnds("a waiting group has no waiting sequence")
            fits = block_manager.can_allocate(run.ctx, run.state, front, 0) is Fit.NOW
            if fits and run.budget.admits(tokens, seqs_of(run.ctx, front)):
                break
            _give_way(run, run.state.running[-1])
    sort_waiting(run)


def sort_running(run: Decisions) -> None:
    """The running queue is brought into the order of urgency."""
    by_rank = partial(rank, run.ctx)
    run.state = evolve(run.state, running=tuple(sorted(run.state.running, key=by_rank)))


def sort_waiting(run: Decisions) -> None:
    """The waiting queue is brought into the order of urgency."""
    by_rank = partial(rank, run.ctx)
    run.state = evolve(run.state, waiting=tuple(sorted(run.state.waiting, key=by_rank)))


def _give_way(run: Decisions, victim: Group) -> None:
    """A group is preempted for a more urgent one; the release mislays it if it is swapped out."""
    swaps = run.swaps_out
    run.budget.refund(victim.id)
    preempt(run, victim)
    run.by_priority.append(victim.id)
    if victim.id in run.swapped_out and not run.config.choices.keeps_victims_apart:
        run.swaps_out = swaps
        *swapped, mislaid = run.state.swapped
        waiting = (mislaid, *run.state.waiting)
        run.state = evolve(run.state, swapped=tuple(swapped), waiting=waiting)


def swapped_go_first(run: Decisions, group: Group) -> bool:
    """True if a waiting group is not looked at while others are swapped out."""
    config = run.config
    exclusive = not config.chunked_prefill and config.strategy is Strategy.EXCLUSIVE
    return exclusive and bool(run.state.swapped) and not _outranks_swapped(run, group)


def _outranks_swapped(run: Decisions, group: Group) -> bool:
    """True if the group is more urgent than all swapped ones.

    Only where victims of priority are swapped out in order: what they gave way to comes first.
    """
    if run.config.scheduling is not Scheduling.PRIORITY:
        return False
    outranked = all(rank(run.ctx, group) < rank(run.ctx, swapped) for swapped in run.state.swapped)
    return run.config.choices.keeps_victims_apart and outranked


def keeps_swapped_out(run: Decisions) -> bool:
    """True if swapped groups wait because others gave way, or will, to a more urgent one."""
    gave_way = bool(run.by_priority) and run.config.choices.keeps_victims_apart
    return gave_way or any(_outranks_swapped(run, group) for group in run.state.waiting)
