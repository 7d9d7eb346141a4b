"""Rules of what a token reads: computed tokens only, in blocks of its own and in shared ones.

A load that is lost within a step, and a victim of the step that had got tokens already, leave
blocks that can be found and hold nothing, for blocks are hashed when a step is planned.
"""

from collections.abc import Iterator, Mapping

from spec.vllm_v1.records import Context, Sequence, State, Step
from spec.vllm_v1.rules.counting import missing_blocks, read_by
from spec.vllm_v1.rules.registry import between, by_id, holders, of_step, text

_PREFIX = text("Prefix Caching - Shared KV Blocks")


@of_step("V1-KV-19", _PREFIX, witness=lambda _, step: step.before.unfilled)
def tokens_read_what_is_computed(ctx: Context, step: Step) -> Iterator[str]:
    """A token reads only tokens that are computed before its step or in it, in blocks of its own
    request and in blocks that its request shares.
    """
    # All that a step computes is written before any of it is read.
    if not step.before.unfilled:
        return
    size, unfilled = ctx.config.block_size, _written(ctx, step, _at_hand(ctx, step), set())
    for row in step.planned.running if unfilled else ():
        for place, block in enumerate(row.blocks if row.id in step.scheduled else ()):
            read = min(row.computed - place * size, size)
            if read > unfilled.get(block, size):
                yield f"{row.id} reads {read} tokens of block {block}, {unfilled[block]} are there"


@of_step("V1-KV-20", _PREFIX, witness=lambda _, step: step.after.unfilled)
def unfilled_blocks_are_known(ctx: Context, step: Step) -> Iterator[str]:
    """A block is known as unfilled from the step that leaves its tokens uncomputed although it can
    be found, or is counted as computed, until they are computed or it is handed out.
    """
    if step.after.unfilled is None:
        return
    undone = {*step.failed_loads}
    unfilled = {**_written(ctx, step, _at_hand(ctx, step), undone), **_missing(ctx, step)}
    due = {
        block: count for block, count in unfilled.items() if _counts(ctx, step.after, block, count)
    }
    if step.after.unfilled != tuple(sorted(due.items())):
        yield f"unfilled {step.after.unfilled}, expected {due}"


@between("V1-KV-21", _PREFIX, witness=lambda _, step: step.before.unfilled)
def nothing_is_filled_between_steps(_ctx: Context, before: State, after: State) -> Iterator[str]:
    """Between two steps no unfilled block is filled, and none becomes one."""
    # What an asynchronous load brings, or loses, could not be found before.
    if after.unfilled != before.unfilled:
        yield f"unfilled {after.unfilled}, before {before.unfilled}"


def _at_hand(ctx: Context, step: Step) -> dict[int, int]:
    """The unfilled blocks when all is decided: those of before that were not handed out, and what
    a victim of the step was to compute.
    """
    size, unfilled = ctx.config.block_size, dict(step.before.unfilled or ())
    tables = {row.id: row.blocks for row in step.before.running}
    given: dict[str, range] = {}
    for event in step.events:
        match event.transition:
            case "allocate":
                tables[event.id] = tables.get(event.id, ()) + event.after
                for block in event.after:
                    unfilled.pop(block, None)
            case "catch_up":
                given[event.id] = range(event.before, event.before + event.after)
            case "preempt":
                tokens = given.pop(event.id, range(0))
                for place in range(tokens.start // size, -(-tokens.stop // size)):
                    there = max(tokens.start - place * size, 0)
                    unfilled.setdefault(tables[event.id][place], there)
    return unfilled


def _written(
    ctx: Context, step: Step, unfilled: Mapping[int, int], without: set[str]
) -> dict[int, int]:
    """The unfilled blocks once the step's tokens are computed, but for those of some requests."""
    size, left = ctx.config.block_size, {**unfilled}
    for row in step.planned.running if left else ():
        if row.id not in step.scheduled or row.id in without:
            continue
        end = row.computed + step.scheduled[row.id]
        for place in range(row.computed // size, -(-end // size)):
            block, first = row.blocks[place], max(row.computed - place * size, 0)
            if left.get(block, size) >= first:
                left[block] = max(left.get(block, size), min(end - place * size, size))
    return {block: count for block, count in left.items() if count < size}


def _missing(ctx: Context, step: Step) -> dict[int, int]:
    """The blocks that a lost load of the step leaves unfilled, and those computed from them."""
    size, missing = ctx.config.block_size, missing_blocks(ctx, step)
    rows, after = by_id(step.planned.running), by_id(step.after.running)
    unfilled = dict.fromkeys(missing, 0)
    for name, count in read_by(ctx, step).items() if missing else ():
        blocks = rows[name].blocks
        if missing.isdisjoint(blocks[: len(range(0, count, size))]):
            continue
        valid = after[name].computed if name in after else _valid(blocks, missing, size, count)
        for place in range(valid // size, len(blocks)):
            unfilled.setdefault(blocks[place], max(valid - place * size, 0))
    return unfilled


def _valid(blocks: tuple[int, ...], missing: set[int], size: int, read: int) -> int:
    """Tokens before the first missing block; the request has left and computes nothing again."""
    return min(read, *(place * size for place, block in enumerate(blocks) if block in missing))


def _counts(ctx: Context, state: State, block: int, there: int) -> bool:
    """True if lookups find the block, or a request counts more of it as computed than there is."""
    size = ctx.config.block_size

    def counted(row: Sequence) -> int:
        return row.computed - row.blocks.index(block) * size if block in row.blocks else 0

    return block in state.pool.keys or any(counted(row) > there for row in holders(state))
