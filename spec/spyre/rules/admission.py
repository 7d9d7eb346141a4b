"""Rules of admission: capacity, model length, and the volume in its three variants.

Source: spyre, sections "Key concepts" and "Admission constraints".
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from spec.core.arithmetic import Truth
from spec.core.rule import Source
from spec.spyre.admission import (
    Member,
    documented_volume_holds,
    model_length_holds,
    shipped_volume_holds,
)
from spec.spyre.config import SpyreConfig
from spec.spyre.records import Context, Step
from spec.spyre.rules.exact_volume import exact_volume_holds
from spec.spyre.rules.observed import computed_when_admitted, entering, last_chunk, refused
from spec.spyre.rules.registry import always, guard, of_step, release, spyre, witness
from spec.spyre.state import Sequence, State
from spec.spyre.variants import ADMISSIONS, Joining


@of_step("SPY-VOL-1", spyre("Key concepts, Max batch-tkv limit"))
@witness(lambda ctx, step: len(step.batch) > 1 and step.volume > 0.9 * _limit(ctx))
def volume_within_limit(ctx: Context, step: Step) -> Iterator[str]:
    """Batch size times max-tkv never exceeds the limit, in any step."""
    # Judged by the rows themselves; a prefill is one row of its prompt length.
    rows = len(step.batch) or (1 if step.chunk is not None else 0)
    if step.volume != rows * step.tkv:
        yield f"volume {step.volume} of {rows} rows with tkv {step.tkv}"
    if rows * step.tkv > _limit(ctx):
        yield f"batch {rows} x tkv {step.tkv} = {rows * step.tkv}, limit {_limit(ctx)}"


def _limit(ctx: Context) -> int:
    return ctx.config.max_batch_tkv_limit


@of_step("SPY-LEN-1", spyre("Last-chunk constraints, Max-model-length constraint"))
@witness(
    lambda ctx, step: (
        any(row.left_padding for row in step.batch)
        and step.tkv > ctx.config.max_model_len - ctx.config.block_size
    )
)
def tkv_within_model_length(ctx: Context, step: Step) -> Iterator[str]:
    """No tkv exceeds the model's context length."""
    # Padding counts: positions are padded positions.
    if step.tkv > ctx.config.max_model_len:
        yield f"tkv {step.tkv}, max_model_len {ctx.config.max_model_len}"


@guard("SPY-ADM-1", spyre("First-chunk constraints, Batch capacity"))
def free_slot_at_admission(ctx: Context, step: Step) -> Iterator[str]:
    """A request is admitted only into a free slot of the running batch."""
    # The slots are those of prefilling and decoding requests.
    if step.happened("admit") and len(step.before.running) >= ctx.config.max_num_seqs:
        yield f"admitted into a batch of {len(step.before.running)}"


@guard("SPY-ADM-2", spyre("First-chunk constraints, Single prefill slot"))
@witness(lambda _, step: step.before.prefilling and step.before.waiting)
def free_prefill_slot_at_admission(_ctx: Context, step: Step) -> Iterator[str]:
    """A request is admitted only if no prefill is in progress."""
    # One admission a step, into an empty slot.
    admitted = [event.id for event in step.happened("admit")]
    if len(admitted) > 1 or (admitted and step.before.prefilling is not None):
        yield f"admitted {admitted}, prefilling {step.before.prefilling}"


@always("SPY-ADM-3", spyre("Last-chunk constraints, Decode batch capacity"))
@witness(lambda ctx, step: len(step.after.decoding) == ctx.config.max_num_seqs)
def decode_batch_has_room(ctx: Context, state: State) -> Iterator[str]:
    """A request completes its prefill only if the decode batch has room for it."""
    # The batch with the paused requests, which will come back, never exceeds the slots.
    rows = len(state.decoding) + len(state.paused)
    if rows > ctx.config.max_num_seqs:
        yield f"{rows} decoding, {ctx.config.max_num_seqs} slots"


OfStep: TypeAlias = Callable[[Context, Step], Iterator[str]]

# --- the last-chunk conditions of each variant --------------------------------------------------


def _joining(ctx: Context, step: Step, candidate: Sequence) -> Joining:
    """The candidate and the decode batch as the step found it."""

    def member(one: Sequence, length: int) -> Member:
        return Member(length, ctx.requests[one.id].max_tokens - one.generated)

    return Joining(
        decoding=[member(row, row.computed) for row in step.before.decoding],
        candidate=member(candidate, candidate.prefill_len),
        limit=_limit(ctx),
        max_model_len=ctx.config.max_model_len,
        block_size=ctx.config.block_size,
        last_tkv=step.before.last_tkv,
    )


