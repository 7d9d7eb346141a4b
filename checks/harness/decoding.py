"""Record decoders: the parts that all policies share.

An unreported field has an empty value or 0; the driver's hello names these fields. If a record
lacks the state before the step, that state follows from the scripted arrivals and aborts.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import cache, reduce
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from attrs import evolve, fields

from checks.export.outside import Check, schema_check
from checks.export.trace.codec import Codec
from checks.export.trace.records import joined
from checks.harness.system import Action, Json, Step
from engine.workloads.checked import brief
from reference.core.frozen_map import FrozenMap
from reference.core.machine import Machine
from spec.core.blocks import BlockPool
from spec.core.errors import InputError
from spec.core.records import Event, SomeState
from spec.core.requests import BlockKey, BlockKeys

StateT = TypeVar("StateT", bound=SomeState)


class RecordError(InputError):
    """A malformed record: a field is missing, has another form, or names an unknown thing."""


def decoded(
    decoder: "RecordDecoder[Any]",
    record: Json,
    action: Action,
    index: int,
    *,
    is_checked: bool = False,
) -> Step:
    """The step of a record, which is first checked against its schema unless it was already.

    Raises:
        RecordError: names the first wrong field.
    """
    place = f"record of step {index}"
    try:
        if not is_checked:
            record_check(decoder.ctx.config.policy)(record, "")
        step = decoder.step(record, action, index)
        _refuse_unknown_requests(step, decoder.ctx.requests)
    except InputError as error:
        field = joined(place, error.field) if error.field.startswith("[") else error.field
        raise RecordError(f"{place}, {field}", brief(error.found), error.allowed) from None
    except Exception as error:  # a record may contradict itself in any way
        lacks = f"nothing named {error}" if isinstance(error, KeyError) else repr(error)
        found = f"{lacks} in {str(record)[:300]}"
        raise RecordError(place, found, "the fields that the chapter on drivers lists") from None
    return step


@cache
def record_check(policy: str) -> Check:
    """The schema check of a policy's records; accepts everything if the policy has no schema.

    Numbers below a minimum are accepted: they are errors of the scheduler, not of the record.
    """
    return schema_check(record_schema(policy), any_number=True)


@cache
def record_schema(policy: str) -> Json:
    """The JSON Schema of a policy's records, empty if there is none."""
    path = _SCHEMAS / f"{policy}.json"
    schema: Json = json.loads(path.read_bytes()) if path.exists() else {}
    return schema


_SCHEMAS = Path(__file__).parents[1] / "drivers" / "schemas"


def _refuse_unknown_requests(step: Step, requests: Container[str]) -> None:
    """Refuse unknown requests; sequences are named by their request, a slash and a number."""
    places = {
        "scheduled": step.scheduled,
        "outputs": step.outputs,
        "finished": step.finished,
        "state": (row.id for row in step.after.present),
        "before": (row.id for row in step.before.present),
    }
    for field, ids in places.items():
        for id_ in ids:
            if id_ not in requests and id_.rpartition("/")[0] not in requests:
                raise RecordError(field, brief(id_), "requests of the episode")


class Pools:
    """Decodes block pools; `keys` are those of an episode's requests."""

    names: ClassVar[tuple[str, ...]] = ("free_list", "references", "cached")  # fields of records

    def __init__(self, keys: BlockKeys) -> None:
        self._keys = keys
        self._last: tuple[list[Any], BlockPool] | None = None
        self._known: dict[tuple[str, int], BlockKey] = {}

    def decoded(self, record: Json, last: BlockPool) -> BlockPool:
        """The pool of a record; the `last` one if the driver does not report it.

        Equal records give the same object, so that comparing pools is fast.
        """
        if "free_list" not in record:
            return last
        said = [record.get(name) for name in self.names]
        if self._last is None or self._last[0] != said:
            self._last = said, self._decoded(record, last.size)
        return self._last[1]

    def _decoded(self, record: Json, size: int) -> BlockPool:
        references: Mapping[str, int] = record.get("references", {})
        cached = {key: tuple(blocks) for key, blocks in self.named(record)}
        return BlockPool(
            size=size,
            free=tuple(record["free_list"]),
            references=FrozenMap((int(block), count) for block, count in references.items()),
            keys=FrozenMap((block, key) for key, blocks in cached.items() for block in blocks),
            cached=FrozenMap(cached),
        )

    def named(self, record: Json) -> Iterator[tuple[BlockKey, Iterable[int]]]:
        """The entries of `cached`: block `index` of a request, then the blocks with its content."""
        for request_id, index, *blocks in record.get("cached", ()):
            yield self.key(request_id, index), blocks

    def key(self, request_id: str, index: int) -> BlockKey:
        """The key of a request's block."""
        name = (request_id, index)
        if name not in self._known:
            self._known[name] = self._keys.of(request_id, index + 1)[index]
        return self._known[name]


