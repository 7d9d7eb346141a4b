"""Rules of the block pool that several groups share: contents, free list, and who gets blocks.

They follow a step's events from the pool before it, as V1-KV-8 and V1-KV-17 do for one group.
Source: vLLM 0.28.0, KV cache coordinator.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain

from attrs import define, field

from spec.core.records import Event
from spec.core.requests import BlockKey
from spec.vllm_v1.config import Connector, VllmV1Config
from spec.vllm_v1.groups import NULL_BLOCK, KvGroup, group_key
from spec.vllm_v1.records import Context, Sequence, Step
from spec.vllm_v1.rules.counting import (
    blocks_to_find,
    caches_results,
    most_padding,
    offered,
    share,
    up_to_a_state,
)
from spec.vllm_v1.rules.group_counting import (
    first_read,
    held_blocks,
    lacking_at_once,
    lacking_at_one_time,
    places_in,
    places_of,
    read_before,
    tables_by_group,
)
from spec.vllm_v1.rules.groups import finds_in_groups
from spec.vllm_v1.rules.order import in_turn
from spec.vllm_v1.rules.registry import by_id, code, has_groups, holders, of_step, witness

_COORDINATOR = code("KV cache coordinator")
_FIRST = 0  # the number of the group with full attention


@define
class _Replay:
    """The pool while the events of a step are applied to it.

    `free`: the free list. `tables`: blocks by request and group, the null block where there is
    none. `tokens`: of each request before the step. `keys`: the contents of blocks. `found`: the
    blocks of each content, the oldest first. `given`: by group, blocks for tokens that the next
    event names. `wrong`: blocks that were handed out in another order, and cached ones that were
    taken in another.
    """

    ctx: Context
    step: Step
    free: list[int] = field(init=False)
    tables: dict[str, list[list[int]]] = field(init=False)
    tokens: dict[str, int] = field(init=False)
    keys: dict[int, BlockKey] = field(init=False)
    found: dict[BlockKey, list[int]] = field(init=False)
    holders: "Counter[int]" = field(init=False)
    given: dict[int, tuple[int, ...]] = field(factory=dict)
    wrong: list[str] = field(factory=list)

    def __attrs_post_init__(self) -> None:
        pool, rows = self.step.before.pool, holders(self.step.before)
        self.free, self.keys = [*pool.free], {**pool.keys}
        self.tokens = {row.id: row.tokens for row in rows}
        self.found = {key: [*blocks] for key, blocks in pool.cached.items()}
        self.tables = {
            row.id: [[*table] for _, table in tables_by_group(self.ctx, row)] for row in rows
        }
        self.holders = Counter(chain.from_iterable(chain.from_iterable(self.tables.values())))

    def apply(self, event: Event) -> None:
        """Apply the event to the pool."""
        match event.transition:
            case "prefix_hit":
                self._take(event.id, _FIRST, event.after)
            case "hit_in_group":
                self._take(event.id, event.before, event.after)
            case "allocate":
                self.given[_FIRST] = event.after
            case "allocate_in_group":
                self.given[event.before] = event.after
            case "catch_up" | "admit":
                brought = event.before if event.id in self.step.external else 0
                self._hand_out(event.id, event.before + event.after, brought)
                end = event.before + event.after
                self._let_find(event.id, min(end, self.tokens[event.id]))
            case "load":
                loaded = by_id(self.step.planned.present)[event.id].computed
                self._hand_out(event.id, loaded, loaded)
            case "promote":
                self._let_find(event.id, by_id(self.step.before.present)[event.id].computed)
            case "give_back":
                self._give_back(event.id, event.before, event.after)
            case "preempt":
                self._release_all(event.id)
            case "finish":
                self.note_results(event.id)
                row = by_id(self.step.planned.present)[event.id]
                self._leave(row, row.computed + self.step.scheduled.get(row.id, 0))
            case "leave":
                row = by_id(self.step.planned.present)[event.id]
                self._leave(row, row.computed)

    def _of(self, owner: str) -> list[list[int]]:
        return self.tables.setdefault(owner, [[] for _ in self.ctx.config.all_groups])

    def _take(self, owner: str, number: int, blocks: tuple[int, ...]) -> None:
        """A newcomer takes cached blocks; in a group those at the end of its prefix."""
        tables, groups = self._of(owner), self.ctx.config.all_groups
        places = len(blocks)
        if number != _FIRST:
            tokens = len(tables[_FIRST]) * self.ctx.config.block_size
            places = tokens // groups[number].block_size
        tables[number] = [NULL_BLOCK] * (places - len(blocks)) + [*blocks]
        for place in range(places - len(blocks), places):
            key = self._key(owner, groups[number], place)
            oldest = next(iter(self.found.get(key, [])), None)
            if oldest != tables[number][place]:
                self.wrong.append(f"{owner} takes {tables[number][place]}, found is {oldest}")
        self.free = [block for block in self.free if block not in blocks]
        self.holders.update(blocks)

    def _key(self, owner: str, group: KvGroup, place: int) -> BlockKey:
        if group.number == _FIRST:
            return self.ctx.keys.of(owner, place + 1)[-1]
        return group_key(self.ctx.keys, owner, group, place)

    def _hand_out(self, owner: str, end: int, brought: int) -> None:
        """New blocks stand where the tokens up to `end` lie.

        In all groups those of the `brought` tokens are handed out first.
        """
        placed = list[tuple[bool, int, int]]()
        for group in self.ctx.config.all_groups:
            table, new = self._of(owner)[group.number], self.given.pop(group.number, ())
            places = places_in(self.ctx, group, end) if new else 0
            for place, block in enumerate(new, start=places - len(new)):
                placed.append((place * group.block_size >= brought, group.number, block))
            table += [NULL_BLOCK] * (places - len(table) - len(new)) + [*new]
        blocks = [block for _, _, block in sorted(placed, key=lambda entry: entry[:2])]
        following = self.free[: len(blocks)]
        if following != blocks:
            self.wrong.append(f"handed out {blocks}, next were {following}")
        del self.free[: len(blocks)]
        for block in blocks:
            key = self.keys.pop(block, None)
            if key is not None:
                self.found[key].remove(block)
        self.holders.update(blocks)

    def note_results(self, last: str = "") -> None:
        """What requests have sampled makes blocks whole, up to the `last` that sampled.

        All but the newest token of each is computed.
        """
        running = by_id(self.step.planned.running)
        for owner, tokens in self.step.outputs.items() if caches_results(self.ctx.config) else ():
            if owner in running and owner in self.tables:
                self._let_find(owner, self.tokens[owner] + len(tokens) - 1)
            if owner == last:
                return

    def _let_find(self, owner: str, tokens: int) -> None:
        """Lookups find the blocks of a prefix of these tokens that is whole in all groups."""
        alignment = self.ctx.config.hit_alignment
        whole = tokens // alignment * alignment
        for group in self.ctx.config.all_groups:
            for place in range(whole // group.block_size):
                self._let_find_block(owner, group, place)

    def _let_find_block(self, owner: str, group: KvGroup, place: int) -> None:
        block = self._of(owner)[group.number][place]
        is_new = block != NULL_BLOCK and block not in self.keys
        if self.ctx.config.prefix_caching and is_new and may_be_hit(self.ctx, group, place):
            self.keys[block] = self._key(owner, group, place)
            self.found.setdefault(self.keys[block], []).append(block)

    def _give_back(self, owner: str, number: int, blocks: tuple[int, ...]) -> None:
        table = self._of(owner)[number]
        given = [block for block in table if block in blocks]
        table[:] = [NULL_BLOCK if block in blocks else block for block in table]
        self._release((*given,))

    def _leave(self, row: Sequence, computed: int) -> None:
        """A request gives its blocks back, unless a load writes to them.

        With a connector those first that the token behind the `computed` ones does not read.
        """
        if row.id in by_id(self.step.after.draining):
            return
        if self.ctx.config.connector is not Connector.NONE:
            for group in self.ctx.config.groups:
                table = self._of(row.id)[group.number]
                unread = table[: first_read(group, computed)]
                self._give_back(row.id, group.number, held_blocks((*unread,)))
        self._release_all(row.id)

    def _release_all(self, owner: str) -> None:
        for table in self.tables.pop(owner, []):
            self._release(held_blocks((*table,)))

    def _release(self, blocks: tuple[int, ...]) -> None:
        """From the last on; those without content go to the front of the free list."""
        self.holders.subtract(blocks)
        freed = [block for block in reversed(blocks) if not self.holders[block]]
        front = [block for block in freed if block not in self.keys]
        self.free = [*front, *self.free, *(block for block in freed if block in self.keys)]


def may_be_hit(ctx: Context, group: KvGroup, place: int) -> bool:
    """True if the token behind some prefix that could be found reads something of the block."""
    # The next such prefix is the one that reads most of it.
    size, alignment = group.block_size, ctx.config.hit_alignment
    end = -(-(place + 1) * size // alignment) * alignment
    return place in places_of(group, read_before(group, end))


def _replayed(ctx: Context, step: Step) -> _Replay:
    """The pool after all events of the step."""
    replay = _Replay(ctx, step)
    for event in step.events:
        replay.apply(event)
    replay.note_results()
    return replay


@of_step("V1-GRP-10", _COORDINATOR, applies=finds_in_groups, given=_replayed)
@witness(lambda _, step: step.before.pool.keys.keys() - step.after.pool.keys.keys())
def contents_of_groups_are_kept(_ctx: Context, step: Step, replay: _Replay) -> Iterator[str]:
    """A block of a group has its content from the moment when the content's last token is planned
    until it is handed out, if the token behind some prefix of whole blocks in all groups reads of
    it; of several with one content that is found which has had it longest.
    """
    # The step's events, applied to the contents before it.
    after = step.after.pool
    for block in {*replay.keys, *after.keys}:
        now, due = after.keys.get(block), replay.keys.get(block)
        if now != due:
            wrong = "cannot be found" if now is None else "can be found, or for another content"
            yield f"block {block} {wrong}"
    for key in {*replay.found, *after.cached}:
        found, expected = list(after.cached.get(key, ())), replay.found.get(key, [])
        if found != expected:
            yield f"found first to last are {found}, expected {expected}"


@of_step("V1-GRP-11", _COORDINATOR, applies=has_groups, given=_replayed)
@witness(lambda _, step: step.happened("give_back") and step.happened("allocate_in_group"))
def free_order_of_groups(_ctx: Context, step: Step, replay: _Replay) -> Iterator[str]:
    """Blocks are handed out from the head of the free list to one group after the other, the first
    group first; they are given back in the same order, a table's tail first, and those without
    content go to the front.
    """
    # Cached blocks that are taken are the oldest of their content.
    yield from replay.wrong
    free = [*step.after.pool.free]
    if free != replay.free:
        yield f"free list {free}, expected {replay.free}"


@of_step("V1-GRP-12", _COORDINATOR, applies=has_groups)
@witness(lambda _, step: step.preempted and step.scheduled)
def preempted_until_the_sum_fits(ctx: Context, step: Step) -> Iterator[str]:
    """Requests are preempted until the blocks suffice that a request lacks in all groups together,
    and no longer.
    """
    # A request that is given blocks after a preemption needs more than were free before it.
    if not step.preempted:
        return
    replay, turns = _Replay(ctx, step), [row.id for row in step.before.running]
    for place, event in enumerate(step.events):
        free = len(replay.free)
        replay.apply(event)
        if event.transition == "catch_up" and event.id in turns:
            turns = turns[turns.index(event.id) + 1 :]
        following = [*_until_computed(step.events[place + 1 :])]
        owner = following[-1].id if following else ""
        is_followed = bool(following) and following[-1].transition == "catch_up"
        if event.transition != "preempt" or not is_followed or owner not in turns:
            continue
        if event.id in turns[: turns.index(owner)]:
            continue
        lacked = sum(len(other.after) for other in following if "allocate" in other.transition)
        if lacked <= free:
            yield f"{event.id} is preempted, {free} blocks were free, {owner} lacked {lacked}"


def _until_computed(events: Iterable[Event]) -> Iterator[Event]:
    """The events up to the next request's turn, unless a preemption comes first."""
    for event in events:
        if event.transition == "preempt":
            return
        yield event
        if event.transition == "catch_up":
            return


