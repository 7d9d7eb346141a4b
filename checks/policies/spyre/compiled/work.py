"""In-place operations on unpacked states: copies, queues, resets of requests."""

from checks.explore.compiled.jit import compiled
from checks.policies.spyre.compiled.names import (
    AT,
    COMPUTED,
    DECODING,
    GENERATED,
    HIT,
    IN_BATCH,
    IN_PAUSE,
    IN_QUEUE,
    MOST_REQUESTS,
    N_DECODING,
    N_PAUSED,
    N_WAITING,
    NO_REQUEST,
    PADDING,
    PAUSED,
    PHASE,
    PREFILLING,
    PROMPT_LEN,
    RESTART,
    SINGLE_NUMBERS,
    SLOT,
    STATE_ROWS,
    TABLES,
    WAITED,
    WAITING,
)
from checks.policies.spyre.compiled.setting import Setting, Work


@compiled
def copy(setting: Setting, source: Work, target: Work) -> None:
    """Make `target` the same state."""
    for row in range(AT):
        for r in range(MOST_REQUESTS):  # a constant bound compiles to fast code
            target[row, r] = source[row, r]
    for number in range(SINGLE_NUMBERS):
        target[AT, number] = source[AT, number]
    if setting.caching:
        for row in range(STATE_ROWS, TABLES + setting.requests):
            for place in range(setting.pool_blocks + 1):
                target[row, place] = source[row, place]


@compiled
def put_last(w: Work, queue: int, count: int, request: int) -> None:
    """Append a request to a queue; its length is in place `count` of the row AT."""
    w[queue, w[AT, count]] = request
    w[AT, count] += 1


@compiled
def put_first(w: Work, queue: int, count: int, request: int) -> None:
    """Insert a request at the head of a queue."""
    for place in range(w[AT, count], 0, -1):
        w[queue, place] = w[queue, place - 1]
    w[queue, 0] = request
    w[AT, count] += 1


@compiled
def remove(w: Work, queue: int, count: int, request: int) -> None:
    """Remove a request from a queue."""
    kept = 0
    for place in range(w[AT, count]):
        if w[queue, place] != request:
            w[queue, kept] = w[queue, place]
            kept += 1
    w[AT, count] = kept


@compiled
def leave_place(w: Work, request: int) -> None:
    """Remove a request from the queue of its phase; the phase is unchanged."""
    phase = w[PHASE, request]
    if phase == WAITING:
        remove(w, IN_QUEUE, N_WAITING, request)
    elif phase == PREFILLING:
        w[AT, SLOT] = NO_REQUEST
    elif phase == DECODING:
        remove(w, IN_BATCH, N_DECODING, request)
    elif phase == PAUSED:
        remove(w, IN_PAUSE, N_PAUSED, request)


@compiled
def forget(w: Work, request: int, phase: int) -> None:
    """Reset all fields of the request and set its phase."""
    w[PHASE, request] = phase
    w[COMPUTED, request] = 0
    w[GENERATED, request] = 0
    w[PADDING, request] = 0
    w[WAITED, request] = 0
    w[RESTART, request] = 0
    w[HIT, request] = 0


@compiled
def prefill_len(w: Work, request: int) -> int:
    """Tokens that its prefill covers: the prompt, and tokens generated before a preemption."""
    return w[PROMPT_LEN, request] + w[RESTART, request]
