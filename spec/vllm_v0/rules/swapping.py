"""Rules of swapping: what is copied, what is kept, what comes back.

Source: vllm-v0, "Swapping Functions", "Managing Swapped-Out Sequences" and "Preempting via Swap".
"""

from collections.abc import Iterable, Iterator

from spec.vllm_v0.config import VllmV0Config
from spec.vllm_v0.records import Context, Group, State, Step
from spec.vllm_v0.rules.counting import (
    batched,
    brought,
    contents_held,
    is_by_priority,
    lacks_adapter,
    lacks_budget,
    rank,
    swapped_needs,
    token_limit,
    will_have,
)
from spec.vllm_v0.rules.registry import (
    by_id,
    code,
    eventually,
    ids,
    is_documented,
    is_released,
    of_step,
    text,
    victims,
    witness,
)

_OUT = text("Swapping Out a Sequence (`_swap_out`)")
_IN = text("Swapping In a Sequence (`_swap_in`)")
_SWAPPED = text("`_schedule_swapped` - Managing Swapped-Out Sequences")


def _swaps(_ctx: Context, step: Step) -> bool:
    return bool(step.swaps_in or step.swaps_out)


@of_step("V0-SWP-1", text("Swapping Functions"), witness=_swaps)
def pairs_are_one_to_one(ctx: Context, step: Step) -> Iterator[str]:
    """No block is swapped onto by two others, nor from where nothing is held, nor onto what others
    hold.
    """
    # With prefix caching a block of the same content may be there already.
    gpu, cpu = step.before.pool, step.before.cpu
    for pairs, source, target in ((step.swaps_out, gpu, cpu), (step.swaps_in, cpu, gpu)):
        known = (step.planned.cpu if target is cpu else step.planned.pool).keys
        onto = [to for _, to in {*pairs} if to not in known]
        origins = {origin for origin, _ in pairs}
        if len({*onto}) != len(onto) or not origins <= source.references.keys():
            yield f"copied {sorted(pairs)}, held {sorted(source.references)}"
        gone = [group for group in step.before.running if group.id in step.ignored]
        ended = {block for group in gone for block in group.blocks}
        taken = target.references.keys() & {*onto} - ended
        if taken and not ctx.config.prefix_caching:
            yield f"copied onto {sorted(taken)}, which are held"


@of_step("V0-SWP-2", text("Swapping Functions"), witness=_swaps)
def tables_are_copied(ctx: Context, step: Step) -> Iterator[str]:
    """Each block of a swapped group that holds computed tokens is copied to the block at the same
    place of its table on the other device, and no other block is.
    """
    # The encoder's, too. 0.9.2 copies whole tables.
    before, planned = by_id(step.before.present), by_id(step.planned.present)
    for pairs, named in ((step.swaps_out, step.swapped_out), (step.swaps_in, step.swapped_in)):
        may: set[tuple[int, int]] = set()
        for request_id in named:
            for is_computed, pair in _moved(ctx, before[request_id], planned[request_id]):
                found = {it for it in pairs if it == pair or (pair[1] == _ANY and it[0] == pair[0])}
                may |= found if is_computed or is_released(ctx.config) else set()
                if is_computed and not found:
                    yield f"{request_id}: {pair} is not among {sorted(pairs)}"
        if not {*pairs} <= may:
            yield f"copied {sorted({*pairs} - may)}, which is not in the tables"


_ANY = 0  # where the block that was copied onto is not in the table any more


def _moved(ctx: Context, old: Group, new: Group) -> Iterator[tuple[bool, tuple[int, int]]]:
    """Blocks of a group on both devices, place by place; whether they hold computed tokens.

    A partial block that came back may have been filled since, and given way to one of its content.
    """
    size = ctx.config.block_size
    for was, now in zip(old.sequences, new.sequences, strict=True):
        for place, block in enumerate(was.blocks):
            settled = new.is_swapped or place < was.slots // size
            target = now.blocks[place] if place < len(now.blocks) and settled else _ANY
            yield place * size < old.computed, (block, target)
    yield from ((True, pair) for pair in zip(old.cross, new.cross, strict=True))


