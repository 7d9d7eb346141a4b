"""Rules of Spyre on numbers: each has a bit, which is set if the rule is broken.

These rules depend on a few numbers of every edge: sums of a state, the kind, load and rectangle of
a step, the prefilled request. `spec.spyre.rules` defines them; tests compare each with its
predicate on every edge of the default instances, and under limits so strict that both fail. All
other rules compare requests and queues before and after; their predicates judge a sample of edges.
"""

from checks.explore.compiled.jit import compiled
from checks.policies.spyre.compiled.names import (
    AT,
    CHUNK_OWNER,
    COMPUTED,
    COUNTED,
    DECODE,
    DECODING,
    FREE,
    GENERATED,
    HOLDERS,
    IDLE,
    IN_BATCH,
    IN_QUEUE,
    LAST_KIND,
    MOST_REQUESTS,
    MOVED,
    N_DECODING,
    N_FREE,
    N_PAUSED,
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
    TABLES,
    TKV,
    WAITING,
    WORST_CASE,
    bits,
)
from checks.policies.spyre.compiled.setting import Setting, Work

_LIF_5, _LIF_8, _PRI_1, _RES_1 = bits("LIF-5", "LIF-8", "SPY-PRI-1", "SPY-RES-1")
_BLK_1, _BLK_2, _BLK_6 = bits("BLK-1", "BLK-2", "BLK-6")
_VOL_1, _LEN_1, _PRI_4 = bits("SPY-VOL-1", "SPY-LEN-1", "SPY-PRI-4")
_RES_3, _PAU_6 = bits("SPY-RES-3", "SPY-PAU-6")
_ADM_1, _ADM_2, _ADM_3 = bits("SPY-ADM-1", "SPY-ADM-2", "SPY-ADM-3")
_PRI_2, _PRI_3, _PRI_5, _PAU_4 = bits("SPY-PRI-2", "SPY-PRI-3", "SPY-PRI-5", "SPY-PAU-4")
_DEC_2, _DEC_3, _DEC_6, _TKV_2 = bits("SPY-DEC-2", "SPY-DEC-3", "SPY-DEC-6", "SPY-TKV-2")
_FAR = 1 << 30  # beyond all lengths


# --- states ---------------------------------------------------------------------------------------


@compiled
def broken_in_state(setting: Setting, w: Work) -> int:
    """The rules that a state breaks, as bits."""
    held, promised, partial, pending, unlike, computing = 0, 0, 0, 0, 0, 0
    for r in range(MOST_REQUESTS):  # branch-free over all phases, which is fast
        phase, computed = w[PHASE, r], w[COMPUTED, r]
        waits, prefills = phase == WAITING, phase == PREFILLING
        decodes = (phase == DECODING) | (phase == PAUSED)
        covered = w[PROMPT_LEN, r] + w[RESTART, r]
        tokens = w[PROMPT_LEN, r] + w[GENERATED, r]
        pending += waits | prefills | decodes
        partial += (computed > 0) & (computed < covered) | prefills
        computing += waits & (computed > 0)
        unlike += (waits | prefills) & (covered != tokens) | decodes & (computed + 1 != tokens)
        blocks = w[COUNTED, computed]
        held += blocks
        promised += (prefills | decodes) * (w[WORST_CASE, r] - blocks)
    broken = 0
    if computing > 0 or w[AT, ORPHANED] > 0:
        broken |= _LIF_5
    if unlike > 0:
        broken |= _LIF_8
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
def broken_in_pool(setting: Setting, w: Work) -> int:
    """The rules that a pool with cached blocks breaks, as bits."""
    broken = 0
    for block in range(1, setting.pool_blocks + 1):
        w[MOVED, block] = 0
    for r in range(setting.requests):
        if PREFILLING <= w[PHASE, r] <= PAUSED:
            for place in range(w[COUNTED, w[COMPUTED, r]]):
                w[MOVED, w[TABLES + r, place]] += 1
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
    """The rules that a step breaks, as bits; `after`: the state before finished requests leave."""
    kind, tkv = after[AT, LAST_KIND], after[AT, TKV]
    if kind == IDLE:
        return _PRI_4
    broken = 0
    rows = after[AT, N_DECODING] if kind == DECODE else 1
    if rows * tkv > setting.limit:
        broken |= _VOL_1
    if tkv > setting.max_model_len:
        broken |= _LEN_1
    for r in range(setting.requests):
        was, phase = before[PHASE, r], after[PHASE, r]
        if PREFILLING <= was <= PAUSED and phase == WAITING:
            broken |= _RES_3
        if was != PAUSED and phase == PAUSED:
            broken |= _PAU_6
    if kind == PREFILL:
        return broken | broken_by_prefill(setting, before, after, sampled)
    return broken | broken_by_rectangle(setting, after)


@compiled
def broken_by_prefill(setting: Setting, before: Work, after: Work, sampled: int) -> int:
    """The rules that a prefill step breaks, as bits."""
    broken, request = 0, after[AT, CHUNK_OWNER]
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
def broken_by_rectangle(setting: Setting, after: Work) -> int:
    """The rules that a decode step breaks by its rows and their padding, as bits."""
    widest, narrowest, furthest, nearest, least_padding = 0, _FAR, 0, _FAR, _FAR
    for place in range(after[AT, N_DECODING]):
        row = after[IN_BATCH, place]
        padding, computed = after[PADDING, row], after[COMPUTED, row]
        width, tkv = padding + after[COUNTED, computed], padding * setting.block_size + computed
        widest, narrowest = max(widest, width), min(narrowest, width)
        furthest, nearest = max(furthest, tkv), min(nearest, tkv)
        least_padding = min(least_padding, padding)
    broken = 0
    if widest != narrowest:
        broken |= _DEC_2
    if least_padding != 0:
        broken |= _DEC_3
    if after[COUNTED, furthest] != after[COUNTED, nearest]:
        broken |= _DEC_6
    if after[AT, TKV] != furthest:
        broken |= _TKV_2
    return broken
