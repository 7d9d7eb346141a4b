/* The Spyre scheduler without prefix caching, and what may happen to its requests.
 *
 * Written by reading spec/chapters/spyre.md and spec/chapters/admission.md, not the reference. The
 * constants of an instance (N requests, BLOCK, CHUNK, LIMIT, ...) stand in front, see spin.py.
 *
 * A move is an arrival, an abort or a scheduler step with the requests that end early in it. Each
 * is one atomic transition, so that Spin stores one state for each state of the scheduler at rest.
 * `next_...` and `may_end` follow from the rest of the state and add none. Lengths are in tokens.
 */

#define NONE N
#define MAX(a, b) ((a) > (b) -> (a) : (b))
#define MIN(a, b) ((a) < (b) -> (a) : (b))
#define BIT(x) (1 << (x))
#define BLOCKS(tokens) (((tokens) + BLOCK - 1) / BLOCK)

#ifndef EXTRA_BLOCKS
#define EXTRA_BLOCKS 0  /* more than none is a fault: padding that is not minimal */
#endif
#define PADDING(tokens) ((width + EXTRA_BLOCKS - BLOCKS(tokens)) * BLOCK)

/* Prints a rule that does not hold. */
#define CHECK(broken, holds) \
    if \
    :: (holds) \
    :: else -> printf(broken) \
    fi

mtype = { NEW, WAITING, PREFILLING, DECODING, PAUSED, FINISHED, ABORTED, IDLE, PREFILL, DECODE };

typedef Request {
    mtype place = NEW;
    byte target;     /* what its prefill covers: the prompt, and what it had when preempted */
    byte computed;
    byte generated;
    byte left;       /* left padding of its last decode step */
    byte promised;   /* blocks set aside and not yet handed out */
    byte held;
    byte table[TABLE];
    byte waited;     /* decode steps since it was paused */
};

Request r[N];
byte queue[N];
byte queued;
byte batch[N];
byte rows;
byte paused[N];
byte resting;
byte prefilling = NONE;
byte pool[POOL] = { POOL_ORDER };  /* the free list, its head first */
byte unheld = POOL;
mtype last_kind = IDLE;
byte last_tkv;

/* The step to come: its kind, whose prompt or which rows it computes, how many are preempted for
 * it, and which requests may sample the end of sequence. Sets are bits. */
mtype next_kind = IDLE;
byte next_prefill = NONE;
byte next_rows;
byte next_victims;
byte may_end;

/* The choice of the environment; 0 between two moves. */
byte who;
byte ends;
byte asked;

hidden byte prompt[N] = { PROMPTS };
hidden byte max_tokens[N] = { MAX_TOKENS };

/* Scratch, of no meaning between two moves. */
hidden int row, mate, at, nth, best, fits, until, size, width, alive, tkv, taken, lacking, count;
hidden byte gone[N];
hidden int end_of[N];

#define IS_PENDING (queued > 0 || rows > 0 || resting > 0 || prefilling != NONE)
#define MAY_PAUSE (PAUSING || SHIPPED)
#define STILL(x) (max_tokens[x] - r[x].generated)
#define WORST_CASE(x) BLOCKS(prompt[x] + max_tokens[x])
#define BLOCKS_TO_COME(x) (BLOCKS(r[x].computed + 1) - r[x].held)

/* ---- A prompt in chunks ---- */

#define PROMPT_PADDING(x) ((CHUNK - BLOCKS(r[x].target) * BLOCK % CHUNK) % CHUNK)
#define ACTIVE_CHUNK(x) ((r[x].computed + PROMPT_PADDING(x)) / CHUNK)
#define CHUNK_END(x) MIN(r[x].target, (ACTIVE_CHUNK(x) + 1) * CHUNK - PROMPT_PADDING(x))
#define IS_LAST_CHUNK(x) (CHUNK_END(x) == r[x].target)

