"""Rules of admission: blocks and a watermark, prompts that are too long, adapters, the delay.

Source: vllm-v0, "Managing Prompt Prefill Requests".
"""

from collections.abc import Iterator

from spec.vllm_v0.config import VllmV0Config
from spec.vllm_v0.records import Context, Group, Step
from spec.vllm_v0.rules.counting import (
    brought,
    fits,
    is_passed_over,
    is_too_long,
    lacks_budget,
    looked_at,
    needed_blocks,
    prompt_needs,
    room_for_prompts,
)
from spec.vllm_v0.rules.registry import by_id, of_step, text, witness

_PREFILLS = text("`_schedule_prefills` - Managing Prompt Prefill Requests")
_DELAY = text("Delaying Scheduling for Efficiency (`_passed_delay`)")
_TOO_LONG = text("Handles very long prompts that exceed token limits")


def _has_delay(config: VllmV0Config) -> bool:
    return config.delay_factor > 0


def _is_at_once(config: VllmV0Config) -> bool:
    return not _has_delay(config)


@of_step("V0-ADM-1", _PREFILLS, witness=lambda _, step: step.refusal == "V0-ADM-1")
def admitted_have_their_blocks(ctx: Context, step: Step) -> Iterator[str]:
    """A request is admitted only if there are enough free blocks for all of its tokens and its
    encoder's, and admission leaves the watermark free.
    """
    # Under the default strategy prompts come first, chunked they come last.
    size, rows = ctx.config.block_size, by_id(step.planned.running)
    for group in (rows[id_] for id_ in step.admitted):
        tables = (len(group.unfinished[0].blocks), len(group.cross))
        least = (
            needed_blocks(group.tokens, size),
            needed_blocks(ctx.requests[group.id].encoder_len, size),
        )
        if tables[0] < least[0] or tables[1] != least[1]:
            yield f"{group.id} is admitted with {tables} blocks of {least}"
    left = len(step.before.pool.free) - len(brought(ctx, step))
    if ctx.config.chunked_prefill:
        left = len(step.planned.pool.free)
    if step.admitted and left < ctx.config.watermark_blocks:
        yield f"{left} blocks are left, watermark {ctx.config.watermark_blocks}"


def never_fits(ctx: Context, step: Step, group: Group) -> bool:
    """True if a waiting group needs more blocks than all of them less the watermark."""
    return prompt_needs(ctx, group) > step.before.pool.size - ctx.config.watermark_blocks


@of_step("V0-ADM-2", _TOO_LONG)
@witness(lambda _, step: any(group.id in step.ignored for group in step.before.waiting))
def only_too_long_prompts_are_ignored(ctx: Context, step: Step) -> Iterator[str]:
    """A prompt is ignored only if it exceeds the configured maximum length, or the blocks that
    there are.
    """
    # For those that were preempted see V0-ADM-4.
    for group in step.before.waiting:
        fits = not is_too_long(ctx.config, group.tokens) and not never_fits(ctx, step, group)
        if group.id in step.ignored and not group.generated and fits:
            yield f"{group.id} of {group.tokens} tokens is ignored"


@of_step("V0-ADM-3", _TOO_LONG, witness=lambda _, step: step.ignored and step.admitted)
def too_long_prompts_are_ignored(ctx: Context, step: Step) -> Iterator[str]:
    """A prompt that is too long, or will never fit, is not admitted: it leaves the queue and is
    reported.
    """
    # What has left without having all its tokens is what the step reports.
    for group in step.before.waiting:
        if group.id in step.admitted and (
            is_too_long(ctx.config, group.tokens) or never_fits(ctx, step, group)
        ):
            yield f"{group.id} of {group.tokens} tokens is admitted"
    if {*step.ignored} != step.after.ignored - step.before.ignored:
        yield f"reported {list(step.ignored)}"


@of_step("V0-ADM-4", text("Preempting via Recompute (`_preempt_by_recompute`)"))
@witness(
    lambda _, step: any(
        group.generated and group.id in step.admitted for group in step.before.waiting
    )
)
def preempted_are_not_discarded(_ctx: Context, step: Step) -> Iterator[str]:
    """A request that was preempted is kept for later instead of being discarded."""
    # What it has sampled belongs to its prompt then, which may make it too long.
    for group in step.before.waiting:
        if group.id in step.ignored and group.generated:
            yield f"{group.id} is ignored with {group.generated} sampled tokens"