@of_step("V0-SWP-3", text("Schedules swapped-out requests if possible"))
@witness(lambda _, step: victims(step) and step.before.swapped)
def no_swap_in_with_a_preemption(_ctx: Context, step: Step) -> Iterator[str]:
    """Swapped-out groups are restored only in a step without any preemption."""
    # So nothing is swapped in and out at once.
    preempted = (*step.preempted, *step.swapped_out)
    if step.swapped_in and preempted:
        yield f"swapped in {list(step.swapped_in)}, preempted {list(preempted)}"


def _progress(group: Group) -> object:
    tables = [
        (own.id, own.generated, own.slots, len(own.blocks), own.is_finished)
        for own in group.sequences
    ]
    return group.computed, group.is_prefill, tables


@of_step("V0-SWP-4", text("Preemption Modes"), witness=lambda _, step: step.swapped_out)
def swapping_keeps_computation(_ctx: Context, step: Step) -> Iterator[str]:
    """A group that is swapped out keeps what it has computed and sampled."""
    # And tables of the same lengths.
    before, planned = by_id(step.before.running), by_id(step.planned.present)
    for request_id in step.swapped_out:
        was, now = _progress(before[request_id]), _progress(planned[request_id])
        if was != now:
            yield f"{request_id} had {was}, has {now}"


@of_step("V0-SWP-5", _IN, witness=lambda _, step: step.swapped_in)
def swapped_in_resume(_ctx: Context, step: Step) -> Iterator[str]:
    """A group that is swapped in resumes at once, without computing again what it had computed."""
    # Its next tokens are scheduled in this very step.
    before, planned = by_id(step.before.swapped), by_id(step.planned.running)
    for request_id in step.swapped_in:
        was, now = before[request_id], planned[request_id]
        same = (was.computed, was.tokens) == (now.computed, now.tokens)
        if not step.scheduled.get(request_id) or not same:
            yield f"{request_id} had computed {was.computed} of {was.tokens}, has {now.computed}"


@of_step("V0-SWP-6", text("`_schedule_swapped` - Managing Swapped-Out Sequences, Why It's Needed"))
@witness(lambda _, step: step.before.swapped and not step.swapped_in)
def swapped_out_has_a_reason(ctx: Context, step: Step) -> Iterator[str]:
    """Swapped-out sequences resume when memory becomes available: the first waits only for blocks,
    tokens, sequences or its adapter, and never for new prompts.
    """
    # Reasons are the watermark while others run, decodes without tokens, and a more urgent request.
    if victims(step) or lacks_budget(step) or step.after.failure:
        return
    if _is_outranked(ctx, step, step.before.waiting):
        return
    others = (group for group in step.planned.swapped if group.id not in step.swapped_out)
    first = next(others, None)
    if first is None or lacks_adapter(ctx, step, first):
        return
    rows = by_id(step.planned.running)
    runs = [group for group in rows.values() if group.id in step.scheduled]
    old = [
        group for group in runs if group.id not in step.admitted or not ctx.config.chunked_prefill
    ]
    blocks = len(step.planned.pool.free)
    if ctx.config.chunked_prefill:
        blocks += len(brought(ctx, step))
    computed = batched(step)
    tokens = token_limit(ctx.config) - sum(computed[group.id] for group in old)
    seqs = ctx.config.max_num_seqs - sum(will_have(ctx, group) for group in old)
    watermark = ctx.config.watermark_blocks if old else 0
    chunk = ctx.config.block_size if ctx.config.prefix_caching else 1
    wanted = chunk if first.is_prefill else len(first.unfinished)
    fits = swapped_needs(ctx, first, contents_held(step)) <= blocks - watermark
    if fits and wanted <= tokens and will_have(ctx, first) <= seqs:
        yield f"{first.id} stays, {blocks} blocks, {tokens} tokens, {seqs} sequences are left"


def _is_outranked(ctx: Context, step: Step, waiting: Iterable[Group]) -> bool:
    """True if a waiting request is more urgent than every swapped group."""
    if not is_by_priority(ctx.config) or not step.before.swapped:
        return False
    most = min(rank(ctx, group) for group in step.before.swapped)
    return any(rank(ctx, group) < most for group in waiting)


