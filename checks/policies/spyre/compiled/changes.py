"""Rules of Spyre on numbers that compare what was before with what is after, as bits.

`rules` has those that look at a state or at what a step computes; what is said there of both holds
here.
"""

from checks.explore.compiled.jit import compiled
from checks.policies.spyre.compiled.names import (
    ABORTED,
    AT,
    COMPUTED,
    COUNTED,
    DECODING,
    FINISHED,
    GENERATED,
    HIT,
    IN_BATCH,
    IN_PAUSE,
    IN_QUEUE,
    MAX_TOKENS,
    MOST_REQUESTS,
    MOVED,
    N_DECODING,
    N_FREE,
    N_PAUSED,
    N_WAITING,
    NO_REQUEST,
    PADDING,
    PAUSED,
    PHASE,
    PREFILLING,
    PROMPT_LEN,
    RESTART,
    SLOT,
    TABLES,
    WAITED,
    WAITING,
    bits,
)
from checks.policies.spyre.compiled.setting import Setting, Work

FAR = 1 << 30  # beyond all lengths
_LIF_2, _LIF_3, _LIF_4, _LIF_7 = bits("LIF-2", "LIF-3", "LIF-4", "LIF-7")
_LIF_9, _LIF_10 = bits("LIF-9", "LIF-10")
_TKV_3, _TKV_4, _TKV_5 = bits("SPY-TKV-3", "SPY-TKV-4", "SPY-TKV-5")
_TKV_6, _TKV_7, _DEC_7 = bits("SPY-TKV-6", "SPY-TKV-7", "SPY-DEC-7")
_PRE_1, _PRE_2, _PAU_3 = bits("SPY-PRE-1", "SPY-PRE-2", "SPY-PAU-3")


# --- a request's life -----------------------------------------------------------------------------


@compiled
def is_present(phase: int) -> int:
    """1 for the phase of a request that has arrived and not left, else 0."""
    return (phase >= WAITING) & (phase <= PAUSED)


@compiled
def broken_by_tokens(before: Work, after: Work, sampled: int) -> int:
    """LIF-4 if tokens are gained without being sampled or computed; no request has left yet."""
    wrong = 0
    for r in range(MOST_REQUESTS):
        samples, had = (sampled >> r) & 1, before[GENERATED, r]
        computes = after[COMPUTED, r] > before[COMPUTED, r]
        wrong += is_present(after[PHASE, r]) & (after[GENERATED, r] - had != samples)
        wrong += samples & ((computes == 0) | (had >= before[MAX_TOKENS, r]))
    return _LIF_4 if wrong > 0 else 0


@compiled
def broken_by_end(before: Work, after: Work, sampled: int, ending: int) -> int:
    """The rules that a step breaks by what leaves in it; `sampled` and `ending` as bits."""
    lost, wrong, forgotten = 0, 0, 0
    for r in range(MOST_REQUESTS):
        was, phase = before[PHASE, r], after[PHASE, r]
        samples, ends = (sampled >> r) & 1, (ending >> r) & 1
        stays, leaves = is_present(phase), (phase == FINISHED) & (was != FINISHED)
        tokens = before[GENERATED, r] + samples
        has_all = tokens == before[MAX_TOKENS, r]
        lost += is_present(was) != stays | leaves
        forgotten += (was >= FINISHED) & (phase != was) | (phase == ABORTED) & (was != ABORTED)
        wrong += leaves & ((samples == 0) | (has_all == 0) & (ends == 0))
        wrong += stays & ((after[GENERATED, r] >= before[MAX_TOKENS, r]) | ends)
    return (
        (_LIF_2 if lost > 0 else 0)
        | (_LIF_3 if wrong > 0 else 0)
        | (_LIF_10 if forgotten > 0 else 0)
        | broken_by_order(before, after)
    )


