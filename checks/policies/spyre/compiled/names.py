"""Names of the numbers that the compiled machine works on: rows of an array, phases, kinds."""

ABSENT, WAITING, PREFILLING, DECODING, PAUSED, FINISHED, ABORTED = range(7)  # phases
IDLE, PREFILL, DECODE = range(3)  # kinds of a step
NOBODY = -1  # instead of a request
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
# cached, whether a guard did not hold.
AT = 10
N_WAITING, N_DECODING, N_PAUSED, SLOT, LAST_KIND, LAST_TKV = range(6)
N_FREE, ORPHANED, STAMPS, IS_STUCK = range(6, 10)
SINGLE_NUMBERS, STATE_ROWS = 10, 11

# Only with prefix caching. FREE: blocks, of which the first N_FREE count. Of each block, from 1 on:
# its HOLDERS, its CONTENT and when that was cached, as a STAMP. TABLES: a row for each request.
FREE, HOLDERS, CONTENT, STAMP, TABLES = range(11, 16)
CACHING_ROWS = TABLES + MOST_REQUESTS

# --- rows: the instance ---------------------------------------------------------------------------

PROMPT_LEN, MAX_TOKENS, MAY_ABORT, MAY_END, MAY_RETURN, GROUP = range(
    CACHING_ROWS, CACHING_ROWS + 6
)
# A row for each request: the content of each of its blocks. A row for each group of interchangeable
# requests: the requests.
KEYS = GROUP + 1
MEMBERS = KEYS + MOST_REQUESTS

# --- rows: what is needed for a moment ------------------------------------------------------------

HITS, MOVED, ORDER, LENGTH, REMAINING = range(MEMBERS + MOST_REQUESTS, MEMBERS + MOST_REQUESTS + 5)
ROWS = REMAINING + 1
