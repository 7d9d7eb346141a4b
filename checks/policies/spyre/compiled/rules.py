"""Rules of Spyre on numbers: each has a bit, which is set where the rule does not hold.

What they say is said in `spec.spyre.rules`; tests compare each with its predicate there, on every
edge of the default instances and under limits that are too strict, so that both are seen to fail.
"""

from checks.explore.compiled.jit import compiled
from checks.policies.spyre.compiled.changes import (
    FAR,
    broken_by_moves,
    broken_by_pausing,
    broken_by_preemption,
    broken_by_tokens,
    count_holders,
)
from checks.policies.spyre.compiled.names import (
    AT,
    CHUNK_OF,
    COMPUTED,
    COUNTED,
    DECODE,
    DECODING,
    FREE,
    GENERATED,
    HOLDERS,
    IDLE,
    IN_BATCH,
    IN_PAUSE,
    IN_QUEUE,
    LAST_KIND,
    MOST_REQUESTS,
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
    PROMPT_LEN,
    RESTART,
    SLOT,
    TKV,
    WAITING,
    WORST_CASE,
    bits,
)
from checks.policies.spyre.compiled.remembered import broken_by_memory
from checks.policies.spyre.compiled.setting import Setting, Work

_LIF_1, _LIF_5, _LIF_8 = bits("LIF-1", "LIF-5", "LIF-8")
_BLK_1, _BLK_2, _BLK_6 = bits("BLK-1", "BLK-2", "BLK-6")
_VOL_1, _LEN_1, _TKV_1, _TKV_2 = bits("SPY-VOL-1", "SPY-LEN-1", "SPY-TKV-1", "SPY-TKV-2")
_ADM_1, _ADM_2, _ADM_3 = bits("SPY-ADM-1", "SPY-ADM-2", "SPY-ADM-3")
_PRI_1, _PRI_2, _PRI_3 = bits("SPY-PRI-1", "SPY-PRI-2", "SPY-PRI-3")
_PRI_4, _PRI_5, _RES_1, _RES_3 = bits("SPY-PRI-4", "SPY-PRI-5", "SPY-RES-1", "SPY-RES-3")
_DEC_1, _DEC_2, _DEC_3, _DEC_6 = bits("SPY-DEC-1", "SPY-DEC-2", "SPY-DEC-3", "SPY-DEC-6")
_PAU_1, _PAU_2, _PAU_4, _PAU_6 = bits("SPY-PAU-1", "SPY-PAU-2", "SPY-PAU-4", "SPY-PAU-6")


# --- states ---------------------------------------------------------------------------------------


@compiled
def broken_in_state(setting: Setting, w: Work) -> int:
    """The rules that do not hold in a state, as bits."""
    held, promised, partial, pending, unlike, computing = 0, 0, 0, 0, 0, 0
    present = 0
    for r in range(MOST_REQUESTS):  # in each the same is done, whatever its phase: that is fast
        phase, computed = w[PHASE, r], w[COMPUTED, r]
        waits, prefills = phase == WAITING, phase == PREFILLING
        decodes = (phase == DECODING) | (phase == PAUSED)
        covered = w[PROMPT_LEN, r] + w[RESTART, r]
        tokens = w[PROMPT_LEN, r] + w[GENERATED, r]
        pending += waits | prefills | decodes
        present |= (waits | prefills | decodes) << r
        partial += (computed > 0) & (computed < covered) | prefills
        computing += waits & (computed > 0)
        unlike += (waits | prefills) & (covered != tokens) | decodes & (computed + 1 != tokens)
        blocks = w[COUNTED, computed]
        held += blocks
        promised += (prefills | decodes) * (w[WORST_CASE, r] - blocks)
    broken = 0
    if queued(w) != present or queued_times(w) != pending:
        broken |= _LIF_1
    if computing > 0:
        broken |= _LIF_5
    if unlike > 0:
        broken |= _LIF_8
    if w[AT, ORPHANED] > 0:
        broken |= _LIF_5
    if partial > 1:
        broken |= _PRI_1
    if promised > w[AT, N_FREE]:
        broken |= _RES_1
    if pending == 0 and (held > 0 or w[AT, N_FREE] != setting.pool_blocks):
        broken |= _BLK_6
    if setting.caching:
        return broken | broken_in_pool(setting, w)
    if held + w[AT, N_FREE] != setting.pool_blocks:
        broken |= _BLK_1
    return broken


@compiled
def queued_times(w: Work) -> int:
    """How many places in queues, prefill slot, batch and pause are taken."""
    in_slot = w[AT, SLOT] != NO_REQUEST
    return w[AT, N_WAITING] + w[AT, N_DECODING] + w[AT, N_PAUSED] + in_slot


@compiled
def queued(w: Work) -> int:
    """The requests in these places, as bits."""
    found = 0
    for place in range(w[AT, N_WAITING]):
        found |= 1 << w[IN_QUEUE, place]
    for place in range(w[AT, N_DECODING]):
        found |= 1 << w[IN_BATCH, place]
    for place in range(w[AT, N_PAUSED]):
        found |= 1 << w[IN_PAUSE, place]
    return found | (1 << w[AT, SLOT] if w[AT, SLOT] != NO_REQUEST else 0)