/* ---- Who may join: the three variants of the volume rule, x the newcomer ---- */

#define IS_MEMBER(y, x) (y == x || r[y].place == DECODING)
#define LENGTH(y, x) (y == x -> r[y].target : r[y].computed)
/* Decode steps to come; the newcomer samples its first token in the prefill. */
#define LIFE(y, x) (STILL(y) - (y == x))

/* No step of the worst case exceeds the limit: each is looked at. */
inline judge_exact(x) {
    fits = 1;
    for (nth : 1 .. LONGEST) {
        width = 0; alive = 0; tkv = 0;
        for (mate : 0 .. N - 1) {
            if
            :: IS_MEMBER(mate, x) && LIFE(mate, x) >= nth ->
                alive++; width = MAX(width, BLOCKS(LENGTH(mate, x) + nth))
            :: else
            fi
        }
        for (mate : 0 .. N - 1) {
            if
            :: IS_MEMBER(mate, x) && LIFE(mate, x) >= nth ->
                size = LENGTH(mate, x) + nth;
                tkv = MAX(tkv, PADDING(size) + size)
            :: else
            fi
        }
        fits = fits && alive * tkv <= LIMIT
    }
}

/* The requests in the order of their projected ends: those left, times the end, as long as x and
 * another are among them. */
inline judge_ends(x) {
    for (mate : 0 .. N - 1) {
        if
        :: IS_MEMBER(mate, x) && end_of[mate] <= end_of[x] ->
            alive = 0;
            for (nth : 0 .. N - 1) {
                if
                :: IS_MEMBER(nth, x) && end_of[nth] >= end_of[mate] -> alive++
                :: else
                fi
            }
            fits = fits && (alive == 1 || alive * end_of[mate] <= LIMIT)
        :: else
        fi
    }
}

/* The text: from the tkv of each once x has joined, with a block of slack for who decodes already. */
inline judge_documented(x) {
    fits = 1; width = 0;
    for (mate : 0 .. N - 1) {
        if
        :: IS_MEMBER(mate, x) -> width = MAX(width, BLOCKS(LENGTH(mate, x)))
        :: else
        fi
    }
    for (mate : 0 .. N - 1) {
        if
        :: IS_MEMBER(mate, x) ->
            size = LENGTH(mate, x);
            tkv = PADDING(size) + size;
            fits = fits && tkv + LIFE(mate, x) <= MODEL_LEN;
            end_of[mate] = tkv + STILL(mate) + (mate != x) * BLOCK
        :: else
        fi
    }
    judge_ends(x)
}

/* 2.6.3: from the tkv of the last step, or the prompt if longer, for all. */
inline judge_shipped(x) {
    fits = 1;
    tkv = MAX(last_tkv, r[x].target);
    for (mate : 0 .. N - 1) {
        size = (mate == x -> tkv / BLOCK * BLOCK + r[x].target % BLOCK : tkv);
        end_of[mate] = BLOCKS(size + LIFE(mate, x)) * BLOCK + BLOCK
    }
    judge_ends(x)
}

#if PAUSING
#define JUDGE(x) skip
#elif DOCUMENTED
#define JUDGE(x) judge_documented(x)
#elif SHIPPED
#define JUDGE(x) judge_shipped(x)
#else
#define JUDGE(x) judge_exact(x)
#endif

#if SHIPPED && !INTERLEAVE
#define IS_JUDGED(x) (r[x].place == WAITING)
#else
#define IS_JUDGED(x) IS_LAST_CHUNK(x)
#endif

/* Blocks: all that a new request may ever need, or those of the next chunk. */
#if RESERVATION
#define HAS_BLOCKS(x) (r[x].place == PREFILLING || WORST_CASE(x) <= unheld - taken)
#else
#define HAS_BLOCKS(x) (BLOCKS(CHUNK_END(x)) - r[x].held <= unheld)
#endif

