"""Rules of groups with several sequences: forks, copy-on-write, and tokens of their own.

Source: vllm-v0, "Forking Sequences (`fork_seq`)".
"""

from collections import Counter
from collections.abc import Iterator

from spec.core.words import by_name
from spec.vllm_v0.records import Context, Sequence, State, Step
from spec.vllm_v0.rules.counting import same_tokens, sharers
from spec.vllm_v0.rules.registry import always, by_id, code, of_step, sequences_by_id, text, witness

_FORK = text("Forking Sequences (`fork_seq`)")


def _forks(_ctx: Context, step: Step) -> bool:
    return bool(step.forked)


@of_step("V0-SEQ-1", _FORK, witness=_forks)
def forked_with_the_first_token(ctx: Context, step: Step) -> Iterator[str]:
    """A request that asks for several sequences is forked into them when it samples its first
    token, and only then.
    """
    # Each of the others is forked from the first.
    expected = {
        name: group.id
        for group in step.planned.running
        if group.id in step.sampling and not group.generated
        for name in ctx.names[group.id][1:]
    }
    if dict(step.forked) != expected:
        yield f"forked {by_name(step.forked)}, expected {by_name(expected)}"
    before = by_id(step.before.present)
    for group in step.after.present:
        names = [group.id, *(child for child, parent in expected.items() if parent == group.id)]
        known = [sequence.id for sequence in before[group.id].sequences]
        if [sequence.id for sequence in group.sequences] != (names if len(names) > 1 else known):
            yield f"{group.id} has {[sequence.id for sequence in group.sequences]}"


@of_step("V0-SEQ-2", _FORK, witness=_forks)
def forked_begin_alike(_ctx: Context, step: Step) -> Iterator[str]:
    """Forked sequences have the same memory as the one that they were forked from."""
    # The same blocks and slots, before any of them writes.
    parents = sequences_by_id(step.planned.running)
    for sequence in (sequence for group in step.after.running for sequence in group.unfinished):
        parent = parents.get(step.forked.get(sequence.id, ""))
        if parent is None:
            continue
        own, of_parent = [*sequence.blocks], [*parent.blocks]
        if (own, sequence.slots) != (of_parent, parent.slots):
            yield f"{sequence.id} has blocks {own}, {parent.id} {of_parent}"


def _writes(step: Step) -> Iterator[tuple[Sequence, range]]:
    """Sequences that are scheduled, with the positions of the tokens that they write."""
    for group in step.planned.running:
        count = step.scheduled.get(group.id)
        if count is None:
            continue
        start, end = group.computed, group.computed + count
        if not group.is_prefill:
            end = group.tokens
        elif group.cached:
            start = min(max(start, group.cached), end - 1)
        for sequence in group.unfinished:
            yield sequence, range(start, end)


