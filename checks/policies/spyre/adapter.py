"""The adapter for drivers of Spyre: records decoded as steps, and inferred events."""

from collections.abc import Iterable, Iterator, Mapping
from math import isclose
from typing import Any

from checks.harness.adapter import POOL_NAMES, Adapter
from checks.harness.case import Case
from checks.harness.comparing import Difference, Strictness
from checks.harness.decoding import RowsById, StepDecoder
from checks.harness.system import Action, Json
from checks.harness.unreported import Fields
from checks.registry import imported_when_called
from reference.spyre.machine import SpyreMachine
from spec.core.arithmetic import cdiv
from spec.core.records import DECODE, PREFILL, Event
from spec.spyre.config import SpyreConfig
from spec.spyre.padding import volume
from spec.spyre.records import Chunk, Context, Step
from spec.spyre.state import Sequence as Row
from spec.spyre.state import State, line_length, past_after, remembered
from spec.spyre.variants import Queue

_device_inputs = imported_when_called("policies.spyre.device", "device_inputs")
_CHUNK_LENGTHS = (
    *("chunk", "chunks", "start", "end"),
    *("left_padding", "right_padding", "cached_tokens", "inner_padding"),
)
_ROW_NUMBERS = (
    *("computed", "generated", "left_padding"),
    *("reserved", "hit_blocks", "waited_steps"),
)


class SpyreDecoder(StepDecoder[State]):
    """Decodes the records of one episode into steps, in their order."""

    queues = ("waiting", "decoding", "paused")

    def past_before(self, action: Action) -> Json:
        """Kind and tkv of the last step, and the cohort without aborted requests.

        Under some readings the promises to aborted requests stay set aside; the total of promised
        blocks is compared with that.
        """
        last, keeps = self.last, self.ctx.config.account.keeps_promises
        left = [row for row in last.waiting[: last.cohort] if row.id not in action.abort]
        kept = sum(row.reserved for row in last.admitted if keeps and row.id in action.abort)
        requests = self.ctx.requests
        came = [id_ for id_ in action.arrive if requests[id_].grammar and id_ not in action.abort]
        holds = self.ctx.config.account.holds_for_grammars
        present = {row.id for row in last.present}.union(action.arrive)
        return remembered(last) | {
            "aborted": last.aborted | ({*action.abort, *action.unencodable} & present),
            "cohort": len(left),
            "orphaned": last.orphaned + kept,
            "compiling": last.compiling.union(came)
            - {*action.abort, *action.compiled, *action.unencodable},
            "behind": len(came) if holds else 0,
        }

    def past_after(self, record: Json, action: Action, before: State) -> Json:
        """The remembered fields after this step, and the size of the rest of the cohort."""
        config = self.ctx.config
        past = remembered(past_after(config, record["kind"], record.get("tkv", 0)))
        past["orphaned"] = before.orphaned
        past["compiling"] = before.compiling.difference(action.abort_running)
        if config.queue is not Queue.ALIGNED:
            return past
        chosen = record["prefilling"]["id"] if record["kind"] == PREFILL else None
        begins = not before.cohort and any(row.id == chosen for row in before.waiting)
        waiting = len(before.waiting)
        count = line_length(config, 0, waiting) if begins else before.cohort
        rows = (*before.waiting[:count], *(before.admitted if before.cohort else ()))
        return past | {"cohort": sum(row.id in record["waiting"] for row in rows)}

    def state(self, record: Json, **past: Any) -> State:
        """The state in a record: queues, requests and blocks."""
        waiting = record["waiting"]
        others = {row["id"]: row for row in record.get("others", ())}
        rows = RowsById(others)
        rows.update((row["id"], row) for row in record["decoding"])
        paused = [id_ for id_ in record["paused"] if id_ in others]
        slot = [id_ for id_ in others if id_ not in paused and id_ not in waiting]
        return State(
            pool=self.pools.decoded(record, self.last.pool),
            waiting=self.queue(waiting, rows, record),
            prefilling=next(iter(self.queue(slot, rows, record)), None),
            decoding=self.queue([row["id"] for row in record["decoding"]], rows, record),
            paused=self.queue(paused, rows, record),
            unencoded=frozenset(record.get("unencoded", ())),
            encoding=frozenset(record.get("encoding", ())),
            untold=frozenset(record.get("untold", ())),
            **past,
        )

    def as_scripted(self, arrived: Iterable[str], gone: frozenset[str], past: Json) -> State:
        """The last state with the arrivals and without the leavers."""
        slot = self.last.prefilling
        kept = None if slot is None or slot.id in gone else slot
        return super().as_scripted(arrived, gone, past | {"prefilling": kept})

    def whole_step(self, record: Json, common: Json) -> Step:
        """The step with its tkv, and its chunk or batch; malformed tensors are refused."""
        if "tensors" in record:
            _device_inputs(self.ctx, record)
        kind, rows = record["kind"], self.batch(record)
        chunk = kind == PREFILL and "prefilling" in record  # a log may not have it
        tkv = record["tkv"] if "tkv" in record else self._least_tkv(record, common["before"], rows)
        return Step(
            kind=kind,
            tkv=tkv,
            volume=int(volume(1 if kind == PREFILL else len(record["scheduled"]), tkv)),
            chunk=_chunk(record["prefilling"]) if chunk else None,
            batch=rows if kind == DECODE else (),
            **common,
        )

    def _least_tkv(self, record: Json, before: State, rows: Iterable[Row]) -> int:
        """The tkv of a step that does not report it: that of its rows if these are reported.

        Else it is computed from the lengths of prompts and outputs. For a decode step that is the
        least possible tkv: each row is padded only to the blocks of the longest row.
        """
        if record["kind"] == PREFILL:
            return self._prefill_len(record["prefilling"]) if "prefilling" in record else 0
        if rows:
            return max(row.tkv for row in rows)
        size, admitted = self.ctx.config.block_size, {row.id: row for row in before.admitted}
        lengths = [
            self.ctx.requests[id_].prompt_len + admitted[id_].generated
            for id_ in record["scheduled"]
            if id_ in admitted
        ]
        blocks = [int(cdiv(length, size)) for length in lengths]
        padded = (max(blocks) - own for own in blocks)
        pairs = zip(lengths, padded, strict=True)
        return max((length + padding * size for length, padding in pairs), default=0)

    def _prefill_len(self, row: Json) -> int:
        return int(row.get("prefill_len") or self.ctx.requests[row["id"]].prompt_len)

    def row(self, row: Json, blocks: Iterable[int]) -> Row:
        """A request with its block table, from its row in a record."""
        numbers = {name: row[name] for name in _ROW_NUMBERS if name in row}
        return Row(row["id"], prefill_len=self._prefill_len(row), blocks=tuple(blocks), **numbers)


