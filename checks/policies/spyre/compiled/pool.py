"""The KV blocks of the compiled machine, as in `reference.core.block_pool`.

Between steps a request holds exactly the blocks of its computed tokens. Without prefix caching
blocks differ only in their numbers, so that only the number of free blocks is kept.
"""

from checks.explore.compiled.jit import compiled
from checks.policies.spyre.compiled.names import (
    AT,
    BLOCKS,
    COMPUTED,
    CONTENT,
    FREE,
    HITS,
    HOLDERS,
    IS_STUCK,
    KEYS,
    MOVED,
    N_FREE,
    NO_KEY,
    STAMP,
    STAMPS,
    TABLES,
)
from checks.policies.spyre.compiled.setting import Setting, Work
from checks.policies.spyre.compiled.work import prefill_len


@compiled
def held_blocks(w: Work, request: int) -> int:
    """Number of blocks of the request between steps."""
    return w[BLOCKS, w[COMPUTED, request]]


@compiled
def lookup(setting: Setting, w: Work, request: int) -> int:
    """The number of cached blocks of the request's prompt; `hits` gets the blocks."""
    if not setting.caching:
        return 0
    full = (prefill_len(w, request) - 1) // setting.block_size
    for place in range(full):
        key, found = w[KEYS + request, place], 0
        for block in range(1, setting.pool_blocks + 1):
            if w[CONTENT, block] == key and (found == 0 or w[STAMP, block] < w[STAMP, found]):
                found = block
        if found == 0:
            return place
        w[HITS, place] = found
    return full


@compiled
def held_hits(w: Work, count: int) -> int:
    """The number of blocks in `hits` that another request holds."""
    held = 0
    for place in range(count):
        held += w[HOLDERS, w[HITS, place]] > 0
    return held


@compiled
def touch(w: Work, request: int, count: int) -> None:
    """Make the request a holder of the blocks in `hits`, which leave the free list."""
    for place in range(count):
        block = w[HITS, place]
        if w[HOLDERS, block] == 0:
            kept = 0
            for other in range(w[AT, N_FREE]):
                if w[FREE, other] != block:
                    w[FREE, kept] = w[FREE, other]
                    kept += 1
            w[AT, N_FREE] = kept
        w[HOLDERS, block] += 1
        w[TABLES + request, place] = block


@compiled
def allocate(setting: Setting, w: Work, request: int, held: int, count: int) -> None:
    """Append the next free blocks, without old content, to the request's `held` blocks."""
    if count > w[AT, N_FREE]:
        w[AT, IS_STUCK] = 1
        return
    w[AT, N_FREE] -= count
    if not setting.caching:
        return
    for place in range(count):
        block = w[FREE, place]
        w[CONTENT, block] = NO_KEY
        w[HOLDERS, block] = 1
        w[TABLES + request, held + place] = block
    if count > 0:
        for place in range(w[AT, N_FREE]):
            w[FREE, place] = w[FREE, place + count]


@compiled
def cache_full_blocks(setting: Setting, w: Work, request: int) -> None:
    """Let lookups find the request's full blocks that are not cached yet."""
    if not setting.caching:
        return
    for place in range(w[COMPUTED, request] // setting.block_size):
        block = w[TABLES + request, place]
        if w[CONTENT, block] == NO_KEY:
            w[CONTENT, block] = w[KEYS + request, place]
            w[STAMP, block] = w[AT, STAMPS]
            w[AT, STAMPS] += 1


@compiled
def shared_blocks(w: Work, request: int, held: int) -> int:
    """The number of blocks of a request that others hold, too."""
    shared = 0
    for place in range(held):
        shared += w[HOLDERS, w[TABLES + request, place]] > 0
    return shared


@compiled
def release(setting: Setting, w: Work, request: int, held: int) -> None:
    """Release the `held` blocks of a request, the end of its table first.

    Blocks that no other request holds become free: those without content at the front of the free
    list, those with content at its end.
    """
    if not setting.caching:
        w[AT, N_FREE] += held
        return
    plain = 0
    for place in range(held - 1, -1, -1):
        block = w[TABLES + request, place]
        w[HOLDERS, block] -= 1
        if w[HOLDERS, block] == 0 and w[CONTENT, block] == NO_KEY:
            w[MOVED, plain] = block
            plain += 1
    if w[AT, N_FREE] + held > setting.pool_blocks + shared_blocks(w, request, held):
        w[AT, IS_STUCK] = 1  # more blocks than there are
        return
    for place in range(w[AT, N_FREE] - 1, -1, -1):
        w[FREE, place + plain] = w[FREE, place]
    for place in range(plain):
        w[FREE, place] = w[MOVED, place]
    w[AT, N_FREE] += plain
    for place in range(held - 1, -1, -1):
        block = w[TABLES + request, place]
        if w[HOLDERS, block] == 0 and w[CONTENT, block] != NO_KEY:
            w[FREE, w[AT, N_FREE]] = block
            w[AT, N_FREE] += 1
