"""Situations of Spyre: the classes of each transition, and settings that reach rare ones."""

from checks.harness.labels import queue_name
from checks.harness.situations import (
    ABORT,
    AHEAD,
    BEFORE,
    EVICTED,
    FREE,
    GENERATED,
    HOLDERS,
    PLACE,
    REFUSED,
    REQUEST,
    STEP,
    WAITING,
    Advice,
    Class,
    Moment,
    Table,
    count,
    count_of_row,
    phase,
)


def _below_limit(moment: Moment) -> int:
    return int(moment.ctx.config.max_batch_tkv_limit - moment.step.volume)


def _chunks_left(moment: Moment) -> int:
    chunk = moment.step.chunk
    return 0 if chunk is None else chunk.chunks - 1 - chunk.chunk


def _skipped(moment: Moment) -> int:
    chunk = moment.step.chunk
    return 0 if chunk is None else chunk.inner_padding


VOLUME = count("volume below the limit", _below_limit)
ROWS = count("rows of the batch", lambda moment: len(moment.step.before.decoding))
PAUSED = count("paused rows", lambda moment: len(moment.step.before.paused))
CHUNKS = count("chunks left", _chunks_left)
INSIDE = count("cached tokens in the chunk", _skipped)
PADDING = count_of_row("left padding", lambda _moment, row: row.left_padding)
HITS = count("blocks of its hit", lambda moment: len(moment.event.after))
PHASE = phase(queue_name, "waiting", "prefilling", "decoding", "paused")
KIND = Class("last step", ("prefill", "decode", "idle"), lambda moment: moment.state.last_kind)

TABLE: Table = {
    STEP: (ROWS, PAUSED, WAITING, FREE, VOLUME, KIND),
    REFUSED: (ROWS, FREE, GENERATED, KIND),
    "admit": (AHEAD, ROWS, PAUSED, GENERATED, FREE),
    "prefix_hit": (HITS, CHUNKS, INSIDE, FREE),
    "allocate": (EVICTED, HOLDERS, FREE, ROWS),
    "chunk": (CHUNKS, INSIDE, *REQUEST),
    "join": (ROWS, PAUSED, *REQUEST),
    "jump_tkv": (ROWS, PADDING, *REQUEST, BEFORE),
    "preempt": (ROWS, PADDING, *REQUEST, BEFORE),
    "pause": (ROWS, PADDING, *REQUEST, BEFORE),
    "resume": (ROWS, PAUSED, PLACE, BEFORE),
    "encode": (ROWS, AHEAD, FREE),
    "finish": (ROWS, PAUSED, *REQUEST, BEFORE),
    ABORT: (PHASE, PADDING, *REQUEST, AHEAD),
}

ADVICE = (
    Advice(
        "preempt, holders of a block 2+",
        "no victim shared a block",
        {"reservation": False, "pausing": False, "prefix_caching": True},
    ),
    Advice(
        "abort, phase paused, holders of a block 2+",
        "no client of a paused request that shares a block left",
        {"pausing": True, "prefix_caching": True},
    ),
)