#define HAS_SLOT(x) (r[x].place == PREFILLING || rows + resting < SLOTS)

inline consider(x) {
    fits = HAS_BLOCKS(x) && HAS_SLOT(x);
    if
    :: fits && IS_JUDGED(x) -> JUDGE(x)
    :: else
    fi;
    if
    :: fits -> next_prefill = x
    :: else
    fi
}

/* ---- Who has the next step ---- */

/* The largest tkv of the next decode step with these rows, and how many they are. */
inline measure(set) {
    width = 0; tkv = 0; alive = 0;
    for (mate : 0 .. N - 1) {
        if
        :: (set) & BIT(mate) -> alive++; width = MAX(width, BLOCKS(r[mate].computed + 1))
        :: else
        fi
    }
    for (mate : 0 .. N - 1) {
        if
        :: (set) & BIT(mate) ->
            size = r[mate].computed + 1;
            tkv = MAX(tkv, PADDING(size) + size)
        :: else
        fi
    }
}

#if LONG_OUTPUT_FIRST
#define IS_NEXT(x, y) (r[x].generated > r[y].generated)
#else
#define IS_NEXT(x, y) (r[x].generated < r[y].generated)
#endif
#define GOES_BEFORE(x, y) (y == NONE || r[x].waited > r[y].waited || \
    (r[x].waited == r[y].waited && IS_NEXT(x, y)))

/* In turn each request with which the volume still fits: the one paused longest first, then the one
 * with the fewest tokens (or the most), then in the order of the batch. */
inline choose_rows() {
    taken = 0;
    do
    :: best = NONE;
        for (row : 0 .. rows + resting - 1) {
            mate = (row < rows -> batch[row] : paused[row - rows]);
            if
            :: !(taken & BIT(mate)) && GOES_BEFORE(mate, best) -> best = mate
            :: else
            fi
        }
        if
        :: best == NONE -> break
        :: else
        fi;
        taken = taken | BIT(best);
        measure(next_rows | BIT(best));
        if
        :: !MAY_PAUSE || alive * tkv <= LIMIT -> next_rows = next_rows | BIT(best)
        :: else
        fi
    od
}

/* Preempted are, until the free blocks suffice: the prefill, then the batch from its front, which
 * is where the request admitted last stands. */
inline choose_victims() {
    lacking = -unheld;
    for (row : 0 .. N - 1) {
        if
        :: next_rows & BIT(row) -> lacking = lacking + BLOCKS_TO_COME(row)
        :: else
        fi
    }
    if
    :: lacking > 0 && prefilling != NONE ->
        lacking = lacking - r[prefilling].held; next_victims++
    :: else
    fi;
    row = 0;
    do
    :: lacking > 0 ->
        lacking = lacking - r[batch[row]].held - BLOCKS_TO_COME(batch[row]);
        next_rows = next_rows & ~BIT(batch[row]);
        next_victims++; row++
    :: else -> break
    od
}

inline choose_prefill() {
    taken = 0;
    for (row : 0 .. N - 1) { taken = taken + r[row].promised }
    CHECK("broken: SPY-RES-1\n", taken <= unheld);
    if
    :: rows > 0 && (resting > 0 || (INTERLEAVE && last_kind == PREFILL))
    :: else ->
        if
        :: prefilling != NONE -> consider(prefilling)
        :: else ->
            for (row : 0 .. queued - 1) {
                if
                :: next_prefill == NONE && (row == 0 || OVERTAKING) -> consider(queue[row])
                :: else
                fi
            }
        fi
    fi
}

