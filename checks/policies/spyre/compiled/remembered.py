"""Rules of Spyre on numbers about what is remembered and about the orders of queues, as bits.

What is said in `rules` and in `changes` of both holds here.
"""

from checks.explore.compiled.jit import compiled
from checks.policies.spyre.compiled.changes import is_preempted, rank
from checks.policies.spyre.compiled.names import (
    ABORTED,
    AT,
    CHUNK_OF,
    COMPUTED,
    CONTENT,
    COUNTED,
    DECODE,
    DECODING,
    GENERATED,
    HIT,
    HOLDERS,
    IN_BATCH,
    IN_PAUSE,
    IN_QUEUE,
    LAST_KIND,
    LAST_TKV,
    LENGTH,
    N_DECODING,
    N_FREE,
    N_PAUSED,
    N_WAITING,
    NO_REQUEST,
    ORDER,
    ORPHANED,
    PADDING,
    PAUSED,
    PHASE,
    PREFILL,
    PREFILLING,
    RESTART,
    SLOT,
    TABLES,
    TKV,
    WAITED,
    WAITING,
    WORST_CASE,
    bits,
)
from checks.policies.spyre.compiled.setting import Setting, Work

_LIF_9, _LIF_11, _VOL_5, _RES_6 = bits("LIF-9", "LIF-11", "SPY-VOL-5", "SPY-RES-6")
_CHK_6, _TKV_9, _PRI_13 = bits("SPY-CHK-6", "SPY-TKV-9", "SPY-PRI-13")
_PAU_7, _PAU_8 = bits("SPY-PAU-7", "SPY-PAU-8")


@compiled
def is_admitted(phase: int) -> bool:
    """True for the phase of a request that was admitted and has not left."""
    return PREFILLING <= phase <= PAUSED


# --- between two steps ----------------------------------------------------------------------------


@compiled
def broken_by_client(setting: Setting, before: Work, after: Work, request: int) -> int:
    """LIF-9 if an arrival or abort changes more than requests and queues, which LIF-7 looks at."""
    holds = after[PHASE, request] == ABORTED and is_admitted(before[PHASE, request])
    held = max(before[COUNTED, before[COMPUTED, request]], before[HIT, request]) if holds else 0
    kept = before[WORST_CASE, request] - held if holds and setting.keeps_promises else 0
    wrong = int(after[AT, ORPHANED] != before[AT, ORPHANED] + kept)
    wrong += after[AT, LAST_KIND] != before[AT, LAST_KIND]
    wrong += after[AT, LAST_TKV] != before[AT, LAST_TKV]
    freed = held
    if setting.caching:
        for block in range(1, setting.pool_blocks + 1):
            own = 0
            for place in range(held):
                own += before[TABLES + request, place] == block
            holders = before[HOLDERS, block] - own
            freed -= own > 0 and holders > 0
            wrong += after[HOLDERS, block] != holders
            wrong += after[CONTENT, block] != before[CONTENT, block]
    wrong += after[AT, N_FREE] != before[AT, N_FREE] + freed
    return _LIF_9 if wrong > 0 else 0


# --- steps ----------------------------------------------------------------------------------------


@compiled
def broken_by_memory(setting: Setting, before: Work, after: Work, sampled: int) -> int:
    """The rules that a step breaks by what it remembers, leaves alone, or puts in a queue."""
    broken, kind = 0, after[AT, LAST_KIND]
    if after[AT, LAST_TKV] != (after[AT, TKV] if setting.keeps_last_tkv else 0):
        broken |= _VOL_5
    if after[AT, ORPHANED] != before[AT, ORPHANED]:
        broken |= _RES_6
    computes = after[AT, CHUNK_OF] if kind == PREFILL else NO_REQUEST
    for r in range(setting.requests):
        phase = after[PHASE, r]
        if is_admitted(phase):
            if after[RESTART, r] != before[RESTART, r]:
                broken |= _CHK_6
            decodes = kind == DECODE and phase == DECODING
            if not decodes and after[PADDING, r] != before[PADDING, r]:
                broken |= _TKV_9
            due = before[WAITED, r] + (kind == DECODE) if phase == PAUSED else 0
            if after[WAITED, r] != due:
                broken |= _PAU_8
            sits_out = kind == DECODE and phase == PAUSED
            if not decodes and not sits_out and r != computes and is_changed(before, after, r):
                broken |= _LIF_11
    slot = before[AT, SLOT]
    if kind == PREFILL:
        slot = NO_REQUEST if sampled else computes
    elif slot != NO_REQUEST and is_preempted(before, after, slot):
        slot = NO_REQUEST
    if after[AT, SLOT] != slot:
        broken |= _LIF_11
    if has_other_queue(before, after, computes):
        broken |= _PRI_13
    if kind == DECODE and setting.may_pause and takes_other_turns(setting, before, after):
        broken |= _PAU_7
    return broken


