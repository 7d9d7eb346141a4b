"""The rule of the environment between two steps: arrivals, aborts, what a connector does.

Source: vLLM 0.28.0; which blocks go where is that of the release.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, permutations, takewhile
from typing import Any, TypeAlias

from attrs import fields

from spec.core.blocks import BlockPool
from spec.core.judging import ids
from spec.core.words import by_name, changes
from spec.vllm_v1.config import Connector, Scheduling
from spec.vllm_v1.records import (
    Context,
    EncoderCache,
    Flight,
    GivenBack,
    Load,
    Sequence,
    State,
)
from spec.vllm_v1.rules.counting import (
    blocks_left,
    is_written,
    may_be_brought,
    rank,
    turns_behind,
)
from spec.vllm_v1.rules.group_counting import first_read, held_blocks
from spec.vllm_v1.rules.registry import between, code
from spec.vllm_v1.rules.spans import given_up

Rows: TypeAlias = tuple[Sequence, ...]
Table: TypeAlias = tuple[int, ...]


@between("V1-LIF-3", code("request lifecycle"), witness=lambda _, step: step.before.aborted)
def only_the_environment_acts(ctx: Context, before: State, after: State) -> Iterator[str]:
    """Between two steps requests arrive, at their place in the queue and with nothing done for
    them, a turn of a session with what is kept for it; go away in any phase, with their blocks, or
    keep them while they load or are sent, and refer to no encoding any more; end their load or
    send; are answered by the connector, or their grammar is ready; and nothing else changes.
    """
    # Several at once may have come in any order.
    gone = {*(after.aborted - before.aborted)}
    yield from _wrong_names(ctx, before, after, gone)
    yield from _wrong_queues(ctx, before, after, gone)
    yield from _wrong_loads(ctx, before, after, gone)
    still = ids(after.draining)
    ended = (row for row in before.draining if row.id not in still)
    leaving = [row for row in before.present if row.id in gone and not _drains(ctx, row)]
    given = [row for row in (*leaving, *ended) if row.blocks]
    written = [row for row in given if is_written(ctx, before, row.id)]
    yield from _wrong_flights(before, after, written)
    yield from _wrong_encoder(ctx, before.encoder, after.encoder, gone)
    leavers = ids(leaving)
    tables = [_given_back(ctx, row, row.id in leavers) for row in given if row not in written]
    yield from _wrong_pool(ctx, before.pool, after.pool, tables)


def _given_back(ctx: Context, row: Sequence, leaves: bool) -> tuple[Table, ...]:
    """What a request gives back, one part after the other: its tables in all groups of layers.

    With a connector first what its next token does not read, if it `leaves`.
    """
    tables, first = [*row.tables], list[Table]()
    if leaves and ctx.config.connector is not Connector.NONE:
        for place, (group, table) in enumerate(zip(ctx.config.groups, row.tables, strict=False)):
            read = first_read(group, row.computed)
            first.append(held_blocks(table[:read]))
            tables[place] = table[read:]
    return (*first, *map(held_blocks, (row.blocks, *tables)))


def _wrong_names(ctx: Context, before: State, after: State, gone: set[str]) -> Iterator[str]:
    """Check that the requests are those of before and the arrivals, without the aborted ones."""
    were, now = ids(before.present), ids(after.present)
    arrived = (now | gone) - were
    come_back = [id_ for id_ in arrived if id_ in before.finished or id_ in before.aborted]
    due = (were | arrived) - gone
    if now != due:
        yield f"present {sorted(now)}, expected {sorted(due)}"
    if come_back or not arrived <= ctx.requests.keys():
        yield f"arrived {sorted(arrived)}, of which came back {come_back}"
    if len(after.aborted) != len(before.aborted) + len(gone):
        yield f"{len(before.aborted)} were aborted, {len(gone)} more are, {len(after.aborted)} now"
    if after.finished != before.finished:
        yield f"finished between steps: {sorted(after.finished ^ before.finished)}"
    if after.unreported != before.unreported | gone:
        yield f"to report {sorted(after.unreported)}, gone {sorted(gone)}"
    newly = {id_ for id_ in arrived if may_be_brought(ctx, id_)}
    asked = before.unanswered | (newly if ctx.config.late_lookups else set())
    if not after.unanswered <= asked - gone:
        yield f"not answered {sorted(after.unanswered)}, of {sorted(asked - gone)}"
    compiled = before.compiling | {id_ for id_ in arrived if ctx.requests[id_].grammar}
    if not after.compiling <= compiled - gone:
        yield f"grammars {sorted(after.compiling)}, of {sorted(compiled - gone)}"
    if not after.awaited <= before.awaited - gone:
        yield f"awaited {sorted(after.awaited)}, of {sorted(before.awaited - gone)}"
    under_way = (were | arrived) - after.awaited - gone
    may_come = {id_ for id_, earlier in ctx.earlier_turns.items() if earlier in under_way}
    early = before.early - turns_behind(ctx, gone)
    new = after.early - early
    is_due = new <= may_come | turns_behind(ctx, may_come) and not new & (were | before.finished)
    if not early <= after.early or not is_due:
        yield f"sent early {sorted(after.early)}, before {sorted(before.early)}"
    if after.preempted != before.preempted - gone:
        yield f"preempted {sorted(after.preempted)}, before {sorted(before.preempted)}"


def _wrong_flights(before: State, after: State, written: list[Sequence]) -> Iterator[str]:
    """Check that steps in flight are unchanged, but for blocks that one still writes to."""
    kept = [*before.flights]
    writing = [place for place, flight in enumerate(kept) if flight.scheduled]
    if written and len(after.flights) == len(kept):
        last = kept[writing[-1]]
        frees = after.flights[writing[-1]].frees
        later = frees[len(last.frees) :]
        due = {GivenBack(row.id, row.blocks) for row in written}
        if {*later} != due or len(later) != len(due):
            yield f"free later {list(later)}, expected {sorted(row.id for row in written)}"
        names = {key.name: getattr(last, key.name) for key in fields(Flight)}
        kept[writing[-1]] = Flight(**names | {"frees": (*last.frees, *later)})
    if [*after.flights] != kept:
        yield f"{len(after.flights)} steps in flight, before {len(before.flights)}, or others"


def _wrong_encoder(
    ctx: Context, before: EncoderCache, after: EncoderCache, gone: set[str]
) -> Iterator[str]:
    """Check that aborted requests refer to no encoding, and the encoder cache is else unchanged."""
    # One after the other, in any order.
    taken = [(id_, numbers) for id_, numbers in before.taken if id_ in gone]
    for order in permutations(taken):
        turns = [(id_, number) for id_, numbers in order for number in numbers]
        if after == given_up(ctx, before, turns):
            return
    yield f"encodings {after}, before {before}"


def _wrong_queues(ctx: Context, before: State, after: State, gone: set[str]) -> Iterator[str]:
    """Check that running and waiting requests are unchanged and that arrivals join the queue."""
    if after.running != _without(before.running, gone):
        yield f"running {_names(after.running)}, before {_names(before.running)}"
    were = ids(before.present)
    behind = tuple(row for row in after.waiting if row.id not in were)
    in_front = tuple(row for row in after.skipped if row.id not in were)
    arrived = (*behind, *in_front)
    waiting = _in_order(ctx, (*_without(before.waiting, gone), *behind))
    skipped = _names(_in_order(ctx, (*_without(before.skipped, gone), *in_front)))
    if tuple(after.waiting) != waiting or len(ids(arrived)) < len(arrived):
        yield f"waiting {_names(after.waiting)}, expected {_names(waiting)}"
    if _names(after.skipped) != skipped:
        yield f"passed over {_names(after.skipped)}, expected {skipped}"
    for row in arrived:
        if _arrives_in_front(ctx, row) != (row in in_front):
            yield f"{row.id} arrives in the wrong queue"
    yield from _wrong_newcomers(ctx, before, arrived, len(gone - ids(before.present)))


def _in_order(ctx: Context, queue: Rows) -> Rows:
    """The queue by priority, if that is its order."""
    if ctx.config.scheduling is Scheduling.FCFS:
        return queue
    return tuple(sorted(queue, key=lambda row: rank(ctx, row)))


def _arrives_in_front(ctx: Context, row: Sequence) -> bool:
    """True if a newcomer joins those that were passed over, for its grammar."""
    return ctx.requests[row.id].grammar and not ctx.config.behaviour.holders_first


def _wrong_newcomers(ctx: Context, before: State, arrived: Rows, passing: int) -> Iterator[str]:
    """Check that arrivals are untouched and, by priority, numbered in their order.

    `passing`: number of requests that arrived and left again.
    """
    first = len(before.present) + len(before.finished) + len(before.aborted)
    numbers = range(first, first + len(arrived) + passing)
    if ctx.config.scheduling is Scheduling.FCFS:
        numbers = range(1)
    elif len({row.arrival for row in arrived}) < len(arrived):
        yield f"two that arrived have one number: {[row.arrival for row in arrived]}"
    for row in arrived:
        length = ctx.requests[row.id].prompt_len
        new = Sequence(row.id, length, row.arrival)
        if row != new or row.arrival not in numbers:
            wrong = changes(new, row) or f"number {row.arrival}"
            yield f"{row.id} arrives with {wrong}"


def _wrong_loads(ctx: Context, before: State, after: State, gone: set[str]) -> Iterator[str]:
    """Check that loads either continue or end, and that aborted loads drain."""
    stayed = [row for row in before.skipped if row.id not in gone]
    were = ids(before.present)
    skipped = [row for row in after.skipped if row.id in were]
    if _names(skipped) != _names(stayed):
        return  # another order, see the queues
    lost = frozenset(after.lost - before.lost)
    for was, row in zip(stayed, skipped, strict=True):
        due = [was]
        if was.id in before.awaited - after.awaited:
            due = [_with(was, prompt_len=ctx.requests[was.id].prompt_len)]
        if was.load is Load.LOADING:
            due += [_with(was, load=Load.LOADED), _failed(ctx, before.pool, was)]
        has_failed = row.load is Load.FAILED and was.load is not Load.FAILED
        if row not in due or (row.id in lost) != has_failed:
            yield f"{was.id}: {changes(was, row) or 'as before'}, lost {sorted(lost)}"
    loading = ids(row for row in stayed if row.load is Load.LOADING)
    if not lost <= loading or len(after.lost) != len(before.lost) + len(lost):
        yield f"lost {sorted(after.lost)}, before {sorted(before.lost)}"
    yield from _wrong_draining(ctx, before, after, gone)


def _failed(ctx: Context, pool: BlockPool, row: Sequence) -> Sequence:
    """The request after a failed load: what is cached counts as computed, and what came."""
    cached = len([*takewhile(pool.keys.__contains__, row.blocks)])
    blocks = blocks_left(ctx, row.id, cached, row.computed)
    computed = min(blocks * ctx.config.block_size, row.computed)
    return _with(row, load=Load.FAILED, computed=computed)


def _drains(ctx: Context, row: Sequence) -> bool:
    """True if a request that leaves here keeps its blocks for a load or to be sent."""
    return row.load is Load.LOADING or _is_sent(ctx, row)


def _is_sent(ctx: Context, row: Sequence) -> bool:
    return ctx.config.sends and row.computed > 0


def _wrong_draining(ctx: Context, before: State, after: State, gone: set[str]) -> Iterator[str]:
    """Check that draining requests keep their order, or a transfer ends, and that aborted requests
    whose blocks are needed join behind.
    """
    still, were = ids(after.draining), ids(before.draining)
    stayed = [row for row in before.draining if row.id in still]
    joined = [_gone(ctx, row) for row in before.present if row.id in gone and _drains(ctx, row)]
    newcomers = after.draining[len(stayed) :]
    is_kept = [row.id for row in after.draining if row.id in were] == _names(stayed)
    if not is_kept or {*newcomers} != {*joined} or len(newcomers) != len(joined):
        yield f"drain {_names(after.draining)}, before {_names(before.draining)}"
        return
    for was, row in zip(stayed, after.draining, strict=False):
        due = (_with(was, load=Load.NONE), _with(was, sending=False)) if was.sending else ()
        if row not in (was, *due) or not (row.sending or row.load is Load.LOADING):
            yield f"{row.id} drains with {changes(was, row) or 'nothing under way'}"


def _gone(ctx: Context, row: Sequence) -> Sequence:
    """The request once it has left and its blocks are needed."""
    load = row.load if row.load is Load.LOADING else Load.NONE
    return _with(
        row, drafts=0, placeholders=0, prefilling=False, load=load, sending=_is_sent(ctx, row)
    )


# --- blocks -------------------------------------------------------------------------------------


def _wrong_pool(
    ctx: Context, before: BlockPool, after: BlockPool, tables: list[tuple[Table, ...]]
) -> Iterator[str]:
    """Check that exactly these tables are released and the pool is otherwise unchanged.

    `tables`: of each request, by group of layers.
    """
    if (after.size, after.keys, after.cached) != (before.size, before.keys, before.cached):
        yield "the contents of the cache changed"
    holders = Counter(before.references)
    for table in chain.from_iterable(tables):
        holders.subtract(table)
    if after.references != +holders:
        yield f"holders {by_name(after.references)}, expected {by_name(+holders)}"
    held = frozenset(after.references)
    if not _free_list_becomes(ctx, before, tuple(before.free), tables, held, tuple(after.free)):
        yield f"free list {list(after.free)}, was {list(before.free)}, given back {tables}"


def _free_list_becomes(
    ctx: Context,
    pool: BlockPool,
    free: Table,
    tables: list[tuple[Table, ...]],
    held: frozenset[int],
    end: Table,
) -> bool:
    """True if releasing the requests' tables in some order turns the free list into `end`.

    A table is released from its tail; a block is freed by its last holder unless still `held`.
    From 0.28.0 on those without content go to the front and others behind, in 0.11.2 all behind.
    """
    if not tables:
        return free == end
    for place, own in enumerate(tables):
        rest = [*tables[:place], *tables[place + 1 :]]
        others, then = held.union(*chain.from_iterable(rest)), free
        for table in own:
            freed = [block for block in reversed(table) if block not in others]
            in_front = ctx.config.behaviour.empty_blocks_first
            front = [block for block in freed if in_front and block not in pool.keys]
            then = (*front, *then, *(block for block in freed if block not in front))
        if _is_slice(then, end) and _free_list_becomes(ctx, pool, then, rest, held, end):
            return True
    return False


def _is_slice(part: Table, whole: Table) -> bool:
    """True if `part` is a contiguous slice of `whole`."""
    if not part:
        return True
    first = whole.index(part[0]) if part[0] in whole else 0
    return whole[first : first + len(part)] == part


# --- words --------------------------------------------------------------------------------------


def _with(row: Sequence, **fields_: Any) -> Sequence:
    """The request with other values in these fields."""
    return Sequence(**{key.name: getattr(row, key.name) for key in fields(Sequence)} | fields_)


def _without(rows: Iterable[Sequence], gone: set[str]) -> Rows:
    """The requests that are still present."""
    return tuple(row for row in rows if row.id not in gone)


def _names(rows: Iterable[Sequence]) -> list[str]:
    return [row.id for row in rows]
