"""Rules of prefix caching: what is hashed, what is found.

Source: vllm-v1, "Prefix Caching - Shared KV Blocks".
"""

from collections.abc import Iterable, Iterator
from itertools import chain, takewhile

from attrs import define, field

from spec.core import judging
from spec.core.blocks import BlockPool
from spec.core.changes import Change, Rows, change_between, changed
from spec.core.judging import begin_alike, once
from spec.core.records import Event, SomeContext
from spec.core.requests import BlockKey
from spec.core.sharing import FrozenMap
from spec.vllm_v1.config import VllmV1Config
from spec.vllm_v1.records import Context, Load, Sequence, State, Step
from spec.vllm_v1.rules.counting import blocks_to_find
from spec.vllm_v1.rules.registry import (
    always,
    by_id,
    code,
    hits,
    holders,
    looking_at,
    of_step,
    text,
    waiting_may_hold,
    witness,
)

_PREFIX = text("Prefix Caching - Shared KV Blocks")


def _caching(config: VllmV1Config) -> bool:
    return config.prefix_caching


@of_step("V1-KV-4", _PREFIX, witness=lambda _, step: hits(step), applies=_caching)
def longest_prefix_is_hit(ctx: Context, step: Step) -> Iterator[str]:
    """A request takes the cached blocks of its longest prefix, whole blocks only."""
    # The next block was not in the cache all the time, nor held by one that runs and was asked for
    # the same.
    before, planned, size = step.before.pool, step.planned.pool, ctx.config.block_size
    if not (started := [event.id for event in step.happened("admit", "load")]):
        return
    rows, found = by_id(holders(ctx, change_between(step.before, step.after))), hits(step)
    for one_id in started:
        row = rows[one_id]
        if row.computed:
            continue
        most = blocks_to_find(ctx, row.tokens)
        keys, taken = ctx.keys.of(one_id, most), found.get(one_id, ())
        wrong = [
            block for block, key in zip(taken, keys, strict=False) if planned.keys.get(block) != key
        ]
        if wrong:
            yield f"{one_id} takes {wrong} for other tokens"
        if len(taken) < most and {*before.cached.get(keys[len(taken)], ())} & {
            *planned.cached.get(keys[len(taken)], ())
        }:
            yield f"{one_id} takes {len(taken)} cached blocks, the next is cached too"
        prompt, end = ctx.requests[one_id].prompt, (len(taken) + 1) * size
        for other in step.before.running if len(taken) < most else ():
            if end <= other.computed and prompt.begins_like(ctx.requests[other.id].prompt, end):
                yield f"{one_id} takes {len(taken)} cached blocks, {other.id} has the next"


@of_step("V1-KV-5", code("limit of a hit"), applies=_caching)
@witness(
    lambda ctx, step: any(
        (len(found) + 1) * ctx.config.block_size == by_id(step.before.present)[one_id].tokens
        for one_id, found in hits(step).items()
    )
)
def last_token_is_computed(ctx: Context, step: Step) -> Iterator[str]:
    """However much of a request is cached, one token at least is computed, and its whole block."""
    # A fully cached prompt computes its last block again.
    if not step.happened("prefix_hit", "admit"):
        return
    rows = by_id(holders(ctx, change_between(step.before, step.after)))
    for one_id, found in hits(step).items():
        if len(found) * ctx.config.block_size >= rows[one_id].tokens:
            yield f"{one_id} takes {len(found)} blocks of {rows[one_id].tokens} tokens"
    planned = by_id(step.planned.running)
    for one_id in step.admitted:
        if planned[one_id].computed >= planned[one_id].tokens:
            yield f"{one_id} has nothing left to compute"


_NONE = Sequence("", 0)  # what was there of a request that was not


def _pairs(change: Change[State]) -> Iterator[tuple[Sequence, Sequence]]:
    """Each request that the change has touched, as it was and as it is."""
    was = by_id(change.left)
    for one in change.entered:
        yield was.pop(one.id, _NONE), one
    for gone in was.values():
        yield gone, _NONE


@once
def _moved(ctx: SomeContext, change: Change[State]) -> list[tuple[Sequence, Sequence]]:
    """Of these pairs those whose table differs, or how many of its blocks are full."""
    size = ctx.config.block_size
    return [
        (before, one)
        for before, one in _pairs(change)
        if one.blocks is not before.blocks
        or one.computed // size != before.computed // size
        or one.tokens // size != before.tokens // size
    ]


def _holding(ctx: SomeContext, change: Change[State], blocks: Iterable[int]) -> State | None:
    """The contents of these blocks, and the requests that hold one of them."""
    after, keys = change.after, change.after.pool.keys
    contents = FrozenMap((block, key) for block in blocks if (key := keys.get(block)) is not None)
    if not contents:
        return None
    wanted = frozenset(contents)
    near = by_id(one for _, one in _moved(ctx, change) if not wanted.isdisjoint(one.blocks))
    # The others are looked through only for blocks that have more holders than these.
    counts, held = after.pool.references, judging.holders_of(near.values())
    elsewhere = {block for block in wanted if counts.get(block, 0) > held[block]}

    def holding(rows: Rows) -> Rows:
        return tuple(
            one
            for one in rows
            if one.id in near or (elsewhere and not elsewhere.isdisjoint(one.blocks))
        )

    return State(
        BlockPool(after.pool.size, (), keys=contents),
        waiting=holding(change.queue[1]),
        skipped=holding(after.skipped),
        running=holding(after.running),
        draining=holding(after.draining),
    )


