"""Names of the compiled machine's numbers: rows of an array, phases, kinds of steps."""

ABSENT, WAITING, PREFILLING, DECODING, PAUSED, FINISHED, ABORTED = range(7)  # phases
IDLE, PREFILL, DECODE = range(3)  # kinds of a step
NO_REQUEST = -1  # instead of a request
NO_KEY = -1  # instead of a content

MOST_REQUESTS = 8  # of an instance
MOST_MEMBERS = 4  # decoding requests that a candidate joins

# --- rows: the state ------------------------------------------------------------------------------

# By request number, the fields of `spec.spyre.state.Sequence`; PADDING in blocks.
# RESTART: tokens that the request had generated when it was preempted last.
PHASE, COMPUTED, GENERATED, PADDING, WAITED, RESTART, HIT = range(7)
# Requests in the order of a queue; the row AT has its length.
IN_QUEUE, IN_BATCH, IN_PAUSE = range(7, 10)
# Single numbers: lengths of queues, the request in the prefill SLOT, the remembered kind and tkv of
# the last step, the numbers of free blocks and of blocks set aside for requests that left, a
# counter of cachings, whether a guard failed; the TKV of the present step and its chunk's request.
AT = 10
N_WAITING, N_DECODING, N_PAUSED, SLOT, LAST_KIND, LAST_TKV = range(6)
N_FREE, ORPHANED, STAMPS, IS_STUCK, TKV, CHUNK_OWNER = range(6, 12)
SINGLE_NUMBERS, STATE_ROWS = 12, 11

# Only with prefix caching. FREE: the free list, in its first N_FREE places. By block, from 1 on:
# the number of HOLDERS, the CONTENT, and the STAMP of its caching. TABLES: a row for each request.
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
# By number of tokens: the blocks by the formula, and the blocks as rules count them.
BLOCKS = MEMBERS + MOST_REQUESTS
COUNTED = BLOCKS + 1

# --- rows: scratch space --------------------------------------------------------------------------

HITS, MOVED, ORDER, LENGTH, REMAINING, FIELDS = range(COUNTED + 1, COUNTED + 7)
ROWS = FIELDS + 1

# --- rules --------------------------------------------------------------------------------------

# The rules judged in numbers. Each has a bit.
RULES = (
    *("LIF-5", "LIF-8", "BLK-1", "BLK-2", "BLK-6", "SPY-PRI-1", "SPY-RES-1"),
    *("SPY-VOL-1", "SPY-LEN-1", "SPY-PRI-4", "SPY-RES-3", "SPY-PAU-6"),
    *("SPY-ADM-1", "SPY-ADM-2", "SPY-ADM-3", "SPY-PRI-2", "SPY-PRI-3", "SPY-PRI-5", "SPY-PAU-4"),
    *("SPY-DEC-2", "SPY-DEC-3", "SPY-DEC-6", "SPY-TKV-2"),
)

# The liveness rules. Bits: first the requests of the first rule, then those of the second.
GOALS = ("LIF-6", "SPY-PAU-5")


def bits(*rules: str) -> list[int]:
    """The bit of each of these rules."""
    return [1 << RULES.index(rule) for rule in rules]
