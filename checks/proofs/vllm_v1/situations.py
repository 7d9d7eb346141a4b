"""Steps of vLLM V1 replayed decision by decision, with what each decision must be.

The situation before a decision has the budget that is left, the held blocks, and the request whose
turn it is. What the request must get is computed by definition, without formulas of `spec` or the
reference. The decisions are read from the events of the step, so that a wrong decision is found
where it is taken.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, Self

from attrs import define, evolve, field, frozen

from checks.proofs.links import Edge
from spec.core.records import Event, SomeContext
from spec.vllm_v1.config import Connector, Scheduling, VllmV1Config
from spec.vllm_v1.records import Context, Load, Sequence, State, Step
from spec.vllm_v1.releases import Release

_DECISIONS = ("catch_up", "preempt", "promote", "load", "admit")
OF_QUEUES = ("promote", "load", "admit")
_TURNS_OVER, _WALK_OVER = Event("turns over", "", ""), Event("walk over", "", "")


# --- arithmetic -----------------------------------------------------------------------------------


def follows_0_33(ctx: SomeContext) -> bool:
    """True if the steps are those of 0.33.0."""
    return bool(ctx.config.release is Release.V0_33_0)


def all_tokens(row: Sequence) -> int:
    """Prompt and generated tokens."""
    return row.prompt_len + row.generated


def table_blocks(end: int, config: VllmV1Config) -> int:
    """Blocks for the positions before `end`, cut to the model length."""
    return -(-min(end, config.max_model_len) // config.block_size)


def step_budget(config: VllmV1Config) -> int:
    """Tokens that a step may compute."""
    if config.max_num_batched_tokens is not None:
        return config.max_num_batched_tokens
    return max(2_048, config.max_model_len)


def rank(ctx: SomeContext, row: Sequence) -> tuple[int, int]:
    """The sort key by priority, the lowest number first, then by arrival."""
    return ctx.requests[row.id].priority, row.arrival


def in_order(ctx: SomeContext, rows: Iterable[Sequence]) -> list[Sequence]:
    """A queue in the order of service: unchanged under fcfs, else by rank."""
    if ctx.config.scheduling is Scheduling.FCFS:
        return list(rows)
    return sorted(rows, key=lambda row: rank(ctx, row))


# --- a step, decision by decision -----------------------------------------------------------------


class UnknownMoveError(Exception):
    """The reference took a decision about a request that is in the wrong queue for it."""


@define
class Situation:
    """The state within a step before its next decision, and the event of that decision.

    `left`: tokens left of the budget. `running`: in queue order. `holders`: by block, the number of
    requests that hold it. `given`, `drafts`: tokens by request. `passed_over`: requests passed over
    in the walk over the queues; `just_passed`: those since the last decision. `row`: the request of
    the next decision; `hits` and `allocated`: the blocks that it gets. `turn`: the running request
    whose turn it is and its tokens, until it got them. `place`: index in `order` where the next
    turn is searched. `is_over`: a request had to preempt itself, which ends the turns.
    """

    ctx: Context
    step: Step
    left: int
    running: dict[str, Sequence]
    skipped: list[Sequence]
    waiting: list[Sequence]
    holders: Counter[int]
    order: list[str]
    given: dict[str, int] = field(factory=dict)
    drafts: dict[str, int] = field(factory=dict)
    preempted: list[str] = field(factory=list)
    admitted: list[str] = field(factory=list)
    passed_over: list[Sequence] = field(factory=list)
    just_passed: list[Sequence] = field(factory=list)
    event: Event = _TURNS_OVER
    row: Sequence = field(init=False)
    hits: tuple[int, ...] = ()
    allocated: tuple[int, ...] = ()
    is_over: bool = False
    turn: tuple[Sequence, int] | None = None
    place: int = field(default=0, init=False)

    @property
    def free(self) -> int:
        """Blocks that no request holds."""
        return self.step.before.pool.size - len(self.holders)

    def cut(self, behind: int) -> int:
        """The tokens, cut to the threshold if there is one; not of the only request in 0.33.0."""
        threshold, before = self.ctx.config.long_prefill_token_threshold, self.step.before
        requests = len(before.skipped) + len(before.waiting) + len(before.running)
        is_cut = 0 < threshold < behind and (requests > 1 or not follows_0_33(self.ctx))
        return threshold if is_cut else behind

    def find_turn(self) -> None:
        """Set `turn` to the next running request that may get a token, if there is one."""
        if self.turn is not None or self.left <= 0 or self.is_over:
            return
        for place in range(self.place, len(self.order)):
            row = self.running.get(self.order[place])
            if row is not None and (share := self._share(row)) > 0:
                self.place, self.turn = place, (row, share)
                return
        self.place = len(self.order)

    def advance(self, event: Event) -> Self:
        """The situation before this decision."""
        self.event = event
        if event.transition in OF_QUEUES:
            self._pass_over(event.id)
            row = self.head
        else:
            self.find_turn()
            row = self.running.get(event.id)
        if row is None:
            raise UnknownMoveError(f"{event.transition} of {event.id}, which is not there")
        self.row = row
        return self

    def end_turns(self) -> Self:
        """The situation when all running requests have had their turns."""
        self.event = _TURNS_OVER
        self.find_turn()
        return self

    def end_walk(self) -> Self:
        """The situation when the walk over the queues has ended."""
        self.event = _WALK_OVER
        self.just_passed = []
        while (row := self.head) is not None:
            if self.queue_is_closed or not may_be_passed_over(self, row):
                break
            self._pass(row)
        return self

    def _share(self, row: Sequence) -> int:
        """The tokens that the request gets: what it lacks, drafts included, within all limits."""
        config = self.ctx.config
        behind = self.cut(all_tokens(row) + row.drafts - row.computed)
        last = 0 if config.pooling and follows_0_33(self.ctx) else 1
        return min(behind, self.left, config.max_model_len - row.computed - last)

    @property
    def head(self) -> Sequence | None:
        """The next request of the queues, first those passed over in earlier steps.

        By priority these come first in 0.33.0 only.
        """
        heads = [queue[0] for queue in (self.skipped, self.waiting) if queue]
        if heads and not follows_0_33(self.ctx):
            heads = in_order(self.ctx, heads)
        return heads[0] if heads else None

    @property
    def queue_is_closed(self) -> str | None:
        """The rule that ends the walk over the queues; None if it goes on."""
        if self.preempted:
            return "V1-PRE-4"
        if self.head is not None and self.left == 0:
            return "V1-BUD-1"
        if self.head is not None and len(self.running) >= self.ctx.config.max_num_seqs:
            return "V1-SEQ-1"
        return None

    def _pass_over(self, until: str) -> None:
        """Remove the requests before the one of this name from the queues."""
        self.just_passed = []
        while (row := self.head) is not None and row.id != until:
            self._pass(row)

    def _pass(self, row: Sequence) -> None:
        self._take(row)
        self.just_passed.append(row)
        self.passed_over.append(row)

    def _take(self, row: Sequence) -> None:
        queue = self.skipped if row in self.skipped else self.waiting
        queue.remove(row)

    def apply(self) -> None:
        """Apply the effect of the event."""
        row, event = self.row, self.event
        match event.transition:
            case "catch_up":
                self._schedule(row, event.after)
            case "preempt":
                self._preempt(row)
            case "promote":
                self._take(row)
                self._promote(row)
            case "load":
                self._take(row)
                self.passed_over.append(evolve(self._grown(row, event.after), load=Load.LOADING))
            case "admit":
                self._take(row)
                self.running[row.id] = self._grown(row, event.before)
                self.admitted.append(row.id)
                self._give(self.running[row.id], event.after)
        self.hits = self.allocated = ()

    def _schedule(self, row: Sequence, new: int) -> None:
        self._give(row, new)
        if row.drafts or self.allocated:
            grown = evolve(row, drafts=0, blocks=(*row.blocks, *self.allocated))
            self.running[row.id] = grown
            self.holders.update(self.allocated)
        if self.turn is not None and self.turn[0].id == row.id:
            self.place, self.turn = self.place + 1, None

    def _give(self, row: Sequence, new: int) -> None:
        self.left -= new
        self.given[row.id] = new
        if (beyond := row.computed + new - all_tokens(row)) > 0:
            self.drafts[row.id] = beyond

    def _grown(self, row: Sequence, computed: int) -> Sequence:
        self.holders.update(self.hits)
        self.holders.update(self.allocated)
        return evolve(row, computed=computed, blocks=(*row.blocks, *self.hits, *self.allocated))

    def _preempt(self, row: Sequence) -> None:
        del self.running[row.id]
        self.left += self.given.pop(row.id, 0)
        self.drafts.pop(row.id, None)
        self._give_back(row)
        again = evolve(row, computed=0, drafts=0, blocks=(), prefilling=False)
        self.waiting = in_order(self.ctx, [again, *self.waiting])
        self.preempted.append(row.id)
        if self.turn is not None and self.turn[0].id == row.id:
            self.is_over, self.turn = not follows_0_33(self.ctx), None

    def _give_back(self, row: Sequence) -> None:
        self.holders.subtract(row.blocks)
        for block in row.blocks:
            if not self.holders[block]:
                del self.holders[block]

    def _promote(self, row: Sequence) -> None:
        if row.computed == 0:
            self._give_back(row)
        ready = evolve(
            row,
            load=Load.NONE,
            computed=min(row.computed, all_tokens(row) - 1),
            blocks=row.blocks if row.computed else (),
        )
        self.skipped = in_order(self.ctx, [ready, *self.skipped])


def situations(edge: Edge) -> Iterator[Situation]:
    """The situation before each decision, after all turns, and after the walk over the queues.

    The same object is yielded each time.

    Raises:
        UnknownMoveError: a decision about a request that is in the wrong queue for it.
    """
    ctx: Any = edge.ctx
    step = edge.step
    now = Situation(
        ctx=ctx,
        step=step,
        left=step_budget(ctx.config),
        running={row.id: row for row in step.before.running},
        skipped=[*step.before.skipped],
        waiting=[*step.before.waiting],
        holders=block_holders(step.before),
        order=[row.id for row in step.before.running],
    )
    turns_over = False
    for event in step.events:
        if event.transition == "prefix_hit":
            now.hits = event.after
        elif event.transition == "allocate":
            now.allocated = event.after
        elif event.transition in _DECISIONS:
            if event.transition in OF_QUEUES and not turns_over:
                turns_over = True
                yield now.end_turns()
            yield now.advance(event)
            now.apply()
    if not turns_over:
        yield now.end_turns()
    yield now.end_walk()


def block_holders(state: State) -> Counter[int]:
    """By block, the number of requests that hold it."""
    rows = chain(state.skipped, state.running, state.draining, state.waiting)
    return Counter(chain.from_iterable(row.blocks for row in rows))


# --- a request at the head of the queues ----------------------------------------------------------


@frozen
class Asked:
    """What a waiting request must get, or the rule that refuses it; lengths in tokens.

    `computed`: cached and external tokens. `needed`: number of new blocks.
    """

    refusal: str | None
    computed: int
    new: int
    external: int
    is_load: bool
    needed: int


def asked(now: Situation, row: Sequence, hits: tuple[int, ...]) -> Asked:
    """What the request must get with these hits, if the queues are not closed."""
    config, tokens = now.ctx.config, all_tokens(row)
    local, external, is_load = len(hits) * config.block_size, 0, False
    if config.connector is not Connector.NONE and not row.computed:
        is_load = config.connector is Connector.ASYNC
        is_read = now.ctx.requests[row.id].reads_cache or not follows_0_33(now.ctx)
        is_offered = is_read and row.id not in now.step.before.lost
        most = tokens - (not is_load) if is_offered else 0
        external = max(min(now.ctx.external.get(row.id, 0), most) - local, 0)
        is_load = is_load and external > 0
    computed = row.computed + local + external
    if is_load:
        refusal, needed = _lack_of_blocks(now, row, hits, computed, True)
        return Asked(refusal, computed, 0, external, True, needed)
    padding = _padding(now, computed, tokens - computed)
    behind = tokens - computed + padding
    new = min(now.cut(behind), now.left)
    end = computed + new + config.num_lookahead_tokens
    refusal, needed = _lack_of_blocks(now, row, hits, end, False)
    if not config.chunked_prefill and new < now.cut(behind):
        refusal = "V1-CHK-2"
    if padding and (behind > now.left or computed + behind > config.max_model_len):
        refusal = "V1-SPC-5"
    return Asked(refusal, computed, new, external, False, needed)


def _padding(now: Situation, computed: int, behind: int) -> int:
    """Padding drafts beside the single token of a request, if all rows before it only decode.

    In 0.33.0 also without other rows if it has computed tokens, and only before the model's end.
    """
    config, is_newest = now.ctx.config, follows_0_33(now.ctx)
    if behind != 1 or config.release is Release.V0_11_2:
        return 0
    others = [now.running[name] for name in now.given if name not in now.admitted]
    if any(row.prefilling for row in others) or not (others or (is_newest and computed)):
        return 0
    if is_newest and computed + behind + config.num_speculative_tokens >= config.max_model_len:
        return 0
    return config.num_speculative_tokens


def _lack_of_blocks(
    now: Situation, row: Sequence, hits: tuple[int, ...], end: int, is_load: bool
) -> tuple[str | None, int]:
    """The rule that refuses for lack of blocks, and the new blocks that the request needs."""
    config, held = now.ctx.config, len(row.blocks) + len(hits)
    revived = sum(block not in now.holders for block in hits)
    needed = max(table_blocks(end, config) - held, 0)
    whole = max(table_blocks(all_tokens(row), config) - held, 0)
    promised = 0
    if is_load:
        more = _slots_of_drafts(now)
        promised = -(-more // config.block_size)
        promised += sum(
            max(-(-(all_tokens(other) + more) // config.block_size) - len(other.blocks), 0)
            for other in _prompts(now)
        )
    lacks = needed + revived > now.free - promised
    if config.reserve_full_prompt:
        lacks = lacks or whole + revived > now.free
    return ("V1-KV-1" if lacks else None), needed


def _slots_of_drafts(now: Situation) -> int:
    """Slots of a step with drafts, which 0.33.0 leaves to prompts in progress and the new load."""
    config = now.ctx.config
    if not config.num_speculative_tokens or not follows_0_33(now.ctx):
        return 0
    return 1 + config.num_speculative_tokens + config.num_lookahead_tokens


def _prompts(now: Situation) -> Iterator[Sequence]:
    """Loads, and prompts in progress when the step began or with more to come after it."""
    lost = now.step.before.lost
    yield from (row for row in (*now.passed_over, *now.skipped) if row.blocks or row.id in lost)
    had_loaded = {row.id for row in now.step.before.skipped}
    for row in now.running.values():
        is_new = row.id in now.admitted
        goes_on = is_new and row.computed + now.given[row.id] < all_tokens(row)
        if row.prefilling or goes_on or (is_new and row.id in had_loaded):
            yield row


def cached_prefix(now: Situation, row: Sequence) -> tuple[int, ...]:
    """The cached full blocks of a request that was not admitted, without its last token.

    The final plan has them: after a refusal the step caches nothing more.
    """
    config = now.ctx.config
    is_read = now.ctx.requests[row.id].reads_cache
    if not (config.prefix_caching and is_read) or row.computed:
        return ()
    found = []
    for key in now.ctx.keys.of(row.id, (all_tokens(row) - 1) // config.block_size):
        if key not in now.step.planned.pool.cached:
            break
        found.append(now.step.planned.pool.cached[key][0])
    return tuple(found)


def may_be_passed_over(now: Situation, row: Sequence) -> bool:
    """True for a request that loads or that is held back, and in 0.11.2 for one whose prompt would
    be cut.
    """
    if row.load is Load.LOADING or row.id in now.step.before.held_back:
        return True
    if now.ctx.config.release is not Release.V0_11_2 or row.load is not Load.NONE:
        return False
    return asked(now, row, cached_prefix(now, row)).refusal == "V1-CHK-2"


def stays_in_front(now: Situation, row: Sequence) -> bool:
    """True for a request that was passed over and comes before those that wait."""
    is_held_back = row.id in now.step.before.held_back
    return row.load is Load.LOADING or (is_held_back and not follows_0_33(now.ctx))
