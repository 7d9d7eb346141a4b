"""Counts for the rules, by definition: tokens, blocks and sequences, one by one.

The machine has a closed form for most of this; here it is what the words mean.
"""

from collections import Counter
from collections.abc import Container, Iterable

from attrs import frozen

from spec.core.requests import BlockKey
from spec.vllm_v0.config import Scheduling, VllmV0Config
from spec.vllm_v0.records import Context, Group, Sequence, State, Step
from spec.vllm_v0.rules.registry import by_id, is_documented, is_released, victims

# --- blocks of tokens ----------------------------------------------------------------------------


def places(start: int, end: int, size: int) -> range:
    """Places in a table of the blocks that the positions from `start` up to `end` lie in."""
    return range(start // size, (end - 1) // size + 1) if end > start else range(0)


def needed_blocks(tokens: int, size: int) -> int:
    """Blocks that `tokens` tokens need."""
    return len(range(0, tokens, size))


def ahead(group: Group, config: VllmV0Config) -> int:
    """Slots that a sequence of the group is promised beyond its known tokens.

    A prompt has them where it decodes in the same step: several steps for one decision, and chunks.
    """
    if not group.is_prefill:
        return config.num_lookahead_slots
    decodes_too = config.chunked_prefill and config.num_scheduler_steps > 1
    return config.num_lookahead_slots + 1 if decodes_too else 0


def written(group: Group, sequence: Sequence, config: VllmV0Config) -> range:
    """Places of the blocks in which a sequence has tokens without a slot, or lookahead slots."""
    end = group.prompt_len + sequence.generated + ahead(group, config)
    return places(sequence.slots, end, config.block_size)


def prompt_needs(ctx: Context, group: Group) -> int:
    """GPU blocks of a waiting group: for all its tokens, what is ahead, and its encoder."""
    size, tokens = ctx.config.block_size, group.tokens + ahead(group, ctx.config)
    return needed_blocks(tokens, size) + needed_blocks(ctx.requests[group.id].encoder_len, size)


def swapped_needs(ctx: Context, group: Group, there: Container[BlockKey] = ()) -> int:
    """GPU blocks of a swapped group: its tables, tokens without a slot, and what is ahead.

    `there`: contents that tables hold on the GPU already.
    """
    size, tokens = ctx.config.block_size, group.tokens + ahead(group, ctx.config)
    tables = (
        max(len(sequence.blocks), needed_blocks(tokens, size)) for sequence in group.unfinished
    )
    full = (
        ctx.keys.of(sequence.id, sequence.slots // size) for sequence in group.unfinished if there
    )
    return sum(tables) + len(group.cross) - sum(key in there for keys in full for key in keys)


def brought(ctx: Context, step: Step) -> set[int]:
    """GPU blocks that no group held before the step and that those admitted in it hold."""
    rows = by_id(step.planned.running)
    tables = (rows[id_].blocks for id_ in step.admitted if id_ in rows)
    return {block for table in tables for block in table} - step.before.pool.references.keys()


def contents_held(step: Step) -> set[BlockKey]:
    """What GPU blocks hold that stood in tables before the step and when it was decided."""
    pool, planned = step.before.pool, step.planned.pool
    held = pool.references.keys() & planned.references.keys() & pool.keys.keys()
    return {pool.keys[block] for block in held if planned.keys.get(block) == pool.keys[block]}


# --- tokens of a step ----------------------------------------------------------------------------


def token_limit(config: VllmV0Config) -> int:
    """Uncached tokens that a step may compute; by default the model length, 2,048 at least."""
    given = config.max_num_batched_tokens
    return max(config.max_model_len, 2_048) if given is None else given


def uncached(step: Step, group: Group) -> int:
    """Tokens that a scheduled group computes: of a prompt those behind the cached ones.

    The last one of a prompt is computed in any case.
    """
    if not group.is_prefill:
        return len(group.unfinished)
    end = group.computed + step.scheduled[group.id]
    return max(len(range(max(group.computed, group.cached or 0), end)), 1)


def batched(step: Step) -> dict[str, int]:
    """Tokens that are computed, by request."""
    rows = by_id(step.planned.running)
    return {id_: uncached(step, rows[id_]) for id_ in step.scheduled if id_ in rows}


def is_finishing(step: Step, group: Group) -> bool:
    """True if the step computes the last of the group's tokens."""
    return group.computed + step.scheduled[group.id] >= group.tokens


def running_decodes(step: Step) -> list[Group]:
    """Groups that decode when the step begins."""
    return [group for group in step.before.running if not group.is_prefill]


# --- tokens themselves ---------------------------------------------------------------------------


def sequence_tokens(ctx: Context, sequence_id: str, count: int) -> tuple[int, list[int]]:
    """The adapter of a sequence and its first `count` tokens: what a block's content follows from.

    Equal tokens of different adapters have different keys and values.
    """
    request = ctx.sequences[sequence_id]
    return request.lora, request.first_tokens(count)


def same_tokens(ctx: Context, sequence_id: str, other_id: str, count: int) -> bool:
    """True if two sequences have the same adapter and the same first `count` tokens."""
    first, second = ctx.sequences[sequence_id], ctx.sequences[other_id]
    if first.lora != second.lora:
        return False
    if first.prompt.begins_like(second.prompt, count):  # their parts say so already
        return True
    return sequence_tokens(ctx, sequence_id, count) == sequence_tokens(ctx, other_id, count)


@frozen
class Holder:
    """A sequence that has a block at a place of its table, and slots up to its token `end` there.

    `end`: at most the block's own end.
    """

    id: str
    place: int
    end: int


def sharers(groups: Iterable[Group], size: int) -> dict[int, list[Holder]]:
    """The sequences that have a block in their tables, of each block that stands in several."""
    sequences = [sequence for group in groups for sequence in group.sequences]
    times = Counter(block for sequence in sequences for block in sequence.blocks)
    shared = {block for block, count in times.items() if count > 1}
    held: dict[int, list[Holder]] = {}
    for sequence in sequences if shared else ():
        for place, block in enumerate(sequence.blocks):
            if block in shared:
                holder = Holder(sequence.id, place, min(sequence.slots, (place + 1) * size))
                held.setdefault(block, []).append(holder)
    return held


def key_depth(key: BlockKey) -> int:
    """Number of blocks up to and including the block with this key."""
    return int.from_bytes(key[:4], "big")


def longest_run(ctx: Context, group: Group, contents: set[BlockKey]) -> int:
    """Blocks at the beginning of a group's tokens that are all among the contents."""
    full = group.tokens // ctx.config.block_size
    keys = ctx.keys.of(group.unfinished[0].id, full)
    return next((place for place, key in enumerate(keys) if key not in contents), full)


def computed_contents(state: State) -> set[BlockKey]:
    """What the blocks that count as computed hold."""
    return {state.pool.keys[block] for block in state.computed if block in state.pool.keys}


# --- order and room ------------------------------------------------------------------------------


def rank(ctx: Context, group: Group) -> tuple[int, int]:
    """Urgency, then arrival: the smallest is served first.

    The text's example serves the larger number first, the release the smaller one.
    """
    priority = ctx.requests[group.id].priority
    if is_documented(ctx.config):
        priority = -priority
    return priority, group.arrival


def looked_at(ctx: Context, step: Step) -> list[Group]:
    """Waiting requests that are not ignored, in the order in which the step looks at them."""
    queue = [group for group in step.before.waiting if group.id not in step.ignored]
    config = ctx.config
    if is_by_priority(config) and not config.chunked_prefill and not is_released(config):
        queue.sort(key=lambda group: rank(ctx, group))
    return queue


def running_order(ctx: Context, step: Step) -> list[str]:
    """Groups that ran before and do so on, in the order in which the step looks at them.

    By priority, under the default strategy, they are sorted; in the release only without prompts.
    """
    queue, config = list(step.before.running), ctx.config
    sorts = is_by_priority(config) and not config.chunked_prefill
    if sorts and not (step.admitted and is_released(config)):
        queue.sort(key=lambda group: rank(ctx, group))
    gone = victims(step)
    return [group.id for group in queue if group.id not in gone]


def is_by_priority(config: VllmV0Config) -> bool:
    """True where requests are served by priority."""
    return config.scheduling is Scheduling.PRIORITY


def is_too_long(config: VllmV0Config, tokens: int) -> bool:
    """True for a prompt beyond the model, or beyond a step where none is cut."""
    is_cut = config.chunked_prefill and config.num_scheduler_steps == 1
    return tokens > config.max_model_len or (tokens > token_limit(config) and not is_cut)


def is_long(config: VllmV0Config, tokens: int) -> bool:
    """True if what is left of a prompt is long: by default more than a 25th of the model length."""
    if config.long_prefill_token_threshold:
        return tokens > config.long_prefill_token_threshold
    return 25 * tokens > config.max_model_len


def long_prompts(ctx: Context, step: Step) -> list[str]:
    """Long prompts that were under way before the step, and those that it begins."""
    prompts = [group for group in step.before.running if group.is_prefill]
    prompts += [group for group in step.before.waiting if group.id in step.admitted]
    return [group.id for group in prompts if is_long(ctx.config, group.tokens - group.computed)]


@frozen
class Room:
    """What a step had left: free GPU blocks, uncached tokens, sequences."""

    blocks: int
    tokens: int
    seqs: int


def lacks_budget(step: Step) -> bool:
    """True if a decoding group was given nothing, and did not give way."""
    gone = victims(step)
    return any(
        group.id not in step.scheduled and group.id not in gone for group in running_decodes(step)
    )


def room_for_prompts(ctx: Context, step: Step) -> Room:
    """What was left when the last waiting request was looked at.

    Prompts come first under the default strategy, and last where they are chunked.
    """
    config, before = ctx.config, step.before
    computed, rows = batched(step), by_id(step.planned.running)
    if config.chunked_prefill:
        blocks, taken = len(step.planned.pool.free), sum(computed.values())
        runs = [rows[id_] for id_ in step.scheduled if id_ in rows]
    else:
        blocks = len(before.pool.free) - len(brought(ctx, step))
        taken = sum(computed[id_] for id_ in step.admitted)
        runs = [*before.running, *(rows[id_] for id_ in step.admitted)]
    seqs = sum(will_have(ctx, group) for group in runs)
    return Room(blocks, token_limit(config) - taken, config.max_num_seqs - seqs)


def will_have(ctx: Context, group: Group) -> int:
    """Sequences of the group that go on, or those that it will have."""
    return len(group.unfinished) if group.generated else ctx.requests[group.id].n


def fits(ctx: Context, group: Group, room: Room) -> bool:
    """True if a waiting request fits what was left, even if none of its tokens is cached.

    Where prompts are cut a block of it is enough, or a token without prefix caching.
    """
    config, tokens = ctx.config, group.tokens
    if config.chunked_prefill and config.num_scheduler_steps == 1:
        tokens = config.block_size if config.prefix_caching else 1
    share = token_limit(config) // config.max_num_partial_prefills
    has_tokens = tokens <= room.tokens and (tokens <= share or not config.chunked_prefill)
    has_blocks = prompt_needs(ctx, group) <= room.blocks - config.watermark_blocks
    return has_tokens and has_blocks and ctx.requests[group.id].n <= room.seqs


def lacks_adapter(ctx: Context, step: Step, group: Group) -> bool:
    """True if the group's adapter may be one too many in the batch."""
    queues = (step.before.running, step.planned.running)
    for batch in (step.scheduled, *([row.id for row in queue] for queue in queues)):
        adapters = {ctx.requests[id_].lora for id_ in batch} - {0}
        is_full = len(adapters) >= ctx.config.max_loras > 0
        if is_full and ctx.requests[group.id].lora not in {0, *adapters}:
            return True
    return False


def is_passed_over(ctx: Context, step: Step, group: Group) -> bool:
    """True if its adapter or length, or the number of prompts under way, may keep it waiting."""
    config = ctx.config
    runs = [row for row in step.planned.running if row.id in step.scheduled]
    unfinished = sum(not is_finishing(step, row) for row in runs)
    is_full = unfinished >= config.max_num_partial_prefills
    has_all = len(long_prompts(ctx, step)) >= config.max_long_partial_prefills
    is_too_many = is_full or (has_all and is_long(config, group.tokens))
    several = config.max_num_partial_prefills > 1
    return lacks_adapter(ctx, step, group) or (several and is_too_many)
