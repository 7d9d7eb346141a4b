"""Rules of admission: capacity, model length, and the volume in its three variants.

Source: spyre, sections "Key concepts" and "Admission constraints".
"""

from collections.abc import Callable, Iterator

from spec.spyre.admission import (
    Member,
    documented_volume_holds,
    model_length_holds,
    shipped_volume_holds,
)
from spec.spyre.config import Admission, SpyreConfig
from spec.spyre.records import Context, Step
from spec.spyre.rules.exact_volume import exact_volume_holds
from spec.spyre.rules.observed import (
    computed_when_admitted,
    entering,
    last_chunk,
    refused,
    release,
    spyre,
)
from spec.spyre.rules.registry import Kind, Source, always, of_step
from spec.spyre.state import Sequence, State


@of_step(
    "SPY-VOL-1",
    "Batch size times max-tkv never exceeds the limit, in any step.",
    spyre("Key concepts, Max batch-tkv limit"),
    witness=lambda ctx, step: len(step.batch) > 1 and step.volume > 0.9 * _limit(ctx),
)
def volume_within_limit(ctx: Context, step: Step) -> Iterator[str]:
    """Judged by the rows themselves; a prefill is one row of its prompt length."""
    rows = len(step.batch) or (1 if step.chunk is not None else 0)
    if step.volume != rows * step.tkv:
        yield f"volume {step.volume} of {rows} rows with tkv {step.tkv}"
    if rows * step.tkv > _limit(ctx):
        yield f"batch {rows} x tkv {step.tkv} = {rows * step.tkv}, limit {_limit(ctx)}"


def _limit(ctx: Context) -> int:
    return ctx.config.max_batch_tkv_limit


@of_step(
    "SPY-LEN-1",
    "No tkv exceeds the model's context length.",
    spyre("Last-chunk constraints, Max-model-length constraint"),
    witness=lambda ctx, step: (
        any(row.left_padding for row in step.batch)
        and step.tkv > ctx.config.max_model_len - ctx.config.block_size
    ),
)
def tkv_within_model_length(ctx: Context, step: Step) -> Iterator[str]:
    """Padding counts: positions are padded positions."""
    if step.tkv > ctx.config.max_model_len:
        yield f"tkv {step.tkv}, max_model_len {ctx.config.max_model_len}"


@of_step(
    "SPY-ADM-1",
    "A request is admitted only into a free slot of the running batch.",
    spyre("First-chunk constraints, Batch capacity"),
    witness=lambda _ctx, step: step.refusal == "SPY-ADM-1",
    kind=Kind.GUARD,
)
def free_slot_at_admission(ctx: Context, step: Step) -> Iterator[str]:
    """The slots are those of prefilling and decoding requests."""
    if step.happened("admit") and len(step.before.running) >= ctx.config.max_num_seqs:
        yield f"admitted into a batch of {len(step.before.running)}"


@of_step(
    "SPY-ADM-2",
    "A request is admitted only if no prefill is in progress.",
    spyre("First-chunk constraints, Single prefill slot"),
    witness=lambda _ctx, step: bool(step.before.prefilling and step.before.waiting),
    kind=Kind.GUARD,
)
def free_prefill_slot_at_admission(_ctx: Context, step: Step) -> Iterator[str]:
    """One admission a step, into an empty slot."""
    admitted = [event.id for event in step.happened("admit")]
    if len(admitted) > 1 or (admitted and step.before.prefilling is not None):
        yield f"admitted {admitted}, prefilling {step.before.prefilling}"


@always(
    "SPY-ADM-3",
    "A request completes its prefill only if the decode batch has room for it.",
    spyre("Last-chunk constraints, Decode batch capacity"),
    witness=lambda ctx, step: len(step.after.decoding) == ctx.config.max_num_seqs,
)
def decode_batch_has_room(ctx: Context, state: State) -> Iterator[str]:
    """The batch with the paused requests, who will come back, never exceeds the slots."""
    rows = len(state.decoding) + len(state.paused)
    if rows > ctx.config.max_num_seqs:
        yield f"{rows} decoding, {ctx.config.max_num_seqs} slots"


# --- the last-chunk conditions of each variant --------------------------------------------------


def _members(ctx: Context, step: Step, candidate: Sequence) -> tuple[list[Member], Member]:
    """The decode batch as the step found it, and the candidate."""

    def member(one: Sequence, length: int) -> Member:
        return Member(length, ctx.requests[one.id].max_tokens - one.generated)

    batch = [member(row, row.computed) for row in step.before.decoding]
    return batch, member(candidate, candidate.prefill_len)


Condition = Callable[[Context, Step, list[Member], Member], bool]


def _judged(
    ctx: Context, step: Step, rule: str, condition: Condition, *, at_admission: bool = False
) -> Iterator[str]:
    """The condition held for whoever passed, and not for whoever was refused by this rule."""
    chunk = last_chunk(step)
    if at_admission:
        chunk = step.chunk if step.happened("admit") else None
    rows = len(step.before.decoding)
    if chunk is not None:
        passed = entering(step, chunk.id)
        if not condition(ctx, step, *_members(ctx, step, passed)):
            yield f"{passed.id} passed, batch of {rows}"
    if step.refusal == rule:
        refused = step.before.prefilling or step.before.waiting[0]
        if condition(ctx, step, *_members(ctx, step, refused)):
            yield f"{refused.id} refused, batch of {rows}"


