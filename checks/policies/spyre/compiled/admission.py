"""Refusals of prefills, as in `reference.spyre.admission`, on numbers."""

from checks.explore.compiled.jit import compiled
from checks.policies.spyre.compiled.formulas import (
    active_chunk,
    chunk_count,
    condition_holds,
    counted_end,
    left_padding,
    may_reserve,
    promised_blocks,
    reused_blocks,
    worst_case_blocks,
)
from checks.policies.spyre.compiled.names import (
    AT,
    BLOCKS,
    COMPUTED,
    GENERATED,
    IN_BATCH,
    IN_QUEUE,
    LAST_KIND,
    LAST_TKV,
    LENGTH,
    MAX_TOKENS,
    N_DECODING,
    N_FREE,
    N_PAUSED,
    N_WAITING,
    NO_REQUEST,
    ORPHANED,
    PAUSED,
    PHASE,
    PREFILL,
    PREFILLING,
    PROMPT_LEN,
    REMAINING,
    SLOT,
    WAITING,
)
from checks.policies.spyre.compiled.pool import held_blocks, held_hits, lookup
from checks.policies.spyre.compiled.setting import Setting, Work
from checks.policies.spyre.compiled.work import prefill_len

# Results: the request may have its next chunk, it may not, or no request may.
ALLOWED, REFUSED, REFUSED_WITH_ALL = range(3)


@compiled
def choose_prefill(setting: Setting, w: Work) -> int:
    """The request that gets the next chunk, or NO_REQUEST."""
    if w[AT, SLOT] != NO_REQUEST:
        request = w[AT, SLOT]
        return request if prefill_refusal(setting, w, request) == ALLOWED else NO_REQUEST
    for place in range(w[AT, N_WAITING]):
        refusal = prefill_refusal(setting, w, w[IN_QUEUE, place])
        if refusal == ALLOWED:
            return w[IN_QUEUE, place]
        if refusal == REFUSED_WITH_ALL or not setting.overtaking:
            return NO_REQUEST
    return NO_REQUEST


@compiled
def prefill_refusal(setting: Setting, w: Work, request: int) -> int:
    """Whether a prefilling or waiting request may have its next chunk; see ALLOWED."""
    # priorities
    if setting.interleave and w[AT, LAST_KIND] == PREFILL and w[AT, N_DECODING] > 0:
        return REFUSED
    if w[AT, N_PAUSED] > 0 and (w[AT, N_DECODING] > 0 or w[AT, SLOT] != NO_REQUEST):
        return REFUSED
    # blocks
    is_first = w[PHASE, request] == WAITING
    hits = lookup(setting, w, request) if is_first else 0
    computed = computed_with_hits(setting, w, request, hits) if is_first else w[COMPUTED, request]
    chunk = next_chunk(setting, w, request, computed)
    free, shared = w[AT, N_FREE], held_hits(w, hits)
    if setting.reservation and is_first:
        remaining = w[MAX_TOKENS, request] - w[GENERATED, request]
        covered = prefill_len(w, request)
        worst_case = worst_case_blocks(covered, remaining, setting.block_size)
        if not may_reserve(worst_case, shared, free, reserved_blocks(setting, w)):
            return REFUSED_WITH_ALL
    elif not setting.reservation:
        held = hits if is_first else held_blocks(w, request)
        counted = counted_after(setting, w, request, computed)
        if hits - shared + w[BLOCKS, counted] - held > free:
            return REFUSED
    # the chunk
    running = w[AT, N_DECODING] + (w[AT, SLOT] != NO_REQUEST)
    if is_first and running >= setting.max_num_seqs:
        return REFUSED
    is_judged = is_first if setting.judged_first else is_last_chunk(setting, w, request, chunk)
    return REFUSED if is_judged and not may_join(setting, w, request) else ALLOWED


@compiled
def reserved_blocks(setting: Setting, w: Work) -> int:
    """Promised blocks that are not allocated yet, including those of requests that left."""
    reserved = w[AT, ORPHANED]
    for request in range(setting.requests):
        reserved += request_promise(setting, w, request)
    return reserved


@compiled
def request_promise(setting: Setting, w: Work, request: int) -> int:
    """Blocks promised to an admitted request and not allocated yet."""
    if not setting.reservation or not is_admitted(w, request):
        return 0
    # With reservation nothing is preempted: the promise was for the prompt and all its output.
    promised = worst_case_blocks(w[PROMPT_LEN, request], w[MAX_TOKENS, request], setting.block_size)
    return promised_blocks(promised, held_blocks(w, request))


@compiled
def is_admitted(w: Work, request: int) -> bool:
    """True if the request was admitted and has not left."""
    return PREFILLING <= w[PHASE, request] <= PAUSED


@compiled
def computed_with_hits(setting: Setting, w: Work, request: int, hits: int) -> int:
    """Tokens of a waiting request that count as computed when it is admitted with these hits."""
    if hits == 0:
        return 0
    covered = prefill_len(w, request)
    padding = left_padding(covered, setting.block_size, setting.chunk_size)
    per_chunk = setting.chunk_size // setting.block_size
    chunks = chunk_count(covered, setting.chunk_size)
    reused = reused_blocks(hits, padding // setting.block_size, per_chunk, chunks)
    return (hits if setting.counts_hits else reused) * setting.block_size


@compiled
def next_chunk(setting: Setting, w: Work, request: int, computed: int) -> int:
    """The number of the next chunk after `computed` tokens."""
    padding = left_padding(prefill_len(w, request), setting.block_size, setting.chunk_size)
    return active_chunk(computed, padding, setting.chunk_size)


@compiled
def is_last_chunk(setting: Setting, w: Work, request: int, chunk: int) -> bool:
    """True for the chunk that yields the first token."""
    return chunk == chunk_count(prefill_len(w, request), setting.chunk_size) - 1


@compiled
def counted_after(setting: Setting, w: Work, request: int, computed: int) -> int:
    """Tokens that count as computed after the next chunk; `computed`: before it."""
    covered = prefill_len(w, request)
    padding = left_padding(covered, setting.block_size, setting.chunk_size)
    chunk = active_chunk(computed, padding, setting.chunk_size)
    return counted_end(computed, chunk, padding, setting.chunk_size, covered)


@compiled
def may_join(setting: Setting, w: Work, request: int) -> bool:
    """True if the last-chunk constraints let the request join the decode batch."""
    if w[AT, N_DECODING] >= setting.max_num_seqs:
        return False
    if setting.pausing:
        return True
    rows = w[AT, N_DECODING]
    for place in range(rows):
        row = w[IN_BATCH, place]
        w[LENGTH, place] = w[COMPUTED, row]
        w[REMAINING, place] = w[MAX_TOKENS, row] - w[GENERATED, row]
    covered = prefill_len(w, request)
    own = w[MAX_TOKENS, request] - w[GENERATED, request]
    for number in range(setting.first_condition, setting.last_condition):
        if not condition_holds(
            number,
            w[LENGTH],
            w[REMAINING],
            rows,
            covered,
            own,
            setting.limit,
            setting.max_model_len,
            setting.block_size,
            w[AT, LAST_TKV],
        ):
            return False
    return True