@compiled
def broken_by_order(before: Work, after: Work) -> int:
    """DEC-7 unless what joined stands first, what stays as it stood, what was paused behind."""
    rows, place = after[AT, N_DECODING], 0
    if rows > 0 and before[PHASE, after[IN_BATCH, 0]] <= PREFILLING:
        place = 1
    for old in range(before[AT, N_DECODING]):
        row = before[IN_BATCH, old]
        if after[PHASE, row] == DECODING:
            if place >= rows or after[IN_BATCH, place] != row:
                return _DEC_7
            place += 1
    for last in range(place, rows):
        if before[PHASE, after[IN_BATCH, last]] != PAUSED:
            return _DEC_7
    return 0


@compiled
def broken_between(setting: Setting, before: Work, after: Work, request: int) -> int:
    """LIF-7 and LIF-9 if the arrival or abort of a request changes others, or their places."""
    wrong = 0
    for row in range(HIT + 1):
        for r in range(MOST_REQUESTS):
            wrong += (r != request) & (after[row, r] != before[row, r])
        wrong += (row != PHASE) & (after[row, request] != 0)
    arrives = after[PHASE, request] == WAITING
    if not arrives and after[PHASE, request] != ABORTED:
        wrong += 1
    if before[AT, SLOT] != request and after[AT, SLOT] != before[AT, SLOT]:
        wrong += 1
    wrong += has_other_order(before, after, IN_QUEUE, N_WAITING, request, arrives)
    wrong += has_other_order(before, after, IN_BATCH, N_DECODING, request, False)
    wrong += has_other_order(before, after, IN_PAUSE, N_PAUSED, request, False)
    if setting.caching:
        for r in range(setting.requests):
            if r != request and PREFILLING <= after[PHASE, r] <= PAUSED:
                for place in range(after[COUNTED, after[COMPUTED, r]]):
                    wrong += after[TABLES + r, place] != before[TABLES + r, place]
    return _LIF_7 | _LIF_9 if wrong > 0 else 0


@compiled
def has_other_order(
    before: Work, after: Work, queue: int, count: int, request: int, arrives: bool
) -> int:
    """1 unless a queue is as it was, without the request, which stands behind if it arrives."""
    kept = 0
    for place in range(before[AT, count]):
        if before[queue, place] != request:
            if kept >= after[AT, count] or after[queue, kept] != before[queue, place]:
                return 1
            kept += 1
    if arrives:
        return kept + 1 != after[AT, count] or after[queue, kept] != request
    return kept != after[AT, count]


# --- how tkv moves --------------------------------------------------------------------------------


@compiled
def has_decoded(before: Work, row: int) -> bool:
    """True if the row was in the batch before, and that was not its first token."""
    covered = before[PROMPT_LEN, row] + before[RESTART, row]
    return before[PHASE, row] == DECODING and before[COMPUTED, row] > covered


@compiled
def broken_by_moves(setting: Setting, before: Work, after: Work) -> int:
    """The rules that a decode step breaks by how the tkv of rows moved that decoded before."""
    size, rows = setting.block_size, after[AT, N_DECODING]
    left_by, width, joined_width, crossing, old = FAR, 0, 0, 0, 0
    for place in range(rows):
        row = after[IN_BATCH, place]
        if has_decoded(before, row):
            old += 1
            left_by = min(left_by, before[PADDING, row])
            width = max(width, after[COUNTED, before[COMPUTED, row]])
            crossing += before[COMPUTED, row] % size == 0
        else:
            joined_width = max(joined_width, after[COUNTED, after[COMPUTED, row]])
    if old == 0:
        return 0
    grows = 0
    for place in range(rows):
        row = after[IN_BATCH, place]
        if has_decoded(before, row):
            grows += before[COMPUTED, row] % size == 0 and before[PADDING, row] == left_by
    broken = 0
    for place in range(rows):
        row = after[IN_BATCH, place]
        if has_decoded(before, row):
            crosses = before[COMPUTED, row] % size == 0
            moved = (after[PADDING, row] - before[PADDING, row]) * size
            moved += after[COMPUTED, row] - before[COMPUTED, row]
            if (moved - 1) % size != 0:
                broken |= _TKV_6
            if joined_width == 0 and left_by == 0:
                if crossing == 0 and moved != 1:
                    broken |= _TKV_6
                if grows == 0 and crosses and moved != 1 - size:
                    broken |= _TKV_3
                if grows > 0 and moved != (1 if crosses else 1 + size):
                    broken |= _TKV_4
            if joined_width == 0 and left_by > 0 and crossing == 0 and moved != 1 - left_by * size:
                broken |= _TKV_5
            wider = max(joined_width - width, 0)
            if joined_width > 0 and left_by == 0 and crossing == 0 and moved != 1 + wider * size:
                broken |= _TKV_7
    return broken