inline plan() {
    next_kind = IDLE; next_prefill = NONE; next_rows = 0; next_victims = 0; may_end = 0;
    choose_prefill();
    if
    :: next_prefill != NONE ->
        next_kind = PREFILL;
        may_end = IS_LAST_CHUNK(next_prefill) * BIT(next_prefill)
    :: next_prefill == NONE && rows + resting > 0 ->
        next_kind = DECODE;
        choose_rows();
        choose_victims();
        may_end = next_rows
    :: else
    fi;
    may_end = may_end & EARLY_ENDS;
    for (row : 0 .. N - 1) {
        if
        :: STILL(row) == 1 -> may_end = may_end & ~BIT(row)
        :: else
        fi
    }
    CHECK("broken: SPY-PRI-4\n", next_kind != IDLE || !IS_PENDING);
    CHECK("broken: BLK-6\n", IS_PENDING || unheld == POOL)
}

/* ---- What a step does ---- */

#define REMOVE(list, length, x) \
    nth = 0; \
    for (at : 0 .. length - 1) { \
        if \
        :: list[at] != x -> list[nth] = list[at]; nth++ \
        :: else \
        fi \
    } \
    length--; \
    list[length] = 0

/* Blocks from the head of the free list, until x holds those of so many tokens. */
inline allocate(x, tokens) {
    do
    :: r[x].held < BLOCKS(tokens) ->
        assert(unheld > 0);
        r[x].table[r[x].held] = pool[0];
        r[x].held++;
        unheld--;
        for (at : 0 .. POOL - 2) { pool[at] = pool[at + 1] }
        pool[POOL - 1] = 0;
        r[x].promised = r[x].promised - RESERVATION
    :: else -> break
    od
}

/* x gives up its blocks, to the front of the free list, the tail of its table first. */
inline leave(x, where) {
    count = r[x].held;
    for (at : 1 .. POOL - count) { pool[POOL - at] = pool[POOL - at - count] }
    for (at : 1 .. count) {
        pool[at - 1] = r[x].table[count - at];
        r[x].table[count - at] = 0
    }
    unheld = unheld + count;
    r[x].held = 0; r[x].promised = 0; r[x].target = 0; r[x].computed = 0; r[x].generated = 0;
    r[x].left = 0; r[x].waited = 0;
    r[x].place = where
}

inline prefill_step(x) {
    if
    :: r[x].place == WAITING ->
        REMOVE(queue, queued, x);
        r[x].place = PREFILLING; prefilling = x;
        r[x].promised = RESERVATION * WORST_CASE(x)
    :: else
    fi;
    until = CHUNK_END(x);
    allocate(x, until);
    r[x].computed = until;
    last_kind = PREFILL;
    last_tkv = SHIPPED * r[x].target;
    if
    :: until == r[x].target ->
        prefilling = NONE;
        r[x].generated++;
        if
        :: STILL(x) == 0 || ends -> leave(x, FINISHED)
        :: else ->
            r[x].place = DECODING;
            for (at : 1 .. rows) { batch[rows + 1 - at] = batch[rows - at] }
            batch[0] = x; rows++
        fi
    :: else
    fi
}

inline preempt(x) {
    if
    :: x == prefilling -> prefilling = NONE
    :: else -> REMOVE(batch, rows, x)
    fi;
    best = r[x].generated;
    leave(x, WAITING);
    r[x].generated = best;
    r[x].target = prompt[x] + best;
    for (at : 1 .. queued) { queue[queued + 1 - at] = queue[queued - at] }
    queue[0] = x; queued++
}

/* Resumed rows stand behind the batch, as those paused now stand behind those paused before. */
inline pause_and_resume() {
    count = rows;
    for (row : 0 .. count - 1) { gone[row] = batch[row] }
    for (row : 0 .. resting - 1) { r[paused[row]].waited++; gone[count + row] = paused[row] }
    count = rows + resting;
    for (row : 0 .. count - 1) {
        mate = gone[row];
        if
        :: r[mate].place == DECODING && !(next_rows & BIT(mate)) ->
            CHECK("broken: SPY-PAU-6\n", PAUSING);
            REMOVE(batch, rows, mate);
            paused[resting] = mate; resting++;
            r[mate].place = PAUSED; r[mate].waited = 1
        :: r[mate].place == PAUSED && next_rows & BIT(mate) ->
            REMOVE(paused, resting, mate);
            batch[rows] = mate; rows++;
            r[mate].place = DECODING; r[mate].waited = 0
        :: else
        fi
    }
}

