"""Rules of several groups of layers: what a token reads in each, and which blocks are kept for it.

Full attention has the first group, whose blocks the rules V1-KV are about. Source: vLLM 0.28.0, KV
cache coordinator.
"""

from collections.abc import Iterator
from itertools import pairwise

from spec.core.judging import begin_alike
from spec.core.requests import BlockKey
from spec.vllm_v1.config import Connector, VllmV1Config
from spec.vllm_v1.groups import NULL_BLOCK, KvGroup, group_key
from spec.vllm_v1.records import Context, Load, Sequence, State, Step
from spec.vllm_v1.rules.counting import blocks_to_find
from spec.vllm_v1.rules.group_counting import (
    held_blocks,
    places_in,
    places_needed,
    places_of,
    read_before,
    tables_by_group,
    uncertain,
)
from spec.vllm_v1.rules.registry import (
    always,
    by_id,
    code,
    has_groups,
    hits,
    holders,
    of_step,
    witness,
)

_COORDINATOR = code("KV cache coordinator")


def finds_in_groups(config: VllmV1Config) -> bool:
    """True if prefixes are looked up in several groups."""
    return has_groups(config) and config.prefix_caching


def _loads_in_groups(config: VllmV1Config) -> bool:
    return has_groups(config) and config.connector is Connector.ASYNC


def has_states(config: VllmV1Config) -> bool:
    """True if a group has states."""
    return config.has_states


def _further(ctx: Context, row: Sequence) -> list[tuple[KvGroup, tuple[int, ...]]]:
    """The request's block tables in the groups beside the first."""
    return [*tables_by_group(ctx, row)][1:]


@of_step("V1-GRP-1", _COORDINATOR, applies=has_groups)
@witness(lambda _, step: any(0 in table for row in step.planned.running for table in row.tables))
def what_is_read_is_there(ctx: Context, step: Step) -> Iterator[str]:
    """In each group a request has a block for each token that its next tokens read, or those of a
    step in flight, and for those that they are.
    """
    # Of a group of states: for the state that is continued, and for the one that is left. Behind
    # rejected drafts the same tokens are read again.
    for row in step.planned.running:
        if row.id not in step.scheduled:
            continue
        spans = uncertain(step, row)
        for group, table in tables_by_group(ctx, row):
            needed = {place for span in spans for place in places_needed(ctx, group, span)}
            lacking = [place for place in sorted(needed) if not _block(table, place)]
            if lacking:
                yield f"{row.id} reads blocks {lacking} of group {group.number}, has {list(table)}"


def _block(table: tuple[int, ...], place: int) -> int:
    return table[place] if place < len(table) else NULL_BLOCK


@of_step("V1-GRP-2", code("remove_skipped_blocks"), applies=has_groups)
@witness(lambda _, step: step.happened("give_back"))
def unread_blocks_are_given_back(ctx: Context, step: Step) -> Iterator[str]:
    """A request that is given tokens holds no block of a group of which neither these read
    anything, nor those of a step in flight, nor any later token.
    """
    # A later token reads no position that an earlier one does not read.
    for row in step.planned.running:
        for group, table in _further(ctx, row) if row.id in step.scheduled else ():
            start = uncertain(step, row)[0].start
            read = places_of(group, read_before(group, start))
            first = read.start if read else start // group.block_size
            unread = held_blocks(table[:first])
            if unread:
                yield f"{row.id} holds {list(unread)} of group {group.number}, reads from {first}"


@always("V1-GRP-3", _COORDINATOR, applies=has_groups)
@witness(
    lambda _, step: any(held_blocks(table) for row in step.after.running for table in row.tables)
)
def a_block_has_one_group(ctx: Context, state: State) -> Iterator[str]:
    """A block is held in one group at a time."""
    # By several requests, if they share it.
    owners: dict[int, int] = {}
    for row in holders(state):
        for group, table in tables_by_group(ctx, row):
            for block in held_blocks(table):
                if owners.setdefault(block, group.number) != group.number:
                    yield f"block {block} is held in groups {owners[block]} and {group.number}"


@of_step("V1-GRP-4", _COORDINATOR)
@witness(lambda _, step: step.happened("hit_in_group") and step.happened("allocate_in_group"))
def group_tables_grow_at_their_ends(ctx: Context, step: Step) -> Iterator[str]:
    """A request's table in a group is what it held but for what was given back, then what it found,
    then what it was handed out, the last block at the place of its last slot; a request that does
    not run has none.
    """
    # Computing changes no table. One that loads, or has loaded, has its tables, too.
    was, after = by_id(holders(step.before)), by_id(holders(step.after))
    running = by_id(step.planned.running)
    for row in holders(step.planned):
        has_blocks = row.id in running or bool(row.blocks)
        is_due = has_blocks and has_groups(ctx.config)
        due = (*_due_tables(ctx, step, was.get(row.id), row),) if is_due else ()
        if row.tables != due:
            yield f"{row.id} has {row.tables}, expected {due}"
        if row.id in after and after[row.id].tables != row.tables:
            yield f"{row.id} has other tables after computing: {after[row.id].tables}"


