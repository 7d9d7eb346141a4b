"""Pack a state into a few words; equal words mean states that need not be distinguished.

As in `checks.policies.spyre.model`, interchangeable requests are named in the order of their
places, and blocks in the order of the tables that hold them and then of the free list. Each request
has fields of fixed width. With prefix caching there follow: for each block of a table, a bit
whether it is new, or else its number; for each free block its content; and for blocks of equal
content the order of their caching. The rest of a state is computed from these.
"""

from checks.explore.compiled.jit import compiled, entry
from checks.policies.spyre.compiled.names import (
    ABORTED,
    ABSENT,
    AT,
    COMPUTED,
    CONTENT,
    DECODING,
    FIELDS,
    FINISHED,
    FREE,
    GENERATED,
    GROUP,
    HIT,
    HOLDERS,
    IN_BATCH,
    IN_PAUSE,
    IN_QUEUE,
    IS_STUCK,
    KEYS,
    LAST_KIND,
    LAST_TKV,
    LENGTH,
    MEMBERS,
    MOST_REQUESTS,
    MOVED,
    N_DECODING,
    N_FREE,
    N_PAUSED,
    N_WAITING,
    NO_KEY,
    NO_REQUEST,
    ORDER,
    ORPHANED,
    PADDING,
    PAUSED,
    PHASE,
    PREFILLING,
    REMAINING,
    RESTART,
    SLOT,
    STAMP,
    STAMPS,
    TABLES,
    WAITED,
    WAITING,
)
from checks.policies.spyre.compiled.pool import held_blocks
from checks.policies.spyre.compiled.setting import Numbers, Setting, Work

_PHASE_BITS, _RANK_BITS, _KIND_BITS = 3, 3, 2
WORD_BITS = 62  # used of the 64 bits, so that shifts never meet sign or overflow
_FULL = (1 << WORD_BITS) - 1
TOO_WIDE = -1  # the state does not fit into the words


# --- bits -----------------------------------------------------------------------------------------


@compiled
def put(words: Numbers, at: int, value: int, bits: int) -> int:
    """Write a number from bit `at` on; returns the next bit, or TOO_WIDE if it does not fit."""
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
    """The number in `bits` bits from bit `at` on."""
    if bits == 0:
        return 0
    word, offset = at // WORD_BITS, at % WORD_BITS
    value = words[word] >> offset
    if offset + bits > WORD_BITS:
        value |= words[word + 1] << (WORD_BITS - offset)
    return value & ((1 << bits) - 1)


# --- a state --------------------------------------------------------------------------------------


@entry
def pack(setting: Setting, w: Work, words: Numbers) -> bool:
    """Write the state; False if it does not fit."""
    words[:] = 0
    name_requests(setting, w)
    at = put(words, 0, w[AT, LAST_KIND], _KIND_BITS)
    at = put(words, at, w[AT, LAST_TKV], setting.tkv_bits)
    at = put(words, at, w[AT, ORPHANED], setting.orphan_bits)
    if not join_fields(setting, w):
        return False
    for name in range(setting.requests):
        at = put(words, at, w[FIELDS, w[LENGTH, name]], setting.request_bits)
    if setting.caching:
        at = put_blocks(setting, w, words, at)
    return at != TOO_WIDE


@compiled
def name_requests(setting: Setting, w: Work) -> None:
    """Name interchangeable requests by place: `length` gets the request for each name.

    `remaining` gets the place of each request in its queue.
    """
    for r in range(MOST_REQUESTS):
        w[LENGTH, r] = r
        w[MOVED, r] = 0
        w[REMAINING, r] = 0
    for place in range(w[AT, N_WAITING]):
        w[REMAINING, w[IN_QUEUE, place]] = place
        name_next(setting, w, w[IN_QUEUE, place])
    if w[AT, SLOT] != NO_REQUEST:
        name_next(setting, w, w[AT, SLOT])
    for place in range(w[AT, N_DECODING]):
        w[REMAINING, w[IN_BATCH, place]] = place
        name_next(setting, w, w[IN_BATCH, place])
    for place in range(w[AT, N_PAUSED]):
        w[REMAINING, w[IN_PAUSE, place]] = place
        name_next(setting, w, w[IN_PAUSE, place])
    if setting.is_symmetric:
        for phase in (FINISHED, ABORTED, ABSENT):
            for r in range(setting.requests):
                if w[PHASE, r] == phase:
                    name_next(setting, w, r)


