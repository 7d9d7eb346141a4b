"""The adapter for drivers of vLLM V1: records decoded as steps, and inferred events."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

from attrs import evolve

from checks.harness.adapter import POOL_NAMES, ROW_NAMES, Adapter
from checks.harness.case import Case
from checks.harness.decoding import Pools, RowsById, StepDecoder, present_of
from checks.harness.system import Action, Json
from checks.harness.unreported import Fields
from checks.policies.vllm_v1.reference import externals
from reference.core.frozen_map import FrozenMap
from reference.vllm_v1.kv_cache import is_brought
from reference.vllm_v1.machine import VllmV1Machine
from spec.core.records import Event
from spec.core.requests import BlockKey, Content, Request
from spec.vllm_v1.config import Connector, Scheduling, VllmV1Config
from spec.vllm_v1.groups import NULL_BLOCK, group_key
from spec.vllm_v1.records import (
    Context,
    EncoderCache,
    Flight,
    GivenBack,
    Load,
    Lookups,
    State,
    Statistics,
    Step,
)
from spec.vllm_v1.records import Sequence as Row
from spec.vllm_v1.rules.counting import turns_behind

_NO_STATISTICS = {"waiting": 0, "running": 0, "usage": 0.0}
_QUEUES = ("waiting", "skipped", "running", "draining")
_NUMBERS = ("computed", "generated", "drafts", "placeholders", "prefilling")


class _GroupPools(Pools):
    """Decodes block pools of several groups of layers."""

    names = (*Pools.names, "cached_in_groups")

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx.keys)
        self._ctx = ctx

    def named(self, record: Json) -> Iterator[tuple[BlockKey, Iterable[int]]]:
        """The contents of the first group, then of the others."""
        yield from super().named(record)
        groups = self._ctx.config.all_groups
        for number, request_id, place, *blocks in record.get("cached_in_groups", ()):
            yield group_key(self._ctx.keys, request_id, groups[number], place), blocks


class VllmV1Decoder(StepDecoder[State]):
    """Decodes the records of one episode into steps, in their order."""

    def __init__(self, machine: VllmV1Machine) -> None:
        super().__init__(machine)
        if machine.ctx.config.groups:
            self.pools = _GroupPools(machine.ctx)

    def past_before(self, action: Action) -> Json:
        """What was lost before the step, who has no answer, and who was preempted and waits."""
        lost = self.last.lost
        if action.lost and self.ctx.config.connector is Connector.ASYNC:
            present = {row.id for row in self.last.present} | set(action.arrive)
            lost |= present.difference(action.abort).intersection(action.lost)
        late = action.arrive if self.ctx.config.late_lookups else ()
        asked = [id_ for id_ in late if is_brought(self.ctx, id_)]
        grammars = [id_ for id_ in action.arrive if self.ctx.requests[id_].grammar]
        answered = {*action.abort, *action.answered}
        return {
            "lost": lost,
            "unanswered": self.last.unanswered.union(asked) - answered,
            "compiling": self.last.compiling.union(grammars) - {*action.abort, *action.compiled},
            "awaited": self.last.awaited - {*action.abort, *action.arrive},
            "early": self._still_early(
                self._early(action), present_of(action.abort, self.last, action.arrive)
            ),
            "preempted": self.last.preempted.difference(action.abort),
        }

    def past_after(self, record: Json, action: Action, before: State) -> Json:
        """The same after the step."""
        lost = before.lost | set(present_of(action.lost, before))
        left = {*action.abort_running, *record["finished"]}
        turns = {*self._next_turns(record["finished"])}
        return {
            "lost": lost,
            "unanswered": before.unanswered.difference(action.abort_running),
            "compiling": before.compiling.difference(action.abort_running),
            "awaited": (before.awaited | turns - before.early).difference(action.abort_running),
            "early": self._still_early(
                before.early - turns, present_of(action.abort_running, before)
            ),
            "preempted": _preempted(record, before) - left,
        }

    def state(self, record: Json, **past: Any) -> State:
        """The state in a record: queues, requests and blocks."""
        rows = RowsById((row["id"], row) for row in record["rows"])
        queues: Json = {name: self.queue(record.get(name, ()), rows, record) for name in _QUEUES}
        queues["skipped"] = tuple(  # of an awaited turn only what is kept for it is known
            evolve(row, prompt_len=row.computed) if row.id in past["awaited"] else row
            for row in queues["skipped"]
        )
        return State(
            pool=self.pools.decoded(record, self.last.pool),
            **queues,
            unreported=frozenset(record.get("unreported", ())),
            flights=tuple(map(_flight, record.get("flights", ()))),
            encoder=_encoder(record.get("encoder", {})),
            **past,
        )

    def _early(self, action: Action) -> frozenset[str]:
        """The turns that have been sent before the ones before them have ended."""
        late = self.last.awaited.__contains__
        return self.last.early.union(
            id_ for id_ in action.arrive if id_ in self.ctx.earlier_turns and not late(id_)
        )

    def _still_early(self, early: frozenset[str], gone: Iterable[str]) -> frozenset[str]:
        """Of early turns those whose sessions have not left."""
        return early - turns_behind(self.ctx, gone)

    def _next_turns(self, finished: Iterable[str]) -> Iterator[str]:
        turns = (self.ctx.requests[id_].continued_by for id_ in finished)
        return (turn for turn in turns if turn is not None)

    def as_scripted(self, arrived: Iterable[str], gone: frozenset[str], past: Json) -> State:
        """The last state with the arrivals and without the leavers."""
        past = past | {"unreported": self.last.unreported | gone}
        return super().as_scripted(arrived, gone, past)

    def whole_step(self, record: Json, common: Json) -> Step:
        """The step with its plan, drafts, loads and reports."""
        before = common["before"]
        planned = self.state(  # an idle step decides nothing
            record.get("planned", record),
            finished=before.finished,
            aborted=before.aborted,
            lost=before.lost,
            unanswered=before.unanswered,
            compiling=before.compiling,
            awaited=before.awaited,
            early=before.early,
            preempted=_preempted(record, before),
        )
        outputs = {id_: tuple(tokens) for id_, tokens in record["outputs"].items()}
        return Step(
            **common | {"outputs": outputs},
            planned=planned,
            drafts=record.get("drafts", {}),
            admitted=tuple(record.get("admitted", ())),
            external=record.get("external", {}),
            preempted=tuple(record.get("preempted", ())),
            budget_left=record.get("budget_left", self.ctx.config.token_budget),
            reported=tuple(record.get("reported", ())),
            statistics=Statistics(**record.get("statistics", _NO_STATISTICS)),
            accepted=record.get("accepted", {}),
            proposed=record.get("proposed", {}),
            failed_loads=tuple(record.get("failed_loads", ())),
            lookups=Lookups(**record.get("lookups", {})),
            resumed_lookups=Lookups(**record.get("resumed_lookups", {})),
            masked=tuple(record.get("masked", ())),
            encoded=tuple((id_, tuple(spans)) for id_, spans in record.get("encodes", {}).items()),
            evicted=tuple(_content(line) for line in record.get("evicted", ())),
            results_of=_flight(record["results_of"]) if record.get("results_of") else None,
        )

    def row(self, row: Json, blocks: Iterable[int]) -> Row:
        """A request with its block table, from its row in a record."""
        by_priority, blocks = self.ctx.config.scheduling is Scheduling.PRIORITY, tuple(blocks)
        return Row(
            row["id"],
            prompt_len=self.ctx.requests[row["id"]].prompt_len,
            arrival=self.arrivals[row["id"]] if by_priority else 0,
            blocks=blocks,
            load=Load(row.get("load", "none")),
            sending=row.get("sending", False),
            tables=tuple(map(tuple, row.get("tables", ()))) if blocks else (),
            junction=row.get("junction", 0),
            grown_from=row.get("grown_from", 0),
            **{name: row[name] for name in _NUMBERS if name in row},
        )


def _preempted(record: Json, before: State) -> frozenset[str]:
    """The requests that were preempted before or in the step, and were not admitted since."""
    victims, admitted = record.get("preempted", ()), record.get("admitted", ())
    return before.preempted.union(victims).difference(admitted)


def _flight(line: Json) -> Flight:
    return Flight(
        FrozenMap(line["scheduled"]),
        tuple(line["samples"]),
        FrozenMap(line.get("drafts", {})),
        tuple(line.get("padded", ())),
        FrozenMap(line.get("external", {})),
        tuple(GivenBack(id_, tuple(blocks)) for id_, blocks in line.get("frees", ())),
    )


def _encoder(line: Json) -> EncoderCache:
    return EncoderCache(
        tuple((_content(content), tuple(holders)) for content, holders in line.get("held", ())),
        tuple(map(_content, line.get("evictable", ()))),
        tuple((id_, tuple(spans)) for id_, spans in line.get("taken", ())),
    )


def _content(line: Sequence[Any]) -> Content:
    name, tokens = line
    return Content(name, tokens)


def _spans(request: Request) -> Json:
    """The contents in a prompt, each with its offset, tokens and name."""
    spans = [span.as_written for span in request.encoder_spans]
    return {"encoder_spans": spans} if spans else {}


def request_extras(case: Case) -> Mapping[str, Json]:
    """By request its external tokens, those that come of a lost load, and what is unusual."""
    held = externals(case).items()
    loads: dict[str, Json] = {
        id_: {"external": external.tokens, "external_if_lost": external.if_lost}
        for id_, external in held
    }
    others: dict[str, Json] = {
        request.id: {
            **({"grammar": True} if request.grammar else {}),
            **({} if request.reads_cache else {"reads_cache": False}),
            **({"continued_by": request.continued_by} if request.continued_by else {}),
            **_spans(request),
        }
        for request in case.requests
    }
    return {id_: {**loads.get(id_, {}), **said} for id_, said in others.items()}


# --- events ---------------------------------------------------------------------------------------

_IN_GROUPS = ("hit_in_group", "allocate_in_group")
_HITS = ("prefix_hit", "hit_in_group")
_OF_THE_PLAN = ("catch_up", "prefix_hit", "allocate", *_IN_GROUPS, "admit", "load", "promote")
_VISIBLE = (*_OF_THE_PLAN, "give_back", "preempt", "rollback", "finish", "leave")


def inferred_events(step: Step, config: VllmV1Config) -> tuple[Event, ...]:
    """The events that states show: preemptions, loads, tokens, leavers, rollbacks, and ends.

    If the driver reports an order, the step's events are the victims, the requests that got tokens
    and blocks, and the leavers; then the events are sorted in that order.
    """
    leavers = [event.id for event in step.happened("leave")] or sorted(step.leavers)
    decided = [
        *(Event("preempt", id_, "") for id_ in step.preempted),
        *_given_in_vain(step),
        *step.happened("give_back"),
        *_loads(step, config),
        *_given(step, config),
    ]
    if step.events:
        moves = [event for event in step.events if event.transition != "leave"]
        places = {_move(event): place for place, event in enumerate(moves)}
        decided.sort(key=lambda event: places.get(_move(event), -1))
    return (
        *decided,
        *(Event("leave", id_, "") for id_ in leavers),
        *_rollbacks(step),
        *(Event("finish", id_, "") for id_ in step.finished),
    )


def _rollbacks(step: Step) -> Iterator[Event]:
    """The drafts whose results came in the step; a victim has nothing to roll back."""
    running = {row.id for row in step.planned.running}
    for id_, count in (step.results_of or step).drafts.items():
        if id_ in running and id_ in step.accepted:
            yield Event("rollback", id_, "", count, step.accepted[id_])


def _move(event: Event) -> tuple[str, str]:
    """The kind of event in a driver's order: a victim, an ended load, or an allocation."""
    kind = event.transition
    return kind if kind in ("preempt", "promote", "give_back") else "allocate", event.id


