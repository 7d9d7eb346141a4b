"""Swapping: whether a group's blocks fit the other device, and which go where.

Source: vllm-v0, "Detailed Overview of Preemption and Swapping Functions"; what the text leaves open
is as in vLLM 0.9.2.

Each raises GuardError, with the rule that its guard stands for, where the guard does not hold, and
`EngineEnds` where the release dies.
"""

from attrs import evolve

from reference.core.guards import require
from reference.vllm_v0.block_manager import Fit, full_keys, gpu, unseen, with_gpu
from reference.vllm_v0.memory import Memory, fill, give_back
from spec.core.blocks import block_count
from spec.vllm_v0.config import swapped_blocks, touched_blocks
from spec.vllm_v0.records import Context, Group, Pairs, Sequence, State


def can_swap_out(ctx: Context, state: State, group: Group) -> bool:
    """Whether the CPU has room for the group's blocks ("Swapping Out a Sequence")."""
    lookahead = 0 if ctx.config.choices.counts_filled_only else None
    return _needed(ctx, Memory(state.cpu), group, lookahead) <= len(state.cpu.free)


def can_swap_in(ctx: Context, state: State, group: Group, lookahead: int) -> Fit:
    """Whether the GPU has room for the group's blocks and its next tokens.

    The watermark stays free; unless the release is followed, only where a group runs ("Swapping In
    a Sequence").
    """
    is_alone = not state.running and not ctx.config.choices.watermark_when_alone
    watermark = 0 if is_alone else ctx.config.watermark_blocks
    return _fit(gpu(state), _needed(ctx, gpu(state), group, lookahead), watermark)


def swap_out(ctx: Context, state: State, group: Group) -> tuple[State, Group, Pairs]:
    """The group's tables are on the CPU; pairs of GPU and CPU blocks ("Swapping Out a Sequence").

    Raises:
        EngineEnds: the CPU has fewer free blocks than the tables.
    """
    # guard
    require(not group.is_swapped, "swap_out", "V0-LIF-6")
    # effect
    source, target, swapped, pairs = _swap(ctx, group, gpu(state), Memory(state.cpu))
    after = evolve(with_gpu(state, source), cpu=target.pool)
    return after, evolve(swapped, is_swapped=True), pairs


def swap_in(ctx: Context, state: State, group: Group) -> tuple[State, Group, Pairs]:
    """The group's tables are on the GPU; pairs of CPU and GPU blocks ("Swapping In a Sequence").

    Raises:
        EngineEnds: the GPU has fewer free blocks than the tables.
    """
    # guard
    require(group.is_swapped, "swap_in", "V0-LIF-6")
    # effect
    source, target, back, pairs = _swap(ctx, group, Memory(state.cpu), gpu(state))
    after = evolve(with_gpu(state, target), cpu=source.pool)
    return after, evolve(back, is_swapped=False), pairs


def _fit(target: Memory, needed: int, watermark: int) -> Fit:
    if target.pool.size < needed:
        return Fit.NEVER
    return Fit.NOW if len(target.pool.free) - needed >= watermark else Fit.LATER


def _needed(ctx: Context, target: Memory, group: Group, lookahead: int | None) -> int:
    """Free blocks that the group takes on a device, in the worst case.

    `lookahead`: slots that it is given there beyond its tokens; None: not even these have slots.
    """
    needed = sum(
        _needed_of(ctx, target, group, sequence, lookahead) for sequence in group.unfinished
    )
    return needed if ctx.config.choices.keeps_cross else needed + len(group.cross)


def _needed_of(
    ctx: Context, target: Memory, group: Group, sequence: Sequence, lookahead: int | None
) -> int:
    """The same of one sequence: full blocks that other tables hold there are not counted."""
    size, pool = ctx.config.block_size, target.pool
    slots = 0 if lookahead is None else unseen(group, sequence) + lookahead
    touched = touched_blocks(sequence.slots, slots, size)
    table = 0 if ctx.config.choices.counts_filled_only else len(sequence.blocks)
    shared = sum(
        any(block in pool.references for block in pool.cached.get(key, ()))
        for key in full_keys(ctx, sequence.id, sequence.slots)
    )
    return int(swapped_blocks(sequence.slots // size, touched, table)) - shared


def _swap(
    ctx: Context, group: Group, source: Memory, target: Memory
) -> tuple[Memory, Memory, Group, Pairs]:
    """One sequence after the other; what they shared is shared afterwards by content only.

    Blocks without anything computed are not copied, unless the release is followed.
    """
    choices, sequences = ctx.config.choices, []
    copied = int(block_count(group.computed, ctx.config.block_size))
    pairs: list[tuple[int, int]] = []
    for sequence in group.sequences:
        source = give_back(source, sequence.blocks)
        keys = full_keys(ctx, sequence.id, sequence.slots)
        target, table = fill(target, keys, len(sequence.blocks) - len(keys))
        count = len(table) if choices.swaps_uncomputed else copied
        pairs += [*zip(sequence.blocks, table, strict=True)][:count]
        sequences.append(evolve(sequence, blocks=table))
    cross = group.cross
    if not choices.keeps_cross:
        source = give_back(source, group.cross)
        target, cross = fill(target, (), len(group.cross))
        pairs += zip(group.cross, cross, strict=True)
    return source, target, evolve(group, sequences=tuple(sequences), cross=cross), tuple(pairs)
