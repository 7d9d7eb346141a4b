"""Faults of what is remembered for a later step, of what changes between two, and of orders."""

from typing import Any

from attrs import evolve

from reference.core.frozen_map import FrozenMap, without
from reference.nano_vllm import block_manager, step, transitions
from tests.checks.faults.nano_vllm.table import BUDGET, DRY, FAULTS, SHARED, fault
from tests.checks.faults.patches import (
    Wrong,
    backwards,
    changed,
    each,
    first,
    first_to_back,
    last,
    last_to_front,
    result,
)

_BEFORE = len(FAULTS)

# --- between two steps ----------------------------------------------------------------------------

fault(transitions, "arrive", on=BUDGET, rules="NANO-LIF-5")(
    result(pool=changed(free=first_to_back)),
    "arrival turns the free list: the block that is next goes to the end when a request arrives",
)
fault(transitions, "arrive", on=SHARED, rules="NANO-LIF-5")(
    result(pool=changed(cached=FrozenMap())),
    "arrival clears the lookup table: what was hashed is not found after a request arrived",
)
fault(transitions, "abort", on=BUDGET, rules="NANO-LIF-5")(
    result(finished=frozenset()), "abort forgets the finished: nothing has finished after an abort"
)
fault(transitions, "abort", on="repaired, preemption", rules="NANO-LIF-5")(
    result(running=last_to_front),
    "abort turns the running queue: the back of running goes to its front after an abort",
)

# --- what a sequence remembers --------------------------------------------------------------------

fault(transitions, "decode", on=BUDGET, rules="NANO-LIF-10")(
    result(running=each(prefill_len=lambda length: length + 1)),
    "prefill grows: the tokens that a prefill covered count those that were decoded",
)
fault(transitions, "decode", on=SHARED, rules="NANO-LIF-10")(
    result(running=each(hit_blocks=0)), "hits are forgotten: a sequence that decodes had no hits"
)
fault(transitions, "admit", on=SHARED, rules="NANO-LIF-10")(
    lambda right, ctx, state: _with_waiting(right(ctx, state), hit_blocks=1),
    "hits while waiting: an admission gives the next in the queue a hit",
)
fault(transitions, "admit", on=BUDGET, rules="NANO-LIF-8")(
    lambda right, ctx, state: _with_waiting(right(ctx, state), computed=1),
    "computed while waiting: an admission lets the next in the queue count a token as computed",
)
fault(transitions, "preempt", on="decoded first, preemption", rules="NANO-LIF-10, NANO-PRE-5")(
    lambda right, ctx, state, row: result(waiting=first(hit_blocks=row.hit_blocks))(
        right, ctx, state, row
    ),
    "victim remembers its hits: a sequence that gives way keeps the number of its hits",
)


def _with_waiting(done: Any, **fields: Any) -> Any:
    """The result, the front of waiting with other fields."""
    state, events = done
    return (changed(waiting=first(**fields))(state) if state.waiting else state), events


# --- hashes, and who is gone ----------------------------------------------------------------------

fault(transitions, "deallocate", on=SHARED, rules="NANO-PFX-11")(
    lambda right, pool, blocks: _without_keys_of_the_free(right(pool, blocks)),
    "hash lost when freed: a block that is given back loses its hash",
)
fault(block_manager, "take", on=SHARED, rules="NANO-PFX-11")(
    lambda right, pool, count: _unnamed(right(pool, count)),
    "entry lost when handed out: the lookup table forgets a block that is allocated again",
)
fault(transitions, "register", on=SHARED, rules="NANO-PFX-11")(
    lambda right, pool, *given: _first_stays_named(pool, right(pool, *given)),
    "first one stays named: the lookup table keeps the block that was registered first for a hash",
)
fault(transitions, "finish", on=BUDGET, rules="NANO-LIF-2")(
    result(aborted=frozenset()), "step forgets the aborted: no client has left after a step"
)
fault(transitions, "finish", on=BUDGET, rules="NANO-LIF-2")(
    lambda right, ctx, state, *given: right(ctx, evolve(state, finished=frozenset()), *given),
    "step forgets the finished: only what finishes in a step has finished",
)


def _without_keys_of_the_free(pool: Any) -> Any:
    free = {*pool.free} & pool.keys.keys()
    return changed(keys=lambda keys: without(keys, *free))(pool)


def _unnamed(done: Any) -> Any:
    pool, blocks = done
    kept = {key: named for key, named in pool.cached.items() if named[0] not in blocks}
    return evolve(pool, cached=FrozenMap(kept)), blocks


def _first_stays_named(before: Any, after: Any) -> Any:
    return evolve(after, cached=FrozenMap({**after.cached, **before.cached}))


# --- orders ---------------------------------------------------------------------------------------


@fault(
    step,
    "_decode_batch",
    of="schedule",
    on="left behind",
    rules="NANO-ADM-7, NANO-DEC-2, NANO-DEC-5",
)
def back_of_running_decodes(right: Wrong, ctx: Any, admitted: Any) -> Any:
    """Beyond the sequence limit it is the front of running that gets no token."""
    turned = changed(state=changed(running=last_to_front))(admitted)
    return right(ctx, turned)


@fault(transitions, "finish", on=BUDGET, rules="NANO-LIF-11")
def last_of_the_batch_leaves_first(
    right: Wrong, ctx: Any, state: Any, batch: Any, ends: Any
) -> Any:
    """Of several that finish the last of the batch gives its blocks back first."""
    return right(ctx, state, backwards(batch), ends)


fault(step, "_computed", of="step", on=BUDGET, rules="NANO-ADM-6, NANO-LIF-11")(
    lambda right, *given: changed(batch=backwards)(right(*given)),
    "batch turned round: the rows of a step are handed to the runner in reverse",
)
fault(
    transitions,
    "preempt",
    on=DRY,
    rules="NANO-ADM-7, NANO-BLK-4, NANO-DEC-1, NANO-DEC-2, NANO-DEC-3, NANO-DEC-5, "
    "NANO-PFX-1, NANO-PFX-11, NANO-PRE-1, NANO-PRE-2",
)(result(running=backwards), "running turned by a victim: one gives way, the others turn round")
fault(transitions, "admit", on="preemption", rules="NANO-ADM-4, NANO-ADM-7")(
    result(waiting=last_to_front), "waiting turned by an admission: the last waits in front"
)
fault(
    transitions,
    "append",
    on=DRY,
    rules="NANO-BLK-5, NANO-DEC-3, NANO-LIF-10, NANO-PFX-1, NANO-PFX-11, NANO-PFX-2",
)(
    result(running=last(blocks=backwards)),
    "table turned: the last of running has its table turned round",
)


REMEMBERED = FAULTS[_BEFORE:]
