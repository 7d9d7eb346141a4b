"""A state in a few words: canonical, so that equal words are states that need not be distinguished.

Interchangeable requests are named in the order of their places, and blocks in the order of the
tables that hold them and then of the free list, as `checks.policies.spyre.model` does it. Of each
request there is one field of fixed width. With prefix caching there follow, for each block of a
table, whether it is a new one or else its number; for each free block its content; and for blocks of
equal content which was cached first. What else a state has follows from that.
"""

from checks.explore.compiled.jit import compiled
from checks.policies.spyre.compiled.pool import held_blocks
from checks.policies.spyre.compiled.setting import WORD_BITS, Numbers, Setting
from checks.policies.spyre.compiled.work import (
    ABORTED,
    ABSENT,
    DECODING,
    FINISHED,
    LAST_KIND,
    LAST_TKV,
    N_DECODING,
    N_FREE,
    N_PAUSED,
    N_WAITING,
    NO_KEY,
    NOBODY,
    PAUSED,
    PREFILLING,
    SLOT,
    STAMPS,
    WAITING,
    Work,
    forget,
)

_PHASE_BITS, _RANK_BITS, _KIND_BITS = 3, 3, 2
_FULL = (1 << WORD_BITS) - 1
TOO_WIDE = -1  # the state does not fit into the words


# --- bits -----------------------------------------------------------------------------------------


@compiled
def put(words: Numbers, at: int, value: int, bits: int) -> int:
    """Write a number from bit `at` on; returns the bit behind it, TOO_WIDE if it does not fit."""
    if at == TOO_WIDE or value >> bits or at + bits > len(words) * WORD_BITS:
        return TOO_WIDE
    if bits == 0:
        return at
    word, offset = at // WORD_BITS, at % WORD_BITS
    words[word] |= (value << offset) & _FULL
    if offset + bits > WORD_BITS:
        words[word + 1] |= value >> (WORD_BITS - offset)
    return at + bits


@compiled
def taken(words: Numbers, at: int, bits: int) -> int:
    """The number that stands in so many bits from `at` on."""
    if bits == 0:
        return 0
    word, offset = at // WORD_BITS, at % WORD_BITS
    value = words[word] >> offset
    if offset + bits > WORD_BITS:
        value |= words[word + 1] << (WORD_BITS - offset)
    found: int = value & ((1 << bits) - 1)
    return found


# --- a state --------------------------------------------------------------------------------------


@compiled
def pack(setting: Setting, w: Work, words: Numbers) -> bool:
    """Write the state; False if it does not fit."""
    words[:] = 0
    name_requests(setting, w)
    at = put(words, 0, w.at[LAST_KIND], _KIND_BITS)
    at = put(words, at, w.at[LAST_TKV], setting.tkv_bits)
    for name in range(setting.requests):
        at = put_request(setting, w, words, at, w.length[name])
    if setting.caching:
        at = put_blocks(setting, w, words, at)
    return at != TOO_WIDE


@compiled
def name_requests(setting: Setting, w: Work) -> None:
    """The request that gets each name, in `length`: by its place among those that are alike.

    Also the place of each in its queue, in `remaining`.
    """
    for r in range(setting.requests):
        w.length[r] = r
        w.moved[r] = 0
        w.remaining[r] = 0
    for place in range(w.at[N_WAITING]):
        w.remaining[w.waiting[place]] = place
        name_next(setting, w, w.waiting[place])
    if w.at[SLOT] != NOBODY:
        name_next(setting, w, w.at[SLOT])
    for place in range(w.at[N_DECODING]):
        w.remaining[w.decoding[place]] = place
        name_next(setting, w, w.decoding[place])
    for place in range(w.at[N_PAUSED]):
        w.remaining[w.paused[place]] = place
        name_next(setting, w, w.paused[place])
    if setting.is_symmetric:
        for phase in (FINISHED, ABORTED, ABSENT):
            for r in range(setting.requests):
                if w.phase[r] == phase:
                    name_next(setting, w, r)


@compiled
def name_next(setting: Setting, w: Work, request: int) -> None:
    """Give the request the next name of those that are alike."""
    if setting.is_symmetric:
        group = setting.group[request]
        w.length[setting.members[group, w.moved[group]]] = request
        w.moved[group] += 1


@compiled
def put_request(setting: Setting, w: Work, words: Numbers, at: int, r: int) -> int:
    """Write one request, by fields of fixed width."""
    at = put(words, at, w.phase[r], _PHASE_BITS)
    at = put(words, at, w.remaining[r], _RANK_BITS)
    at = put(words, at, w.computed[r], setting.computed_bits)
    at = put(words, at, w.generated[r], setting.generated_bits)
    at = put(words, at, w.padding[r], setting.padding_bits)
    at = put(words, at, w.waited[r], setting.waited_bits)
    at = put(words, at, w.restart[r], setting.restart_bits)
    return put(words, at, w.hit[r], setting.hit_bits)


@compiled
def unpack(setting: Setting, words: Numbers, w: Work) -> None:
    """Read a state."""
    for place in range(len(w.at)):
        w.at[place] = 0
    w.at[SLOT] = NOBODY
    w.at[LAST_KIND] = taken(words, 0, _KIND_BITS)
    w.at[LAST_TKV] = taken(words, _KIND_BITS, setting.tkv_bits)
    at = _KIND_BITS + setting.tkv_bits
    held = 0
    for r in range(setting.requests):
        at = take_request(setting, w, words, at, r)
        held += held_blocks(setting, w, r)
    w.at[N_FREE] = setting.pool_blocks - held
    if setting.caching:
        take_blocks(setting, w, words, at)


