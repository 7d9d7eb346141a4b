"""A step of the Spyre scheduler on numbers, the same as in `reference.spyre.step`.

Phases and priorities are written a second time here, in a form that can be compiled; all lengths,
limits and conditions are the formulas of `spec`. A test shows that reference and compiled machine
have the same graph: `tests/checks/policies/spyre/test_compiled_graph.py`.
"""

from checks.explore.compiled.jit import compiled
from checks.policies.spyre.compiled.admission import (
    choose_prefill,
    computed_with_hits,
    counted_after,
    is_last_chunk,
    next_chunk,
    request_promise,
)
from checks.policies.spyre.compiled.formulas import (
    batch_width_blocks,
    max_tkv,
    row_left_padding,
    volume,
)
from checks.policies.spyre.compiled.names import (
    ABORTED,
    AT,
    BLOCKS,
    CHUNK_OWNER,
    COMPUTED,
    DECODE,
    DECODING,
    FINISHED,
    GENERATED,
    HIT,
    IDLE,
    IN_BATCH,
    IN_PAUSE,
    IN_QUEUE,
    IS_STUCK,
    LAST_KIND,
    LAST_TKV,
    LENGTH,
    MAX_TOKENS,
    MOVED,
    N_DECODING,
    N_FREE,
    N_PAUSED,
    N_WAITING,
    NO_REQUEST,
    ORPHANED,
    PADDING,
    PAUSED,
    PHASE,
    PREFILL,
    PREFILLING,
    RESTART,
    SLOT,
    TKV,
    WAITED,
    WAITING,
)
from checks.policies.spyre.compiled.pool import (
    allocate,
    cache_full_blocks,
    held_blocks,
    lookup,
    release,
    touch,
)
from checks.policies.spyre.compiled.setting import Setting, Work
from checks.policies.spyre.compiled.work import (
    forget,
    leave_place,
    prefill_len,
    put_first,
    put_last,
)

# --- between two steps ----------------------------------------------------------------------------


@compiled
def arrive(w: Work, request: int) -> None:
    """A request arrives, perhaps again, at the end of the waiting queue."""
    forget(w, request, WAITING)
    put_last(w, IN_QUEUE, N_WAITING, request)


@compiled
def abort(setting: Setting, w: Work, request: int) -> None:
    """A request is aborted in any phase and releases its blocks."""
    if setting.keeps_promises:
        w[AT, ORPHANED] += request_promise(setting, w, request)
    leave_place(w, request)
    release(setting, w, request, held_blocks(w, request))
    forget(w, request, ABORTED)


# --- the step -------------------------------------------------------------------------------------


@compiled
def step(setting: Setting, w: Work) -> int:
    """A step before finished requests leave; returns the requests that sampled, as bits."""
    candidate = choose_prefill(setting, w)
    if candidate != NO_REQUEST:
        return prefill_step(setting, w, candidate)
    if w[AT, N_DECODING] > 0 or w[AT, N_PAUSED] > 0:
        return decode_step(setting, w)
    remember(setting, w, IDLE, 0)
    return 0


@compiled
def remember(setting: Setting, w: Work, kind: int, tkv: int) -> None:
    """Set what the scheduler remembers of its last step."""
    w[AT, LAST_KIND], w[AT, TKV] = kind, tkv
    w[AT, LAST_TKV] = tkv if setting.keeps_last_tkv else 0


@compiled
def prefill_step(setting: Setting, w: Work, request: int) -> int:
    """One chunk of one request; its last chunk yields a token."""
    covered = prefill_len(w, request)
    remember(setting, w, PREFILL, covered)
    w[AT, CHUNK_OWNER] = request
    # admission: the prefill slot, the cached blocks
    held = held_blocks(w, request)
    if w[PHASE, request] == WAITING:
        held = lookup(setting, w, request)
        leave_place(w, request)
        w[PHASE, request] = PREFILLING
        w[AT, SLOT] = request
        touch(w, request, held)
        w[HIT, request] = held
        w[COMPUTED, request] = computed_with_hits(setting, w, request, held)
    # chunk
    computed = w[COMPUTED, request]
    chunk = next_chunk(setting, w, request, computed)
    counted = counted_after(setting, w, request, computed)
    allocate(setting, w, request, held, w[BLOCKS, counted] - held)
    w[COMPUTED, request] = counted
    cache_full_blocks(setting, w, request)
    if not is_last_chunk(setting, w, request, chunk):
        return 0
    # the last chunk: the first token, a row of the batch
    w[AT, SLOT] = NO_REQUEST
    w[PHASE, request] = DECODING
    w[GENERATED, request] += 1
    put_first(w, IN_BATCH, N_DECODING, request)
    return 1 << request