@compiled
def is_changed(before: Work, after: Work, request: int) -> bool:
    """True if a request has other numbers than before, whatever place it is in."""
    wrong = 0
    for row in range(COMPUTED, HIT + 1):
        wrong += after[row, request] != before[row, request]
    return wrong > 0


@compiled
def has_other_queue(before: Work, after: Work, computes: int) -> bool:
    """True unless what is preempted waits first, the last first, and behind it what waited."""
    place = 0
    for number in range(before[AT, N_DECODING] - 1, -2, -1):
        r = before[IN_BATCH, number] if number >= 0 else before[AT, SLOT]
        if r != NO_REQUEST and is_preempted(before, after, r):
            if (
                place >= after[AT, N_WAITING]
                or after[IN_QUEUE, place] != r
                or not is_new(before, after, r)
            ):
                return True
            place += 1
    for old in range(before[AT, N_WAITING]):
        r = before[IN_QUEUE, old]
        if r != computes:
            if place >= after[AT, N_WAITING] or after[IN_QUEUE, place] != r:
                return True
            if after[PHASE, r] != WAITING or is_changed(before, after, r):
                return True
            place += 1
    return place != after[AT, N_WAITING]


@compiled
def is_new(before: Work, after: Work, request: int) -> bool:
    """True if a request has nothing but the tokens that it had generated."""
    generated = before[GENERATED, request]
    others = after[COMPUTED, request] + after[PADDING, request] + after[WAITED, request]
    return (
        others + after[HIT, request] == 0
        and after[GENERATED, request] == generated
        and after[RESTART, request] == generated
    )


@compiled
def takes_other_turns(setting: Setting, before: Work, after: Work) -> bool:
    """True unless the rows are tried in the order of priority, and stand where they then belong."""
    if before[AT, N_PAUSED] == 0 and after[AT, N_PAUSED] == 0:
        return False
    count = 0
    for place in range(before[AT, N_PAUSED] + before[AT, N_DECODING]):
        was_paused = place < before[AT, N_PAUSED]
        at = place if was_paused else place - before[AT, N_PAUSED]
        row = before[IN_PAUSE, at] if was_paused else before[IN_BATCH, at]
        behind = count
        while behind > 0 and rank(setting, before, row) < rank(
            setting, before, after[ORDER, behind - 1]
        ):
            after[ORDER, behind] = after[ORDER, behind - 1]
            behind -= 1
        after[ORDER, behind] = row
        count += 1
    within, sit_out, resumed = 0, 0, next_resumed(before, after, 0)
    for place in range(count):
        row = after[ORDER, place]
        after[LENGTH, within] = before[COMPUTED, row] + 1
        if volume_of(after, within + 1, setting.block_size) <= setting.limit:
            within += 1
            if before[PHASE, row] == PAUSED:
                if resumed >= after[AT, N_DECODING] or after[IN_BATCH, resumed] != row:
                    return True
                resumed = next_resumed(before, after, resumed + 1)
        else:
            if sit_out >= after[AT, N_PAUSED] or after[IN_PAUSE, sit_out] != row:
                return True
            sit_out += 1
    return sit_out != after[AT, N_PAUSED] or resumed < after[AT, N_DECODING]


@compiled
def next_resumed(before: Work, after: Work, place: int) -> int:
    """Where in the batch, from this place on, the next row stands that was paused."""
    while place < after[AT, N_DECODING] and before[PHASE, after[IN_BATCH, place]] != PAUSED:
        place += 1
    return place


@compiled
def volume_of(w: Work, count: int, block_size: int) -> int:
    """The volume of the first rows in `length`: of each the tokens after the step."""
    width, offset = 0, 0
    for place in range(count):
        width = max(width, -(-w[LENGTH, place] // block_size))
        offset = max(offset, (w[LENGTH, place] - 1) % block_size)
    return count * ((width - 1) * block_size + offset + 1)