@of_step("V0-SEQ-3", _FORK)
@witness(
    lambda _, step: any(
        not group.is_prefill and len(group.unfinished) > 1 and group.id in step.scheduled
        for group in step.planned.running
    )
)
def sequences_write_apart(ctx: Context, step: Step) -> Iterator[str]:
    """What a sequence writes is independent of all others: a block that it writes to is held by
    another only if that has the same tokens up to what is written.
    """
    # The tokens are compared, up to each that is written.
    size = ctx.config.block_size
    held = sharers(step.planned.running, size)
    for sequence, positions in _writes(step):
        for place in sorted({position // size for position in positions}):
            last = min(positions.stop, (place + 1) * size)
            for block in sequence.blocks[place : place + 1]:
                for other in held.get(block, ()):
                    if other.id == sequence.id:
                        continue
                    if other.end < last or not same_tokens(ctx, sequence.id, other.id, last):
                        yield f"{sequence.id} writes to block {block} of {other.id}"


@of_step("V0-SEQ-4", _FORK, witness=lambda _, step: step.copies)
def shared_blocks_are_copied(ctx: Context, step: Step) -> Iterator[str]:
    """A block that several hold is copied for the one that is to write to it, to a block of its
    own, and no other block is copied.
    """
    # In its place of the table; with prefix caching that may be a known block of the same content,
    # for which a block of its own is given up.
    before, after = sequences_by_id(step.before.running), sequences_by_id(step.planned.running)
    targets, known = Counter(target for _, target in step.copies), {*step.planned.pool.keys}
    for source, target in step.copies:
        now = {
            sequence.blocks[before[name].blocks.index(source)]
            for name, sequence in after.items()
            if name in before and source in before[name].blocks
        }
        own = now & {target, *known}
        is_shared = step.before.pool.references.get(source, 0) > 1 or target in known & now
        is_twice = targets[target] > 1 and not ctx.config.prefix_caching
        if not own or not is_shared or is_twice:
            yield f"{source} is copied to {target}, at its place are {sorted(now)}"


@of_step("V0-SEQ-7", _FORK)
@witness(lambda _, step: step.copies)
def computed_blocks_stay(ctx: Context, step: Step) -> Iterator[str]:
    """What a sequence has computed stays in its table: a block of it is exchanged only for one that
    it is copied to, or that holds the same.
    """
    # Of those that go on running; what a swap does see V0-SWP-2.
    size, planned = ctx.config.block_size, by_id(step.planned.running)
    for group in (group for group in step.before.running if group.id in planned):
        now = {sequence.id: sequence.blocks for sequence in planned[group.id].sequences}
        for sequence in group.unfinished:
            for place, block in enumerate(sequence.blocks[: len(range(0, group.computed, size))]):
                other, end = now[sequence.id][place], min(group.computed, (place + 1) * size)
                is_same = block == other or (block, other) in step.copies
                if not is_same and not _holds(ctx, step.before, other, sequence.id, end):
                    yield f"{sequence.id} has computed block {block}, in its place is {other}"


def _holds(ctx: Context, state: State, block: int, sequence_id: str, end: int) -> bool:
    """True if the last of the sequence's first `end` tokens are computed in the block."""
    place = (end - 1) // ctx.config.block_size
    keys = ctx.keys.of(sequence_id, place + 1)
    if block in state.computed and state.pool.keys.get(block) == keys[-1]:
        return True
    return any(
        group.computed >= end and same_tokens(ctx, sequence.id, sequence_id, end)
        for group in state.running
        for sequence in group.unfinished
        if sequence.blocks[place : place + 1] == (block,)
    )


@of_step("V0-SEQ-5", _FORK, witness=lambda _, step: len(step.sampled) > len(step.outputs) > 0)
def sequences_sample_their_own_tokens(ctx: Context, step: Step) -> Iterator[str]:
    """Each sequence samples what it would sample alone, whatever its siblings do."""
    # From the first token that it had not sampled yet; outputs have those of a group together.
    planned = sequences_by_id(step.planned.running)
    outputs: dict[str, list[int]] = {}
    for name, tokens in step.sampled.items():
        first = planned[name].generated if name in planned else 0
        request = ctx.sequences[name]
        own = [request.output_token(first + index) for index in range(len(tokens))]
        outputs.setdefault(ctx.owners[name], []).extend(own)
        if list(tokens) != own:
            yield f"{name} samples {list(tokens)}, alone {own}"
    if {id_: list(tokens) for id_, tokens in step.outputs.items()} != outputs:
        yield f"outputs {by_name(step.outputs)}, sampled {by_name(step.sampled)}"


@always("V0-SEQ-6", code("sequence groups"))
@witness(lambda _, step: any(len(group.unfinished) > 1 for group in step.after.running))
def sequences_go_on_together(_ctx: Context, state: State) -> Iterator[str]:
    """All sequences of a group that are unfinished have sampled equally many tokens; a prompt is
    computed by one sequence alone.
    """
    # Computed again after a preemption, too.
    for group in state.present:
        lengths = {(sequence.generated, sequence.slots) for sequence in group.unfinished}
        if len(lengths) > 1 or (group.is_prefill and len(group.unfinished) > 1):
            yield f"{group.id}: tokens and slots {sorted(lengths)}, prefill {group.is_prefill}"
