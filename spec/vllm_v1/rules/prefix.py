"""Rules of prefix caching: which blocks are hashed, and which of them a request finds.

Source: vllm-v1, "Prefix Caching - Shared KV Blocks".
"""

from collections.abc import Iterator
from itertools import takewhile

from attrs import define, field

from spec.core.judging import begin_alike, ids
from spec.core.records import Event
from spec.core.requests import BlockKey
from spec.vllm_v1.config import VllmV1Config
from spec.vllm_v1.records import Context, Load, Sequence, State, Step
from spec.vllm_v1.rules.counting import blocks_to_find, caches_results, verified
from spec.vllm_v1.rules.registry import (
    always,
    by_id,
    code,
    has_one_group,
    hits,
    holders,
    of_step,
    text,
    witness,
)

_PREFIX = text("Prefix Caching - Shared KV Blocks")


def _caching(config: VllmV1Config) -> bool:
    return config.prefix_caching


def _caching_in_one_group(config: VllmV1Config) -> bool:
    return config.prefix_caching and has_one_group(config)


@of_step("V1-KV-4", _PREFIX, witness=lambda _, step: hits(step), applies=_caching_in_one_group)
def longest_prefix_is_hit(ctx: Context, step: Step) -> Iterator[str]:
    """A request takes the cached blocks of its longest prefix, whole blocks only."""
    # The next block was not in the cache all the time, nor held by one that runs and was asked for
    # the same.
    before, planned, size = step.before.pool, step.planned.pool, ctx.config.block_size
    rows, found = by_id(step.before.queued), hits(step)
    for event in step.happened("admit", "load"):
        row, taken = rows[event.id], found.get(event.id, ())
        if row.computed:
            continue
        most = blocks_to_find(ctx, row)
        keys = ctx.keys.of(row.id, most)
        wrong = [
            block for block, key in zip(taken, keys, strict=False) if planned.keys.get(block) != key
        ]
        if wrong:
            yield f"{row.id} takes {wrong} for other tokens"
        if len(taken) < most and {*before.cached.get(keys[len(taken)], ())} & {
            *planned.cached.get(keys[len(taken)], ())
        }:
            yield f"{row.id} takes {len(taken)} cached blocks, the next is cached too"
        prompt, end = ctx.requests[row.id].prompt, (len(taken) + 1) * size
        for other in step.before.running if len(taken) < most else ():
            if end <= other.computed and prompt.begins_like(ctx.requests[other.id].prompt, end):
                yield f"{row.id} takes {len(taken)} cached blocks, {other.id} has the next"


@of_step("V1-KV-22", code("limit of a hit"))
@witness(lambda ctx, step: any(not ctx.requests[id_].reads_cache for id_ in step.admitted))
def unread_caches_give_nothing(ctx: Context, step: Step) -> Iterator[str]:
    """A request of which all of the prompt must be computed takes nothing from the cache, and in
    0.33.0 nothing from a connector.
    """
    given = {*hits(step)}
    if not ctx.config.behaviour.loads_unread:
        given |= {*step.external} | ids(step.happened("load"))
    wrong = [id_ for id_ in sorted(given) if not ctx.requests[id_].reads_cache]
    if wrong:
        yield f"{wrong} read no cache, and are spared tokens"


@of_step("V1-KV-5", code("limit of a hit"), applies=_caching)
@witness(
    lambda ctx, step: any(
        (len(found) + 1) * ctx.config.block_size == by_id(step.before.present)[id_].tokens
        for id_, found in hits(step).items()
    )
)
def last_token_is_computed(ctx: Context, step: Step) -> Iterator[str]:
    """However much of a request is cached, one token at least is computed, and its whole block."""
    # A fully cached prompt computes its last block again.
    rows = by_id(step.before.queued)
    for id_, found in hits(step).items():
        if len(found) * ctx.config.block_size >= rows[id_].tokens:
            yield f"{id_} takes {len(found)} blocks of {rows[id_].tokens} tokens"
    for row in step.planned.running:
        if row.id in step.admitted and row.computed >= row.tokens:
            yield f"{row.id} has nothing left to compute"