@of_step("V0-SWP-7", text("Handles cases where a sequence cannot be swapped in"))
@witness(lambda _, step: any(group.id in step.ignored for group in step.before.swapped))
def only_infeasible_are_ended(ctx: Context, step: Step) -> Iterator[str]:
    """A swapped group is ended as infeasible only if it needs more blocks than the GPU has."""
    # Its tables, the tokens without a slot, and what is ahead.
    for group in step.before.swapped:
        needed = swapped_needs(ctx, group)
        if group.id in step.ignored and needed <= step.before.pool.size:
            yield f"{group.id} is ended, it needs {needed} of {step.before.pool.size} blocks"


@of_step("V0-SWP-8", _OUT, witness=lambda _, step: step.swapped_out)
def swapping_avoids_killing(ctx: Context, step: Step) -> Iterator[str]:
    """A request that has run is not killed when memory runs low, unless all of the memory would not
    do for it, on the GPU or, of several sequences, on the CPU.
    """
    # Whether it runs or is swapped out by then.
    for group in (*step.before.running, *step.before.swapped):
        fits = swapped_needs(ctx, group) <= step.before.pool.size
        free = min(len(it.cpu.free) for it in (step.before, step.planned))
        fits &= len(group.unfinished) == 1 or len(group.blocks) <= free
        if group.id in step.ignored and fits:
            yield f"{group.id} is ended"


@of_step(
    "V0-SWP-9",
    text("`_schedule_swapped()`"),
    applies=lambda config: not config.chunked_prefill or is_documented(config),
)
@witness(lambda _, step: step.swapped_in)
def swapped_in_fit_fully(_ctx: Context, step: Step) -> Iterator[str]:
    """A group that is swapped in fits fully into the current budget: it is given all the tokens
    that it has not computed.
    """
    # A decoding sequence has one.
    planned = by_id(step.planned.running)
    for request_id in step.swapped_in:
        group, scheduled = planned[request_id], step.scheduled.get(request_id)
        rest = group.tokens - group.computed
        if group.is_prefill and scheduled != rest:
            yield f"{request_id} is given {scheduled} of {rest} tokens"


@eventually("V0-SWP-10", _SWAPPED, witness=lambda _, step: step.swapped_in)
def swapped_out_come_back_or_leave(state: State, request_id: str) -> bool:
    """A group that is swapped out comes back or leaves: nothing is swapped for ever."""
    # Whatever else arrives; unless the engine has ended.
    return request_id not in ids(state.swapped) or bool(state.failure)


@of_step("V0-SWP-11", code("order of the swapped queue"))
@witness(lambda _, step: step.swapped_out and step.before.swapped)
def victims_queue_up(_ctx: Context, step: Step) -> Iterator[str]:
    """Groups that are swapped out join the end of their queue in the order of giving way; the
    others keep their places.
    """
    # Those swapped in or ended are gone.
    stay = [id_ for id_ in ids(step.before.swapped) if id_ in {*ids(step.planned.swapped)}]
    came = [id_ for id_ in step.swapped_out if id_ not in {*ids(step.planned.waiting)}]
    if ids(step.planned.swapped) != [*stay, *came]:
        yield f"swapped {ids(step.planned.swapped)}, were {stay}, swapped out {came}"


@of_step("V0-SWP-13", code("can_swap_in"), applies=lambda config: config.watermark_blocks > 0)
@witness(lambda _, step: step.swapped_in and len(step.planned.running) > 1)
def swapping_in_leaves_the_watermark(ctx: Context, step: Step) -> Iterator[str]:
    """Swapping in leaves the watermark free where others run."""
    # Nothing is handed out after it but to prompts, which leave the watermark free, too.
    left = len(step.planned.pool.free)
    if step.swapped_in and len(step.planned.running) > 1 and left < ctx.config.watermark_blocks:
        yield f"{left} blocks are left, watermark {ctx.config.watermark_blocks}"


def _keeps_the_urgent_in_front(config: VllmV0Config) -> bool:
    return is_by_priority(config) and not config.chunked_prefill and not is_released(config)


@of_step(
    "V0-SWP-14",
    text("`_schedule_priority_preemption`, Why It's Needed"),
    applies=_keeps_the_urgent_in_front,
)
@witness(
    lambda ctx, step: (
        not step.swapped_in and _is_outranked(ctx, step, step.planned.waiting) and step.scheduled
    )
)
def the_swapped_wait_for_the_urgent(ctx: Context, step: Step) -> Iterator[str]:
    """By default no swapped group comes back past a waiting request that is more urgent than all of
    them.
    """
    # What gave way to it would take the blocks that it waits for.
    if step.swapped_in and _is_outranked(ctx, step, step.planned.waiting):
        yield f"{list(step.swapped_in)} come back, {ids(step.planned.waiting)} wait"


