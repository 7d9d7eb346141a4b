"""What is done with a state while it is worked on: copies, queues, what is forgotten."""

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
        for r in range(MOST_REQUESTS):  # a number that is known makes short work of it
            target[row, r] = source[row, r]
    for number in range(SINGLE_NUMBERS):
        target[AT, number] = source[AT, number]
    if setting.caching:
        for row in range(STATE_ROWS, TABLES + setting.requests):
            for place in range(setting.pool_blocks + 1):
                target[row, place] = source[row, place]


@compiled
def put_last(w: Work, queue: int, count: int, request: int) -> None:
    """A request more at the end of a queue, whose length stands at `count`."""
    w[queue, w[AT, count]] = request
    w[AT, count] += 1


@compiled
def put_first(w: Work, queue: int, count: int, request: int) -> None:
    """A request more at the head of a queue."""
    for place in range(w[AT, count], 0, -1):
        w[queue, place] = w[queue, place - 1]
    w[queue, 0] = request
    w[AT, count] += 1


@compiled
def take_out(w: Work, queue: int, count: int, request: int) -> None:
    """The queue without a request."""
    kept = 0
    for place in range(w[AT, count]):
        if w[queue, place] != request:
            w[queue, kept] = w[queue, place]
            kept += 1
    w[AT, count] = kept


@compiled
def leave_place(w: Work, request: int) -> None:
    """A request out of whatever queue it is in; its phase is left as it was."""
    phase = w[PHASE, request]
    if phase == WAITING:
        take_out(w, IN_QUEUE, N_WAITING, request)
    elif phase == PREFILLING:
        w[AT, SLOT] = NO_REQUEST
    elif phase == DECODING:
        take_out(w, IN_BATCH, N_DECODING, request)
    elif phase == PAUSED:
        take_out(w, IN_PAUSE, N_PAUSED, request)


@compiled
def forget(w: Work, request: int, phase: int) -> None:
    """Nothing of the request but the phase that it is in from now on."""
    w[PHASE, request] = phase
    w[COMPUTED, request] = 0
    w[GENERATED, request] = 0
    w[PADDING, request] = 0
    w[WAITED, request] = 0
    w[RESTART, request] = 0
    w[HIT, request] = 0


@compiled
def prefill_len(w: Work, request: int) -> int:
    """Tokens that its prefill covers: the prompt, and what it had when it was preempted."""
    return w[PROMPT_LEN, request] + w[RESTART, request]