@compiled
def broken_in_pool(setting: Setting, w: Work) -> int:
    """The rules that do not hold of a pool with cached blocks, as bits: holders are counted."""
    broken = 0
    count_holders(setting, w, w)
    for block in range(1, setting.pool_blocks + 1):
        times_free = 0
        for place in range(w[AT, N_FREE]):
            times_free += w[FREE, place] == block
        if times_free + (w[HOLDERS, block] > 0) != 1:
            broken |= _BLK_1
        if w[MOVED, block] != w[HOLDERS, block]:
            broken |= _BLK_2
    return broken


# --- steps ----------------------------------------------------------------------------------------


@compiled
def broken_by_step(setting: Setting, before: Work, after: Work, sampled: int) -> int:
    """The rules that a step breaks, as bits; in `after` no request has left yet."""
    kind, tkv = after[AT, LAST_KIND], after[AT, TKV]
    broken = broken_by_tokens(before, after, sampled)
    broken |= broken_by_memory(setting, before, after, sampled)
    if kind == IDLE:
        return broken | _PRI_4
    rows = after[AT, N_DECODING] if kind == DECODE else 1
    if rows * tkv > setting.limit:
        broken |= _VOL_1
    if tkv > setting.max_model_len:
        broken |= _LEN_1
    for r in range(setting.requests):
        if PREFILLING <= before[PHASE, r] <= PAUSED and after[PHASE, r] == WAITING:
            broken |= _RES_3
    if kind == PREFILL:
        return broken | broken_by_prefill(setting, before, after, sampled)
    if not setting.reservation:
        broken |= broken_by_preemption(setting, before, after)
    return (
        broken
        | broken_by_decode(setting, before, after)
        | broken_by_moves(setting, before, after)
        | broken_by_pausing(setting, before, after)
    )


@compiled
def broken_by_prefill(setting: Setting, before: Work, after: Work, sampled: int) -> int:
    """The rules that a prefill step breaks, as bits."""
    broken, request = 0, after[AT, CHUNK_OF]
    rows = before[AT, N_DECODING] + (before[AT, SLOT] != NO_REQUEST)
    if after[AT, TKV] != before[PROMPT_LEN, request] + before[RESTART, request]:
        broken |= _TKV_2
    if before[PHASE, request] == WAITING:
        if rows >= setting.max_num_seqs:
            broken |= _ADM_1
        if before[AT, SLOT] != NO_REQUEST:
            broken |= _ADM_2 | _PRI_2
        if before[IN_QUEUE, 0] != request:
            broken |= _PRI_5
    if sampled and before[AT, N_DECODING] + before[AT, N_PAUSED] >= setting.max_num_seqs:
        broken |= _ADM_3
    if before[AT, LAST_KIND] == PREFILL and before[AT, N_DECODING] > 0:
        broken |= _PRI_3
    if before[AT, N_PAUSED] > 0 and rows > 0:
        broken |= _PAU_4
    return broken


@compiled
def broken_by_decode(setting: Setting, before: Work, after: Work) -> int:
    """The rules that a decode step breaks, as bits."""
    broken, size, batch = 0, setting.block_size, after[AT, N_DECODING]
    widest, narrowest, furthest, nearest = 0, FAR, 0, FAR
    least_padding, most_blocks = FAR, 0
    for place in range(batch):
        most_blocks = max(most_blocks, after[COUNTED, after[COMPUTED, after[IN_BATCH, place]]])
    for place in range(batch):
        row = after[IN_BATCH, place]
        padding, computed = after[PADDING, row], after[COMPUTED, row]
        width, tkv = padding + after[COUNTED, computed], padding * size + computed
        widest, narrowest = max(widest, width), min(narrowest, width)
        furthest, nearest = max(furthest, tkv), min(nearest, tkv)
        least_padding = min(least_padding, padding)
        if tkv != (most_blocks - after[COUNTED, computed]) * size + before[COMPUTED, row] + 1:
            broken |= _TKV_1
    if widest != narrowest:
        broken |= _DEC_2
    if after[COUNTED, furthest] != after[COUNTED, nearest]:
        broken |= _DEC_6
    if least_padding != 0:
        broken |= _DEC_3
    if after[AT, TKV] != furthest:
        broken |= _TKV_2
    for r in range(setting.requests):
        more = after[PHASE, r] == DECODING
        is_wrong = (
            after[COMPUTED, r] != before[COMPUTED, r] + more
            or after[GENERATED, r] != before[GENERATED, r] + more
        )
        if is_wrong and after[PHASE, r] == DECODING:
            broken |= _DEC_1
        if is_wrong and after[PHASE, r] == PAUSED:
            broken |= _PAU_1
        if after[PHASE, r] == PAUSED:
            if before[PHASE, r] != PAUSED:
                broken |= _PAU_6
            if volume_with(setting, after, r) <= setting.limit:
                broken |= _PAU_2
    return broken


@compiled
def volume_with(setting: Setting, w: Work, request: int) -> int:
    """The volume of the batch that decoded, had a request that was paused decoded, too."""
    size = setting.block_size
    length = w[COMPUTED, request] + 1
    width, offset = -(-length // size), (length - 1) % size
    for place in range(w[AT, N_DECODING]):
        length = w[COMPUTED, w[IN_BATCH, place]]
        width = max(width, -(-length // size))
        offset = max(offset, (length - 1) % size)
    return (w[AT, N_DECODING] + 1) * ((width - 1) * size + offset + 1)