class RowsById(dict[str, Json]):
    """The rows of a record by request; a request without a row has only its id."""

    def __missing__(self, request_id: str) -> Json:
        return {"id": request_id}


def present_of(
    ids: Sequence[str], state: SomeState, arrived: Iterable[str] = ()
) -> tuple[str, ...]:
    """The requests that are in the state or have just arrived."""
    if not ids:
        return ()
    present = {row.id for row in state.present}.union(arrived)
    return tuple(id_ for id_ in ids if id_ in present)


def _moved(kind: str, request_id: str, tokens: int = 0, blocks: Iterable[int] = ()) -> Event:
    """An entry of a record's `order`: a preemption, or tokens and new blocks for a request."""
    return Event(kind, request_id, "", tokens, tuple(blocks))


class RecordDecoder(ABC, Generic[StateT]):
    """Decodes the records of one episode in order; each policy's decoder extends this class."""

    def __init__(self, machine: Machine[Any, StateT]) -> None:
        """`machine`: the reference's, for the requests of the episode."""
        self.machine = machine
        self.ctx = machine.ctx
        self.pools = Pools(machine.ctx.keys)
        self.last = machine.initial()  # the state that the step before left
        self.arrivals: dict[str, int] = {}  # their order, by request
        self._next_arrival = count()

    def step(self, record: Json, action: Action, index: int) -> Step:
        """The step of a record; `action`: the environment's actions in the step."""
        aborted = present_of(action.abort, self.last, action.arrive)
        self._note_arrivals(action)
        before = self._before(record, action, frozenset(aborted))
        finished = tuple(record["finished"])
        running = present_of(action.abort_running, before)
        left = [id_ for id_ in running if id_ not in finished]
        aborts = before.aborted | frozenset(left)
        past = {"finished": before.finished | frozenset(finished), "aborted": aborts}
        after = self.state(record, **past, **self.past_after(record, action, before))
        self.last = after
        sampled = record["sampled" if "sampled" in record else "outputs"]  # by sequence, or request
        common: Json = {
            "index": index,
            "time": action.time,
            "before": before,
            "after": after,
            "scheduled": record["scheduled"],
            "outputs": record["outputs"],
            "ended": tuple(id_ for id_ in action.ends or () if id_ in sampled),
            "finished": finished,
            "aborted": aborted,
            "refusal": record.get("refusal"),
            "events": (),
        }
        if "order" in record:  # then the clients that left
            moves = [_moved(*entry) for entry in record["order"]]
            common["events"] = (*moves, *(Event("leave", id_, "") for id_ in left))
        return self.whole_step(record, common)

    def pass_over(self, step: Step, action: Action) -> None:
        """Take note of a step that was decoded in another episode."""
        self._note_arrivals(action)
        self.last = step.after

    def forget(self, request_id: str) -> None:
        """Know no more of a request that has left for good."""
        self.arrivals.pop(request_id, None)

    def _note_arrivals(self, action: Action) -> None:
        self.arrivals |= zip(action.arrive, self._next_arrival, strict=False)

    def _before(self, record: Json, action: Action, gone: frozenset[str]) -> StateT:
        """The state before the step, after arrivals and aborts."""
        last = self.last
        past = {"finished": last.finished, "aborted": last.aborted | gone}
        past |= self.past_before(action)
        if "before" in record:
            return self.state(record["before"], **past)
        transfers = (action.lost, action.answered, action.compiled)
        encodings = (action.encoded, action.unencodable)
        if not (action.arrive or gone or any(transfers) or any(encodings)):
            return last
        return self.as_scripted(action.arrive, gone, past)

    def past_before(self, action: Action) -> Json:
        """Further fields of a state before a step that follow from earlier steps."""
        return {}

    def past_after(self, record: Json, action: Action, before: StateT) -> Json:
        """Further fields of a state after a step that follow from earlier steps."""
        return {}

    @abstractmethod
    def state(self, record: Json, **past: Any) -> StateT:
        """The state of a record."""

    @abstractmethod
    def as_scripted(self, arrived: Iterable[str], gone: frozenset[str], past: Json) -> StateT:
        """The last state with the arrivals and without the aborted requests."""

    @abstractmethod
    def whole_step(self, record: Json, common: Json) -> Step:
        """The step; `common`: the fields that every policy's steps have."""