def _given_in_vain(step: Step) -> Iterator[Event]:
    """The tokens and blocks that victims had got before they were preempted."""
    computed = {row.id: row.computed for row in step.before.running}
    for event in step.events:
        if event.transition == "allocate" and event.id in step.preempted:
            if event.after:
                yield evolve(event, before=())
            yield from _of(step.happened("allocate_in_group"), event.id)
            yield Event("catch_up", event.id, "", computed[event.id], event.before)


def _of(events: Iterable[Event], request_id: str) -> Iterator[Event]:
    """The events of a request."""
    return (event for event in events if event.id == request_id)


def _loads(step: Step, config: VllmV1Config) -> Iterator[Event]:
    """Loads that ended, so that their requests may run, and loads that began."""
    before = {row.id: row.load for row in step.before.queued}
    for row in step.planned.present:
        was = before.get(row.id, Load.NONE)
        if was in (Load.LOADED, Load.FAILED) and row.load in (Load.NONE, Load.LOADING):
            yield Event("promote", row.id, "")
        if row.load is Load.LOADING and was is not Load.LOADING:
            cached = step.planned.pool.keys
            hits = tuple(takewhile(cached.__contains__, row.blocks))
            yield from _all_blocks(step, row, config, len(hits) * config.block_size)
            yield Event("load", row.id, "")