@compiled
def take_request(setting: Setting, w: Work, words: Numbers, at: int, r: int) -> int:
    """Read one request and put it into its place; returns the bit behind it."""
    phase = taken(words, at, _PHASE_BITS)
    at += _PHASE_BITS
    place = taken(words, at, _RANK_BITS)
    at += _RANK_BITS
    w.phase[r] = phase
    w.computed[r] = taken(words, at, setting.computed_bits)
    at += setting.computed_bits
    w.generated[r] = taken(words, at, setting.generated_bits)
    at += setting.generated_bits
    w.padding[r] = taken(words, at, setting.padding_bits)
    at += setting.padding_bits
    w.waited[r] = taken(words, at, setting.waited_bits)
    at += setting.waited_bits
    w.restart[r] = taken(words, at, setting.restart_bits)
    at += setting.restart_bits
    w.hit[r] = taken(words, at, setting.hit_bits)
    at += setting.hit_bits
    if phase == WAITING:
        w.waiting[place] = r
        w.at[N_WAITING] += 1
    elif phase == PREFILLING:
        w.at[SLOT] = r
    elif phase == DECODING:
        w.decoding[place] = r
        w.at[N_DECODING] += 1
    elif phase == PAUSED:
        w.paused[place] = r
        w.at[N_PAUSED] += 1
    return at


# --- blocks, with prefix caching ------------------------------------------------------------------


@compiled
def in_place(w: Work, place: int) -> int:
    """The request at this place of those that hold blocks: prefilling, decoding, paused."""
    prefilling = w.at[SLOT] != NOBODY
    if prefilling and place == 0:
        return w.at[SLOT]
    place -= prefilling
    if place < w.at[N_DECODING]:
        return w.decoding[place]
    return w.paused[place - w.at[N_DECODING]]


@compiled
def holders_in_place(w: Work) -> int:
    """How many requests hold blocks."""
    count: int = (w.at[SLOT] != NOBODY) + w.at[N_DECODING] + w.at[N_PAUSED]
    return count


@compiled
def put_blocks(setting: Setting, w: Work, words: Numbers, at: int) -> int:
    """Write tables and free list; `moved` has the number of each block."""
    blocks = setting.pool_blocks
    for block in range(blocks + 1):
        w.moved[block] = 0
    numbered = 0
    for place in range(holders_in_place(w)):
        r = in_place(w, place)
        for index in range(held_blocks(setting, w, r)):
            block = w.tables[r, index]
            if w.moved[block] == 0:
                numbered += 1
                w.moved[block] = numbered
                at = put(words, at, 1, 1)
            else:
                at = put(words, at, w.moved[block] << 1, setting.block_bits + 1)
    for index in range(w.at[N_FREE]):
        block = w.free[index]
        numbered += 1
        w.moved[block] = numbered
        at = put(words, at, w.content[block] + 1, setting.key_bits)
    # blocks of equal content, in the order in which they were cached
    for block in range(1, blocks + 1):
        w.order[w.moved[block]] = block
    for number in range(1, blocks + 1):
        block = w.order[number]
        earlier, alike = 0, 0
        if w.content[block] != NO_KEY:
            for other in range(1, blocks + 1):
                if w.content[other] == w.content[block] and other != block:
                    alike = 1
                    earlier += w.stamp[other] < w.stamp[block]
        if alike:
            at = put(words, at, earlier, setting.block_bits)
    return at


@compiled
def take_blocks(setting: Setting, w: Work, words: Numbers, at: int) -> None:
    """Read tables and free list; blocks have the numbers that `put_blocks` gave them."""
    blocks = setting.pool_blocks
    for block in range(blocks + 1):
        w.holders[block] = 0
        w.content[block] = NO_KEY
        w.stamp[block] = 0
    numbered = 0
    for place in range(holders_in_place(w)):
        r = in_place(w, place)
        for index in range(held_blocks(setting, w, r)):
            is_new = taken(words, at, 1)
            at += 1
            if is_new:
                numbered += 1
                block = numbered
            else:
                block = taken(words, at, setting.block_bits)
                at += setting.block_bits
            w.tables[r, index] = block
            w.holders[block] += 1
            if index < w.computed[r] // setting.block_size:
                w.content[block] = setting.keys[r, index]
    w.at[N_FREE] = blocks - numbered
    for index in range(w.at[N_FREE]):
        numbered += 1
        w.free[index] = numbered
        w.content[numbered] = taken(words, at, setting.key_bits) - 1
        at += setting.key_bits
    for block in range(1, blocks + 1):
        alike = 0
        if w.content[block] != NO_KEY:
            for other in range(1, blocks + 1):
                alike |= w.content[other] == w.content[block] and other != block
        if alike:
            w.stamp[block] = taken(words, at, setting.block_bits)
            at += setting.block_bits
    w.at[STAMPS] = blocks


@compiled
def start(setting: Setting, w: Work, words: Numbers) -> bool:
    """Write the first state; False if it does not fit."""
    for r in range(setting.requests):
        forget(w, r, ABSENT)
    return pack(setting, w, words)