@looking_at
def _found_and_held(ctx: SomeContext, change: Change[State]) -> State | None:
    """Look at blocks that can be found since, and at those that a request has computed no more,
    or holds anew and has not computed.
    """
    if waiting_may_hold(ctx):
        return change.after
    size, blocks = ctx.config.block_size, changed(change.before.pool.keys, change.after.pool.keys)
    for before, one in _moved(ctx, change):
        blocks.update(before.blocks[: before.computed // size], one.blocks)
        blocks.difference_update(one.blocks[: one.computed // size])
    return _holding(ctx, change, blocks)


@always(
    "V1-KV-10",
    _PREFIX,
    witness=lambda _, step: hits(step),
    applies=_caching,
    look=_found_and_held,
)
def found_blocks_are_computed(ctx: Context, state: State) -> Iterator[str]:
    """A block that can be found and is held is full of computed tokens."""
    # One of its holders at least has computed it to its end.
    size = ctx.config.block_size
    rows = (*state.present, *state.draining)
    computed = {block for one in rows for block in one.blocks[: one.computed // size]}
    held = {block for one in rows for block in one.blocks}
    # A loaded request computes its last token again: the block of it is full all the same.
    nearly = {
        one.blocks[one.computed // size]
        for one in state.queued
        if (one.computed + 1) % size == 0 and one.computed // size < len(one.blocks)
    }
    empty = (held - computed - nearly) & state.pool.keys.keys()
    if empty:
        yield f"blocks {sorted(empty)} can be found and are not computed"


@looking_at
def _found_in_tables(ctx: SomeContext, change: Change[State]) -> State | None:
    """Look at blocks that can be found since, and at those that a request has anew or elsewhere,
    or that its tokens fill no more.
    """
    if waiting_may_hold(ctx):
        return change.after
    size, blocks = ctx.config.block_size, changed(change.before.pool.keys, change.after.pool.keys)
    for before, one in _moved(ctx, change):
        if one.tokens // size < before.tokens // size:
            blocks.update(one.blocks)
        elif one.blocks is not before.blocks:
            held = len(before.blocks)
            blocks.update(one.blocks[held:] if one.blocks[:held] == before.blocks else one.blocks)
    return _holding(ctx, change, blocks)


@always("V1-KV-11", code("allocate_slots"), applies=_caching, look=_found_in_tables)
@witness(
    lambda _, step: any(count > step.accepted.get(one, 0) for one, count in step.drafts.items())
)
def drafts_are_not_cached(ctx: Context, state: State) -> Iterator[str]:
    """Only blocks full of a request's own final tokens are cached, drafts never; equal hashes mean
    equal prefixes.
    """
    # Each cached block in a table has the key of that request at that place.
    for one in state.present:
        full = one.tokens // ctx.config.block_size
        keys = ctx.keys.of(one.id, full)
        for place, block in enumerate(one.blocks):
            key = state.pool.keys.get(block)
            if key is not None and (place >= full or key != keys[place]):
                yield f"{one.id}: block {block} at place {place} is cached with other tokens"


Contents = set[tuple[int, BlockKey]]  # blocks, each with what it holds


def _filled(ctx: Context, one: Sequence, computed: int) -> Contents:
    """What the blocks of a request hold of which so many tokens are computed.

    A loaded request computes its last token again: the block of it is full all the same.
    """
    size = ctx.config.block_size
    full = (computed + (one.load is Load.LOADED)) // size
    return {*zip(one.blocks, ctx.keys.of(one.id, full), strict=False)}


@of_step("V1-KV-12", _PREFIX, applies=_caching)
@witness(lambda _, step: step.after.pool.keys.keys() - step.before.pool.keys.keys())
def what_is_found_anew_is_computed(ctx: Context, step: Step) -> Iterator[str]:
    """A step lets only those contents be found that a request computed, or that were brought."""
    # A request that held the block before the step or after it, or left in it.
    before, after = step.before.pool.keys, step.after.pool.keys
    moved = ((block, after.get(block)) for block in changed(before, after))
    fresh = {(block, key) for block, key in moved if key is not None and before.get(block) != key}
    if not fresh:
        return
    change, blocks = change_between(step.before, step.after), {block for block, _ in fresh}
    stays = by_id(change.entered)
    filling = (one for _, one in _moved(ctx, change))  # first: most often it is one of these
    for one in chain(filling, stays.values(), holders(ctx, change)):
        if not blocks.isdisjoint(one.blocks):
            fresh -= _filled(ctx, one, one.computed)
            if not fresh:
                return
    for one in step.planned.running:
        if one.id not in stays:
            fresh -= _filled(ctx, one, one.computed + step.scheduled.get(one.id, 0))
    if fresh:
        yield f"blocks {sorted(block for block, _ in fresh)} can be found, no request computed them"


@of_step("V1-KV-14", _PREFIX, applies=_caching)
@witness(lambda _, step: any(count > 1 for count in step.planned.pool.references.values()))
def sharers_have_equal_tokens(ctx: Context, step: Step) -> Iterator[str]:
    """A request that takes a cached block which another one holds has the same tokens as that
    one, up to the block's end.
    """
    # Compared token by token, not by hashes, up to the last block that both hold.
    if not (found_by := hits(step)):
        return
    change, size = change_between(step.planned, step.after), ctx.config.block_size
    for one_id, found in found_by.items():
        for other in holders(ctx, change):
            if other.id == one_id or {*found}.isdisjoint(other.blocks):
                continue
            held = {*other.blocks}
            shared = [place for place, block in enumerate(found, start=1) if block in held]
            requests = ctx.requests[one_id], ctx.requests[other.id]
            if shared and not begin_alike(*requests, shared[-1] * size):
                yield f"{one_id} and {other.id} share {len(shared)} blocks, their tokens differ"


@of_step("V1-KV-17", code("BlockHashToBlockMap"), applies=_caching)
@witness(lambda _, step: any(len(blocks) > 1 for blocks in step.after.pool.cached.values()))
def contents_are_kept(ctx: Context, step: Step) -> Iterator[str]:
    """A block has its content from the moment when the content's last token is planned, or has been
    loaded, until the block is handed out; of several with one content that is found which has had
    it longest.
    """
    # The step's events, applied to the contents before it; computing changes none.
    known = _Contents(ctx, step)
    for event in step.events:
        yield from known.wrong_hits(event)
        known.apply(event)
    before, after = step.before.pool, step.after.pool
    for block in {*known.keys} | changed(before.keys, after.keys):
        now = after.keys.get(block)
        if now != known.key_of(block):
            wrong = "not be found for what it holds" if now is None else "be found for old content"
            yield f"block {block} can {wrong}"
    for key in {*known.found} | changed(before.cached, after.cached):
        found = list(after.cached.get(key, ()))
        if found != known.blocks_of(key):
            yield f"found first to last are {found}, expected {known.blocks_of(key)}"


@define
class _Contents:
    """The blocks of each content, the oldest first, while the events of a step are applied.

    What no event is about is as before the step. `found`: the blocks of contents. `keys`: the
    contents of blocks, None for none. `tables`: the blocks of requests. `rows`: requests before the
    step, without those that wait untouched.
    """

    ctx: Context
    step: Step
    found: dict[BlockKey, list[int]] = field(factory=dict)
    keys: dict[int, BlockKey | None] = field(factory=dict)
    tables: dict[str, tuple[int, ...]] = field(factory=dict)
    rows: dict[str, Sequence] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.rows = by_id(change_between(self.step.before, self.step.planned).left)

    def blocks_of(self, key: BlockKey) -> list[int]:
        """The blocks of a content."""
        return self.found.setdefault(key, [*self.step.before.pool.cached.get(key, ())])

    def wrong_hits(self, event: Event) -> Iterator[str]:
        """Cached blocks that are taken though another one has had their content for longer."""
        if event.transition == "prefix_hit":
            keys = self.ctx.keys.of(event.id, len(event.after))
            due = [next(iter(self.blocks_of(key)), None) for key in keys]
            if due != [*event.after]:
                yield f"{event.id} takes {list(event.after)}, found are {due}"

    def apply(self, event: Event) -> None:
        """Blocks lose their content when handed out, and have it when a step that fills them is
        planned.
        """
        table = self.tables.get(event.id, self._held(event.id))
        match event.transition:
            case "prefix_hit":
                self.tables[event.id] = table + event.after
            case "allocate":
                self.tables[event.id] = table + event.after
                for block in event.after:
                    self._forget(block)
            case "preempt":
                self.tables[event.id] = ()
            case "promote":
                loaded = self.rows[event.id].computed
                self.tables[event.id] = table if loaded else ()
                self._note(event.id, loaded)
            case "catch_up" | "admit":
                self._note(event.id, event.before + event.after)

    def _held(self, owner: str) -> tuple[int, ...]:
        return self.rows[owner].blocks if owner in self.rows else ()

    def key_of(self, block: int) -> BlockKey | None:
        """The content of a block."""
        return self.keys.get(block, self.step.before.pool.keys.get(block))

    def _forget(self, block: int) -> None:
        key = self.key_of(block)
        if key is not None:
            self.found[key] = [other for other in self.blocks_of(key) if other != block]
        self.keys[block] = None

    def _note(self, owner: str, computed: int) -> None:
        """The blocks that are full of the owner's first tokens have a content."""
        full = min(computed, self.rows[owner].tokens) // self.ctx.config.block_size
        table = self.tables.get(owner, self._held(owner))[:full]
        fresh = len([*takewhile(lambda block: self.key_of(block) is None, reversed(table))])
        for place in range(len(table) - fresh, len(table)):
            block, key = table[place], self.ctx.keys.of(owner, place + 1)[-1]
            self.keys[block] = key
            self.blocks_of(key).append(block)
