"""Plant each fault in the compiled machine; print the first difference and broken rules as JSON.

The machine must be plain Python for that (`NUMBA_DISABLE_JIT=1`): compiled functions do not notice
that another is replaced.
"""

import json
from contextlib import suppress
from typing import Any
from unittest.mock import patch

from checks.explore.compiled.agreement import Edge, StuckError, compare, outgoing_edges
from checks.explore.policy import machine_of
from checks.policies.spyre.compiled import (
    admission,
    formulas,
    machine,
    moves,
    names,
    pool,
    work,
)
from checks.policies.spyre.compiled.model import SpyreCompiled
from checks.policies.spyre.model import spyre_model

WORDS = 5


def admits_beyond_the_limit(number: int, *columns: Any) -> Any:
    *batch, limit, max_model_len, block_size, last_tkv = columns
    return HOLDS(number, *batch, 2 * limit, max_model_len, block_size, last_tkv)


def pads_by_one_block_more(tokens: int, width: int, size: int) -> Any:
    return PADDING(tokens, width, size) + size


def evicts_what_was_freed_last(setting: Any, w: Any, request: int, held: int) -> None:
    RELEASE(setting, w, request, held)
    free = w[names.AT, names.N_FREE]
    w[names.FREE, :free] = w[names.FREE, :free][::-1].copy()


def finds_the_newest_content(setting: Any, w: Any, request: int) -> None:
    w[names.AT, names.STAMPS] = -100
    CACHE(setting, w, request)


def keeps_the_tkv_of_a_decode(setting: Any, w: Any, kind: int, tkv: int) -> None:
    is_prefill = kind == names.PREFILL
    REMEMBER(setting, w, kind, w[names.AT, names.LAST_TKV] if is_prefill else tkv)


def decodes_what_was_paused_last(setting: Any, w: Any, row: int, other: int) -> Any:
    return GOES_BEFORE(setting, w, other, row)


def reserves_nothing(*_: Any) -> int:
    return 0


def pads_no_row(*_: Any) -> int:
    return 0


def joins_without_its_token(w: Any, queue: int, count: int, request: int) -> None:
    PUT_FIRST(w, queue, count, request)
    w[names.GENERATED, request] -= queue == names.IN_BATCH


def samples_two_tokens(w: Any) -> None:
    NEXT_LENGTHS(w)
    for row in w[names.IN_BATCH, : w[names.AT, names.N_DECODING]]:
        w[names.GENERATED, row] += 1


def admits_whenever_one_waits(setting: Any, w: Any) -> int:
    if w[names.AT, names.N_WAITING] > 0:
        return int(w[names.IN_QUEUE, 0])
    return CHOOSE(setting, w)


def admits_none(*_: Any) -> int:
    return names.NO_REQUEST


def keeps_blocks(*_: Any) -> None:
    pass


def keeps_holders(setting: Any, w: Any, request: int, held: int) -> None:
    RELEASE(setting, w, request, held)
    for place in range(held):
        w[names.HOLDERS, w[names.TABLES + request, place]] += 1


def counts_a_holder_twice(w: Any, request: int, count: int) -> None:
    TOUCH(w, request, count)
    w[names.HOLDERS, w[names.HITS, :count]] += 1


def computes_for_the_paused(setting: Any, w: Any) -> None:
    PAUSE(setting, w)
    for row in w[names.IN_PAUSE, : w[names.AT, names.N_PAUSED]]:
        w[names.COMPUTED, row] += 1


def admits_what_stays_queued(w: Any, request: int) -> None:
    if w[names.PHASE, request] != names.WAITING:
        LEAVE(w, request)


def has_all_but_one(_setting: Any, w: Any, request: int) -> bool:
    return bool(w[names.GENERATED, request] >= w[names.MAX_TOKENS, request] - 1)


def keeps_the_padding_of_rows_that_cross(tokens: int, width: int, size: int) -> Any:
    padding = PADDING(tokens, width, size)
    return padding + size if padding > 0 and tokens % size == 1 else padding


def pads_every_second_block(tokens: int, width: int, size: int) -> Any:
    return PADDING(tokens, width, size) + (size if tokens % (2 * size) == 0 else 0)


