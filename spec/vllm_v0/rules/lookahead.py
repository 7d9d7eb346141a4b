"""Rules of lookahead: slots beyond the known tokens, accepted or discarded.

Source: vllm-v0, "How Does Lookahead Work?" and "Determining Lookahead Slots".
"""

from collections.abc import Iterator

from spec.vllm_v0.config import VllmV0Config
from spec.vllm_v0.records import Context, Step
from spec.vllm_v0.rules.counting import ahead, needed_blocks
from spec.vllm_v0.rules.registry import by_id, of_step, sequences_by_id, text, witness

_SLOTS = text("Determining Lookahead Slots (`_get_num_lookahead_slots`)")
_ALLOCATE = text("How Does Lookahead Work?, Allocate Lookahead Slots")
_DISCARD = text("How Does Lookahead Work?, Use or Discard the Lookahead Slots")


def _looks_ahead(config: VllmV0Config) -> bool:
    return config.num_lookahead_slots > 0


@of_step("V0-LKA-1", _ALLOCATE, witness=lambda _, step: step.scheduled.keys() - {*step.prefills})
def decoding_sequences_have_slots(ctx: Context, step: Step) -> Iterator[str]:
    """Each decoding sequence has slots for its tokens and for all that it may speculate on."""
    # From its first token to the last of its lookahead.
    for group in step.planned.running:
        if group.id in step.scheduled and not group.is_prefill:
            wanted = group.tokens + ahead(group, ctx.config)
            for sequence in group.unfinished:
                slots = len(sequence.blocks) * ctx.config.block_size
                if slots < wanted or sequence.slots != group.tokens:
                    yield f"{sequence.id} has {slots} slots for {wanted} tokens"


@of_step("V0-LKA-2", _SLOTS, witness=lambda _, step: step.admitted)
def prompts_have_no_lookahead(ctx: Context, step: Step) -> Iterator[str]:
    """Prompts have no lookahead slots, unless several steps follow one decision and prompts are
    chunked.
    """
    # As many blocks as their tokens lie in, and what is ahead then.
    for group in step.planned.running:
        if group.id in step.admitted:
            wanted = needed_blocks(group.tokens + ahead(group, ctx.config), ctx.config.block_size)
            if len(group.unfinished[0].blocks) != wanted:
                yield f"{group.id} has {len(group.unfinished[0].blocks)} of {wanted} blocks"


@of_step("V0-LKA-3", _DISCARD, applies=_looks_ahead)
@witness(lambda _, step: any(len(tokens) > 1 for tokens in step.sampled.values()))
def no_more_is_accepted_than_fits(ctx: Context, step: Step) -> Iterator[str]:
    """A sequence samples a token and at most as many more as it has lookahead slots; where several
    steps follow one decision, exactly so many unless it ends.
    """
    # A prompt samples one, unless it has lookahead slots.
    planned, after = by_id(step.planned.running), by_id(step.after.running)
    for name, tokens in step.sampled.items():
        group = planned[ctx.owners[name]]
        most = 1 + (ctx.config.num_lookahead_slots if ahead(group, ctx.config) else 0)
        ends = not any(
            sequence.id == name and not sequence.is_finished
            for sequence in (after[group.id].sequences if group.id in after else ())
        )
        is_all = ctx.config.num_scheduler_steps == 1 or len(tokens) == most or ends
        if not 1 <= len(tokens) <= most or not is_all:
            yield f"{name} samples {len(tokens)} tokens, {most} at most"


@of_step("V0-LKA-4", _SLOTS, witness=lambda _, step: step.lookahead_slots > 0, applies=_looks_ahead)
def lookahead_is_as_configured(ctx: Context, step: Step) -> Iterator[str]:
    """A step announces the configured number of lookahead slots for what decodes, 7 for eight
    steps that follow one decision, and none for prompts alone.
    """
    # Unless prompts decode in the same step.
    config = ctx.config
    if (
        config.num_scheduler_steps > 1
        and config.num_lookahead_slots != config.num_scheduler_steps - 1
    ):
        yield f"{config.num_lookahead_slots} slots of {config.num_scheduler_steps} steps"
    decodes = bool(step.scheduled.keys() - {*step.prefills})
    some = decodes or (config.num_scheduler_steps > 1 and config.chunked_prefill)
    expected = config.num_lookahead_slots if some else 0
    if step.scheduled and step.lookahead_slots != expected:
        yield f"{step.lookahead_slots} slots are announced, expected {expected}"


@of_step("V0-LKA-5", _DISCARD)
@witness(
    lambda _, step: any(
        group.id in step.scheduled and not group.is_prefill for group in step.after.running
    )
)
def wrong_guesses_are_discarded(_ctx: Context, step: Step) -> Iterator[str]:
    """Guesses that are right need not be computed again, wrong ones count for nothing: after its
    tokens all of a decoding sequence but the newest are computed.
    """
    # And its table has the slots that it had.
    planned = by_id(step.planned.running)
    for group in step.after.running:
        if group.id in step.sampling and not planned[group.id].is_prefill:
            if group.computed != group.tokens - 1:
                yield f"{group.id} has computed {group.computed} of {group.tokens} tokens"
            if (
                group.blocks
                != tuple(
                    block
                    for sequence in planned[group.id].sequences
                    if sequence.id in {it.id for it in group.unfinished}
                    for block in sequence.blocks
                )
                + planned[group.id].cross
            ):
                yield f"{group.id} has another table after the step"


@of_step("V0-LKA-6", text("Appending Memory Slots (`_append_slots`)"))
@witness(lambda _, step: step.planned.swapped and step.scheduled)
def tokens_get_their_slots(_ctx: Context, step: Step) -> Iterator[str]:
    """A sequence that is scheduled has slots for exactly its tokens; one that is not keeps those
    that it had, and what waits or has finished has none.
    """
    # Swapped or not; a forked one has those of its parent.
    if step.after.failure:
        return
    before, planned = (sequences_by_id(state.present) for state in (step.before, step.planned))
    waiting = {group.id for group in step.planned.waiting if not group.is_swapped}
    for group in step.planned.present:
        for sequence in group.unfinished:
            kept = before.get(sequence.id, sequence).slots
            due = group.tokens if group.id in step.scheduled else kept
            if sequence.slots != (0 if group.id in waiting else due):
                yield f"{sequence.id} has {sequence.slots} slots, {group.tokens} tokens, had {due}"
    for sequence in sequences_by_id(step.after.present).values():
        due = planned.get(step.forked.get(sequence.id, sequence.id), sequence).slots
        if sequence.slots != (0 if sequence.is_finished else due):
            slots_now = f"{sequence.slots} slots after the step"
            yield f"{sequence.id} has {slots_now}, {due} when it was decided"
