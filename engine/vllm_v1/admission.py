"""Plan admissions and loads of waiting requests, with prefix lookups and new blocks.

Source: vllm-v1, "Token Budget Management", "Prefix Caching" and "Speculative Decoding"; what the
text leaves open is the release's. The formulas are those of `spec/vllm_v1/config.py`.
"""

from collections.abc import Iterable
from heapq import merge
from itertools import chain

from engine.core.blocks import PrefixHit
from engine.vllm_v1 import groups
from engine.vllm_v1.draft import Draft
from engine.vllm_v1.plan import Admission, Blocks, GroupBlocks, LoadStart, Tables, Turn
from engine.vllm_v1.requests import RequestState
from engine.vllm_v1.state import SchedulerState
from spec.core.blocks import missing_blocks
from spec.vllm_v1.config import (
    Connector,
    capped_tokens,
    hit_blocks_at_most,
    waiting_tokens,
)
from spec.vllm_v1.records import Load


def plan_admissions(draft: Draft) -> None:
    """Admit requests from the heads of the queues until one is refused.

    Requests that load, or that are held back, are passed over.
    """
    for row in _in_turn(draft.state):
        draft.refusal = no_room(draft.state, draft.budget, draft.running)
        if draft.refusal is None and draft.state.holds_back(row):
            draft.defer(row)
        elif draft.refusal is None and row.load is not Load.LOADING:
            draft.refusal = _considered(draft, row)
        if draft.refusal is not None:
            return


def no_room(state: SchedulerState, budget: int, running: int) -> str | None:
    """The rule that refuses every waiting request at this budget and number of rows, or None."""
    places = state.config.max_num_seqs
    if not budget:
        return "V1-BUD-1"
    if running >= places:
        return "V1-SEQ-1"
    return "V1-SES-3" if running + len(state.noted.awaited) >= places else None


def _in_turn(state: SchedulerState) -> Iterable[RequestState]:
    """The waiting requests in the order in which they are judged: passed-over requests first.

    By priority, up to 0.28.0, the more urgent ones first.
    """
    if not state.by_priority or state.config.behaviour.holders_first:
        return chain(state.skipped, state.queue)
    return merge(state.skipped, state.queue, key=lambda row: row.rank)


def _considered(draft: Draft, row: RequestState) -> str | None:
    """Admit the request, start its load or pass it over; return the refusing rule, or None."""
    found = _Found.of(draft, row)
    if found.external and draft.state.config.connector is Connector.ASYNC:
        return _load(draft, row, found)
    config, budget = draft.state.config, draft.budget
    threshold, computed = draft.threshold, found.computed
    padding = _padding(draft, computed, row.tokens - computed)
    wanted = row.tokens - computed + padding
    if padding and (wanted > budget or computed + wanted > config.max_model_len):
        return "V1-SPC-5"
    new = int(waiting_tokens(row.tokens + padding, computed, threshold, budget))
    uncut = int(capped_tokens(row.tokens - computed, threshold))
    if not config.chunked_prefill and new < uncut:
        if not config.behaviour.steps_over_uncut:
            return "V1-CHK-2"
        draft.passed.append(row)
        return None
    span = range(computed, computed + new)
    new = groups.chunk(draft.state, row, span, row.tokens, row.junction or found.junction)
    if not new:
        return "V1-GRP-14"
    encodings = draft.encoder.want(row, computed, new)
    new = encodings.tokens
    if not new:
        return None if config.behaviour.passes_over_unencoded else "V1-ENC-8"
    needed = groups.positions(draft.state, computed + new)
    lacking, refusal = _lacking(draft, found, needed, draft.pool.free), None
    if _reads_fresh_state(draft, found):
        refusal = "V1-GRP-15"
    elif lacking is None:
        refusal = "V1-KV-1"
    if refusal is not None or lacking is None:
        draft.encoder.give_back(row)
        return refusal
    fresh, further = _handed_out(draft, found, lacking, needed)
    draft.encoder.encode(row, encodings)
    own = (row, row.tokens, computed, new, found.held, fresh, found.hits, found.external)
    admission = Admission(*own, encoded=encodings.new, further=further)
    draft.admit(admission, found.registered)
    return None


def _reads_fresh_state(draft: Draft, found: "_Found") -> bool:
    """True if the hits end with a state that this step computes."""
    last = groups.last_states(draft.state, found.further_hits)
    return any(draft.pool.content_key(block) in draft.states for block in last)