@compiled
def name_next(setting: Setting, w: Work, request: int) -> None:
    """Give the request the next name of its group."""
    if setting.is_symmetric:
        group = w[GROUP, request]
        w[LENGTH, w[MEMBERS + group, w[MOVED, group]]] = request
        w[MOVED, group] += 1


@compiled
def join_fields(setting: Setting, w: Work) -> bool:
    """Join the numbers of each request into one; False if one does not fit."""
    computed_shift = _PHASE_BITS + _RANK_BITS
    generated_shift = computed_shift + setting.computed_bits
    padding_shift = generated_shift + setting.generated_bits
    waited_shift = padding_shift + setting.padding_bits
    restart_shift = waited_shift + setting.waited_bits
    hit_shift = restart_shift + setting.restart_bits
    # Computed, generated and padding tokens, and blocks, are bounded by what the request may have.
    beyond = 0
    for r in range(MOST_REQUESTS):
        beyond |= w[WAITED, r] >> setting.waited_bits | w[RESTART, r] >> setting.restart_bits
        w[FIELDS, r] = (
            w[PHASE, r]
            | w[REMAINING, r] << _PHASE_BITS
            | w[COMPUTED, r] << computed_shift
            | w[GENERATED, r] << generated_shift
            | w[PADDING, r] << padding_shift
            | w[WAITED, r] << waited_shift
            | w[RESTART, r] << restart_shift
            | w[HIT, r] << hit_shift
        )
    return beyond == 0


@entry
def unpack(setting: Setting, words: Numbers, w: Work) -> None:
    """Read a state."""
    w[AT] = 0
    w[AT, SLOT] = NO_REQUEST
    w[AT, LAST_KIND] = taken(words, 0, _KIND_BITS)
    w[AT, LAST_TKV] = taken(words, _KIND_BITS, setting.tkv_bits)
    at = _KIND_BITS + setting.tkv_bits
    w[AT, ORPHANED] = taken(words, at, setting.orphan_bits)
    at += setting.orphan_bits
    for r in range(setting.requests):
        w[FIELDS, r] = taken(words, at, setting.request_bits)
        at += setting.request_bits
    part_fields(setting, w)
    held = 0
    for r in range(setting.requests):
        put_into_place(w, r, w[REMAINING, r])
        held += held_blocks(w, r)
    w[AT, N_FREE] = setting.pool_blocks - held
    if setting.caching:
        take_blocks(setting, w, words, at)


@compiled
def part_fields(setting: Setting, w: Work) -> None:
    """Split the joined number of each request into its fields."""
    for r in range(MOST_REQUESTS):
        fields = w[FIELDS, r]
        w[PHASE, r] = fields & ((1 << _PHASE_BITS) - 1)
        fields >>= _PHASE_BITS
        w[REMAINING, r] = fields & ((1 << _RANK_BITS) - 1)
        fields >>= _RANK_BITS
        w[COMPUTED, r] = fields & ((1 << setting.computed_bits) - 1)
        fields >>= setting.computed_bits
        w[GENERATED, r] = fields & ((1 << setting.generated_bits) - 1)
        fields >>= setting.generated_bits
        w[PADDING, r] = fields & ((1 << setting.padding_bits) - 1)
        fields >>= setting.padding_bits
        w[WAITED, r] = fields & ((1 << setting.waited_bits) - 1)
        fields >>= setting.waited_bits
        w[RESTART, r] = fields & ((1 << setting.restart_bits) - 1)
        w[HIT, r] = fields >> setting.restart_bits


@compiled
def put_into_place(w: Work, r: int, place: int) -> None:
    """Put a request into the queue of its phase."""
    phase = w[PHASE, r]
    if phase == WAITING:
        w[IN_QUEUE, place] = r
        w[AT, N_WAITING] += 1
    elif phase == PREFILLING:
        w[AT, SLOT] = r
    elif phase == DECODING:
        w[IN_BATCH, place] = r
        w[AT, N_DECODING] += 1
    elif phase == PAUSED:
        w[IN_PAUSE, place] = r
        w[AT, N_PAUSED] += 1


