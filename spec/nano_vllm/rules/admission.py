"""Rules of admission: three gates, strictly in the order of the queue, prefill before decode.

Source: nano-vllm, chapter 6; the sequence limit is the release's.
"""

from collections.abc import Iterator

from spec.core.changes import common_ends
from spec.core.records import DECODE, PREFILL
from spec.nano_vllm.records import Context, Step
from spec.nano_vllm.rules.gates import MEMORY, SEQUENCES, TOKENS, passes, refusing_gates
from spec.nano_vllm.rules.registry import guard, of_step, release, text, witness
from spec.nano_vllm.rules.replay import candidates


def _judged(ctx: Context, step: Step, gate: str) -> Iterator[str]:
    """What was admitted passed the gate."""
    for one in candidates(ctx, step):
        if one.is_admitted and not passes(ctx, gate, one):
            yield f"request {one.sequence.id} was admitted"


@guard(TOKENS, text("Admission Checks: Two Gates, Both Must Pass"))
def tokens_fit_the_budget(ctx: Context, step: Step) -> Iterator[str]:
    """A sequence is admitted only if its tokens and those of the step fit
    max_num_batched_tokens.
    """
    # By the reading of the configuration; what is computed keeps the budget in any case.
    yield from _judged(ctx, step, TOKENS)
    computed = sum(step.scheduled.values())
    if step.kind == PREFILL and computed > ctx.config.max_num_batched_tokens:
        yield f"{computed} tokens computed"


@guard(MEMORY, text("Admission Checks: Two Gates, Both Must Pass"))
def blocks_are_free(ctx: Context, step: Step) -> Iterator[str]:
    """A sequence is admitted only if there are enough free blocks for it."""
    # By the reading of the configuration.
    yield from _judged(ctx, step, MEMORY)


@guard(SEQUENCES, release("max_num_seqs"))
def sequences_keep_the_limit(ctx: Context, step: Step) -> Iterator[str]:
    """A sequence is admitted only below the sequence limit."""
    # Of the step or of the running queue; no batch is larger in either case.
    yield from _judged(ctx, step, SEQUENCES)
    if len(step.batch) > ctx.config.max_num_seqs:
        yield f"{len(step.batch)} sequences in the batch"


@of_step("NANO-ADM-4", text("The Prefill Path: Admitting Sequences"))
@witness(lambda _, step: step.kind == PREFILL and step.after.waiting)
def the_queue_is_not_jumped(_ctx: Context, step: Step) -> Iterator[str]:
    """No sequence jumps the queue: the admitted are the first of waiting, in its order."""
    # A preempted sequence cannot be skipped by new arrivals either.
    admitted = [event.id for event in step.happened("admit")]
    first = [one.id for one in step.before.waiting[: len(admitted)]]
    if admitted != first:
        yield f"admitted {admitted}, first in the queue were {first}"


@of_step("NANO-ADM-5", text("schedule() — The Entire Logic"))
@witness(lambda _, step: step.kind == DECODE and step.before.waiting)
def admitting_ends_at_a_gate(ctx: Context, step: Step) -> Iterator[str]:
    """Admitting goes on until a gate refuses the front of waiting or no sequence waits."""
    # So a decode step beside a waiting sequence needs a gate that refuses it.
    for one in candidates(ctx, step):
        if not one.is_admitted and not refusing_gates(ctx, one):
            yield f"request {one.sequence.id} waits, no gate refused it"


@of_step("NANO-ADM-6", text("What Does schedule() Actually Do?"))
@witness(lambda _, step: step.kind == PREFILL and len(step.before.running) > 0)
def prefill_or_decode(ctx: Context, step: Step) -> Iterator[str]:
    """A step is a prefill of exactly those it admitted, or a decode; never both."""
    # The kind of the step says which. By the reading of the configuration one that is cached as a
    # whole has nothing to prefill.
    admitted = [one for one in candidates(ctx, step) if one.is_admitted]
    due = [one.sequence.id for one in admitted if not one.is_decoded_first(ctx.config)]
    if (step.kind == PREFILL) != bool(due):
        yield f"a {step.kind} step admitted {due}"
    if due and [row.id for row in step.batch] != due:
        yield f"admitted {due}, computed {[row.id for row in step.batch]}"


@of_step("NANO-ADM-7", text("Why BREAK and not CONTINUE?"))
@witness(lambda _, step: step.happened("preempt") and len(step.after.present) > 2)
def both_queues_keep_the_order_of_arrival(_ctx: Context, step: Step) -> Iterator[str]:
    """Running and then waiting, all sequences stand in the order of their arrival."""
    # What a step moves over the border between the queues keeps its place; those that wait behind
    # it untouched are left out.
    queues = step.before.waiting, step.after.waiting
    stands, same = queues[0] is queues[1], common_ends(*queues)[1]
    before, after = (
        [one.id for one in (*state.running, *(() if stands else waiting[: len(waiting) - same]))]
        for state, waiting in zip((step.before, step.after), queues, strict=True)
    )
    stayed = [one for one in before if one not in step.finished]
    if after != stayed:
        yield f"running and waiting {after}, before {stayed}"