def _judgeable(config: VllmV1Config) -> bool:
    # How much an asynchronous load must leave to others is judged by V1-EXT-5.
    return has_groups(config) and config.connector is not Connector.ASYNC


@of_step("V1-GRP-13", _COORDINATOR, applies=_judgeable)
@witness(lambda _, step: step.refusal == "V1-KV-1")
def waits_for_the_sum(ctx: Context, step: Step) -> Iterator[str]:
    """A request waits for blocks only if more are lacking in all groups together than are free; if
    prompts are reserved, also those of all its tokens, in a group with a window those that it holds
    at one time.
    """
    # Judged for the first of the queue when all is decided, with the drafts by which it may be
    # padded. Images and audio have reasons of their own (V1-ENC-8); so has one that could begin
    # with a state of the step (V1-GRP-15), or whose chunk ends before a block (V1-GRP-14).
    if step.preempted or step.budget_left == 0:
        return
    if len(step.planned.running) >= ctx.config.max_num_seqs:
        return
    queue = in_turn(ctx, step.planned.queued)
    row = next((row for row in queue if row.id not in step.before.held_back), None)
    if row is None or ctx.requests[row.id].encoder_spans:
        return
    needed, free = _needed(ctx, step, row), len(step.planned.pool.free)
    if needed is not None and needed <= free:
        yield f"{row.id} waits, it lacks {needed} blocks, {free} are free"


