"""The KV blocks of the compiled machine, as `reference.core.block_pool` moves them.

At rest a request holds the blocks of its computed tokens, no more. Without prefix caching blocks
differ in their numbers only, so that nothing is kept but how many are free.
"""

from checks.explore.compiled.jit import compiled
from checks.policies.spyre.compiled.formulas import block_count
from checks.policies.spyre.compiled.setting import Setting
from checks.policies.spyre.compiled.work import IS_STUCK, N_FREE, NO_KEY, STAMPS, Work, prefill_len


@compiled
def held_blocks(setting: Setting, w: Work, request: int) -> int:
    """Blocks of the request, in a state at rest."""
    held: int = block_count(w.computed[request], setting.block_size)
    return held


@compiled
def lookup(setting: Setting, w: Work, request: int) -> int:
    """How many cached blocks of its prompt are found; they stand in `hits`."""
    if not setting.caching:
        return 0
    full = (prefill_len(setting, w, request) - 1) // setting.block_size
    for place in range(full):
        key, found = setting.keys[request, place], 0
        for block in range(1, setting.pool_blocks + 1):
            if w.content[block] == key and (found == 0 or w.stamp[block] < w.stamp[found]):
                found = block
        if found == 0:
            return place
        w.hits[place] = found
    return full


@compiled
def held_hits(w: Work, count: int) -> int:
    """How many of the blocks in `hits` another request holds."""
    held = 0
    for place in range(count):
        held += w.holders[w.hits[place]] > 0
    return held


@compiled
def touch(w: Work, request: int, count: int) -> None:
    """The request holds the blocks in `hits`; none is free any more."""
    for place in range(count):
        block = w.hits[place]
        if w.holders[block] == 0:
            kept = 0
            for other in range(w.at[N_FREE]):
                if w.free[other] != block:
                    w.free[kept] = w.free[other]
                    kept += 1
            w.at[N_FREE] = kept
        w.holders[block] += 1
        w.tables[request, place] = block


@compiled
def allocate(setting: Setting, w: Work, request: int, held: int, count: int) -> None:
    """The next free blocks, without their old content, behind the `held` ones of the request."""
    if count > w.at[N_FREE]:
        w.at[IS_STUCK] = 1
        return
    w.at[N_FREE] -= count
    if not setting.caching:
        return
    for place in range(count):
        block = w.free[place]
        w.content[block] = NO_KEY
        w.holders[block] = 1
        w.tables[request, held + place] = block
    if count > 0:
        for place in range(w.at[N_FREE]):
            w.free[place] = w.free[place + count]


@compiled
def cache_full_blocks(setting: Setting, w: Work, request: int) -> None:
    """Let lookups find the request's full blocks that are not cached yet."""
    if not setting.caching:
        return
    for place in range(w.computed[request] // setting.block_size):
        block = w.tables[request, place]
        if w.content[block] == NO_KEY:
            w.content[block] = setting.keys[request, place]
            w.stamp[block] = w.at[STAMPS]
            w.at[STAMPS] += 1


@compiled
def release(setting: Setting, w: Work, request: int, held: int) -> None:
    """Give back the `held` blocks of a request, its table's tail first.

    Of those that no other request holds, the ones without content are handed out next, the ones
    with it last.
    """
    if not setting.caching:
        w.at[N_FREE] += held
        return
    plain = 0
    for place in range(held - 1, -1, -1):
        block = w.tables[request, place]
        w.holders[block] -= 1
        if w.holders[block] == 0 and w.content[block] == NO_KEY:
            w.moved[plain] = block
            plain += 1
    for place in range(w.at[N_FREE] - 1, -1, -1):
        w.free[place + plain] = w.free[place]
    for place in range(plain):
        w.free[place] = w.moved[place]
    w.at[N_FREE] += plain
    for place in range(held - 1, -1, -1):
        block = w.tables[request, place]
        if w.holders[block] == 0 and w.content[block] != NO_KEY:
            w.free[w.at[N_FREE]] = block
            w.at[N_FREE] += 1