@compiled
def decode_step(setting: Setting, w: Work) -> int:
    """One token for every request in the batch, as far as limit and pool allow."""
    # the volume limit: the rows that fit decode, the others sit out
    if setting.may_pause:
        pause_and_resume(setting, w)
    # blocks: enough free ones for every row's next token
    while blocks_lacking(setting, w) > 0:
        slot = w[AT, SLOT]
        preempt(setting, w, slot if slot != NO_REQUEST else w[IN_BATCH, 0])
    # the rectangular batch, a token of every row
    rows, size = w[AT, N_DECODING], setting.block_size
    if rows == 0:
        w[AT, IS_STUCK] = 1
        return 0
    next_lengths(w)
    width = batch_width_blocks(w[LENGTH], rows, size)
    tkv = max_tkv(w[LENGTH], rows, size)
    sampled = 0
    for place in range(rows):
        row = w[IN_BATCH, place]
        w[PADDING, row] = row_left_padding(w[COMPUTED, row] + 1, width, size) // size
        held = held_blocks(w, row)
        allocate(setting, w, row, held, w[BLOCKS, w[COMPUTED, row] + 1] - held)
        w[COMPUTED, row] += 1
        w[GENERATED, row] += 1
        sampled |= 1 << row
    for place in range(rows):
        cache_full_blocks(setting, w, w[IN_BATCH, place])
    remember(setting, w, DECODE, tkv)
    return sampled


@compiled
def next_lengths(w: Work) -> None:
    """The rows' tokens without padding in the next decode step, in `length`."""
    for place in range(w[AT, N_DECODING]):
        w[LENGTH, place] = w[COMPUTED, w[IN_BATCH, place]] + 1


@compiled
def blocks_lacking(setting: Setting, w: Work) -> int:
    """Blocks that the batch's next tokens need beyond the free ones."""
    lacking = -w[AT, N_FREE]
    for place in range(w[AT, N_DECODING]):
        row = w[IN_BATCH, place]
        needed = w[BLOCKS, w[COMPUTED, row] + 1]
        lacking += needed - held_blocks(w, row)
    return lacking


@compiled
def preempt(setting: Setting, w: Work, request: int) -> None:
    """Release all blocks of a request and put it first in the queue; it computes all again."""
    leave_place(w, request)
    release(setting, w, request, held_blocks(w, request))
    generated = w[GENERATED, request]
    forget(w, request, WAITING)
    w[GENERATED, request] = generated
    w[RESTART, request] = generated
    put_first(w, IN_QUEUE, N_WAITING, request)


@compiled
def finish(setting: Setting, w: Work, sampled: int, ending: int) -> None:
    """Remove the rows that sampled their last token or the end of sequence; both sets as bits."""
    place = 0
    while place < w[AT, N_DECODING]:
        row = w[IN_BATCH, place]
        if (sampled >> row) & 1 and ((ending >> row) & 1 or has_all(setting, w, row)):
            leave_place(w, row)
            release(setting, w, row, held_blocks(w, row))
            forget(w, row, FINISHED)
        else:
            place += 1


@compiled
def has_all(setting: Setting, w: Work, request: int) -> bool:
    """True if the request has sampled all its tokens."""
    return w[GENERATED, request] >= w[MAX_TOKENS, request]


# --- the volume limit -----------------------------------------------------------------------------


@compiled
def pause_and_resume(setting: Setting, w: Work) -> None:
    """The rows within the limit decode, longest absent first; the others are paused."""
    # The order of priority, in `moved`; ties in queue order.
    count = 0
    for place in range(w[AT, N_PAUSED] + w[AT, N_DECODING]):
        is_paused = place < w[AT, N_PAUSED]
        row = w[IN_PAUSE, place] if is_paused else w[IN_BATCH, place - w[AT, N_PAUSED]]
        behind = count
        while behind > 0 and has_precedence(setting, w, row, w[MOVED, behind - 1]):
            w[MOVED, behind] = w[MOVED, behind - 1]
            behind -= 1
        w[MOVED, behind] = row
        count += 1
    # Add rows while they fit; the others are paused.
    within, w[AT, N_PAUSED] = 0, 0
    for place in range(count):
        row = w[MOVED, place]
        w[LENGTH, within] = w[COMPUTED, row] + 1
        tkv = max_tkv(w[LENGTH], within + 1, setting.block_size)
        if volume(within + 1, tkv) <= setting.limit:
            within += 1
            if w[PHASE, row] == PAUSED:
                w[PHASE, row] = DECODING
                w[WAITED, row] = 0
                put_last(w, IN_BATCH, N_DECODING, row)
        else:
            leave_place(w, row)
            w[PHASE, row] = PAUSED
            w[WAITED, row] += 1
            w[IN_PAUSE, w[AT, N_PAUSED]] = row
            w[AT, N_PAUSED] += 1


@compiled
def has_precedence(setting: Setting, w: Work, row: int, other: int) -> bool:
    """True if a row precedes another: longest absent first, then fewest or most generated."""
    if w[WAITED, row] != w[WAITED, other]:
        return w[WAITED, row] > w[WAITED, other]
    if setting.long_output_first:
        return w[GENERATED, row] > w[GENERATED, other]
    return w[GENERATED, row] < w[GENERATED, other]