def _needed(ctx: Context, step: Step, row: Sequence) -> int | None:
    """Free blocks that a request at the head of the queue needs; None if it waits for no block."""
    hits = _hits(ctx, step, row)
    computed = max(len(hits[_FIRST]) * ctx.config.block_size, offered(ctx, step.planned, row))
    behind = row.tokens - computed
    padding = most_padding(ctx, computed, behind)
    room = min(step.budget_left, ctx.config.max_model_len - computed)
    if padding and behind + padding > room:  # it is not admitted with its padding (V1-SPC-5)
        return None
    given = share(ctx, step, behind + padding, step.budget_left)
    if given < share(ctx, step, behind, behind) and not ctx.config.chunked_prefill:
        return None
    given = len(up_to_a_state(ctx, row, range(computed, computed + given)))
    if not given or _ends_with_a_fresh_state(ctx, step, hits):
        return None
    pool, groups = step.planned.pool, ctx.config.all_groups
    tables = [*map(partial(_read_from, computed), groups, hits)]
    revived = sum(block not in pool.references for block in held_blocks((*chain(*tables),)))
    needed = lacking_at_once(ctx, tables, computed + given)
    if ctx.config.reserve_full_prompt:
        needed = max(needed, lacking_at_one_time(ctx, tables, row.tokens))
    return needed + revived