# --- pausing and preemption -----------------------------------------------------------------------


@compiled
def rank(setting: Setting, before: Work, row: int) -> int:
    """The smaller, the sooner a row decodes: longest absent, then fewest or most generated."""
    generated = before[GENERATED, row]
    return (-generated if setting.long_output_first else generated) - before[WAITED, row] * FAR


@compiled
def broken_by_pausing(setting: Setting, before: Work, after: Work) -> int:
    """PAU-3 if a row sits out that goes before one that decodes."""
    if after[AT, N_PAUSED] == 0 or after[AT, N_DECODING] == 0:
        return 0
    first = rank(setting, before, after[IN_BATCH, 0])
    for place in range(1, after[AT, N_DECODING]):
        first = min(first, rank(setting, before, after[IN_BATCH, place]))
    for place in range(after[AT, N_PAUSED]):
        row = after[IN_PAUSE, place]
        if rank(setting, before, row) < first:
            return _PAU_3
    return 0


@compiled
def is_preempted(before: Work, after: Work, r: int) -> bool:
    """True if the step took everything from a request that was admitted."""
    return PREFILLING <= before[PHASE, r] <= PAUSED and after[PHASE, r] == WAITING


@compiled
def broken_by_preemption(setting: Setting, before: Work, after: Work) -> int:
    """The rules that a step breaks by what it preempts."""
    broken, victims = 0, 0
    for r in range(setting.requests):
        victims += is_preempted(before, after, r)
    for place in range(victims):
        r = after[IN_QUEUE, place]
        again = after[COMPUTED, r] == 0 and after[GENERATED, r] == before[GENERATED, r]
        if place >= after[AT, N_WAITING] or not is_preempted(before, after, r) or not again:
            broken |= _PRE_2
    if victims > 0 and preempts_otherwise(setting, before, after, victims):
        broken |= _PRE_1
    return broken


@compiled
def preempts_otherwise(setting: Setting, before: Work, after: Work, victims: int) -> bool:
    """True unless the last admitted are preempted, and each while blocks are lacking."""
    free, in_slot = before[AT, N_FREE], before[AT, SLOT] != NO_REQUEST
    if victims > in_slot + before[AT, N_DECODING]:
        return True
    if setting.caching:
        count_holders(setting, before, after)
    for number in range(victims):
        is_of_slot = in_slot and number == 0
        r = before[AT, SLOT] if is_of_slot else before[IN_BATCH, number - in_slot]
        needed = 0
        for place in range(max(number - in_slot, 0), before[AT, N_DECODING]):
            needed += before[COMPUTED, before[IN_BATCH, place]] % setting.block_size == 0
        if not is_preempted(before, after, r) or needed <= free:
            return True
        free += given_back(setting, before, after, r)
    return False


@compiled
def given_back(setting: Setting, before: Work, counts: Work, request: int) -> int:
    """Blocks of the request that no other holds, by the counts in `moved`, which go down."""
    held = before[COUNTED, before[COMPUTED, request]]
    if not setting.caching:
        return held
    alone = 0
    for place in range(held):
        block = before[TABLES + request, place]
        counts[MOVED, block] -= 1
        alone += counts[MOVED, block] == 0
    return alone


@compiled
def count_holders(setting: Setting, w: Work, counts: Work) -> None:
    """Write into `moved` of `counts` how many tables have each block."""
    for block in range(1, setting.pool_blocks + 1):
        counts[MOVED, block] = 0
    for r in range(setting.requests):
        if PREFILLING <= w[PHASE, r] <= PAUSED:
            for place in range(w[COUNTED, w[COMPUTED, r]]):
                counts[MOVED, w[TABLES + r, place]] += 1
