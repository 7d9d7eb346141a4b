"""The block manager: the GPU and CPU blocks that a group needs, takes and gives back.

Source: vllm-v0, "Memory Management & Preemption", "Detailed Overview of Preemption and Swapping
Functions" and the sections named at each function; what these leave open is as in vLLM 0.9.2.
Pure functions that touch no queue: they return the state with other pools, and the group.

Each raises GuardError, with the rule that its guard stands for, where the guard does not hold, and
`EngineEnds` where the release dies.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from enum import StrEnum

from attrs import evolve

from reference.core.guards import require
from reference.vllm_v0.memory import (
    EngineEnds,
    Memory,
    become_full,
    compute,
    copy_on_write,
    fill,
    forget,
    give_back,
    hand_out,
    hold,
    is_computed,
)
from spec.core.blocks import block_count, missing_blocks
from spec.core.requests import BlockKey
from spec.vllm_v0.config import prompt_blocks, touched_blocks
from spec.vllm_v0.records import Context, Group, Pairs, Sequence, State

__all__ = ["EngineEnds", "Fit"]


class Fit(StrEnum):
    """Whether a group's blocks can be had now, later, or not even of an empty device."""

    NOW = "now"
    LATER = "later"
    NEVER = "never"


# --- what both devices have in common -----------------------------------------------------------


def gpu(state: State) -> Memory:
    """The blocks of the GPU."""
    return Memory(state.pool, state.computed, state.marks)


def with_gpu(state: State, memory: Memory) -> State:
    """The state with these blocks on the GPU."""
    return evolve(state, pool=memory.pool, computed=memory.computed, marks=memory.marks)