@of_step("V0-SWP-12", text("Preemption Modes"), applies=lambda config: config.prefix_caching)
@witness(lambda _, step: any(block in step.before.pool.keys for _, block in step.swaps_in))
def copies_do_not_overwrite(ctx: Context, step: Step) -> Iterator[str]:
    """A swap retains computation: it never overwrites what is computed with what is not."""
    # Onto a block that is found by its content, which was computed there.
    keys, planned = step.before.pool.keys, step.planned.pool.keys
    kept = {block for block in step.before.computed if keys.get(block) == planned.get(block)}
    full, computed = set[int](), set[int]()
    for group in step.before.swapped:
        for sequence in group.sequences:
            full |= {*sequence.blocks[: sequence.slots // ctx.config.block_size]}
            computed |= {*sequence.blocks[: group.computed // ctx.config.block_size]}
    wrong = [pair for pair in step.swaps_in if pair[0] in full - computed and pair[1] in kept]
    if wrong:
        yield f"{wrong} are copied, computed are {sorted(computed)}"


@of_step("V0-SWP-15", _SWAPPED)
@witness(lambda _, step: step.swapped_in and step.planned.swapped)
def swapped_come_back_in_their_order(ctx: Context, step: Step) -> Iterator[str]:
    """Swapped groups come back in the order of their queue: none past one in front of it that found
    no room, but for one whose adapter is one too many.
    """
    # Those that can never come back leave.
    queue = [group for group in step.before.swapped if group.id not in step.ignored]
    back = [group.id for group in queue if group.id in step.swapped_in]
    if [*step.swapped_in] != back:
        yield f"{list(step.swapped_in)} come back, in the queue {back}"
    for place, group in enumerate(queue):
        later = {*ids(queue[place:])} & {*step.swapped_in}
        if group.id not in step.swapped_in and later and not lacks_adapter(ctx, step, group):
            yield f"{sorted(later)} come back, {group.id} stays in front of them"


@of_step("V0-SWP-16", code("_remove_seq_from_computed_blocks_tracker"))
@witness(lambda _, step: step.after.swapped and not step.swapped_in)
def only_refused_ones_are_forgotten(ctx: Context, step: Step) -> Iterator[str]:
    """What lookups remember of a swapped group is forgotten only by the release, with prefix
    caching, where the group's blocks find room and its tokens do not; it stays so until the group
    is back.
    """
    # It is the first that stays and is not kept back by its adapter.
    config, before = ctx.config, by_id(step.before.present)
    may = is_released(config) and config.prefix_caching
    for state in (step.planned, step.after):
        stays = [group for group in state.swapped if group.id not in step.swapped_out]
        first = next((group for group in stays if not lacks_adapter(ctx, step, group)), None)
        for group in state.present:
            was = before.get(group.id, group)
            is_new = group.is_forgotten and not was.is_forgotten
            if group.is_forgotten and (not may or not group.is_swapped or group.is_prefill):
                yield f"{group.id} is forgotten"
            if was.is_forgotten and group.is_swapped and not group.is_forgotten:
                yield f"{group.id} was forgotten and is not any more"
            if is_new and group is not first:
                yield f"{group.id} is forgotten, the first that stays is {first and first.id}"
    if may and not step.after.failure and not victims(step) and not lacks_budget(step):
        yield from _not_forgotten(ctx, step)


def _not_forgotten(ctx: Context, step: Step) -> Iterator[str]:
    """The first swapped group, if its blocks fit in the worst case and it is not forgotten."""
    first = next((group for group in step.planned.swapped), None)
    if first is None or first.is_prefill or first.is_forgotten or lacks_adapter(ctx, step, first):
        return
    if step.admitted or _is_outranked(ctx, step, step.before.waiting):
        return  # it was not looked at
    free = len(step.planned.pool.free) - ctx.config.watermark_blocks
    if swapped_needs(ctx, first) + len(first.unfinished) <= free and not step.by_priority:
        yield f"{first.id} stays with {free} free blocks and is not forgotten"