def request_extras(case: Case) -> Mapping[str, Json]:
    """Which requests have a grammar or images, for the driver."""
    awaited = {
        request.id: {name: True for name in ("grammar", "has_images") if getattr(request, name)}
        for request in case.requests
    }
    return {request_id: extras for request_id, extras in awaited.items() if extras}


def _chunk(reported: Json) -> Chunk:
    return Chunk(
        id=reported["id"],
        **{name: reported[name] for name in _CHUNK_LENGTHS},
        block_table=tuple(reported.get("block_table", ())),
        writes=tuple(reported.get("writes", ())),
    )


# --- events ---------------------------------------------------------------------------------------

_VISIBLE = (
    *("encode", "admit", "preempt", "resume", "pause", "prefix_hit", "allocate"),
    *("chunk", "join", "decode", "finish"),
)


def inferred_events(step: Step, config: SpyreConfig) -> tuple[Event, ...]:
    """Events that states show: admissions, hits, new blocks, joins, pauses, resumptions, ends."""
    blocks = _new_blocks(step, config.block_size)
    return (*_changes_of_queue(step), *blocks, *_of_chunk(step), *_ends(step))


def _changes_of_queue(step: Step) -> Iterator[Event]:
    before, after = step.before, step.after
    running = {row.id for row in step.batch}
    waiting = {row.id for row in before.waiting}
    given = before.unencoded - after.unencoded
    for row in before.waiting if given else ():
        if row.id in given:
            yield Event("encode", row.id, "")
    if step.chunk is not None and step.chunk.id in waiting:
        yield Event("admit", step.chunk.id, "")
    for row in before.admitted:
        if any(row.id == other.id for other in after.waiting):
            yield Event("preempt", row.id, "")
    for row in before.paused:
        if row.id in running:
            yield Event("resume", row.id, "")
    for row in before.decoding:
        if any(row.id == other.id for other in after.paused):
            yield Event("pause", row.id, "")


def _new_blocks(step: Step, block_size: int) -> Iterator[Event]:
    """Prefix hits, then new blocks at the end of a table."""
    held = {row.id: row.blocks for row in step.before.admitted}
    for row in _computed_rows(step, block_size):
        old = held.get(row.id)
        if old is None:
            old = row.blocks[: row.hit_blocks]
            if old:
                yield Event("prefix_hit", row.id, "", (), old)
        if len(row.blocks) > len(old):
            yield Event("allocate", row.id, "", old, row.blocks[len(old) :])


