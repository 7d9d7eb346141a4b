"""The scheduler as `spec.spyre.state.State`."""

from itertools import islice

from attrs import frozen

from engine.spyre.observing.pool import PoolObserver
from engine.spyre.scheduler import Scheduler
from engine.spyre.scheduler.batch import Batch
from engine.spyre.scheduler.tracked import Tracked
from spec.spyre.state import Sequence, State

Rows = tuple[Sequence, ...]


def snapshot(scheduler: Scheduler) -> State:
    """The scheduler's state; who wants several of them asks one `Observer`."""
    return Observer(scheduler).state()


@frozen
class _Seen:
    """A batch at a moment, and its rows then."""

    batch: Batch
    steps_to_full: int
    rows: Rows


class Observer:
    """Watches one scheduler; a scheduler has one observer at a time, the last."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._core = scheduler.core
        self._pool = PoolObserver(self._core.blocks)
        self._waiting: dict[Tracked, Sequence] = {}
        self._queue: Rows = ()
        self._queue_changes = -1
        self._decoding = self._paused = _Seen(Batch.empty(), 0, ())
        self._state: State | None = None

    def state(self) -> State:
        """The scheduler at rest; the same object as last time if nothing has changed."""
        core = self._core
        self._decoding = _seen_again(self._decoding, core.decoding)
        self._paused = _seen_again(self._paused, core.paused)
        last = self._state
        self._state = State(
            pool=self._pool.pool(),
            waiting=self._waiting_rows(),
            prefilling=None if core.prefilling is None else prefilling_row(core.prefilling),
            decoding=self._decoding.rows,
            paused=self._paused.rows,
            finished=_shared(last.finished if last else frozenset(), core.finished),
            aborted=_shared(last.aborted if last else frozenset(), core.aborted),
            last_kind=core.last_kind,
            last_tkv=core.last_tkv,
        )
        if last is not None and _is_same(last, self._state):
            self._state = last
        return self._state

    def rows(self, batch: Batch) -> Rows:
        """The rows of the batch that has just decoded; the next state shares them."""
        self._decoding = _seen_again(self._decoding, batch)
        return self._decoding.rows

    def _waiting_rows(self) -> Rows:
        """Who waits; known requests are not described anew."""
        queue = self._core.queue
        if self._queue_changes != queue.changes:
            if not self._only_the_head_left() and not self._only_newcomers_came():
                known = self._waiting
                self._waiting = {one: known.get(one) or waiting_row(one) for one in queue}
                self._queue = tuple(self._waiting.values())
            self._queue_changes = queue.changes
        return self._queue

    def _only_the_head_left(self) -> bool:
        """Take the head away if nothing else has happened, which is the usual case."""
        queue, known = self._core.queue, iter(self._waiting)
        head = next(known, None)
        if head is None or queue.changes != self._queue_changes + 1:
            return False
        if len(queue) != len(self._waiting) - 1 or next(iter(queue), None) is not next(known, None):
            return False
        del self._waiting[head]
        self._queue = self._queue[1:]
        return True

    def _only_newcomers_came(self) -> bool:
        """Describe those at the end of the queue if nothing else has happened."""
        queue, known = self._core.queue, self._waiting
        count = queue.changes - self._queue_changes
        if len(queue) != len(known) + count:  # each change is one more or one less
            return False
        newcomers = [*islice(reversed(queue), count)][::-1]
        if any(one in known for one in newcomers):
            return False  # somebody was put in front
        rows = {one: waiting_row(one) for one in newcomers}
        known.update(rows)
        self._queue += tuple(rows.values())
        return True


def waiting_row(request: Tracked) -> Sequence:
    """A request that has not been admitted, or was preempted."""
    return Sequence(
        request.id,
        prefill_len=request.prefill_len,
        generated=request.prefill_len - request.request.prompt_len,
    )


def prefilling_row(request: Tracked) -> Sequence:
    """The request in the prefill slot."""
    return Sequence(
        request.id,
        prefill_len=request.prefill_len,
        computed=request.computed,
        generated=request.prefill_len - request.request.prompt_len,
        blocks=request.blocks,
        reserved=request.reserved,
        hit_blocks=request.hit_blocks,
    )


def batch_rows(batch: Batch) -> Rows:
    """The rows of a batch, in its order."""
    columns = (batch.computed, batch.generated(), batch.left_padding, batch.waited_steps)
    values = zip(*(column.tolist() for column in columns), strict=True)
    return tuple(
        Sequence(
            member.id,
            member.prefill_len,
            computed,
            generated,
            left_padding,
            member.blocks,
            member.reserved,
            member.hit_blocks,
            waited_steps,
        )
        for member, (computed, generated, left_padding, waited_steps) in zip(
            batch.members, values, strict=True
        )
    )


def _seen_again(seen: _Seen, batch: Batch) -> _Seen:
    """The batch with its rows, described anew only if something moved."""
    if seen.batch is batch and seen.steps_to_full == batch.steps_to_full:
        return seen
    return _Seen(batch, batch.steps_to_full, batch_rows(batch))


def _shared(last: frozenset[str], names: set[str]) -> frozenset[str]:
    """The names, which only grow in number, as an immutable set."""
    return last if len(last) == len(names) else frozenset(names)


def _is_same(one: State, other: State) -> bool:
    """True if both consist of the same objects; cheaper than comparing what is in them."""
    return (
        one.pool is other.pool
        and one.waiting is other.waiting
        and one.prefilling == other.prefilling
        and one.decoding is other.decoding
        and one.paused is other.paused
        and one.finished is other.finished
        and one.aborted is other.aborted
        and (one.last_kind, one.last_tkv) == (other.last_kind, other.last_tkv)
    )
