"""Rules of a sequence's life: three states, one token a step, all sequences get to the end.

Source: nano-vllm, chapters 2 and 3, and what chapters 6 and 8 promise about waiting.
"""

from collections.abc import Iterator

from spec.core import judging
from spec.core.judging import ids
from spec.core.records import IDLE, PREFILL
from spec.nano_vllm.records import Context, Sequence, State, Step
from spec.nano_vllm.rules.counting import tokens_due
from spec.nano_vllm.rules.registry import (
    always,
    between,
    eventually,
    of_step,
    release,
    text,
    witness,
)


@always("NANO-LIF-1", text("Sequence Status: Three States"))
@witness(lambda _, step: step.after.waiting and step.after.running)
def one_state_each(_ctx: Context, state: State) -> Iterator[str]:
    """A sequence is always in exactly one state: waiting, running, or gone."""
    # No sequence is in both queues.
    yield from judging.one_place_each(state)


@of_step("NANO-LIF-2", text("The Decode Path"))
@witness(lambda _, step: step.finished and len(step.after.present) > 1)
def no_sequence_is_forgotten(_ctx: Context, step: Step) -> Iterator[str]:
    """No sequence is forgotten: each that was in a queue is in one after the step, or has
    finished; what is gone stays gone.
    """
    # And none comes out of nothing.
    before, after = ids(step.before.present), ids(step.after.present).union(step.finished)
    if before != after:
        yield f"before {sorted(before)}, after {sorted(after)}"
    new = step.after.finished - step.before.finished
    gone = len(step.before.finished) + len(new)
    if len(step.after.finished) != gone or step.after.aborted != step.before.aborted:
        yield f"{len(step.after.finished)} are finished, not {gone}, or others are aborted"


@of_step("NANO-LIF-3", text("One Decode Step: What Happens"))
@witness(lambda _, step: step.finished and step.ended)
def finishes_at_once(ctx: Context, step: Step) -> Iterator[str]:
    """A sequence finishes with max_tokens tokens or with the end of sequence, in that step."""
    # What finished was in the batch; what stays has fewer than max_tokens and goes on.
    if set(step.finished) != step.after.finished - step.before.finished:
        yield f"reported {list(step.finished)}"
    over = {
        row.id
        for row in step.batch
        if row.generated in (ctx.requests[row.id].max_tokens, ctx.requests[row.id].end)
        or row.id in step.ended
    }
    if wrong := over.symmetric_difference(step.finished):
        yield f"requests {sorted(over)} have all their tokens, not so or not gone {sorted(wrong)}"
    for row in step.after.present:
        if row.generated >= ctx.requests[row.id].max_tokens:
            yield f"request {row.id} stays with {row.generated} tokens"


@always("NANO-LIF-4", text("The Waiting Queue"))
@witness(lambda _, step: step.happened("preempt"))
def only_the_running_hold(_ctx: Context, state: State) -> Iterator[str]:
    """A waiting sequence holds no block, unless its prefill is cut; a running one holds at least
    one.
    """
    # On arrival as after a preemption.
    for row in state.waiting:
        if row.blocks and not row.computed:
            yield f"request {row.id} waits with blocks {list(row.blocks)}"
    for row in state.running:
        if not row.blocks:
            yield f"request {row.id} runs without a block"


@between("NANO-LIF-5", text("The Waiting Queue"))
@witness(lambda _, step: len(step.before.waiting) > 1)
def arrivals_go_to_the_back(ctx: Context, before: State, after: State) -> Iterator[str]:
    """Between two steps requests only arrive, at the back of the waiting queue, and go away with
    the blocks that they held: no other moves, and nothing else changes.
    """
    # That newcomers are new says NANO-LIF-1, that all blocks are given back NANO-BLK-2.
    gone = after.aborted - before.aborted
    stayed = [row for row in before.waiting if row.id not in gone]
    waiting, new = [*after.waiting[: len(stayed)]], [*after.waiting[len(stayed) :]]
    if waiting != stayed:
        yield f"waiting {[row.id for row in after.waiting]}, before {[row.id for row in stayed]}"
    elif new != [Sequence(row.id, ctx.requests[row.id].prompt_len) for row in new]:
        yield f"newcomers {new}"
    if after.running != tuple(row for row in before.running if row.id not in gone):
        yield "the running queue changed"
    if after.finished != before.finished or not before.aborted <= after.aborted:
        yield "others count as finished or aborted"
    pool, was = after.pool, before.pool
    goes_on = pool.free[: len(was.free)] == was.free
    if pool.size != was.size or not goes_on or (len(pool.free) > len(was.free) and not gone):
        yield f"free blocks {list(pool.free)}, before {list(was.free)}"
    if (pool.keys, pool.cached) != (was.keys, was.cached):
        yield "hashes of blocks, or the lookup table, changed"