def full_keys(ctx: Context, sequence_id: str, tokens: int) -> Seq[BlockKey]:
    """Contents of the blocks that a sequence of `tokens` fills; none without prefix caching."""
    if not ctx.config.prefix_caching:
        return ()
    return ctx.keys.of(sequence_id, tokens // ctx.config.block_size)


# --- admission ------------------------------------------------------------------------------------


def can_allocate(ctx: Context, state: State, group: Group, lookahead: int) -> Fit:
    """Whether a waiting group finds its blocks and leaves the watermark free.

    Prefix caching is not reckoned with. Source: "Determines prefill feasibility with lookahead
    slots", "Long sequences do not block smaller ones".
    """
    config = ctx.config
    encoder = ctx.requests[group.id].encoder_len
    needed = prompt_blocks(group.tokens + lookahead, encoder, config.block_size)
    if state.pool.size - needed < config.watermark_blocks:
        return Fit.NEVER
    fits = len(state.pool.free) - needed >= config.watermark_blocks
    return Fit.NOW if fits else Fit.LATER


def cached_tokens(ctx: Context, state: State, group: Group) -> int:
    """Tokens of the longest prefix of whole blocks that are cached and computed.

    The release looks for its end by halving, as if no cached block could lack the one before it
    ("Calculating New Cached & Uncached Tokens").
    """
    memory = gpu(state)
    keys = full_keys(ctx, group.unfinished[0].id, group.tokens)
    missing = [not is_computed(memory, key) for key in keys]
    if ctx.config.choices.bisects_prefix:
        return bisect_left(missing, True) * ctx.config.block_size
    return [*missing, True].index(True) * ctx.config.block_size


def allocate(ctx: Context, state: State, group: Group) -> tuple[State, Group]:
    """The group's only sequence gets blocks for all its tokens, and its encoder's output others.

    Full blocks are shared by content, computed or not ("Allocating and Running Sequences").
    """
    # guard
    require(can_allocate(ctx, state, group, 0) is Fit.NOW, "allocate", "V0-ADM-1")
    # effect
    (first,), size = group.unfinished, ctx.config.block_size
    keys = full_keys(ctx, first.id, group.tokens)
    count = block_count(group.tokens, size)
    memory, table = fill(gpu(state), keys, count - len(keys))
    memory, cross = hand_out(memory, block_count(ctx.requests[group.id].encoder_len, size))
    running = evolve(first, slots=group.tokens, blocks=table)
    sequences = tuple(
        running if sequence.id == first.id else sequence for sequence in group.sequences
    )
    return with_gpu(state, memory), evolve(group, sequences=sequences, cross=cross)


# --- slots of new tokens --------------------------------------------------------------------------


def unseen(group: Group, sequence: Sequence) -> int:
    """Tokens of the sequence that have no slot yet."""
    return group.prompt_len + sequence.generated - sequence.slots


def can_append_slots(ctx: Context, state: State, group: Group, lookahead: int) -> bool:
    """Whether there are free blocks for what the group's sequences write next.

    Source: "Checking if More Slots Can Be Added". The release reckons with the worst case: each
    block written to is a new one.
    """
    count = _blocks_at_worst if ctx.config.choices.slots_at_worst else _blocks_lacking
    return count(ctx, state, group, lookahead) <= len(state.pool.free)


def _blocks_at_worst(ctx: Context, _state: State, group: Group, lookahead: int) -> int:
    """Blocks that the unseen tokens and the lookahead touch."""
    size = ctx.config.block_size
    return sum(
        int(touched_blocks(sequence.slots, unseen(group, sequence) + lookahead, size))
        for sequence in group.unfinished
    )


def _blocks_lacking(ctx: Context, state: State, group: Group, lookahead: int) -> int:
    """Blocks that the tables lack, and copies of partial blocks that several sequences write to.

    The last of them that writes keeps the block.
    """
    size, holders = ctx.config.block_size, state.pool.references
    lacking, writers = 0, Counter[int]()
    for sequence in group.unfinished:
        new = unseen(group, sequence)
        lacking += int(missing_blocks(sequence.slots + new + lookahead, len(sequence.blocks), size))
        if new and sequence.slots % size:
            writers[sequence.blocks[sequence.slots // size]] += 1
    return lacking + sum(min(count, holders[block] - 1) for block, count in writers.items())


def append_slots(
    ctx: Context, state: State, group: Group, lookahead: int
) -> tuple[State, Group, Pairs]:
    """Unseen tokens get slots, and `lookahead` more are held ("Appending Memory Slots").

    Shared blocks are copied before they are written to: the pairs say from where and to where.

    Raises:
        EngineEnds: there are not enough free blocks.
    """
    # guard
    on_gpu = not group.is_swapped and all(sequence.blocks for sequence in group.unfinished)
    require(on_gpu, "append_slots", "V0-LIF-6")
    # effect
    memory, copies, grown = gpu(state), [], []
    for sequence in group.sequences:
        if not sequence.is_finished:
            memory, sequence, pairs = _append(
                ctx, memory, sequence, unseen(group, sequence), lookahead
            )
            copies += pairs
        grown.append(sequence)
    return with_gpu(state, memory), evolve(group, sequences=tuple(grown)), tuple(copies)


def _append(
    ctx: Context, memory: Memory, sequence: Sequence, new: int, lookahead: int
) -> tuple[Memory, Sequence, list[tuple[int, int]]]:
    size, tokens = ctx.config.block_size, sequence.slots + new
    # blocks for all of them first
    missing = missing_blocks(tokens + lookahead, len(sequence.blocks), size)
    memory, fresh = hand_out(memory, int(missing))
    table = [*sequence.blocks, *fresh]
    copies: list[tuple[int, int]] = []
    # then block by block: a copy if it is shared, and its content if it is full
    keys = full_keys(ctx, sequence.id, tokens)
    for place in range(sequence.slots // size, block_count(tokens, size)) if new else ():
        key = keys[place] if place < len(keys) else None
        memory, block, pairs = _written(ctx, memory, table[place], key)
        table[place], copies = block, copies + pairs
    return memory, evolve(sequence, slots=tokens, blocks=tuple(table)), copies


def _written(
    ctx: Context, memory: Memory, block: int, key: BlockKey | None
) -> tuple[Memory, int, list[tuple[int, int]]]:
    """The block of a table after it was written to; `key`: its content if it is full.

    It gives way to one of equal content that is computed; under the release also to one that is
    not, and only after it was copied.
    """
    blindly = ctx.config.choices.gives_way_blindly
    if key is not None and not blindly:
        if is_computed(memory, key):
            return *become_full(memory, block, key), []
        memory = forget(memory, key)
    own, copies = block, []
    if memory.pool.references[block] > 1:
        memory, own = copy_on_write(memory, block)
        copies = [(block, own)]
    if key is not None:
        memory, own = become_full(memory, own, key)
    return memory, own, copies


def fork(ctx: Context, state: State, group: Group, ids: tuple[str, ...]) -> tuple[State, Group]:
    """New sequences that hold all blocks of the first one, too ("Forking Sequences")."""
    # guard
    (parent,) = group.sequences
    require(not group.is_swapped and bool(parent.blocks), "fork", "V0-LIF-6")
    # effect
    memory = hold(gpu(state), parent.blocks, len(ids))
    children = (evolve(parent, id=id_) for id_ in ids)
    return with_gpu(state, memory), evolve(group, sequences=(parent, *children))


# --- giving back ----------------------------------------------------------------------------------


def free(
    ctx: Context, state: State, group: Group, sequences: Iterable[Sequence]
) -> tuple[State, Group]:
    """These sequences give their tables back, and then the encoder's goes ("Freeing Sequences").

    Raises:
        EngineEnds: under the release, see `free_tables`.
    """
    freed, left = free_tables(ctx, state, group, sequences)
    return free_cross(ctx, freed, left)


def free_tables(
    ctx: Context, state: State, group: Group, sequences: Iterable[Sequence]
) -> tuple[State, Group]:
    """These sequences give their tables back.

    Raises:
        EngineEnds: under the release, blocks on the CPU are marked as used on the GPU, or the cache
            does not know of a sequence that was forked and not scheduled since.
    """
    leaving = {sequence.id for sequence in sequences}
    held = [sequence for sequence in group.sequences if sequence.id in leaving]
    left = evolve(
        group,
        sequences=tuple(
            evolve(sequence, blocks=(), slots=0) if sequence.id in leaving else sequence
            for sequence in group.sequences
        ),
    )
    for sequence in held:
        is_new = sequence.id != group.id and sequence.generated == 1
        if is_new and ctx.config.prefix_caching and ctx.config.choices.forgets_forks:
            raise EngineEnds("a forked sequence leaves before it was scheduled")
        state = _give_back(ctx, state, group, sequence)
    return state, left


def free_cross(ctx: Context, state: State, group: Group) -> tuple[State, Group]:
    """The blocks of a group's encoder are given back ("Freeing a Finished Sequence Group")."""
    left = evolve(group, cross=())
    if group.is_swapped and not ctx.config.choices.keeps_cross:
        return evolve(state, cpu=give_back(Memory(state.cpu), group.cross).pool), left
    return with_gpu(state, give_back(gpu(state), group.cross)), left


def _give_back(ctx: Context, state: State, group: Group, sequence: Sequence) -> State:
    if not group.is_swapped:
        mark = group.mark if ctx.config.prefix_caching else None
        return with_gpu(state, give_back(gpu(state), sequence.blocks, mark))
    # guard
    if ctx.config.prefix_caching and ctx.config.choices.marks_swapped:
        raise EngineEnds("a block of the CPU is marked as used on the GPU")
    # effect
    return evolve(state, cpu=give_back(Memory(state.cpu), sequence.blocks).pool)


# --- computed blocks ------------------------------------------------------------------------------


def mark_computed(ctx: Context, state: State, groups: Mapping[str, int]) -> State:
    """The blocks that count as computed once each of `groups` computed its scheduled tokens.

    Source: "Marking Blocks as Computed". The release takes all that have contents.
    """
    if ctx.config.choices.computed_when_allocated:
        return evolve(state, computed=frozenset(state.pool.keys))
    memory = gpu(state)
    for group in state.running:
        for sequence in group.unfinished if group.id in groups else ():
            chunk = group.computed + groups[group.id]
            keys = full_keys(
                ctx, sequence.id, min(chunk, sequence.slots) if group.is_prefill else sequence.slots
            )
            memory = compute(memory, sequence.blocks[: len(keys)], keys)
    return with_gpu(state, memory)