# What the rule says of a request that would join.
_CONDITIONS: Mapping[str, Callable[[Joining], Truth]] = {
    "SPY-LEN-2": lambda one: model_length_holds(
        one.decoding, one.candidate, one.max_model_len, one.block_size
    ),
    "SPY-VOL-2": lambda one: documented_volume_holds(
        one.decoding, one.candidate, one.limit, one.block_size
    ),
    "SPY-VOL-3": lambda one: shipped_volume_holds(
        one.decoding, one.candidate, one.limit, one.block_size, one.last_tkv
    ),
    "SPY-VOL-4": lambda one: exact_volume_holds(
        one.decoding, one.candidate, one.limit, one.block_size
    ),
}


def _judged(ctx: Context, step: Step, rule: str) -> Iterator[str]:
    """The condition held for a request that passed, and not for one refused by this rule."""
    condition = _CONDITIONS[rule]
    chunk = last_chunk(step)
    if ctx.config.is_judged_first:
        chunk = step.chunk if step.happened("admit") else None
    rows = len(step.before.decoding)
    if chunk is not None:
        passed = entering(step, chunk.id)
        if not condition(_joining(ctx, step, passed)):
            yield f"{passed.id} passed, batch of {rows}"
    if step.refusal == rule:
        refused = step.before.prefilling or step.before.waiting[0]
        if condition(_joining(ctx, step, refused)):
            yield f"{refused.id} refused, batch of {rows}"


def _condition(id_: str, source: Source) -> Callable[[OfStep], OfStep]:
    """Registers a rule that is a condition of joining, where the configuration has it."""

    def applies(config: SpyreConfig) -> bool:
        return not config.pausing and id_ in [one.rule for one in config.variant.conditions]

    return guard(id_, source, applies=applies)


@_condition("SPY-LEN-2", spyre("Last-chunk constraints, Max-model-length constraint"))
def model_length_at_admission(ctx: Context, step: Step) -> Iterator[str]:
    """A request joins only if what each decoding request and itself may still generate fits the
    model's context length.
    """
    # Removed in the shipped version: left padding is said to be taken back in time.
    yield from _judged(ctx, step, "SPY-LEN-2")


@_condition("SPY-VOL-2", spyre("Volumetric Constraint - Additional Details"))
def documented_projection(ctx: Context, step: Step) -> Iterator[str]:
    """A request joins only if the projection with one block of slack for each decoding request, and
    none for the new one, stays within the limit.
    """
    # The text, literally; whether it keeps SPY-VOL-1 is for the checks to show.
    yield from _judged(ctx, step, "SPY-VOL-2")


@_condition("SPY-VOL-3", release("last-chunk constraints with pausing off"))
def shipped_projection(ctx: Context, step: Step) -> Iterator[str]:
    """A request joins only if the projection from the last step's tkv, rounded up and with a block
    of slack on both sides, stays within the limit.
    """
    # Without interleaving the release judges at the first chunk and not again.
    if step.after.last_tkv != step.tkv:
        yield f"the next step is told tkv {step.after.last_tkv}, it was {step.tkv}"
    yield from _judged(ctx, step, "SPY-VOL-3")


@_condition("SPY-VOL-4", Source("lockstep", "admission = exact"))
def exact_projection(ctx: Context, step: Step) -> Iterator[str]:
    """A request joins if and only if no step of the worst case exceeds the limit."""
    # Sound and tight: what it refuses would exceed the limit if all generated all they may.
    yield from _judged(ctx, step, "SPY-VOL-4")


_LAST_CHUNK_RULES = {
    "SPY-ADM-3",
    *(condition.rule for one in ADMISSIONS.values() for condition in one.conditions),
}


@guard("SPY-ADM-4", spyre("Scheduling with prefix caching"))
@witness(
    lambda _, step: (
        (chunk := last_chunk(step)) is not None and chunk.chunks > 1 and step.happened("admit")
    )
)
def last_chunk_after_the_hit(ctx: Context, step: Step) -> Iterator[str]:
    """The last-chunk conditions are judged when what is left of the prompt, after the prefix hit,
    fits the next chunk.
    """
    # A chunk is the last exactly if the tokens not reused and not computed fit in it. No request is
    # refused by a last-chunk condition before; without interleaving 2.6.3 does that.
    held = refused(step)
    if held is not None and step.refusal in _LAST_CHUNK_RULES and not ctx.config.is_judged_first:
        left = held.prefill_len - computed_when_admitted(ctx, step.before, held)
        if left > ctx.config.chunk_size:
            yield f"{held.id} refused by {step.refusal} with {left} tokens left"
    if step.chunk is None:
        return
    sequence = entering(step, step.chunk.id)
    left = sequence.prefill_len - max(sequence.computed, step.chunk.cached_tokens)
    if step.chunk.is_last != (left <= ctx.config.chunk_size):
        yield f"{left} tokens left, chunk {step.chunk.chunk + 1} of {step.chunk.chunks}"
