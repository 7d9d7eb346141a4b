"""Faults that show only in situations which random cases rarely reach, planted in references."""

from collections.abc import Callable
from typing import Any

from attrs import evolve

from reference.core.frozen_map import updated
from reference.vllm_v0 import swapping
from reference.vllm_v1 import kv_cache, step, transitions
from reference.vllm_v1.transitions import Plan
from spec.vllm_v1.records import Context, Load, Sequence
from spec.vllm_v1.releases import Release
from tests.checks.faults.patches import Wrong
from tests.checks.faults.planting import Planted, name_and_sentence

BLIND_SPOTS: dict[str, tuple[str, Planted]] = {}
"""By name, the policy and the fault."""


def _blind_spot(policy: str, place: Any, attribute: str) -> Callable[[Wrong], Wrong]:
    def register(wrong: Wrong) -> Wrong:
        name, sentence = name_and_sentence(wrong, "")
        BLIND_SPOTS[name] = policy, Planted(name, sentence, place, attribute, wrong)
        return wrong

    return register


@_blind_spot("vllm-v1", transitions, "preempt")
def refund_one_too_large(right: Wrong, ctx: Context, plan: Plan, victim: Sequence) -> Plan:
    """A victim that got a chunk of two or more tokens in the step refunds one token too many."""
    done: Plan = right(ctx, plan, victim)
    is_chunk = plan.scheduled.get(victim.id, 0) >= 2 and victim.id not in plan.drafts
    return evolve(done, budget=done.budget + 1) if is_chunk else done


@_blind_spot("vllm-v1", transitions, "preempt")
def drafts_of_a_victim(right: Wrong, ctx: Context, plan: Plan, victim: Sequence) -> Plan:
    """The drafts that a victim was to verify in the step stay in the plan."""
    done: Plan = right(ctx, plan, victim)
    return evolve(done, drafts=plan.drafts)


@_blind_spot("vllm-v1", transitions, "preempt")
def shared_blocks_of_a_victim(right: Wrong, ctx: Context, plan: Plan, victim: Sequence) -> Plan:
    """A block that a victim shares, scheduled before in the step, counts it for ever."""
    done: Plan = right(ctx, plan, victim)
    held = plan.state.pool.references if victim.id in plan.scheduled else {}
    shared = {block: held[block] for block in victim.blocks if held.get(block, 0) > 1}
    pool = evolve(done.state.pool, references=updated(done.state.pool.references, shared))
    return evolve(done, state=evolve(done.state, pool=pool)) if shared else done


@_blind_spot("vllm-v1", step, "schedule_waiting")
def passed_over_backwards(right: Wrong, ctx: Context, plan: Plan) -> Plan:
    """Under 0.11.2 the prompts that a step passes over wait in reverse order."""
    done: Plan = right(ctx, plan)
    count = sum(row.load is not Load.LOADING for row in done.looked_at)
    if ctx.config.release is not Release.V0_11_2 or count < 2:
        return done
    waiting = (*reversed(done.state.waiting[:count]), *done.state.waiting[count:])
    return evolve(done, state=evolve(done.state, waiting=transitions.queued(ctx, waiting)))


_refused: dict[tuple[int, str], tuple[Context, int]] = {}  # its hits, when it was refused


@_blind_spot("vllm-v1", step, "_consider")
def stale_hit(right: Wrong, ctx: Context, plan: Plan, row: Sequence) -> Plan:
    """The budget does not count a token of a request whose hit was evicted while it was refused."""
    done: Plan = right(ctx, plan, row)
    place, hits = (id(ctx), row.id), len(kv_cache.prefix_hits(ctx, plan.state.pool, row))
    _, earlier = _refused.pop(place, (ctx, 0))
    if done.refusal == "V1-KV-1":
        _refused[place] = ctx, hits  # the context with it, so that no other has its identity
    is_stale = row.id in done.admitted and hits < earlier
    return evolve(done, budget=done.budget + 1) if is_stale else done


@_blind_spot("vllm-v0", swapping, "_swap")
def encoder_of_several_sequences(right: Wrong, *given: Any) -> Any:
    """A swap loses the encoder's blocks of a group of several sequences."""
    source, target, group, pairs = right(*given)
    lost = evolve(group, cross=()) if len(group.sequences) > 1 else group
    return source, target, lost, pairs