# --- blocks, with prefix caching ------------------------------------------------------------------


@compiled
def in_place(w: Work, place: int) -> int:
    """The request at this place among the block holders: prefilling, decoding, paused."""
    prefilling = w[AT, SLOT] != NO_REQUEST
    if prefilling and place == 0:
        return w[AT, SLOT]
    place -= prefilling
    if place < w[AT, N_DECODING]:
        return w[IN_BATCH, place]
    return w[IN_PAUSE, place - w[AT, N_DECODING]]


@compiled
def holders_in_place(w: Work) -> int:
    """The number of requests that hold blocks."""
    return (w[AT, SLOT] != NO_REQUEST) + w[AT, N_DECODING] + w[AT, N_PAUSED]


@compiled
def put_blocks(setting: Setting, w: Work, words: Numbers, at: int) -> int:
    """Write tables and free list; `moved` gets the number of each block."""
    blocks = setting.pool_blocks
    for block in range(blocks + 1):
        w[MOVED, block] = 0
    numbered = 0
    for place in range(holders_in_place(w)):
        r = in_place(w, place)
        for index in range(held_blocks(w, r)):
            block = w[TABLES + r, index]
            if w[MOVED, block] == 0:
                numbered += 1
                w[MOVED, block] = numbered
                at = put(words, at, 1, 1)
            else:
                at = put(words, at, w[MOVED, block] << 1, setting.block_bits + 1)
    for index in range(w[AT, N_FREE]):
        block = w[FREE, index]
        if w[MOVED, block] != 0:
            w[AT, IS_STUCK] = 1  # the block is free and held, or free twice
            return at
        numbered += 1
        w[MOVED, block] = numbered
        at = put(words, at, w[CONTENT, block] + 1, setting.key_bits)
    if numbered != blocks:
        w[AT, IS_STUCK] = 1
        return at
    # blocks of equal content, in the order in which they were cached
    for block in range(1, blocks + 1):
        w[ORDER, w[MOVED, block]] = block
    for number in range(1, blocks + 1):
        block = w[ORDER, number]
        earlier, alike = 0, 0
        if w[CONTENT, block] != NO_KEY:
            for other in range(1, blocks + 1):
                if w[CONTENT, other] == w[CONTENT, block] and other != block:
                    alike = 1
                    earlier += w[STAMP, other] < w[STAMP, block]
        if alike:
            at = put(words, at, earlier, setting.block_bits)
    return at


@compiled
def take_blocks(setting: Setting, w: Work, words: Numbers, at: int) -> None:
    """Read tables and free list; blocks have the numbers that `put_blocks` gave them."""
    blocks = setting.pool_blocks
    for block in range(blocks + 1):
        w[HOLDERS, block] = 0
        w[CONTENT, block] = NO_KEY
        w[STAMP, block] = 0
    numbered = 0
    for place in range(holders_in_place(w)):
        r = in_place(w, place)
        for index in range(held_blocks(w, r)):
            is_new = taken(words, at, 1)
            at += 1
            if is_new:
                numbered += 1
                block = numbered
            else:
                block = taken(words, at, setting.block_bits)
                at += setting.block_bits
            w[TABLES + r, index] = block
            w[HOLDERS, block] += 1
            if index < w[COMPUTED, r] // setting.block_size:
                w[CONTENT, block] = w[KEYS + r, index]
    w[AT, N_FREE] = blocks - numbered
    for index in range(w[AT, N_FREE]):
        numbered += 1
        w[FREE, index] = numbered
        w[CONTENT, numbered] = taken(words, at, setting.key_bits) - 1
        at += setting.key_bits
    for block in range(1, blocks + 1):
        alike = 0
        if w[CONTENT, block] != NO_KEY:
            for other in range(1, blocks + 1):
                alike |= w[CONTENT, other] == w[CONTENT, block] and other != block
        if alike:
            w[STAMP, block] = taken(words, at, setting.block_bits)
            at += setting.block_bits
    w[AT, STAMPS] = blocks