@eventually("NANO-LIF-6", text("Why BREAK and not CONTINUE?"))
@witness(lambda _, step: step.finished)
def all_requests_leave(state: State, request_id: str) -> bool:
    """No request starves: each that arrives finishes or goes away."""
    # Sooner or later it is in neither queue, whatever else arrives.
    return request_id not in ids(state.present)


@of_step("NANO-LIF-7", release("schedule() asserts it"))
@witness(lambda _, step: len(step.batch) > 1)
def no_empty_batch(_ctx: Context, step: Step) -> Iterator[str]:
    """While a sequence waits or runs, every step has a batch."""
    # The release stops where this fails.
    if step.kind == IDLE and step.before.present:
        waiting = [row.id for row in step.before.waiting]
        running = [row.id for row in step.before.running]
        yield f"no sequence scheduled, waiting {waiting}, running {running}"


@always("NANO-LIF-8", text("The Cost of Preemption"))
@witness(lambda _, step: any(row.generated for row in step.after.waiting))
def all_but_the_newest_is_computed(ctx: Context, state: State) -> Iterator[str]:
    """A waiting sequence has computed nothing and will compute its prompt and its answer; a running
    one has computed all but its newest token.
    """
    # Blocks that were hit count as computed. One that waits with blocks has computed a part.
    for row in state.waiting:
        expected = ctx.requests[row.id].prompt_len + row.generated
        if (row.computed and not row.blocks) or row.prefill_len != expected:
            tokens = f"{row.computed} computed, {row.prefill_len} to compute"
            yield f"request {row.id}: {tokens}, expected 0 and {expected}"
    for row in state.running:
        expected = ctx.requests[row.id].prompt_len + row.generated - 1
        if row.computed != expected:
            yield f"request {row.id}: {row.computed} tokens, expected {expected}"


@of_step("NANO-LIF-9", text("Why the Scheduler Separates Prefill and Decode"))
@witness(lambda _, step: step.kind == PREFILL and len(step.batch) > 1)
def tokens_of_a_step(ctx: Context, step: Step) -> Iterator[str]:
    """A prefill computes all tokens that are not cached, a decode one; either yields the next
    token.
    """
    # No sequence outside the batch computes or gains anything. A prefill that is cut yields a token
    # with its last part.
    before = {row.id: row for row in step.before.present}
    for row in step.batch:
        due = tokens_due(ctx.config, step, row)
        if step.scheduled.get(row.id) != due:
            yield f"request {row.id} computed {step.scheduled.get(row.id)} tokens of {due}"
    for row in (*step.batch, *step.after.present):
        gained = row.generated - before[row.id].generated
        if gained != len(step.outputs.get(row.id, ())) or gained > 1:
            yield f"request {row.id} gained {gained} tokens"
    for row in step.batch:
        sampled, due = step.outputs.get(row.id), before[row.id].generated
        if sampled is not None and list(sampled) != [ctx.requests[row.id].output_token(due)]:
            yield f"request {row.id} sampled {sampled} behind {due} tokens"
    whole = {row.id for row in step.batch if row.computed >= row.prefill_len}
    if ids(step.batch) != set(step.scheduled) or whole != set(step.outputs):
        yield f"computed {sorted(step.scheduled)}, sampled {sorted(step.outputs)}"


@of_step("NANO-LIF-10", text("Block Tables: Logical Memory Map"))
@witness(lambda _, step: step.kind == PREFILL and len(step.after.running) > len(step.batch))
def what_was_handed_out_is_remembered(ctx: Context, step: Step) -> Iterator[str]:
    """From its admission until it gives way a sequence remembers how many tokens its prefill
    covers, the blocks that it was handed, in their order, and how many of these were hits; what
    waits remembers none.
    """
    # As the events of the step have it, and as it was before.
    rows = step.before.present
    known = {row.id: (row.prefill_len, row.blocks, row.hit_blocks) for row in rows}
    tokens = {row.id: ctx.requests[row.id].prompt_len + row.generated for row in rows}
    for event in step.events:
        length, blocks, hits = known.get(event.id, (0, (), 0))
        match event.transition:
            case "admit" | "preempt":
                known[event.id] = (tokens.get(event.id, 0), (), 0)
            case "prefix_hit":
                known[event.id] = (length, tuple(event.after), len(event.after))
            case "allocate":
                known[event.id] = (length, (*blocks, *event.after), hits)
    for row in step.after.present:
        found, due = (row.prefill_len, row.blocks, row.hit_blocks), known.get(row.id)
        if found != due:
            yield f"request {row.id} has (prefill, blocks, hits) {found}, was given {due}"


@of_step("NANO-LIF-11", release("postprocess"))
@witness(lambda _, step: len(step.finished) > 1)
def leave_in_the_order_of_the_batch(_ctx: Context, step: Step) -> Iterator[str]:
    """Sequences that finish in one step leave in the order of the batch."""
    # So do their blocks go back to the free list.
    due = [row.id for row in step.batch if row.id in step.finished]
    left = [event.id for event in step.happened("finish")]
    if not [*step.finished] == due == left:
        yield f"finished {list(step.finished)}, left {left}, in the batch {due}"