def _read_from(computed: int, group: KvGroup, found: tuple[int, ...]) -> tuple[int, ...]:
    """A newcomer's table, without the blocks that the token behind the `computed` does not read."""
    first = first_read(group, computed) if group.reach is not None else 0
    return (*(NULL_BLOCK,) * first, *found[first:])


def _hits(ctx: Context, step: Step, row: Sequence) -> list[tuple[int, ...]]:
    """By group the cached blocks of the longest prefix that all have; none is looked for."""
    size, alignment = ctx.config.block_size, ctx.config.hit_alignment
    most = blocks_to_find(ctx, row) * size if ctx.config.prefix_caching else 0
    cached = step.planned.pool.cached
    for end in range(most // alignment * alignment, 0, -alignment):
        tables = []
        for group in ctx.config.all_groups:
            places = places_of(group, read_before(group, end))
            table = [NULL_BLOCK] * places.start
            keys = (
                ctx.keys.of(row.id, end // size)
                if group.number == _FIRST
                else [group_key(ctx.keys, row.id, group, place) for place in places]
            )
            table += [next(iter(cached.get(key, ())), -1) for key in keys]
            tables.append((*table,))
        if all(-1 not in table for table in tables):
            return tables
    return [() for _ in ctx.config.all_groups]


def _ends_with_a_fresh_state(ctx: Context, step: Step, hits: list[tuple[int, ...]]) -> bool:
    """True if the hits end with a state that may be one that the step computes."""
    before, planned = step.before.pool.cached, step.planned.pool
    new = {block for event in step.happened("allocate_in_group") for block in event.after}
    for group, found in zip(ctx.config.all_groups, hits, strict=True):
        if group.is_mamba and found:
            key = planned.keys[found[-1]]
            if not {*planned.cached[key]} <= {*before.get(key, ())} - new:
                return True
    return False