inline decode_step() {
    do
    :: next_victims > 0 ->
        mate = (prefilling != NONE -> prefilling : batch[0]);
        preempt(mate);
        next_victims--
    :: else -> break
    od;
    pause_and_resume();
    measure(next_rows);
    assert(alive > 0 && alive == rows);
    CHECK("broken: SPY-VOL-1\n", rows * tkv <= LIMIT);
    CHECK("broken: SPY-LEN-1\n", tkv <= MODEL_LEN);
    last_kind = DECODE;
    last_tkv = SHIPPED * tkv;
    for (row : 0 .. rows - 1) {
        mate = batch[row];
        gone[row] = mate;
        allocate(mate, r[mate].computed + 1);
        r[mate].computed++;
        r[mate].generated++;
        r[mate].left = PADDING(r[mate].computed)
    }
    for (row : 0 .. alive - 1) {
        mate = gone[row];
        if
        :: STILL(mate) == 0 || ends & BIT(mate) ->
            REMOVE(batch, rows, mate);
            leave(mate, FINISHED)
        :: else
        fi
    }
}

/* ---- What may happen ---- */

inline arrive(x) {
    r[x].place = WAITING;
    r[x].target = prompt[x];
    queue[queued] = x; queued++
}

inline abort(x) {
    if
    :: r[x].place == WAITING -> REMOVE(queue, queued, x)
    :: r[x].place == PREFILLING -> prefilling = NONE
    :: r[x].place == DECODING -> REMOVE(batch, rows, x)
    :: r[x].place == PAUSED -> REMOVE(paused, resting, x)
    fi;
    leave(x, ABORTED)
}

#define MAY_ARRIVE(x) (r[x].place == NEW || \
    (RETURNING & BIT(x) && (r[x].place == FINISHED || r[x].place == ABORTED)))
#define MAY_ABORT(x) ABORTS & BIT(x) && (r[x].place == WAITING || r[x].place == PREFILLING || \
    r[x].place == DECODING || r[x].place == PAUSED)

active proctype scheduler() {
end:
    do
    :: atomic {
        if
        :: MAY_ARRIVE(0) -> who = 0
#if N > 1
        :: MAY_ARRIVE(1) -> who = 1
#endif
#if N > 2
        :: MAY_ARRIVE(2) -> who = 2
#endif
#if N > 3
        :: MAY_ARRIVE(3) -> who = 3
#endif
#if N > 4
        :: MAY_ARRIVE(4) -> who = 4
#endif
#if N > 5
        :: MAY_ARRIVE(5) -> who = 5
#endif
        fi;
        d_step { arrive(who); who = 0; plan() }
    }
    :: atomic {
        if
        :: MAY_ABORT(0) -> who = 0
#if N > 1
        :: MAY_ABORT(1) -> who = 1
#endif
#if N > 2
        :: MAY_ABORT(2) -> who = 2
#endif
#if N > 3
        :: MAY_ABORT(3) -> who = 3
#endif
#if N > 4
        :: MAY_ABORT(4) -> who = 4
#endif
#if N > 5
        :: MAY_ABORT(5) -> who = 5
#endif
        fi;
        d_step { abort(who); who = 0; plan() }
    }
    :: atomic {
        next_kind != IDLE ->
        do
        :: asked < N ->
            if
            :: skip
            :: may_end & BIT(asked) -> ends = ends | BIT(asked)
            fi;
            asked++
        :: else -> break
        od;
        d_step {
            if
            :: next_kind == PREFILL -> prefill_step(next_prefill)
            :: else -> decode_step()
            fi;
            ends = 0; asked = 0;
            plan()
        }
    }
    od
}