class StepDecoder(RecordDecoder[StateT]):
    """Decodes records that list queues by id and their requests as rows."""

    queues: ClassVar[tuple[str, ...]] = ("waiting", "running")  # queues that a client may leave

    @abstractmethod
    def row(self, row: Json, blocks: Iterable[int]) -> Any:
        """A request with its block table."""

    def as_scripted(self, arrived: Iterable[str], gone: frozenset[str], past: Json) -> StateT:
        """The last state with the arrivals and without the aborted requests."""
        last: Any = self.last
        queues = {name: getattr(last, name) for name in self.queues}
        queues["waiting"] += tuple(self.row({"id": id_}, ()) for id_ in arrived)
        stay = {
            name: tuple(row for row in queue if row.id not in gone)
            for name, queue in queues.items()
        }
        scripted: StateT = evolve(last, **stay, **past)
        return scripted

    def queue(self, ids: Sequence[str], rows: Mapping[str, Json], record: Json) -> tuple[Any, ...]:
        """The requests of a queue, with their block tables."""
        if not ids:
            return ()
        tables = record.get("block_tables", {})
        return tuple(self.row(rows[id_], tables.get(id_, ())) for id_ in ids)

    def batch(self, record: Json) -> tuple[Any, ...]:
        """The rows that a step computed."""
        return tuple(self.row(row, row.get("blocks", ())) for row in record.get("batch", ()))


class PlainDecoder(RecordDecoder[Any]):
    """Decodes records with the fields of full traces.

    Missing fields keep the values of the last state. The machine applies arrivals and aborts if the
    record lacks the state before the step.
    """

    def __init__(self, machine: Machine[Any, Any], codec: Codec[Any, Any]) -> None:
        """`machine`: the reference's, for the requests of the episode."""
        super().__init__(machine)
        self._codec = codec

    def state(self, record: Json, **past: Any) -> Any:
        """The last state with the fields of the record."""
        pool = self.pools.decoded(record, self.last.pool)
        read = self._read(self._codec.state, record, {"pool", *past})
        return evolve(self.last, pool=pool, **read, **past)

    def as_scripted(self, arrived: Iterable[str], gone: frozenset[str], _past: Json) -> Any:
        """The last state after arrivals and aborts."""
        state = reduce(self.machine.arrive, arrived, self.last)
        return reduce(self.machine.abort, sorted(gone), state)

    def whole_step(self, record: Json, common: Json) -> Step:
        """The step with the fields of its policy."""
        return self._codec.step(**common, **self._read(self._codec.step, record, {*common}))

    def _read(self, kind: Any, record: Json, without: Container[str]) -> Json:
        """The fields of a class in the record, except those in `without`."""
        keys = [key for key in fields(kind) if key.name in record and key.name not in without]
        read = self._codec.converter.structure
        return {key.name: read(record[key.name], key.type) for key in keys}