def sends_the_preempted_behind(w: Any, queue: int, count: int, request: int) -> None:
    put = work.put_last if queue == names.IN_QUEUE else PUT_FIRST
    put(w, queue, count, request)


def preempts_what_was_admitted_first(setting: Any, w: Any, _request: int) -> None:
    PREEMPT(setting, w, w[names.IN_BATCH, w[names.AT, names.N_DECODING] - 1])


def forgets_the_kind(setting: Any, w: Any, request: int) -> None:
    ABORT(setting, w, request)
    w[names.AT, names.LAST_KIND] = names.IDLE


def forgets_the_aborted(setting: Any, w: Any, sampled: int, ending: int) -> None:
    FINISH(setting, w, sampled, ending)
    w[names.PHASE, w[names.PHASE] == names.ABORTED] = names.ABSENT


def pads_what_prefills(setting: Any, w: Any) -> int:
    sampled = STEP(setting, w)
    w[names.PADDING, w[names.PHASE] == names.PREFILLING] += 1
    return int(sampled)


def gives_back(setting: Any, w: Any) -> int:
    w[names.AT, names.ORPHANED] = 0
    return int(STEP(setting, w))


def restarts(setting: Any, w: Any) -> int:
    sampled = STEP(setting, w)
    w[names.RESTART, w[names.PHASE] == names.DECODING] += 1
    return int(sampled)


def turns_the_queue(setting: Any, w: Any) -> int:
    return turned(w, STEP(setting, w), names.IN_QUEUE, names.N_WAITING)


def keeps_the_tkv(setting: Any, w: Any) -> int:
    tkv = w[names.AT, names.LAST_TKV]
    sampled = STEP(setting, w)
    w[names.AT, names.LAST_TKV] = tkv
    return int(sampled)


def turned(w: Any, sampled: int, queue: int, count: int) -> int:
    number = w[names.AT, count]
    w[queue, :number] = w[queue, :number][::-1].copy()
    return int(sampled)


def counts_twice(setting: Any, w: Any) -> int:
    sampled = STEP(setting, w)
    w[names.WAITED, w[names.PHASE] == names.PAUSED] += 1
    return int(sampled)


STEP, FINISH, ABORT = machine.step, machine.finish, machine.abort
HOLDS, PADDING = formulas.condition_holds, formulas.row_left_padding
RELEASE, CACHE, TOUCH = pool.release, pool.cache_full_blocks, pool.touch
REMEMBER, GOES_BEFORE, NEXT_LENGTHS = machine.remember, machine.has_precedence, machine.next_lengths
LEAVE, PREEMPT = work.leave_place, machine.preempt
PAUSE, CHOOSE, PUT_FIRST = machine.pause_and_resume, admission.choose_prefill, work.put_first

LONGER_BLOCKS = "exact, longer blocks"

