"""Rules of the block pool: nothing is lost, shared without count, or handed out in another order.

Source: vllm-v1, "Memory Management & Preemption" and "Prefix Caching"; the order of the free list
is that of the release.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import chain

from attrs import define, field

from spec.core import judging
from spec.core.judging import FreeList, ids
from spec.core.records import Event
from spec.vllm_v1.config import Connector
from spec.vllm_v1.records import Context, GivenBack, Load, State, Step
from spec.vllm_v1.rules.counting import (
    caches_results,
    is_later_turn,
    needed_blocks,
    needed_slots,
    pool_blocks,
)
from spec.vllm_v1.rules.registry import (
    always,
    by_id,
    code,
    has_one_group,
    holders,
    of_step,
    tables,
    text,
    witness,
)

_MEMORY = text("Memory Management & Preemption")


@always("V1-KV-1", _MEMORY)
@witness(lambda _, step: step.after.pool.references)
def free_or_held(ctx: Context, state: State) -> Iterator[str]:
    """Every block is either free, once, or held."""
    # Free and held blocks together are those of the pool, numbered from 1.
    yield from judging.free_or_held(state.pool)
    numbers = range(1, pool_blocks(ctx.config) + 1)
    blocks = (*state.pool.free, *state.pool.references)
    if beyond := [block for block in blocks if block not in numbers]:
        yield f"blocks {beyond} are none of {len(numbers)}, numbered from 1"


@always("V1-KV-2", text("Prefix Caching - Shared KV Blocks"))
@witness(lambda _, step: any(count > 1 for count in step.after.pool.references.values()))
def references_are_holders(_ctx: Context, state: State) -> Iterator[str]:
    """A block's reference count is the number of requests that hold it: shared blocks are not freed
    before all of them are gone.
    """
    # A request that was aborted while it loads holds its blocks until the load ends; others hold
    # theirs while a step in flight writes to them.
    yield from judging.references_are_holders(state.pool, tables(state))


@always("V1-KV-3", code("block pool"), applies=lambda config: config.prefix_caching)
@witness(
    lambda _, step: any(
        block in step.before.pool.keys
        for event in step.happened("allocate")
        for block in event.after
    )
)
def cache_maps_agree(_ctx: Context, state: State) -> Iterator[str]:
    """Every cached block's hash maps to it and back."""
    # Both ways show the same pairs.
    yield from judging.cache_maps_agree(state.pool)


@always("V1-KV-6", _MEMORY, witness=lambda _, step: step.after.waiting)
def waiting_own_nothing(ctx: Context, state: State) -> Iterator[str]:
    """A waiting request owns no block, unless its external keys and values come or have come, or it
    is a turn of a session that goes on with those of the one before.
    """
    # A request with nothing computed has no block.
    loads = ctx.config.connector is Connector.ASYNC
    for row in state.queued:
        may_own = loads and (row.computed > 0 or row.load is not Load.NONE)
        may_own = may_own or is_later_turn(ctx, row.id)
        if (row.blocks or row.computed) and not may_own:
            yield f"{row.id} waits with {len(row.blocks)} blocks, {row.computed} tokens"


@always("V1-KV-7", _MEMORY)
@witness(lambda _, step: any(len(row.blocks) > 1 for row in step.after.running))
def blocks_cover_tokens(ctx: Context, state: State) -> Iterator[str]:
    """A request's blocks have a slot for each computed token, and none beyond its tokens, those
    that it awaits, drafts and lookahead.
    """
    # Drafts of the last step may have been rejected, and of those in flight: their slots stay. So
    # do those of what a request awaited before it left or lost its load.
    config, size = ctx.config, ctx.config.block_size
    drafts = config.num_speculative_tokens * (1 + config.steps_in_flight)
    for row in holders(state):
        awaited = row.placeholders
        if row.id in state.lost or row in state.draining:
            awaited = max(awaited, config.steps_in_flight)
        most = needed_blocks(ctx, needed_slots(ctx, row.tokens + awaited + drafts))
        if not row.computed <= len(row.blocks) * size or len(row.blocks) > most:
            yield f"{row.id}: {row.computed} of {row.tokens} tokens, {len(row.blocks)} blocks"


