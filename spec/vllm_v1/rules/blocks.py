"""Rules of the block pool: nothing is lost, shared without count, or handed out in another order.

Source: vllm-v1, "Memory Management & Preemption" and "Prefix Caching"; the order of the free list
is that of the release.
"""

from collections import Counter
from collections.abc import Iterator

from attrs import define

from spec.core import judging
from spec.core.judging import FreeList
from spec.core.records import Event
from spec.vllm_v1.config import Connector, Release
from spec.vllm_v1.records import Context, Load, Sequence, State, Step
from spec.vllm_v1.rules.counting import blocks_of, slots_up_to
from spec.vllm_v1.rules.registry import always, by_id, code, of_step, text, witness

_MEMORY = text("Memory Management & Preemption")


@always("V1-KV-1", _MEMORY, witness=lambda _, step: step.after.pool.references)
def free_or_held(ctx: Context, state: State) -> Iterator[str]:
    """Every block is either free, once, or held."""
    # Free and held blocks together are the pool, which has as many as are configured.
    yield from judging.free_or_held(state.pool)
    if ctx.config.num_blocks not in (None, state.pool.size):
        yield f"{state.pool.size} blocks, {ctx.config.num_blocks} are configured"


@always("V1-KV-2", text("Prefix Caching - Shared KV Blocks"))
@witness(lambda _, step: any(count > 1 for count in step.after.pool.references.values()))
def references_are_holders(_ctx: Context, state: State) -> Iterator[str]:
    """A block's reference count is the number of requests that hold it: shared blocks are not freed
    before all of them are gone.
    """
    # A request that was aborted while it loads holds its blocks until the load ends.
    yield from judging.references_are_holders(state.pool, (*state.present, *state.draining))


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
    """A waiting request owns no block, unless its external keys and values come or have come."""
    # A request with nothing computed has no block.
    loads = ctx.config.connector is Connector.ASYNC
    for one in state.queued:
        may_own = loads and (one.computed > 0 or one.load is not Load.NONE)
        if (one.blocks or one.computed) and not may_own:
            yield f"{one.id} waits with {len(one.blocks)} blocks, {one.computed} tokens"


@always("V1-KV-7", _MEMORY)
@witness(lambda _, step: any(len(one.blocks) > 1 for one in step.after.running))
def blocks_cover_tokens(ctx: Context, state: State) -> Iterator[str]:
    """A request's blocks have a slot for each computed token, and none beyond its tokens, drafts
    and lookahead.
    """
    # Drafts of the last step may have been rejected: their slots stay.
    drafts, size = ctx.config.num_speculative_tokens, ctx.config.block_size
    for one in (*state.present, *state.draining):
        most = blocks_of(ctx, slots_up_to(ctx, one.tokens + drafts))
        if not one.computed <= len(one.blocks) * size or len(one.blocks) > most:
            yield f"{one.id}: {one.computed} of {one.tokens} tokens, {len(one.blocks)} blocks"


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
    fresh, size = {event.id for event in step.happened("allocate")}, ctx.config.block_size
    for row in step.planned.running:
        if row.id not in step.scheduled:
            continue
        slots = slots_up_to(ctx, row.computed + step.scheduled[row.id])
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
    """A block that is handed out anew has lost its old content: it can be found again only for what
    its holder fills it with.
    """
    # At once if the step fills it; a victim's blocks are judged by V1-KV-12.
    rows, size = by_id(step.planned.present), ctx.config.block_size
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
    writers: Counter[int] = Counter()
    for one_id, count in step.scheduled.items():
        row = rows.get(one_id)
        if row is not None:
            last = (row.computed + count - 1) // size
            writers.update(row.blocks[row.computed // size : last + 1])
    shared = [block for block, count in writers.items() if count > 1]
    if shared:
        yield f"blocks {shared} are written twice"


# --- the free list, replayed from the step's events -----------------------------------------


@define
class _Replay(FreeList):
    """With the blocks whose content can be found at that moment.

    `known`: the requests before the step.
    """

    ctx: Context
    step: Step
    hashed: set[int]
    known: dict[str, Sequence]

    @staticmethod
    def of_step(ctx: Context, step: Step) -> "_Replay":
        """As the step found it."""
        pool, rows = step.before.pool, (*step.before.present, *step.before.draining)
        hashed, present = set(pool.keys), by_id(step.before.present)
        return _Replay.of(pool.free, rows, ctx=ctx, step=step, hashed=hashed, known=present)

    def apply(self, event: Event) -> None:
        """What the event does to the free list."""
        match event.transition:
            case "prefix_hit":
                self.take(event.id, event.after)
            case "allocate":
                self.hashed -= {*event.after}
                self.hand_out(event.id, event.after)
            case "preempt" | "finish":
                self._free(event.id)
            case "leave" if event.id not in by_id(self.step.after.draining):
                self._free(event.id)
            case "promote":
                self._promoted(event.id)
            case "catch_up" | "admit":
                self._hash(event.id, event.before + event.after)

    def _hash(self, owner: str, computed: int) -> None:
        """Full blocks of final tokens can be found from the moment they are planned on."""
        if self.ctx.config.prefix_caching:
            row = self.known[owner]
            full = min(computed, row.tokens) // self.ctx.config.block_size
            self.hashed.update(self.tables.get(owner, ())[:full])

    def _promoted(self, owner: str) -> None:
        row = self.known[owner]
        if row.computed:
            self._hash(owner, row.computed)
        else:
            self._free(owner)

    def _free(self, owner: str) -> None:
        """The owner's blocks go back, to the ends of the list that their contents name."""
        freed = self.give_back(owner)
        all_behind = self.ctx.config.release is Release.V0_11_2
        front = [block for block in freed if not (all_behind or block in self.hashed)]
        self.put(front, [block for block in freed if block not in front])


@of_step("V1-KV-8", code("free block queue"))
@witness(lambda _, step: step.finished and step.before.pool.free)
def free_order(ctx: Context, step: Step) -> Iterator[str]:
    """Blocks are handed out from the head of the free list, the least recently used first; of those
    given back, a table's tail goes first, and in 0.28.0 those without content go to the front.
    """
    # The step's events, applied to the free list before it, give the free list after it.
    replay = _Replay.of_step(ctx, step)
    for event in step.events:
        if event.transition == "allocate" and replay.free[: len(event.after)] != event.after:
            yield f"handed out {list(event.after)}, next were {list(replay.free)}"
        replay.apply(event)
    if replay.free != step.after.pool.free:
        yield f"free list {list(step.after.pool.free)}, expected {list(replay.free)}"


@of_step("V1-PRE-5", _MEMORY, witness=lambda _, step: step.preempted and step.scheduled)
def preempted_no_longer_than_needed(ctx: Context, step: Step) -> Iterator[str]:
    """Requests are preempted until the blocks suffice, and no longer."""
    # A request that is given blocks after a preemption needs more than were free before it.
    if not step.happened("preempt"):
        return
    replay = _Replay.of_step(ctx, step)
    for event, following in zip(step.events, [*step.events, None][1:], strict=False):
        free = len(replay.free)
        replay.apply(event)
        if event.transition != "preempt" or following is None:
            continue
        if following.transition == "allocate" and len(following.after) <= free:
            yield f"{event.id} is preempted, {free} blocks were free for {following.id}"
        if following.transition == "catch_up":
            yield f"{event.id} is preempted for {following.id}, which needs no block"