def _computed_rows(step: Step, block_size: int) -> Iterator[Row]:
    """The rows that computed tokens, with their blocks, also those that then left."""
    chunk = step.chunk
    if chunk is None:
        yield from step.batch
        return
    row = next((row for row in step.after.admitted if row.id == chunk.id), None)
    if row is not None:
        yield row
    elif chunk.block_table:
        hit = (chunk.cached_tokens + chunk.inner_padding) // block_size
        own = chunk.block_table[chunk.left_padding // block_size :]
        yield Row(chunk.id, prefill_len=chunk.end, blocks=own, hit_blocks=hit)


def _of_chunk(step: Step) -> Iterator[Event]:
    if step.chunk is not None:
        yield Event("chunk", step.chunk.id, "", step.chunk.start, step.chunk.end)
        if step.chunk.is_last:
            yield Event("join", step.chunk.id, "")
    elif step.kind == DECODE:
        yield Event("decode", "", "")


def _ends(step: Step) -> Iterator[Event]:
    for request_id in step.finished:
        yield Event("finish", request_id, "")


# --- values reported twice ------------------------------------------------------------------------


def reported_twice(
    ctx: Context, step: Step, record: Json, strictness: Strictness
) -> Iterator[Difference]:
    """Differences between the step's states and the record's totals and device inputs."""
    if strictness is Strictness.DECISIONS:
        return
    yield from _totals("before.", step.before, record.get("before", {}))
    yield from _totals("", step.after, record)
    yield from _statistics(ctx, step, record.get("statistics", {}))
    if strictness is Strictness.EXACT:
        yield from _rows_on_device(step, record, ctx.config.block_size)


def _totals(side: str, state: State, record: Json) -> Iterator[Difference]:
    """Differences in the running queue and the counts of blocks."""
    counts = {f"blocks.{name}": count for name, count in record.get("blocks", {}).items()}
    if "running" in record:
        counts["running"] = record["running"]
    if not counts:
        return
    expected: dict[str, Any] = {
        "running": [row.id for row in state.running],
        "blocks.used": len(state.pool.references),
        "blocks.reserved": sum(row.reserved for row in state.admitted) + state.orphaned,
        "blocks.free": len(state.pool.free),
    }
    for name, due in expected.items():
        if name in counts and counts[name] != due:
            yield Difference(f"{side}{name}", "", due, counts[name])


def _statistics(ctx: Context, step: Step, found: Json) -> Iterator[Difference]:
    """Differences in the scheduler's own statistics, for those that it reports."""
    before, after, chunk = step.before, step.after, step.chunk
    is_new = chunk is not None and chunk.id not in {row.id for row in before.admitted}
    is_asked = ctx.config.prefix_caching and is_new
    expected: dict[str, float] = {
        "waiting": len(after.waiting),
        "decoding": len(after.decoding),
        "paused": len(after.paused),
        "usage": len(after.pool.references) / ctx.config.pool_blocks,
        "asked_tokens": ctx.requests[chunk.id].prompt_len if chunk and is_asked else 0,
        "cached_tokens": chunk.cached_tokens if chunk and is_asked else 0,
    }
    if after.aborted == before.aborted:  # else a paused request may have left
        was, now = ({row.id for row in state.paused} for state in (before, after))
        pauses, resumes = len(now - was), len(was - now)
        if ctx.config.account.nets_pauses:
            pauses, resumes = max(pauses - resumes, 0), max(resumes - pauses, 0)
        expected |= {"pauses": pauses, "resumes": resumes}
    for name, due in expected.items():
        if name in found and not isclose(found[name], due, abs_tol=1e-9):
            yield Difference(f"statistics.{name}", "", due, found[name])


def _rows_on_device(step: Step, record: Json, block_size: int) -> Iterator[Difference]:
    """Differences in each decode row's tkv, and in the block and offset that it writes."""
    given = {row["id"]: row for row in record.get("batch", ())}
    for due in step.batch:
        row = given.get(due.id, {})
        slot = [due.blocks[-1], (due.computed - 1) % block_size]
        for name, value in (("tkv", due.tkv), ("slot", slot)):
            if name in row and row[name] != value:
                yield Difference(f"batch.{name}", due.id, value, row[name])


_QUEUES = ("waiting", "prefilling", "decoding", "paused")

ADAPTER = Adapter(
    decoder=lambda ctx: SpyreDecoder(SpyreMachine(ctx)),
    request_extras=request_extras,
    inferred_events=inferred_events,
    fields=Fields(
        left_out={
            "tkv": ((Step, "tkv"), (Step, "volume"), (State, "last_tkv")),
            "batch": ((Step, "batch"),),
            "blocks": (
                *((State, "pool"), (Row, "blocks"), (Row, "hit_blocks")),
                *((Chunk, "block_table"), (Chunk, "writes")),
            ),
            "computed": ((Row, "computed"), (Row, "tkv")),
            "left_padding": ((Row, "left_padding"), (Row, "tkv")),
            "reserved": ((Row, "reserved"),),
            "hit_blocks": ((Row, "hit_blocks"),),
            "waited_steps": ((Row, "waited_steps"),),
        },
        step=Step,
        visible=_VISIBLE,
        never=("refusal",),  # the states leave one order only
        shown_by={
            "batch": ("resume", "prefix_hit", "allocate"),
            "blocks": ("prefix_hit", "allocate"),
        },
        in_totals=("orphaned",),
        inferred=((Step, "tkv"), (Step, "volume")),
        renamed={"prefilling": ((Step, "chunk"),), "others": ((State, "prefilling"),)},
    ),
    reported_twice=reported_twice,
    names=POOL_NAMES
    | {r"^chunk\b": "prefilling", r"\b(prefilling|decoding|paused)\.blocks\b": "block_tables"},
)
