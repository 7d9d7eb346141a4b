"""Rules of what a token reads: computed tokens only, in blocks of its own and in shared ones.

A load that is lost within a step, and a victim of the step that had got tokens already, leave
blocks that can be found and hold nothing, for blocks are hashed when a step is planned.
"""

from collections.abc import Iterator, Mapping

from spec.vllm_v1.groups import NULL_BLOCK
from spec.vllm_v1.records import Context, Sequence, State, Step
from spec.vllm_v1.rules.counting import missing_blocks, read_by
from spec.vllm_v1.rules.group_counting import (
    places_in,
    places_of,
    read_before,
    tables_by_group,
)
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
    unfilled = _written(ctx, step, _at_hand(ctx, step), set())
    for row in step.planned.running if unfilled else ():
        for block, read in _reads(ctx, row) if row.id in step.scheduled else ():
            if read > unfilled.get(block, read):
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


def _reads(ctx: Context, row: Sequence) -> Iterator[tuple[int, int]]:
    """The blocks that a request's next token reads, and up to how many tokens of each."""
    for group, table in tables_by_group(ctx, row):
        size = group.block_size
        for place in places_of(group, read_before(group, row.computed)):
            yield table[place], min(row.computed - place * size, size)


def _at_hand(ctx: Context, step: Step) -> dict[int, int]:
    """The unfilled blocks when all is decided: those of before that were not handed out, and what
    a victim of the step was to compute.
    """
    unfilled = dict(step.before.unfilled or ())
    if not (unfilled or step.preempted):
        return unfilled
    tables = {
        row.id: [[*table] for _, table in tables_by_group(ctx, row)] for row in step.before.running
    }
    given: dict[str, range] = {}
    new: dict[int, tuple[int, ...]] = {}
    for event in step.events:
        match event.transition:
            case "allocate" | "allocate_in_group":
                new[event.before if event.transition == "allocate_in_group" else 0] = event.after
                for block in event.after:
                    unfilled.pop(block, None)
            case "catch_up":
                given[event.id] = range(event.before, event.before + event.after)
                _extend(ctx, tables[event.id], new, given[event.id].stop)
                new = {}
            case "admit" | "load":
                new = {}
            case "preempt":
                tokens = given.pop(event.id, range(0))
                for block, there in _planned(ctx, tables[event.id], tokens):
                    unfilled.setdefault(block, there)
    return unfilled


def _extend(
    ctx: Context, tables: list[list[int]], new: Mapping[int, tuple[int, ...]], end: int
) -> None:
    """Put new blocks at the ends of tables, the last at the place of the last slot."""
    for group, table in zip(ctx.config.all_groups, tables, strict=True):
        blocks = new.get(group.number, ())
        places = places_in(ctx, group, end) if blocks else 0
        table += [NULL_BLOCK] * (places - len(table) - len(blocks)) + [*blocks]


def _planned(ctx: Context, tables: list[list[int]], tokens: range) -> Iterator[tuple[int, int]]:
    """The blocks that these tokens were to fill, and how many tokens of each were there before."""
    for group, table in zip(ctx.config.all_groups, tables, strict=True):
        for place in places_of(group, tokens[-1:] if group.is_mamba else tokens):
            yield table[place], max(tokens.start - place * group.block_size, 0)


def _written(
    ctx: Context, step: Step, unfilled: Mapping[int, int], without: set[str]
) -> dict[int, int]:
    """The unfilled blocks once the step's tokens are computed, but for those of some requests."""
    left = {**unfilled}
    for row in step.planned.running if left else ():
        if row.id not in step.scheduled or row.id in without:
            continue
        tokens = range(row.computed, row.computed + step.scheduled[row.id])
        for group, table in tables_by_group(ctx, row):
            size = group.block_size
            for place in places_of(group, tokens[-1:] if group.is_mamba else tokens):
                block, first = table[place], max(tokens.start - place * size, 0)
                if left.get(block, size) >= first:
                    left[block] = max(left.get(block, size), min(tokens.stop - place * size, size))
                    if left[block] == size:
                        del left[block]
    return left


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

    def counted(row: Sequence) -> int:
        tables = (pair for pair in tables_by_group(ctx, row) if block in pair[1])
        return max(
            (row.computed - table.index(block) * group.block_size for group, table in tables),
            default=0,
        )

    return block in state.pool.keys or any(counted(row) > there for row in holders(state))
