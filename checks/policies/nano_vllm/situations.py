"""Situations of nano-vLLM: the classes of each transition, and settings that reach rare ones."""

from checks.harness.labels import queue_name
from checks.harness.situations import (
    ABORT,
    AHEAD,
    BEFORE,
    EVICTED,
    FREE,
    GENERATED,
    HOLDERS,
    REFUSED,
    REQUEST,
    STEP,
    WAITING,
    Advice,
    Class,
    Table,
    count,
    phase,
)

ROWS = count("running requests", lambda moment: len(moment.step.before.running))
HITS = count("blocks of its hit", lambda moment: len(moment.event.after))
RULE = Class("rule", ("NANO-ADM-1", "NANO-ADM-2", "NANO-ADM-3"), lambda moment: moment.event.rule)
PHASE = phase(queue_name, "waiting", "running")

TABLE: Table = {
    STEP: (ROWS, WAITING, FREE),
    REFUSED: (RULE, ROWS, FREE, GENERATED),
    "admit": (AHEAD, ROWS, GENERATED, BEFORE, FREE),
    "prefix_hit": (HITS, AHEAD, GENERATED, FREE),
    "allocate": (EVICTED, HOLDERS, ROWS, FREE),
    "preempt": (ROWS, *REQUEST, GENERATED, BEFORE),
    "finish": (ROWS, *REQUEST, BEFORE),
    ABORT: (PHASE, ROWS, *REQUEST, AHEAD),
}

ADVICE = (Advice("preempt, holders of a block 2+", "no victim shared a block", {"block_size": 2}),)
