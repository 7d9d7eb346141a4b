"""Rules of admission: capacity, model length, and the volume in its three variants.

Source: spyre, sections "Key concepts" and "Admission constraints".
"""

from collections.abc import Callable, Iterator
from typing import TypeAlias

from spec.core.rule import Source
from spec.spyre.admission import Member
from spec.spyre.config import SpyreConfig
from spec.spyre.records import Context, Step
from spec.spyre.rules import joining
from spec.spyre.rules.observed import (
    computed_when_admitted,
    entering,
    last_chunk,
    refused,
    rows_in_slots,
)
from spec.spyre.rules.registry import guard, of_step, release, spyre, witness
from spec.spyre.state import Sequence, State
from spec.spyre.variants import ADMISSIONS, Admission, Joining


@of_step("SPY-VOL-1", spyre("Key concepts, Max batch-tkv limit"))
@witness(lambda ctx, step: len(step.batch) > 1 and step.volume > 0.9 * _limit(ctx))
def volume_within_limit(ctx: Context, step: Step) -> Iterator[str]:
    """Batch size times max-tkv never exceeds the limit, in any step."""
    # Judged by the rows that computed something; a prefill is one row of its prompt length.
    rows = 1 if step.chunk is not None else len(step.scheduled)
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
    rows = rows_in_slots(step.before)
    if step.happened("admit") and rows >= ctx.config.max_num_seqs:
        yield f"admitted into a batch of {rows}"


@guard("SPY-ADM-2", spyre("First-chunk constraints, Single prefill slot"))
@witness(lambda _, step: step.before.prefilling and step.before.waiting)
def free_prefill_slot_at_admission(_ctx: Context, step: Step) -> Iterator[str]:
    """A request is admitted only if no prefill is in progress."""
    # One admission a step, into an empty slot.
    admitted = [event.id for event in step.happened("admit")]
    if len(admitted) > 1 or (admitted and step.before.prefilling is not None):
        yield f"admitted {admitted}, prefilling {step.before.prefilling}"


@guard("SPY-ADM-3", spyre("Last-chunk constraints, Decode batch capacity"))
@witness(
    lambda ctx, step: (
        last_chunk(step) is not None and len(step.before.decoding) == ctx.config.max_num_seqs - 1
    )
)
def decode_batch_has_room(ctx: Context, step: Step) -> Iterator[str]:
    """A request completes its prefill only if the decode batch has room for it."""
    # The paused count, they will come back. It never has to wait for this: its slot was counted at
    # its admission (SPY-ADM-1), and no other request has taken it since.
    chunk, before = last_chunk(step), step.before
    rows = len(before.decoding) + len(before.paused)
    if chunk is not None and rows >= ctx.config.max_num_seqs:
        yield f"{chunk.id} joins {rows} rows, {ctx.config.max_num_seqs} slots"


OfStep: TypeAlias = Callable[[Context, Step], Iterator[str]]

# --- the last-chunk conditions of each variant --------------------------------------------------


def _joining(ctx: Context, state: State, candidate: Sequence) -> Joining:
    """The candidate and the decode batch of the state."""

    def member(one: Sequence, length: int) -> Member:
        return Member(length, ctx.requests[one.id].max_tokens - one.generated)

    return Joining(
        decoding=[member(row, row.computed) for row in state.decoding],
        candidate=member(candidate, candidate.prefill_len),
        limit=_limit(ctx),
        max_model_len=ctx.config.max_model_len,
        block_size=ctx.config.block_size,
        last_tkv=state.last_tkv,
    )


CONDITIONS: dict[str, tuple[Admission, Callable[[Joining], bool]]] = {}
"""Of each rule that is a condition of joining: the admission that has it, and its formula."""


def is_condition(config: SpyreConfig, rule: str) -> bool:
    """True if this rule can keep a request from joining the batch."""
    return not config.pausing and rule in CONDITIONS and config.admission is CONDITIONS[rule][0]


def may_join(ctx: Context, state: State, one: Sequence) -> bool:
    """True if the conditions of joining, where they are judged, let the request have its chunk."""
    left = one.prefill_len - computed_when_admitted(ctx, state, one)
    if left > ctx.config.chunk_size and not _is_judged_first(ctx.config):
        return True
    together = _joining(ctx, state, one)
    return all(
        condition(together)
        for rule, (_, condition) in CONDITIONS.items()
        if is_condition(ctx.config, rule)
    )


def _is_judged_first(config: SpyreConfig) -> bool:
    """True if the condition is judged before the first chunk: by the release, not interleaving."""
    return config.admission is Admission.SHIPPED and not config.interleave