# By what it does wrong: where it is planted, what stands there then, the instance that shows it,
# and the rules that notice it in numbers.
FAULTS: dict[str, tuple[Any, str, Any, str, str]] = {
    "joins behind the batch": (machine, "put_first", work.put_last, "exact", ""),
    "an abort is an end": (machine, "ABORTED", names.FINISHED, "exact", ""),
    "reserves nothing": (admission, "request_promise", reserves_nothing, "dry pool", "SPY-RES-1"),
    "admits beyond the limit": (
        *(admission, "condition_holds", admits_beyond_the_limit, "exact"),
        "SPY-VOL-1",
    ),
    "pads by one block more": (
        *(machine, "row_left_padding", pads_by_one_block_more, "documented"),
        "SPY-DEC-3 SPY-TKV-2",
    ),
    "pads no row": (
        *(machine, "row_left_padding", pads_no_row, "layout"),
        "SPY-DEC-2 SPY-DEC-6 SPY-TKV-2",
    ),
    "evicts what was freed last": (
        *(machine, "release", evicts_what_was_freed_last, "eviction"),
        "",
    ),
    "finds the newest content": (
        *(machine, "cache_full_blocks", finds_the_newest_content, "dialogue"),
        "",
    ),
    "keeps the tkv of a decode": (
        *(machine, "remember", keeps_the_tkv_of_a_decode, "shipped"),
        "SPY-TKV-2",
    ),
    "an abort forgets the kind": (moves, "abort", forgets_the_kind, "exact", ""),
    "an abort is forgotten by a step": (moves, "finish", forgets_the_aborted, "exact", ""),
    "a step pads what prefills": (moves, "step", pads_what_prefills, "exact", ""),
    "a step gives back what is set aside": (moves, "step", gives_back, "released", "LIF-5"),
    "a step restarts what decodes": (moves, "step", restarts, "preemption", ""),
    "a step turns the queue round": (moves, "step", turns_the_queue, "layout", ""),
    "a step keeps the tkv": (moves, "step", keeps_the_tkv, "shipped", ""),
    "counts what sits out twice": (moves, "step", counts_twice, "pausing", ""),
    "decodes what was paused last": (
        *(machine, "has_precedence", decodes_what_was_paused_last, "pausing"),
        "",
    ),
    "joins without its token": (machine, "put_first", joins_without_its_token, "layout", "LIF-8"),
    "samples two tokens": (
        *(machine, "next_lengths", samples_two_tokens, "layout"),
        "LIF-8",
    ),
    "admits whenever one waits": (
        *(machine, "choose_prefill", admits_whenever_one_waits, "shared prefix"),
        "SPY-ADM-2 SPY-PRI-1 SPY-PRI-2",
    ),
    "admits none": (machine, "choose_prefill", admits_none, "layout", "SPY-PRI-4"),
    "keeps blocks": (machine, "release", keeps_blocks, "layout", "BLK-1 BLK-6"),
    "keeps holders": (machine, "release", keeps_holders, "eviction", "BLK-1 BLK-2"),
    "counts a holder twice": (
        *(machine, "touch", counts_a_holder_twice, "shared prefix"),
        "BLK-2",
    ),
    "admits what stays queued": (
        *(machine, "leave_place", admits_what_stays_queued, "layout"),
        "",
    ),
    "forgets what finished": (machine, "FINISHED", names.ABSENT, "documented", ""),
    "ends a token early": (machine, "has_all", has_all_but_one, "documented", ""),
    "arrives in front": (machine, "put_last", work.put_first, "layout", ""),
    "keeps the padding of rows that cross": (
        *(machine, "row_left_padding", keeps_the_padding_of_rows_that_cross, LONGER_BLOCKS),
        "SPY-DEC-2 SPY-DEC-6 SPY-TKV-2",
    ),
    "pads every second block": (
        *(machine, "row_left_padding", pads_every_second_block, "documented"),
        "SPY-DEC-3 SPY-TKV-2",
    ),
    "sends the preempted behind": (
        *(machine, "put_first", sends_the_preempted_behind, "preemption"),
        "",
    ),
    "preempts what was admitted first": (
        *(machine, "preempt", preempts_what_was_admitted_first, "preemption"),
        "",
    ),
    "computes for the paused": (
        *(machine, "pause_and_resume", computes_for_the_paused, "pausing"),
        "BLK-1 LIF-8",
    ),
}
_STATES = 400  # in which rules are judged


def noticed(fault: str) -> dict[str, Any]:
    """The first difference from the reference, and the rules that are broken."""
    module, name, wrong, title, _ = FAULTS[fault]
    instance = next(
        instance for instance in machine_of("spyre").instances if instance.name == title
    )
    model = spyre_model(instance)
    compiled = SpyreCompiled(instance, model.ctx, WORDS)
    with patch.object(module, name, wrong):
        difference = compare(model, compiled).difference
        pending, rules = [compiled.first()], set[str]()
        seen = {pending[0].tobytes()}
        for words in pending:  # grows while it is read
            edges: list[Edge] = []
            with suppress(StuckError, IndexError):  # a wrong machine may be stuck
                edges = [*outgoing_edges(compiled, words)]
            for edge in edges:
                rules |= {rule for bit, rule in enumerate(names.RULES) if edge.broken >> bit & 1}
                if edge.target.tobytes() not in seen and len(seen) < _STATES:
                    seen.add(edge.target.tobytes())
                    pending.append(edge.target)
    return {"difference": difference, "rules": sorted(rules)}


if __name__ == "__main__":
    print(json.dumps({fault: noticed(fault) for fault in FAULTS}))