def _due_tables(
    ctx: Context, step: Step, was: Sequence | None, row: Sequence
) -> list[tuple[int, ...]]:
    """The request's tables in the groups when all is decided."""
    due = []
    found = len(hits(step).get(row.id, ())) * ctx.config.block_size
    for number, group in enumerate(ctx.config.groups, start=1):
        moved = {
            name: [
                block
                for event in step.happened(name)
                if (event.id, event.before) == (row.id, number)
                for block in event.after
            ]
            for name in ("give_back", "hit_in_group", "allocate_in_group")
        }
        held = was.tables[number - 1] if was and was.tables else ()
        kept = [NULL_BLOCK if block in moved["give_back"] else block for block in held]
        if not held:
            taken = moved["hit_in_group"]
            places = found // group.block_size
            kept = [NULL_BLOCK] * (places - len(taken)) + taken
        end = row.computed + step.scheduled.get(row.id, 0)
        new = moved["allocate_in_group"]
        places = places_in(ctx, group, end) if new else 0
        gap = [NULL_BLOCK] * (places - len(kept) - len(new))
        due.append((*kept, *gap, *new))
    return due


@of_step("V1-GRP-5", code("find_longest_cache_hit"), applies=finds_in_groups)
@witness(lambda _, step: step.happened("hit_in_group"))
def longest_common_prefix_is_hit(ctx: Context, step: Step) -> Iterator[str]:
    """A request takes the longest prefix of whole blocks in all groups of which each group has in
    its cache all that the token behind it reads.
    """
    # A longer one was not in the cache all the time: before the step and when all was decided.
    pools, rows = (step.before.pool, step.planned.pool), by_id(step.before.queued)
    tables = by_id(step.planned.present)
    for event in step.happened("admit", "load"):
        row = rows[event.id]
        if row.computed:  # it has loaded
            continue
        taken = len(hits(step).get(row.id, ())) * ctx.config.block_size
        most = blocks_to_find(ctx, row) * ctx.config.block_size
        for end in range(ctx.config.hit_alignment, most + 1, ctx.config.hit_alignment):
            keys = _keys_read(ctx, row, end)
            throughout = [
                {*pools[0].cached.get(key, ())} & {*pools[1].cached.get(key, ())} for key in keys
            ]
            if end > taken and all(throughout):
                yield f"{row.id} takes {taken} tokens, {end} are cached in all groups"
        wrong = _wrong_hits(ctx, step, tables[row.id], taken)
        if wrong or taken % ctx.config.hit_alignment:
            yield f"{row.id} takes {taken} tokens, {wrong} hold others"