def _handed_out(
    draft: Draft, found: "_Found", lacking: int, needed: groups.Positions
) -> tuple[Blocks, GroupBlocks | None]:
    """The request's new blocks; in groups of layers first those of what the connector brings.

    `lacking`: blocks of the first group.
    """
    pool, state = draft.pool, draft.state
    if not state.groups:
        pool.acquire(found.hits)
        return pool.allocate(lacking), None
    further = groups.taken(found.tables, found.further_hits)
    further.junction, further.grown_from = found.junction, found.row.grown_from
    pool.acquire((*found.hits, *chain.from_iterable(further.hits)))
    held = len(found.held) + len(found.hits)
    fresh: Blocks = ()
    brought = found.computed, found.computed
    for positions in (brought, needed) if found.external else (needed,):
        lacks = int(missing_blocks(positions[1], held + len(fresh), state.config.block_size))
        fresh += pool.allocate(lacks)
        further = groups.allocated(state, pool, further, positions)
    return fresh, further


def _padding(draft: Draft, computed: int, behind: int) -> int:
    """Padding drafts of a request with one token to compute, from 0.28.0 on.

    Only where all rows scheduled before it decode, so that all rows have one length.
    """
    config, behaviour = draft.state.config, draft.state.config.behaviour
    drafts = config.num_speculative_tokens
    if behind != 1 or not behaviour.pads:
        return 0
    if draft.verification is None:
        running = [row for row, turn in draft.turns.items() if not isinstance(turn, Admission)]
        is_alone = not running and not (behaviour.pads_alone and computed)
        if is_alone or any(row.prefilling for row in running):
            return 0
    has_room = computed + 1 + drafts < config.max_model_len
    return drafts if has_room or behaviour.padding_needs_length else 0


def _load(draft: Draft, row: RequestState, found: "_Found") -> str | None:
    """Start loading the request's external tokens into its blocks; return the refusal, or None.

    The blocks that prompts in progress still need stay free, since a loading request holds its
    blocks without progress (vLLM 0.28.0).
    """
    if _reads_fresh_state(draft, found):
        return "V1-GRP-15"
    needed = found.computed, found.computed  # without lookahead
    lacking = _lacking(draft, found, needed, draft.pool.free - _blocks_in_demand(draft))
    if lacking is None:
        return "V1-KV-1"
    fresh, further = _handed_out(draft, found, lacking, needed)
    own = (row, found.computed, found.external, found.held, found.hits, fresh)
    draft.load(LoadStart(*own, further))
    return None


def _blocks_in_demand(draft: Draft) -> int:
    """Blocks that prompts in progress and loads, failed ones too, still lack.

    In 0.33.0 each lacks the slots of its next step with drafts, too, and so does the new load.
    """
    state = draft.state
    more = state.config.reserved_draft_slots
    turns = [turn for turn in draft.turns.values() if _is_prompt(state, turn)]
    tables = [(0, 0), *((turn.tokens, len(turn.table)) for turn in turns)]
    tables += [(load.row.tokens, len(load.table)) for load in draft.loads]
    begun = {row for row in state.skipped if row.blocks or row.id in state.lost}
    cut = (row for row in state.running.rows if row.prefilling)  # maybe without a turn
    others = {*begun, *draft.passed, *cut} - draft.turns.keys() - {load.row for load in draft.loads}
    tables += [(row.tokens, len(row.blocks) if row not in draft.emptied else 0) for row in others]
    size = state.config.block_size
    lacking = sum(int(missing_blocks(tokens + more, held, size)) for tokens, held in tables)
    if not state.groups:
        return lacking
    further = [(turn.row, turn.further.tables) for turn in turns if turn.further]
    further += [(load.row, load.further.tables) for load in draft.loads if load.further]
    further += [(row, draft.tables.get(row, row.tables)) for row in others]
    for row, own in further:
        end = row.tokens + more
        held = own or groups.empty(state)
        lacking += sum(groups.lacking(state, held, (end, end), ever=True))
    return lacking


def _is_prompt(state: SchedulerState, turn: Turn) -> bool:
    """True for a prompt in progress: with chunks to come, its last one, or one that had loaded."""
    if not isinstance(turn, Admission):
        return turn.row.prefilling
    return turn.row in state.skipped or turn.computed + turn.new < turn.tokens


def _lacking(draft: Draft, found: "_Found", needed: groups.Positions, free: int) -> int | None:
    """Blocks that the request lacks for these positions; None if they exceed `free`.

    In all groups of layers together. With `reserve_full_prompt` all of its tokens must fit, too.
    """
    config, held = draft.state.config, len(found.held) + len(found.hits)
    if config.reserve_full_prompt:
        whole = min(found.row.tokens, config.max_model_len)
        lacking = int(missing_blocks(whole, held, config.block_size))
        everything = whole, whole
        others = sum(groups.lacking(draft.state, found.tables, everything, ever=True))
        if lacking + others + found.revived > draft.pool.free:
            return None
    lacking = int(missing_blocks(needed[1], held, config.block_size))
    others = sum(groups.lacking(draft.state, found.tables, needed))
    return lacking if lacking + others + found.revived <= free else None