def _judged(ctx: Context, step: Step, rule: str) -> Iterator[str]:
    """The condition held for a request that passed, and not for one refused by this rule."""
    _, condition = CONDITIONS[rule]
    chunk = last_chunk(step)
    if _is_judged_first(ctx.config):
        chunk = step.chunk if step.happened("admit") else None
    rows = len(step.before.decoding)
    if chunk is not None:
        passed = entering(step, chunk.id)
        if not condition(_joining(ctx, step.before, passed)):
            yield f"{passed.id} passed, batch of {rows}"
    held = refused(ctx, step) if step.refusal == rule else None
    if held is not None and condition(_joining(ctx, step.before, held)):
        yield f"{held.id} refused, batch of {rows}"


def _condition(
    id_: str, source: Source, admission: Admission, fits: Callable[[Joining], bool]
) -> Callable[[OfStep], OfStep]:
    """Register a rule that is a condition of joining where the configuration has this admission."""
    CONDITIONS[id_] = admission, fits
    return guard(id_, source, applies=lambda config: is_condition(config, id_))


@_condition(
    "SPY-LEN-2",
    spyre("Last-chunk constraints, Max-model-length constraint"),
    Admission.DOCUMENTED,
    joining.model_length_fits,
)
def model_length_at_admission(ctx: Context, step: Step) -> Iterator[str]:
    """A request joins only if what each decoding request and itself may still generate fits the
    model's context length.
    """
    # Removed in the shipped version: left padding is said to be taken back in time.
    yield from _judged(ctx, step, "SPY-LEN-2")


@_condition(
    "SPY-VOL-2",
    spyre("Volumetric Constraint - Additional Details"),
    Admission.DOCUMENTED,
    joining.documented_projection_fits,
)
def documented_projection(ctx: Context, step: Step) -> Iterator[str]:
    """A request joins only if the projection with one block of slack for each decoding request, and
    none for the new one, stays within the limit.
    """
    # The text, literally; whether it keeps SPY-VOL-1 is for the checks to show.
    yield from _judged(ctx, step, "SPY-VOL-2")


@_condition(
    "SPY-VOL-3",
    release("last-chunk constraints with pausing off"),
    Admission.SHIPPED,
    joining.shipped_projection_fits,
)
def shipped_projection(ctx: Context, step: Step) -> Iterator[str]:
    """A request joins only if the projection from the last step's tkv, rounded up and with a block
    of slack on both sides, stays within the limit.
    """
    # Without interleaving the release judges at the first chunk and not again. What the last
    # step's tkv was, SPY-VOL-5 says.
    yield from _judged(ctx, step, "SPY-VOL-3")


@_condition(
    "SPY-VOL-4",
    Source("lockstep", "admission = exact"),
    Admission.EXACT,
    joining.worst_case_fits,
)
def exact_projection(ctx: Context, step: Step) -> Iterator[str]:
    """A request joins if and only if no step of the worst case exceeds the limit: no other joins,
    none is preempted, each generates all it may.
    """
    # Sound always. Tight with reservation, where nothing is preempted: what it refuses would exceed
    # the limit if all generated all they may. Without, a preemption may come before that step.
    yield from _judged(ctx, step, "SPY-VOL-4")


@of_step("SPY-VOL-5", release("last-chunk constraints with pausing off"))
@witness(lambda _, step: step.before.last_tkv > step.tkv > 0)
def tkv_is_remembered(ctx: Context, step: Step) -> Iterator[str]:
    """The tkv of a step is remembered until the next one has been taken, where the release's
    condition may look at it; elsewhere none is.
    """
    # With pausing on, too.
    due = step.tkv if ctx.config.admission is Admission.SHIPPED else 0
    if step.after.last_tkv != due:
        yield f"the next step is told tkv {step.after.last_tkv}, due is {due}"


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
    held = refused(ctx, step)
    is_of_the_last_chunk = step.refusal == "SPY-ADM-3" or step.refusal in CONDITIONS
    if held is not None and is_of_the_last_chunk and not _is_judged_first(ctx.config):
        left = held.prefill_len - computed_when_admitted(ctx, step.before, held)
        if left > ctx.config.chunk_size:
            yield f"{held.id} refused by {step.refusal} with {left} tokens left"
    if step.chunk is None:
        return
    sequence = entering(step, step.chunk.id)
    left = sequence.prefill_len - max(sequence.computed, step.chunk.cached_tokens)
    if step.chunk.is_last != (left <= ctx.config.chunk_size):
        yield f"{left} tokens left, chunk {step.chunk.chunk + 1} of {step.chunk.chunks}"


def _refuse_conditions_without_a_rule() -> None:
    """Raise if a condition of an admission variant is judged by no rule of this module.

    Raises:
        LookupError: there is one.
    """
    for admission, variant in ADMISSIONS.items():
        for condition in variant.conditions:
            if CONDITIONS.get(condition.rule, (None,))[0] is not admission:
                raise LookupError(
                    f"admission = {admission}: no rule judges its condition {condition.rule}; "
                    f"add one to {__name__}, decorated with `_condition`"
                )


_refuse_conditions_without_a_rule()