@always("V1-KV-10", _PREFIX, witness=lambda _, step: hits(step), applies=_caching)
def found_blocks_are_computed(ctx: Context, state: State) -> Iterator[str]:
    """A block that can be found and is held is full of computed tokens."""
    # One of its holders at least has computed it to its end.
    size, rows = ctx.config.block_size, holders(state)
    computed = {block for row in rows for block in row.blocks[: row.computed // size]}
    held = {block for row in rows for block in row.blocks}
    # A loaded request computes its last token again: the block of it is full all the same, also
    # where it leaves before it does.
    loaded = (*state.queued, *(row for row in state.draining if row.id in ctx.external))
    nearly = {
        row.blocks[row.computed // size]
        for row in loaded
        if (row.computed + 1) % size == 0 and row.computed // size < len(row.blocks)
    }
    empty = (held - computed - nearly) & state.pool.keys.keys()
    if empty:
        yield f"blocks {sorted(empty)} can be found and are not computed"


@always("V1-KV-11", code("allocate_slots"), applies=_caching)
@witness(
    lambda ctx, step: any(
        count > step.accepted.get(id_, 0) for id_, count in verified(ctx, step).items()
    )
)
def drafts_are_not_cached(ctx: Context, state: State) -> Iterator[str]:
    """Only blocks full of a request's own final tokens are cached, drafts never; equal hashes mean
    equal prefixes.
    """
    # Each cached block in a table has the key of that request at that place.
    for row in state.present:
        full = row.tokens // ctx.config.block_size
        keys = ctx.keys.of(row.id, full)
        for place, block in enumerate(row.blocks):
            key = state.pool.keys.get(block)
            if key is not None and (place >= full or key != keys[place]):
                yield f"{row.id}: block {block} at place {place} is cached with other tokens"


def _filled(ctx: Context, row: Sequence, computed: int) -> Iterator[tuple[int, BlockKey]]:
    """The contents of a request's blocks once this many of its tokens are computed.

    A loaded request computes its last token again: the block of it is full all the same.
    """
    full = (computed + (row.load is Load.LOADED)) // ctx.config.block_size
    return zip(row.blocks, ctx.keys.of(row.id, full), strict=False)


@of_step("V1-KV-12", _PREFIX, applies=_caching_in_one_group)
@witness(lambda _, step: step.after.pool.keys.keys() - step.before.pool.keys.keys())
def what_is_found_anew_is_computed(ctx: Context, step: Step) -> Iterator[str]:
    """A step lets only those contents be found that a request computed, or that were brought."""
    # A request that held the block before the step or after it, or left in it.
    before, after = step.before.pool.keys, step.after.pool.keys
    fresh = {block: key for block, key in after.items() if before.get(block) != key}
    stays = ids(holders(step.after))
    computed = [(row, row.computed) for row in (*holders(step.after), *holders(step.before))]
    for row in step.planned.running:
        if row.id not in stays:
            computed.append((row, row.computed + step.scheduled.get(row.id, 0)))
    for row, count in computed:
        if not fresh.keys().isdisjoint(row.blocks):
            for block, key in _filled(ctx, row, count):
                if fresh.get(block) == key:
                    del fresh[block]
    if fresh:
        yield f"blocks {sorted(fresh)} can be found, no request computed them"


@of_step("V1-KV-14", _PREFIX, applies=_caching)
@witness(lambda _, step: any(count > 1 for count in step.planned.pool.references.values()))
def sharers_have_equal_tokens(ctx: Context, step: Step) -> Iterator[str]:
    """A request that takes a cached block which another one holds has the same tokens as that
    one, up to the block's end.
    """
    # Compared token by token, not by hashes, up to the last block that both hold.
    size = ctx.config.block_size
    for id_, found in hits(step).items():
        for other in holders(step.planned):
            held = {*other.blocks}
            shared = [place for place, block in enumerate(found, start=1) if block in held]
            if other.id == id_ or not shared:
                continue
            if not begin_alike(ctx.requests[id_], ctx.requests[other.id], shared[-1] * size):
                yield f"{id_} and {other.id} share {len(shared)} blocks, their tokens differ"


@of_step("V1-KV-17", code("BlockHashToBlockMap"), applies=_caching_in_one_group)
@witness(lambda _, step: any(len(blocks) > 1 for blocks in step.after.pool.cached.values()))
def contents_are_kept(ctx: Context, step: Step) -> Iterator[str]:
    """A block has its content from the moment when the content's last token is planned, or has been
    loaded, or in 0.33.0 with drafts verified, until the block is handed out; of several with one
    content that is found which has had it longest.
    """
    # The step's events, applied to the contents before it. Results change contents where drafts are
    # verified, or where tokens that were planned without their values are known now.
    contents = _Contents(ctx, step)
    for event in step.events:
        yield from contents.wrong_hits(event)
        contents.apply(event)
    if caches_results(ctx.config):
        for owner in (owner for owner in step.outputs if owner in contents.rows):
            contents.note_sampled(owner, len(step.outputs[owner]))
    before, after = step.before.pool, step.after.pool
    for block in {*contents.keys, *before.keys, *after.keys}:
        now = after.keys.get(block)
        if now != contents.block_key(block):
            wrong = "not be found for what it holds" if now is None else "be found for old content"
            yield f"block {block} can {wrong}"
    for key in {*contents.found, *before.cached, *after.cached}:
        found = list(after.cached.get(key, ()))
        if found != contents.cached_blocks(key):
            yield f"found first to last are {found}, expected {contents.cached_blocks(key)}"


@define
class _Contents:
    """The blocks of each content, the oldest first, while the events of a step are applied.

    Contents that no event is about are those before the step. `found`: the blocks of contents.
    `keys`: the contents of blocks, None for none. `tables`: the blocks of requests. `rows`:
    requests before the step.
    """

    ctx: Context
    step: Step
    found: dict[BlockKey, list[int]] = field(factory=dict)
    keys: dict[int, BlockKey | None] = field(factory=dict)
    tables: dict[str, tuple[int, ...]] = field(factory=dict)
    rows: dict[str, Sequence] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.rows = by_id(holders(self.step.before))

    def cached_blocks(self, key: BlockKey) -> list[int]:
        """The blocks that hold this content, oldest first."""
        return self.found.setdefault(key, [*self.step.before.pool.cached.get(key, ())])

    def wrong_hits(self, event: Event) -> Iterator[str]:
        """Cached blocks that are taken though another one has had their content for longer."""
        if event.transition == "prefix_hit":
            keys = self.ctx.keys.of(event.id, len(event.after))
            due = [next(iter(self.cached_blocks(key)), None) for key in keys]
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

    def block_key(self, block: int) -> BlockKey | None:
        """The content of a block."""
        return self.keys.get(block, self.step.before.pool.keys.get(block))

    def _forget(self, block: int) -> None:
        key = self.block_key(block)
        if key is not None:
            self.found[key] = [other for other in self.cached_blocks(key) if other != block]
        self.keys[block] = None

    def _note(self, owner: str, computed: int) -> None:
        """Register the owner's full blocks under their content."""
        self._register(owner, min(computed, self.rows[owner].tokens))

    def note_sampled(self, owner: str, tokens: int) -> None:
        """Register the blocks that are full of all tokens but the newest that it sampled."""
        self._register(owner, self.rows[owner].tokens + tokens - 1)

    def _register(self, owner: str, computed: int) -> None:
        full = computed // self.ctx.config.block_size
        table = self.tables.get(owner, self._held(owner))[:full]
        fresh = len([*takewhile(lambda block: self.block_key(block) is None, reversed(table))])
        for place in range(len(table) - fresh, len(table)):
            block, key = table[place], self.ctx.keys.of(owner, place + 1)[-1]
            self.keys[block] = key
            self.cached_blocks(key).append(block)