def _decided_by(admission: Admission) -> Callable[[SpyreConfig], bool]:
    return lambda config: config.admission is admission and not config.pausing


def _refused_by(rule: str) -> Callable[[Context, Step], bool]:
    return lambda _ctx, step: step.refusal == rule


@of_step(
    "SPY-LEN-2",
    "A request joins only if what each decoding request and itself may still generate fits the "
    "model's context length.",
    spyre("Last-chunk constraints, Max-model-length constraint"),
    witness=_refused_by("SPY-LEN-2"),
    applies=_decided_by(Admission.DOCUMENTED),
    kind=Kind.GUARD,
)
def model_length_at_admission(ctx: Context, step: Step) -> Iterator[str]:
    """Removed in the shipped version: left padding is said to be taken back in time."""

    def condition(ctx: Context, _step: Step, batch: list[Member], candidate: Member) -> bool:
        config = ctx.config
        return bool(model_length_holds(batch, candidate, config.max_model_len, config.block_size))

    yield from _judged(ctx, step, "SPY-LEN-2", condition)


@of_step(
    "SPY-VOL-2",
    "A request joins only if the projection with one block of slack for each decoding request, "
    "and none for the new one, stays within the limit.",
    spyre("Volumetric Constraint - Additional Details"),
    witness=_refused_by("SPY-VOL-2"),
    applies=_decided_by(Admission.DOCUMENTED),
    kind=Kind.GUARD,
)
def documented_projection(ctx: Context, step: Step) -> Iterator[str]:
    """The text, literally; whether it keeps SPY-VOL-1 is for the checks to show."""

    def condition(ctx: Context, _step: Step, batch: list[Member], candidate: Member) -> bool:
        size = ctx.config.block_size
        return bool(documented_volume_holds(batch, candidate, _limit(ctx), size))

    yield from _judged(ctx, step, "SPY-VOL-2", condition)


@of_step(
    "SPY-VOL-3",
    "A request joins only if the projection from the last step's tkv, rounded up and with a "
    "block of slack on both sides, stays within the limit.",
    release("last-chunk constraints with pausing off"),
    witness=_refused_by("SPY-VOL-3"),
    applies=_decided_by(Admission.SHIPPED),
    kind=Kind.GUARD,
)
def shipped_projection(ctx: Context, step: Step) -> Iterator[str]:
    """Without interleaving the release judges at the first chunk and not again."""

    def condition(ctx: Context, step: Step, batch: list[Member], candidate: Member) -> bool:
        size, tkv = ctx.config.block_size, step.before.last_tkv
        return bool(shipped_volume_holds(batch, candidate, _limit(ctx), size, tkv))

    if step.after.last_tkv != step.tkv:
        yield f"the next step is told tkv {step.after.last_tkv}, it was {step.tkv}"
    first = not ctx.config.interleave
    yield from _judged(ctx, step, "SPY-VOL-3", condition, at_admission=first)


@of_step(
    "SPY-VOL-4",
    "A request joins if and only if no step of the worst case exceeds the limit.",
    Source("lockstep", "admission = exact"),
    witness=_refused_by("SPY-VOL-4"),
    applies=_decided_by(Admission.EXACT),
    kind=Kind.GUARD,
)
def exact_projection(ctx: Context, step: Step) -> Iterator[str]:
    """Sound and tight: what it refuses would exceed the limit if all generated all they may."""

    def condition(ctx: Context, _step: Step, batch: list[Member], candidate: Member) -> bool:
        size = ctx.config.block_size
        return exact_volume_holds(batch, candidate, _limit(ctx), size)

    yield from _judged(ctx, step, "SPY-VOL-4", condition)


_LAST_CHUNK_RULES = ("SPY-ADM-3", "SPY-LEN-2", "SPY-VOL-2", "SPY-VOL-3", "SPY-VOL-4")


@of_step(
    "SPY-ADM-4",
    "The last-chunk conditions are judged when what is left of the prompt, after the prefix hit, "
    "fits the next chunk.",
    spyre("Scheduling with prefix caching"),
    witness=lambda _ctx, step: (
        (chunk := last_chunk(step)) is not None
        and chunk.chunks > 1
        and bool(step.happened("admit"))
    ),
    kind=Kind.GUARD,
)
def last_chunk_after_the_hit(ctx: Context, step: Step) -> Iterator[str]:
    """A chunk is the last exactly if the tokens not reused and not computed fit in it.

    Nobody is refused by a last-chunk condition before; without interleaving 2.6.3 does that.
    """
    whole = ctx.config.admission is Admission.SHIPPED and not ctx.config.interleave
    held = refused(step)
    if held is not None and step.refusal in _LAST_CHUNK_RULES and not whole:
        left = held.prefill_len - computed_when_admitted(ctx, step.before, held)
        if left > ctx.config.chunk_size:
            yield f"{held.id} refused by {step.refusal} with {left} tokens left"
    if step.chunk is None:
        return
    sequence = entering(step, step.chunk.id)
    left = sequence.prefill_len - max(sequence.computed, step.chunk.cached_tokens)
    if step.chunk.is_last != (left <= ctx.config.chunk_size):
        yield f"{left} tokens left, chunk {step.chunk.chunk + 1} of {step.chunk.chunks}"