def _given(step: Step, config: VllmV1Config) -> Iterator[Event]:
    """Blocks and tokens; a newcomer's cached blocks are those that its computed tokens fill."""
    for row in step.planned.running:
        tokens, admitted = step.scheduled.get(row.id, 0), row.id in step.admitted
        local = row.computed - step.external.get(row.id, 0) if admitted else 0
        yield from _all_blocks(step, row, config, local)
        if tokens:
            yield Event("admit" if admitted else "catch_up", row.id, "", row.computed, tokens)


def _all_blocks(step: Step, row: Row, config: VllmV1Config, local: int) -> Iterator[Event]:
    """The hits in all groups of layers, then the new blocks; `local`: tokens that were found."""
    blocks = [
        *_blocks(step, row, row.blocks[: local // config.block_size]),
        *_blocks_in_groups(step, row, config, local),
    ]
    yield from sorted(blocks, key=lambda event: event.transition not in _HITS)


def _blocks_in_groups(step: Step, row: Row, config: VllmV1Config, local: int) -> Iterator[Event]:
    """The hits and new blocks in the groups of layers beside the first."""
    earlier = next((was.tables for was in step.before.present if was.id == row.id), ())
    for group, table in zip(config.groups, row.tables, strict=False):
        found = 0 if earlier else local // group.block_size
        held = len(earlier[group.number - 1]) if earlier else found
        for name, blocks in (("hit", table[:found]), ("allocate", table[held:])):
            if there := tuple(block for block in blocks if block != NULL_BLOCK):
                yield Event(f"{name}_in_group", row.id, "", group.number, there)


def _blocks(step: Step, row: Row, hits: tuple[int, ...]) -> Iterator[Event]:
    """The prefix hit of a request that held no blocks, and the new blocks of its table.

    A request that was in no queue before the step held no blocks.
    """
    held = next((_kept(earlier) for earlier in step.before.present if earlier.id == row.id), ())
    if hits and not held:
        yield Event("prefix_hit", row.id, "", (), hits)
    new = row.blocks[len(held or hits) :]
    if new:
        yield Event("allocate", row.id, "", held, new)


def _kept(row: Row) -> tuple[int, ...]:
    """The blocks that a request keeps: none if it had only a lost load."""
    return () if row.load is Load.FAILED and not row.computed else row.blocks


ADAPTER = Adapter(
    decoder=lambda ctx: VllmV1Decoder(VllmV1Machine(ctx)),
    inferred_events=inferred_events,
    fields=Fields(
        left_out={
            "planned": ((Step, "planned"),),
            "budget_left": ((Step, "budget_left"),),
            "blocks": ((State, "pool"), (Row, "blocks")),
            "computed": ((Row, "computed"), (Row, "decodes")),
            "prefilling": ((Row, "prefilling"),),
            "reported": ((Step, "reported"), (State, "unreported")),
            "statistics": ((Step, "statistics"),),
            "lookups": ((Step, "lookups"), (Step, "resumed_lookups")),
            "grammars": ((Step, "masked"),),
            "encoder_spans": ((Step, "encoded"), (Step, "evicted"), (State, "encoder")),
        },
        by_ability=("lookups", "grammars", "encoder_spans"),
        step=Step,
        visible=_VISIBLE,
        shown_by={"planned": _OF_THE_PLAN, "blocks": ("prefix_hit", "allocate")},
    ),
    device_needs=frozenset({"planned", "blocks", "computed"}),
    request_extras=request_extras,
    rules_know_leavers=True,
    names=POOL_NAMES | ROW_NAMES,
)
