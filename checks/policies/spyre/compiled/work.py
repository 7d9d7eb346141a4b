"""A state of the compiled machine while it is worked on: arrays of numbers, requests by number."""

from typing import NamedTuple

import numpy as np

from checks.explore.compiled.jit import compiled
from checks.policies.spyre.compiled.setting import Numbers, Setting

ABSENT, WAITING, PREFILLING, DECODING, PAUSED, FINISHED, ABORTED = range(7)  # phases
IDLE, PREFILL, DECODE = range(3)  # kinds of a step
NOBODY = -1
NO_KEY = -1

# Places in `Work.at`.
N_WAITING, N_DECODING, N_PAUSED, SLOT, LAST_KIND, LAST_TKV, N_FREE, STAMPS, IS_STUCK = range(9)


class Work(NamedTuple):
    """A state; lengths in tokens.

    Of each request, by its number: its phase and what `spec.spyre.state.Sequence` has of it, with
    `padding` in blocks; `restart`: what it had generated when it was preempted last. `waiting`,
    `decoding` and `paused`: queues. `at`: single numbers, such as the length of each queue and the
    request in the prefill SLOT.

    Only with prefix caching, by the number of a block from 1 on: its holders, its content and when
    that was cached, as a STAMP; `tables` of each request; `free`, of which the first N_FREE count.
    `hits`, `moved` and `order` hold blocks for a moment, `length` and `remaining` rows.
    """

    phase: Numbers
    computed: Numbers
    generated: Numbers
    padding: Numbers
    waited: Numbers
    restart: Numbers
    hit: Numbers
    waiting: Numbers
    decoding: Numbers
    paused: Numbers
    at: Numbers
    tables: Numbers
    free: Numbers
    holders: Numbers
    content: Numbers
    stamp: Numbers
    hits: Numbers
    moved: Numbers
    order: Numbers
    length: Numbers
    remaining: Numbers


def new_work(setting: Setting) -> Work:
    """No request has arrived, all blocks are free."""
    requests, blocks = setting.requests, setting.pool_blocks

    def zeros(*shape: int) -> Numbers:
        return np.zeros(shape, np.int64)

    at = zeros(9)
    at[SLOT], at[N_FREE] = NOBODY, blocks
    return Work(
        *(zeros(requests) for _ in range(10)),
        at=at,
        tables=zeros(requests, setting.keys.shape[1] + 1),
        free=np.arange(1, blocks + 1, dtype=np.int64),
        holders=zeros(blocks + 1),
        content=np.full(blocks + 1, NO_KEY, np.int64),
        stamp=zeros(blocks + 1),
        hits=zeros(setting.keys.shape[1] + 1),
        moved=zeros(max(blocks + 1, requests)),
        order=zeros(blocks + 1),
        length=zeros(requests),
        remaining=zeros(requests),
    )


@compiled
def copy(setting: Setting, source: Work, target: Work) -> None:
    """Make `target` the same state."""
    for r in range(setting.requests):
        target.phase[r] = source.phase[r]
        target.computed[r] = source.computed[r]
        target.generated[r] = source.generated[r]
        target.padding[r] = source.padding[r]
        target.waited[r] = source.waited[r]
        target.restart[r] = source.restart[r]
        target.hit[r] = source.hit[r]
        target.waiting[r] = source.waiting[r]
        target.decoding[r] = source.decoding[r]
        target.paused[r] = source.paused[r]
    for place in range(len(source.at)):
        target.at[place] = source.at[place]
    if setting.caching:
        target.tables[:] = source.tables
        target.free[:] = source.free
        target.holders[:] = source.holders
        target.content[:] = source.content
        target.stamp[:] = source.stamp


# --- queues ---------------------------------------------------------------------------------------


@compiled
def put_last(queue: Numbers, at: Numbers, count: int, request: int) -> None:
    """A request more at the end of a queue, whose length stands at `count`."""
    queue[at[count]] = request
    at[count] += 1


@compiled
def put_first(queue: Numbers, at: Numbers, count: int, request: int) -> None:
    """A request more at the head of a queue."""
    for place in range(at[count], 0, -1):
        queue[place] = queue[place - 1]
    queue[0] = request
    at[count] += 1


@compiled
def take_out(queue: Numbers, at: Numbers, count: int, request: int) -> None:
    """The queue without a request."""
    kept = 0
    for place in range(at[count]):
        if queue[place] != request:
            queue[kept] = queue[place]
            kept += 1
    at[count] = kept


@compiled
def leave_place(w: Work, request: int) -> None:
    """A request out of whatever queue it is in; its phase is left as it was."""
    phase = w.phase[request]
    if phase == WAITING:
        take_out(w.waiting, w.at, N_WAITING, request)
    elif phase == PREFILLING:
        w.at[SLOT] = NOBODY
    elif phase == DECODING:
        take_out(w.decoding, w.at, N_DECODING, request)
    elif phase == PAUSED:
        take_out(w.paused, w.at, N_PAUSED, request)


@compiled
def forget(w: Work, request: int, phase: int) -> None:
    """Nothing of the request but the phase that it is in from now on."""
    w.phase[request] = phase
    w.computed[request] = 0
    w.generated[request] = 0
    w.padding[request] = 0
    w.waited[request] = 0
    w.restart[request] = 0
    w.hit[request] = 0


@compiled
def prefill_len(setting: Setting, w: Work, request: int) -> int:
    """Tokens that its prefill covers: the prompt, and what it had when it was preempted."""
    covered: int = setting.prompt_len[request] + w.restart[request]
    return covered
