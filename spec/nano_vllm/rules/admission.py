"""Rules of admission: three gates, strictly in the order of the queue, prefill before decode.

Source: nano-vllm, chapter 6; the sequence limit is the release's.
"""

from collections.abc import Iterator

from spec.core.records import DECODE, PREFILL
from spec.nano_vllm.records import Context, Step
from spec.nano_vllm.rules.gates import MEMORY, SEQUENCES, TOKENS, passes, refusing_gates
from spec.nano_vllm.rules.registry import guard, of_step, release, text, witness
from spec.nano_vllm.rules.replay import Candidates, candidates


def _judged(ctx: Context, seen: Candidates, gate: str) -> Iterator[str]:
    """Each sequence that was admitted passed the gate."""
    for candidate in seen:
        if candidate.is_admitted and not passes(ctx, gate, candidate):
            yield f"request {candidate.sequence.id} was admitted"


@guard(TOKENS, text("Admission Checks: Two Gates, Both Must Pass"), given=candidates)
def tokens_fit_the_budget(ctx: Context, step: Step, seen: Candidates) -> Iterator[str]:
    """A sequence is admitted only if its tokens and those of the step fit
    max_num_batched_tokens.
    """
    # By the reading of the configuration, by which the first may be cut; what is computed keeps the
    # budget in any case.
    yield from _judged(ctx, seen, TOKENS)
    computed = sum(step.scheduled.values())
    if step.kind == PREFILL and computed > ctx.config.max_num_batched_tokens:
        yield f"{computed} tokens computed"


@guard(MEMORY, text("Admission Checks: Two Gates, Both Must Pass"), given=candidates)
def blocks_are_free(ctx: Context, _step: Step, seen: Candidates) -> Iterator[str]:
    """A sequence is admitted only if there are enough free blocks for it."""
    # By the reading of the configuration.
    yield from _judged(ctx, seen, MEMORY)


@guard(SEQUENCES, release("max_num_seqs"), given=candidates)
def sequences_keep_the_limit(ctx: Context, step: Step, seen: Candidates) -> Iterator[str]:
    """A sequence is admitted only below the sequence limit."""
    # Of the step or of the running queue; no batch is larger in either case.
    yield from _judged(ctx, seen, SEQUENCES)
    if len(step.batch) > ctx.config.max_num_seqs:
        yield f"{len(step.batch)} sequences in the batch"


@of_step("NANO-ADM-4", text("The Prefill Path: Admitting Sequences"))
@witness(lambda _, step: step.kind == PREFILL and step.after.waiting)
def the_queue_is_not_jumped(_ctx: Context, step: Step) -> Iterator[str]:
    """No sequence jumps the queue: the admitted are the first of waiting, in its order."""
    # A preempted sequence cannot be skipped by new arrivals either.
    admitted = [event.id for event in step.happened("admit")]
    begun = len(step.before.in_progress)  # it was admitted before
    first = [row.id for row in step.before.waiting[begun : begun + len(admitted)]]
    if admitted != first:
        yield f"admitted {admitted}, first in the queue were {first}"


@of_step("NANO-ADM-5", text("schedule() — The Entire Logic"), given=candidates)
@witness(lambda _, step: step.kind == DECODE and step.before.waiting)
def admitting_ends_at_a_gate(ctx: Context, _step: Step, seen: Candidates) -> Iterator[str]:
    """Admitting goes on until a gate refuses the front of waiting or no sequence waits."""
    # So a decode step beside a waiting sequence needs a gate that refuses it.
    for candidate in seen:
        if not candidate.is_admitted and not refusing_gates(ctx, candidate):
            yield f"request {candidate.sequence.id} waits, no gate refused it"


@of_step("NANO-ADM-6", text("What Does schedule() Actually Do?"), given=candidates)
@witness(lambda _, step: step.kind == PREFILL and len(step.before.running) > 0)
def prefill_or_decode(ctx: Context, step: Step, seen: Candidates) -> Iterator[str]:
    """A step is a prefill of exactly those it admitted, or a decode; never both."""
    # The kind of the step says which. By the reading of the configuration one that is cached as a
    # whole has nothing to prefill, and one whose prefill was cut goes on before all others.
    due = [row.id for row in step.before.in_progress] + [
        candidate.sequence.id
        for candidate in seen
        if candidate.is_admitted and not candidate.is_decoded_first(ctx.config)
    ]
    if (step.kind == PREFILL) != bool(due):
        yield f"a {step.kind} step admitted {due}"
    if due and [row.id for row in step.batch] != due:
        yield f"admitted {due}, computed {[row.id for row in step.batch]}"


@of_step("NANO-ADM-7", text("Why BREAK and not CONTINUE?"))
@witness(lambda _, step: step.happened("preempt") and len(step.after.present) > 2)
def both_queues_keep_the_order_of_arrival(_ctx: Context, step: Step) -> Iterator[str]:
    """Running and then waiting, all sequences stand in the order of their arrival."""
    # What a step moves over the border between the queues keeps its place.
    before, after = (
        [row.id for row in (*state.running, *state.waiting)] for state in (step.before, step.after)
    )
    stayed = [id_ for id_ in before if id_ not in step.finished]
    if after != stayed:
        yield f"running and waiting {after}, before {stayed}"