def _keys_read(ctx: Context, row: Sequence, end: int) -> list[BlockKey]:
    """The keys of all blocks that the token at position `end` reads, in all groups."""
    return [*ctx.keys.of(row.id, end // ctx.config.block_size)] + [
        group_key(ctx.keys, row.id, group, place)
        for group in ctx.config.groups
        for place in places_of(group, read_before(group, end))
    ]


def _wrong_hits(ctx: Context, step: Step, row: Sequence, taken: int) -> list[int]:
    """Blocks that the request took and that do not hold its first tokens, or that it lacks.

    What a connector brings may leave a token to compute that reads none of them.
    """
    keys = step.planned.pool.keys
    own = zip(row.blocks, ctx.keys.of(row.id, taken // ctx.config.block_size), strict=False)
    wrong = [block for block, key in own if keys.get(block) != key]
    for group, table in _further(ctx, row) if taken else ():
        first = places_of(group, read_before(group, row.computed)).start
        for place in places_of(group, read_before(group, taken)):
            due = group_key(ctx.keys, row.id, group, place) if place >= first else None
            if keys.get(table[place]) != due:
                wrong.append(table[place])
    return wrong


@always("V1-GRP-6", _COORDINATOR, applies=finds_in_groups)
@witness(
    lambda _, step: any(
        block in step.after.pool.keys
        for row in step.after.running
        for table in row.tables
        for block in table
    )
)
def groups_cache_a_requests_own_tokens(ctx: Context, state: State) -> Iterator[str]:
    """A cached block in a table of a group holds the request's own tokens at that place, and is
    found in that group alone.
    """
    # It has the key of the request, the group and the place.
    for row in state.present:
        for group, table in _further(ctx, row):
            full = row.tokens // group.block_size
            for place, block in enumerate(table):
                key = state.pool.keys.get(block)
                if key is None:
                    continue
                if place >= full or key != group_key(ctx.keys, row.id, group, place):
                    yield f"{row.id}: block {block} of group {group.number} has another content"


@always("V1-GRP-7", _COORDINATOR, applies=finds_in_groups)
@witness(lambda _, step: step.happened("hit_in_group"))
def blocks_found_in_groups_are_computed(ctx: Context, state: State) -> Iterator[str]:
    """A block of a group that can be found and is held is full of computed tokens."""
    # One of its holders at least has computed it to its end. A loaded request computes its last
    # token again: the block of it is full all the same.
    computed, held = set[int](), set[int]()
    for row in holders(state):
        again = row.id in ctx.external and row not in state.running
        for group, table in _further(ctx, row):
            computed.update(table[: (row.computed + again) // group.block_size])
            held.update(held_blocks(table))
    if empty := (held - computed) & state.pool.keys.keys():
        yield f"blocks {sorted(empty)} can be found and are not computed"


@of_step("V1-GRP-8", _COORDINATOR, applies=has_groups)
@witness(
    lambda _, step: any(len(table) > 1 for row in step.planned.running for table in row.tables)
)
def no_group_block_is_written_twice(ctx: Context, step: Step) -> Iterator[str]:
    """No two requests write the same block of a group in a step."""
    # A state is written where the last token lies.
    rows, writers = by_id(step.planned.running), dict[int, str]()
    for id_, count in step.scheduled.items():
        row = rows.get(id_)
        if row is None:
            continue
        end = row.computed + count
        for group, table in _further(ctx, row):
            start = end - 1 if group.is_mamba else row.computed
            for place in places_of(group, range(start, end)):
                if writers.setdefault(table[place], id_) != id_:
                    yield f"block {table[place]} is written by {writers[table[place]]} and {id_}"


@of_step("V1-GRP-9", _COORDINATOR, applies=finds_in_groups)
@witness(
    lambda _, step: any(
        step.planned.pool.references.get(block, 0) > 1
        for event in step.happened("hit_in_group")
        for block in event.after
    )
)
def sharers_in_groups_have_equal_tokens(ctx: Context, step: Step) -> Iterator[str]:
    """A request that takes a block of a group which another one holds has the same tokens as that
    one, up to the block's end.
    """
    # Compared token by token, not by keys.
    for event in step.happened("hit_in_group"):
        group = ctx.config.all_groups[event.before]
        for other in holders(step.planned):
            for place, block in enumerate(other.tables[event.before - 1] if other.tables else ()):
                end = (place + 1) * group.block_size
                asked, holder = ctx.requests[event.id], ctx.requests[other.id]
                if block in event.after and not begin_alike(asked, holder, end):
                    yield f"{event.id} and {other.id} share block {block}, their tokens differ"


@of_step("V1-GRP-18", code("allocate_external_computed_blocks"), applies=_loads_in_groups)
@witness(lambda _, step: step.happened("load"))
def loads_have_blocks_where_they_are_read(ctx: Context, step: Step) -> Iterator[str]:
    """A request that loads has, in each group, a block for each token on its way that the token
    behind them reads, none for others, and none that can be found before it has come.
    """
    was, after = by_id(step.before.present), step.after
    known = {block for event in step.happened("hit_in_group") for block in event.after}
    for row in (*after.skipped, *after.draining):
        if row.load is not Load.LOADING:
            continue
        earlier = was.get(row.id, row).tables
        cached = {block for table in earlier for block in table} & step.before.pool.keys.keys()
        for group, table in _further(ctx, row):
            due = {*places_of(group, read_before(group, row.computed))}
            there = {place for place, block in enumerate(table) if block != NULL_BLOCK}
            fresh = {*held_blocks(table)} & after.pool.keys.keys() - known - cached
            if there != due or fresh:
                yield f"{row.id} loads {row.computed} tokens into {list(table)} of {group.number}"


# --- states ---------------------------------------------------------------------------------------


@of_step("V1-GRP-14", code("_mamba_block_aligned_split"), applies=has_states)
@witness(
    lambda _, step: any(
        group_event.transition == "allocate_in_group" and follower.transition == "catch_up"
        for group_event, follower in pairwise(step.events)
    )
)
def states_can_be_found_where_chunks_end(ctx: Context, step: Step) -> Iterator[str]:
    """A state can be found only for a prefix with whose last token a chunk of it ended."""
    # Within a chunk no state is kept; so a request's new content in a group of states is at the
    # end of its chunk, or of one in flight whose results have come. Or it was loaded.
    before, after = step.before.pool.keys, {**step.planned.pool.keys, **step.after.pool.keys}
    found, left = set[int](), set[int]()
    loaded = {event.id for event in step.happened("promote")}
    for row in step.planned.present:
        ends = [row.computed] if row.id in loaded else []
        if row in step.planned.running:
            ends += [tokens.stop for tokens in uncertain(step, row)]
        for group, table in _further(ctx, row):
            if group.is_mamba:
                found.update(block for block in table if block in after)
                places = [
                    end // group.block_size - 1 for end in ends if end % group.block_size == 0
                ]
                left.update(table[place] for place in places)
    fresh = {block for block in found if before.get(block) != after[block]}
    if fresh - left:
        yield f"states in blocks {sorted(fresh - left)} can be found, no chunk ended there"


@of_step("V1-GRP-15", code("cached_blocks_this_step"), applies=has_states)
@witness(lambda _, step: step.refusal == "V1-GRP-15")
def states_are_read_a_step_later(ctx: Context, step: Step) -> Iterator[str]:
    """No request begins with a state that the same step computes."""
    # All that a step computes is read by none of its other requests, where it is a state.
    rows = by_id(step.planned.running)
    written = {
        table[(row.computed + step.scheduled[id_] - 1) // group.block_size]: id_
        for id_ in step.scheduled
        if (row := rows.get(id_)) is not None
        for group, table in _further(ctx, row)
        if group.is_mamba
    }
    for event in step.happened("hit_in_group"):
        group = ctx.config.all_groups[event.before]
        for block in event.after if group.is_mamba else ():
            if written.get(block, event.id) != event.id:
                yield f"{event.id} begins with the state in {block}, {written[block]} computes it"


@of_step("V1-GRP-16", code("shared_prefix_boundary"))
@witness(lambda _, step: any(row.junction for row in step.planned.running))
def junctions_are_where_groups_part(ctx: Context, step: Step) -> Iterator[str]:
    """A request with blocks remembers where the prefix ended that the first group had cached when
    it began, if the others had less of it; one without remembers nothing, nor does any where no
    group has states.
    """
    # What the first group had is between what is there throughout and what is there at any time.
    before = by_id(row for row in holders(step.before) if row.blocks)
    has_any = has_states(ctx.config)
    for state in (step.planned, step.after):
        for row in holders(state):
            if row.junction and not (has_any and row.blocks):
                yield f"{row.id} has no states to keep, and groups part at {row.junction}"
    for row in (row for row in holders(step.planned) if row.blocks) if has_any else ():
        if row.id in before:
            if row.junction != before[row.id].junction:
                yield f"{row.id} says {row.junction}, before {before[row.id].junction}"
            continue
        least, most = _first_group_has(ctx, step, row)
        taken = len(hits(step).get(row.id, ())) * ctx.config.block_size
        parts = row.junction or taken
        if not max(least, taken) <= parts <= max(most, taken) or parts % ctx.config.hit_alignment:
            yield f"{row.id} says groups part at {row.junction}, takes {taken}, at most {most}"
    after = by_id(holders(step.after))
    for row in holders(step.planned):
        if row.id in after and after[row.id].junction != row.junction:
            yield f"{row.id} says {after[row.id].junction} after computing, {row.junction} before"


def _first_group_has(ctx: Context, step: Step, row: Sequence) -> tuple[int, int]:
    """Tokens of the request that the first group has throughout the step, and at any time of it."""
    alignment, size = ctx.config.hit_alignment, ctx.config.block_size
    pools = (step.before.pool.cached, step.planned.pool.cached)
    counts = [0, 0]
    for which, joined in enumerate((set.intersection, set.union)):
        for key in ctx.keys.of(row.id, blocks_to_find(ctx, row)):
            if not joined(*({*pool.get(key, ())} for pool in pools)):
                break
            counts[which] += 1
    least, most = (count * size // alignment * alignment for count in counts)
    return least, most


@of_step("V1-GRP-17", code("last_state_block_idx"))
@witness(lambda _, step: any(row.grown_from for row in step.after.running))
def growth_of_states_is_remembered(ctx: Context, step: Step) -> Iterator[str]:
    """In 0.28.0 beside steps in flight a running request remembers how many places its tables of
    states had before they grew last; no other remembers any.
    """
    # What it took from the cache counts; a request with no place before has grown from none.
    before, taken = by_id(step.before.running), hits(step)
    for row in (*step.planned.queued, *step.planned.draining):
        if row.grown_from:
            yield f"{row.id} does not run, and remembers {row.grown_from} places"
    for row in step.planned.running:
        was, due = before.get(row.id), 0
        for group, table in _further(ctx, row) if ctx.config.leaves_states else ():
            if not group.is_mamba:
                continue
            held = len(was.tables[group.number - 1]) if was else len(taken.get(row.id, ()))
            due = held if len(table) > held else was.grown_from if was else 0
        if row.grown_from != due:
            yield f"{row.id} remembers {row.grown_from} places, expected {due}"
    planned = by_id(step.planned.running)
    for row in holders(step.after):
        due = planned[row.id].grown_from if row.id in planned else 0
        if row.grown_from != due:
            yield f"{row.id} remembers {row.grown_from} places after computing, expected {due}"
