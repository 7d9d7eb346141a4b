"""Names of the numbers that the compiled machine works on: rows of an array, phases, kinds."""

ABSENT, WAITING, PREFILLING, DECODING, PAUSED, FINISHED, ABORTED = range(7)  # phases
IDLE, PREFILL, DECODE = range(3)  # kinds of a step
NO_REQUEST = -1  # instead of a request
NO_KEY = -1  # instead of a content

MOST_REQUESTS = 8  # of an instance
MOST_MEMBERS = 4  # decoding requests that a candidate joins

# --- rows: the state ------------------------------------------------------------------------------

# Of each request, by its number, what `spec.spyre.state.Sequence` has of it; PADDING in blocks.
# RESTART: what it had generated when it was preempted last.
PHASE, COMPUTED, GENERATED, PADDING, WAITED, RESTART, HIT = range(7)
# Requests in the order of a queue, whose length stands in the row AT.
IN_QUEUE, IN_BATCH, IN_PAUSE = range(7, 10)
# Single numbers: lengths of the queues, the request in the prefill SLOT, what is remembered of the
# last step, how many blocks are free or set aside for requests that left, how often content was
# cached, whether a guard did not hold; of the step under way its TKV, and whose chunk it computes.
AT = 10
N_WAITING, N_DECODING, N_PAUSED, SLOT, LAST_KIND, LAST_TKV = range(6)
N_FREE, ORPHANED, STAMPS, IS_STUCK, TKV, CHUNK_OF = range(6, 12)
SINGLE_NUMBERS, STATE_ROWS = 12, 11

# Only with prefix caching. FREE: blocks, of which the first N_FREE count. Of each block, from 1 on:
# its HOLDERS, its CONTENT and when that was cached, as a STAMP. TABLES: a row for each request.
FREE, HOLDERS, CONTENT, STAMP, TABLES = range(11, 16)
CACHING_ROWS = TABLES + MOST_REQUESTS

# --- rows: the instance ---------------------------------------------------------------------------

PROMPT_LEN, MAX_TOKENS, MAY_ABORT, MAY_END, MAY_RETURN, WORST_CASE, GROUP = range(
    CACHING_ROWS, CACHING_ROWS + 7
)
# A row for each request: the content of each of its blocks. A row for each group of interchangeable
# requests: the requests. WORST_CASE: the blocks of its prompt and output, as rules count them.
KEYS = GROUP + 1
MEMBERS = KEYS + MOST_REQUESTS
# By a number of tokens: the blocks that they occupy by the formula, and as rules count them.
BLOCKS = MEMBERS + MOST_REQUESTS
COUNTED = BLOCKS + 1

# --- rows: what is needed for a moment ------------------------------------------------------------

HITS, MOVED, ORDER, LENGTH, REMAINING, FIELDS = range(COUNTED + 1, COUNTED + 7)
ROWS = FIELDS + 1

# --- rules --------------------------------------------------------------------------------------

# Those that are judged in numbers. Each has a bit.
RULES = (
    *("LIF-5", "LIF-8", "BLK-1", "BLK-2", "BLK-6", "SPY-PRI-1", "SPY-RES-1"),
    *("SPY-VOL-1", "SPY-LEN-1", "SPY-PRI-4", "SPY-RES-3", "SPY-PAU-6"),
    *("SPY-ADM-1", "SPY-ADM-2", "SPY-ADM-3", "SPY-PRI-2", "SPY-PRI-3", "SPY-PRI-5", "SPY-PAU-4"),
    *("SPY-DEC-2", "SPY-DEC-3", "SPY-DEC-6", "SPY-TKV-2"),
)

# What must come sooner or later, of each request: a bit for each request of the first, and so on.
GOALS = ("LIF-6", "SPY-PAU-5")


def bits(*rules: str) -> list[int]:
    """The bit of each of these rules."""
    return [1 << RULES.index(one) for one in rules]