@of_step("V1-KV-13", _MEMORY)
@witness(
    lambda ctx, step: any(
        len(event.after) > 1 or ctx.config.num_lookahead_tokens
        for event in step.happened("allocate")
    )
)
def slots_are_as_many_as_needed(ctx: Context, step: Step) -> Iterator[str]:
    """A request that is given tokens has a slot for each of them and for its lookahead, as far as
    the model length allows, and is handed out no block beyond these.
    """
    # Of the blocks that were handed out the last one is the last in the table.
    fresh, size = ids(step.happened("allocate")), ctx.config.block_size
    for row in step.planned.running:
        if row.id not in step.scheduled:
            continue
        slots = needed_slots(ctx, row.computed + step.scheduled[row.id])
        room = len(row.blocks) * size
        if room < slots or (row.id in fresh and room >= slots + size):
            yield f"{row.id} has {len(row.blocks)} blocks for {slots} slots"


@of_step("V1-KV-15", code("block pool"), applies=lambda config: config.prefix_caching)
@witness(
    lambda _, step: any(
        step.before.pool.keys.keys() & {*event.after} for event in step.happened("allocate")
    )
)
def old_contents_are_lost(ctx: Context, step: Step) -> Iterator[str]:
    """A block that is allocated again has lost its old content: it can be found again only for what
    its holder fills it with.
    """
    # At once if the step fills it; a victim's blocks are judged by V1-KV-12.
    rows, size = by_id(holders(step.planned)), ctx.config.block_size
    for event in step.happened("allocate"):
        row = rows[event.id]
        computed = row.computed if row.load is Load.NONE else 0
        filled = row.blocks[: (computed + step.scheduled.get(row.id, 0)) // size]
        stale = [
            block
            for block in event.after
            if block in row.blocks and block not in filled and block in step.planned.pool.keys
        ]
        if stale:
            yield f"blocks {stale} of {row.id} can be found with their old content"


@of_step("V1-KV-9", code("block pool"))
@witness(lambda _, step: any(count > 1 for count in step.planned.pool.references.values()))
def no_block_is_written_twice(ctx: Context, step: Step) -> Iterator[str]:
    """No two requests write the same block in a step."""
    # Requests of one step share what one of them writes: hashes are kept when it is planned.
    size, rows = ctx.config.block_size, by_id(step.planned.running)
    written: list[int] = []
    for id_, count in step.scheduled.items():
        row = rows.get(id_)
        if row is not None:
            last = (row.computed + count - 1) // size
            written += row.blocks[row.computed // size : last + 1]
    if len({*written}) < len(written):
        shared = [block for block, writers in Counter(written).items() if writers > 1]
        yield f"blocks {shared} are written twice"


# --- the free list, replayed from the step's events -----------------------------------------


@define
class _Replay:
    """The free list while the events of a step are applied to it, and which blocks have contents.

    `tokens`: of each request before the step. `full`: how many leading blocks of a table the step
    has filled with final tokens, or found so. `hashed`: blocks that can be found, or cannot,
    otherwise than before the step; those of a table are added when it is given back. `landing`:
    what is free once the results of the step in flight have come.
    """

    ctx: Context
    step: Step
    books: FreeList = field(init=False)
    tokens: dict[str, int] = field(init=False)
    full: dict[str, int] = field(factory=dict)
    hashed: dict[int, bool] = field(factory=dict)
    landing: tuple[GivenBack, ...] = field(init=False)

    def __attrs_post_init__(self) -> None:
        landed = self.step.results_of
        self.landing = () if landed is None else landed.frees
        rows = holders(self.step.before)
        self.books = FreeList.of(self.step.before.pool, tables(self.step.before))
        self.tokens = {row.id: row.tokens for row in rows}

    def apply(self, event: Event) -> None:
        """Apply the event to the free list."""
        match event.transition:
            case "prefix_hit":
                self.books.take(event.id, event.after)
            case "allocate":
                self.hashed |= dict.fromkeys(event.after, False)
                self.books.hand_out(event.id, event.after)
            case "preempt":
                self._leave(event.id)
            case "finish":
                self.land()
                self._hash_sampled(event.id)
                if self.ctx.requests[event.id].continued_by is None:
                    self._leave(event.id)
            case "leave":
                self._leave(event.id)
            case "promote":
                self._promoted(event.id)
            case "catch_up" | "admit":
                self._hash(event.id, event.before + event.after)

    def _hash(self, owner: str, computed: int) -> None:
        """Register full blocks of final tokens, as at the moment of planning."""
        if self.ctx.config.prefix_caching:
            self.full[owner] = min(computed, self.tokens[owner]) // self.ctx.config.block_size

    def _hash_sampled(self, owner: str) -> None:
        """Register all but its newest token, where what results fill is cached at once."""
        if caches_results(self.ctx.config) and self.ctx.config.prefix_caching:
            computed = self.tokens[owner] + len(self.step.outputs.get(owner, ())) - 1
            self.full[owner] = computed // self.ctx.config.block_size

    def land(self) -> None:
        """Release what was given back before and waited for the results of the step in flight."""
        late, self.landing = self.landing, ()
        for table in late:
            self._free(table.id)

    def _leave(self, owner: str) -> None:
        """Release the blocks of a request that gives them back, but for those still needed.

        A transfer may need them, or a step in flight.
        """
        late = chain(self.landing, *(flight.frees for flight in self.step.after.flights))
        if owner not in ids(self.step.after.draining) | {table.id for table in late}:
            self._free(owner)

    def _promoted(self, owner: str) -> None:
        loaded = by_id(self.step.before.skipped)[owner].computed
        if loaded:
            self._hash(owner, loaded)
        else:
            self._free(owner)

    def _free(self, owner: str) -> None:
        """Release the owner's blocks to the end of the free list that their contents determine."""
        filled = self.books.tables.get(owner, ())[: self.full.pop(owner, 0)]
        self.hashed |= dict.fromkeys(filled, True)
        freed, known = self.books.give_back(owner), self.step.before.pool.keys
        if not self.ctx.config.behaviour.empty_blocks_first:
            self.books.put((), freed)
            return
        has_content = [self.hashed.get(block, block in known) for block in freed]
        front, back = (
            [block for block, has in zip(freed, has_content, strict=True) if has is wanted]
            for wanted in (False, True)
        )
        self.books.put(front, back)


@of_step("V1-KV-8", code("free block queue"), applies=has_one_group)
@witness(lambda _, step: step.finished and step.before.pool.free)
def free_order(ctx: Context, step: Step) -> Iterator[str]:
    """Blocks are handed out from the head of the free list, the least recently used first; of those
    given back, a table's tail goes first, and from 0.28.0 on those without content go to the front.
    """
    # The step's events, applied to the free list before it, give the free list after it.
    replay = _Replay(ctx, step)
    for event in step.events:
        if event.transition == "allocate":
            following = replay.books.free[: len(event.after)]
            if following != [*event.after]:
                yield f"handed out {list(event.after)}, next were {following}"
        replay.apply(event)
    replay.land()
    free = [*step.after.pool.free]
    if free != replay.books.free:
        yield f"free list {free}, expected {replay.books.free}"


@of_step("V1-PRE-5", _MEMORY, applies=has_one_group)
@witness(lambda _, step: step.preempted and step.scheduled)
def preempted_no_longer_than_needed(ctx: Context, step: Step) -> Iterator[str]:
    """Requests are preempted until the blocks suffice, and no longer."""
    # A request that is given blocks after a preemption needs more than were free before it. A
    # victim that stands before it and had no turn was preempted for its own sake.
    if not step.happened("preempt"):
        return
    replay, turns = _Replay(ctx, step), [row.id for row in step.before.running]
    for event, following in zip(step.events, [*step.events, None][1:], strict=False):
        free = len(replay.books.free)
        replay.apply(event)
        if event.transition == "catch_up" and event.id in turns:
            turns = turns[turns.index(event.id) + 1 :]
        if event.transition != "preempt" or following is None or following.id not in turns:
            continue
        if event.id in turns[: turns.index(following.id)]:
            continue
        if following.transition == "allocate" and len(following.after) <= free:
            yield f"{event.id} is preempted, {free} blocks were free for {following.id}"
        if following.transition == "catch_up":
            yield f"{event.id} is preempted for {following.id}, which needs no block"


@always("V1-KV-18", code("block pool"), witness=lambda _, step: step.before.pool.references)
def pool_is_as_configured(ctx: Context, state: State) -> Iterator[str]:
    """The pool has as many blocks as are configured; before any request has come all of them are
    free, to be handed out by their numbers.
    """
    # Where clients come back, those that are gone are forgotten: some request is there then.
    count, pool = pool_blocks(ctx.config), state.pool
    if pool.size != count:
        yield f"{pool.size} blocks, configured {count}"
    is_new = not (state.present or state.draining or state.finished or state.aborted)
    if is_new and tuple(pool.free) != tuple(range(1, count + 1)):
        yield f"free at the beginning {list(pool.free)}"