@of_step(
    "V0-ADM-5", text("Updates scheduling constraints"), applies=lambda config: config.max_loras > 0
)
@witness(
    lambda ctx, step: (
        len({ctx.requests[id_].lora for id_ in step.scheduled} - {0}) == ctx.config.max_loras
        and any(ctx.requests[group.id].lora for group in step.after.waiting)
    )
)
def adapters_are_limited(ctx: Context, step: Step) -> Iterator[str]:
    """A batch has no more adapters than allowed."""
    # Requests without an adapter are no matter.
    adapters = {ctx.requests[id_].lora for id_ in step.scheduled} - {0}
    if len(adapters) > ctx.config.max_loras:
        yield f"adapters {sorted(adapters)}"


@of_step("V0-ADM-6", _DELAY, applies=_has_delay)
@witness(lambda _, step: step.before.waiting and not step.admitted)
def prompts_are_held_back(ctx: Context, step: Step) -> Iterator[str]:
    """While requests run, a prompt is admitted only after the longest waiting one has waited for
    longer than the delay.
    """
    # So many durations of the last step with prompts; 0 before there was one.
    last = ctx.config.prefill_time if step.before.has_prefilled else 0.0
    waited = {group.id: group.waited for group in step.before.waiting}
    running = {*step.scheduled} & {group.id for group in step.before.running}
    for request_id in step.admitted:
        if running and max(waited.values()) <= ctx.config.delay_factor * last:
            yield f"{request_id} is admitted, the longest wait is {max(waited.values())}"
        del waited[request_id]


def _is_foreign(ctx: Context, step: Step, group: Group) -> bool:
    """True if the group's adapter was one too many beside those of a default step's requests."""
    runs = (*(running.id for running in step.before.running), *step.admitted)
    adapters = {ctx.requests[id_].lora for id_ in runs} - {0}
    is_full = len(adapters) >= ctx.config.max_loras > 0 and not ctx.config.chunked_prefill
    return is_full and ctx.requests[group.id].lora not in {0, *adapters}


@of_step(
    "V0-ADM-7",
    text("`_schedule_prefills` - Managing Prompt Prefill Requests, Why It's Needed"),
    applies=_is_at_once,
)
@witness(lambda _, step: step.admitted and step.planned.waiting)
def waiting_has_a_reason(ctx: Context, step: Step) -> Iterator[str]:
    """The first of the waiting requests waits only for tokens, blocks or sequences, for its adapter
    or for being long, for those that are swapped out, or for decodes that lack tokens; so does the
    first behind those that only their adapters keep back.
    """
    # Judged by what was left when it was looked at.
    swapped_first = not ctx.config.chunked_prefill and bool(step.before.swapped)
    if swapped_first or step.after.failure or (ctx.config.chunked_prefill and lacks_budget(step)):
        return
    room = room_for_prompts(ctx, step)
    blocks = room.blocks - ctx.config.watermark_blocks
    waits = (group for group in looked_at(ctx, step) if group.id not in step.admitted)

    def is_passed(group: Group) -> bool:
        return _is_foreign(ctx, step, group) and prompt_needs(ctx, group) <= blocks

    first = next((group for group in waits if not is_passed(group)), None)
    if first is None or is_passed_over(ctx, step, first):
        return
    if fits(ctx, first, room):
        yield f"{first.id} waits, {room.blocks} blocks, {room.tokens} tokens, {room.seqs} seqs left"


@of_step("V0-ADM-8", _DELAY)
@witness(lambda _, step: step.scheduled and step.after.waiting)
def waits_last_as_long_as_steps(ctx: Context, step: Step) -> Iterator[str]:
    """A step makes each wait longer by its duration, as far as the delay looks at it; the delay is
    known from the first step with prompts on.
    """
    # Unless the engine ends.
    if step.after.failure:
        return
    config = ctx.config
    if not _has_delay(config):
        waits = [group.id for group in step.after.present if group.waited]
        if waits or step.after.has_prefilled:
            yield f"without a delay {waits} have waited, a prompt: {step.after.has_prefilled}"
        return
    took = config.prefill_time if step.prefills else config.decode_time
    delay = config.delay_factor * config.prefill_time
    waited = {group.id: group.waited for group in step.before.present}
    for group in step.after.present:
        due = waited[group.id] + took
        # Longer waits are alike.
        if group.waited != due and min(group.waited, due) <= delay:
            yield f"{group.id} has waited for {group.waited}, not {due}"
    if step.after.has_prefilled != (step.before.has_prefilled or bool(step.prefills)):
        yield f"has_prefilled is {step.after.has_prefilled}"