# --- cached and external tokens -------------------------------------------------------------------


class _Found:
    """The tokens that a request need not compute; lengths in tokens.

    `computed`: its computed, cached and `external` tokens; the connector brings the last. `held`:
    its blocks. `hits`: cached blocks; `revived`: how many of these no request holds. `registered`:
    leading blocks of its table that lookups find. `further_hits`: cached blocks in the groups of
    layers beside the first; `tables`: its tables there, with those that it takes; `junction`: where
    its prefix ends in the first, if they have less.
    """

    __slots__ = (
        *("computed", "external", "further_hits", "held", "hits", "junction"),
        *("registered", "revived", "row", "tables"),
    )
    row: RequestState
    computed: int
    external: int
    held: Blocks
    hits: Blocks
    registered: int
    revived: int
    further_hits: Tables
    tables: Tables
    junction: int

    @staticmethod
    def of(draft: Draft, row: RequestState) -> "_Found":
        """Of a request that does not load; the result of an ended load is promoted first."""
        found = _Found()
        found.row, found.computed, found.external = row, row.computed, 0
        found.held, found.registered = row.blocks, row.registered
        found.hits, found.revived = (), 0
        found.further_hits, found.junction = groups.empty(draft.state), 0
        if row.load is not Load.NONE:
            found._promote(draft)
        if not found.computed:
            found._find_hits(draft)
        found.tables = row.tables
        if draft.state.groups and not row.tables:
            found._take_in_groups(draft)
        return found

    def _promote(self, draft: Draft) -> None:
        """Loaded tokens count as computed, but for one that is left to compute."""
        row, size = self.row, draft.state.config.block_size
        draft.promote(row)
        self.computed = min(row.computed, row.tokens - 1)
        if not row.computed:
            self.held = ()
        elif draft.state.config.prefix_caching:
            whole = row.computed // draft.state.alignment * draft.state.alignment
            self.registered = max(row.registered, whole // size)

    def _find_hits(self, draft: Draft) -> None:
        """Look up cached blocks, then the connector's tokens behind them."""
        state, row = draft.state, self.row
        if state.config.prefix_caching and row.request.reads_cache:
            hit = _hit(draft, row)
            self.hits, self.registered = hit.blocks, len(hit.blocks)
            self.revived = len(hit.blocks) - hit.held
            if state.groups:
                self._cut_to_all_groups(draft)
        self.computed = len(self.hits) * state.config.block_size
        if row.id not in state.lost and row.is_brought(state.config.behaviour):
            left = row.external and state.config.leaves_one_token
            has = min(row.external, row.tokens - left)
            self.external = max(has - self.computed, 0)
            self.computed += self.external

    def _cut_to_all_groups(self, draft: Draft) -> None:
        """Take the longest prefix that all groups of layers have."""
        state, size = draft.state, draft.state.config.block_size
        longest = len(self.hits) * size // state.alignment * state.alignment
        end, further = groups.common_hits(state, draft.pool, self.row, longest)
        self.hits, self.further_hits = self.hits[: end // size], further
        self.registered = len(self.hits)
        self.revived = sum(draft.pool.references(block) == 0 for block in self.hits)
        if end < longest and state.config.has_states:
            self.junction = longest

    def _take_in_groups(self, draft: Draft) -> None:
        """Take the hits of all groups that the token behind the computed ones reads."""
        state, hits = draft.state, self.further_hits
        self.tables = groups.with_hits(state, hits, self.computed)
        self.revived += groups.revived(state, draft.pool, hits, self.computed)


def _hit(draft: Draft, row: RequestState) -> PrefixHit:
    """The cached blocks of the longest prefix, at least one token short of all.

    The lookup of the first judged request is repeated only if one of these blocks has changed.
    """
    state, pool, hit = draft.state, draft.pool, row.hit
    if pool.is_untouched and hit is not None and hit is state.blocks.watched and not hit.is_stale:
        return hit
    found, asked = [], []
    at_most = int(hit_blocks_at_most(row.tokens, state.config.block_size))
    for key in state.leading_keys(row, at_most):
        asked.append(key)
        block = pool.lookup(key)
        if block is None:
            break
        found.append(block)
    if not pool.is_untouched:
        return PrefixHit(tuple(found), sum(pool.references(block) > 0 for block in found))
    row.hit = state.blocks.watch(tuple(found), asked)
    return row.hit
