"""The adapter for drivers of vLLM V0: records decoded as steps, and inferred events."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from checks.harness.adapter import ROW_NAMES, Adapter
from checks.harness.case import Case
from checks.harness.comparing import Difference, Strictness
from checks.harness.decoding import Pools, StepDecoder
from checks.harness.system import Action, Json
from checks.harness.unreported import Fields
from reference.core.frozen_map import FrozenMap
from reference.vllm_v0.machine import VllmV0Machine
from spec.core.blocks import BlockPool, block_count
from spec.core.records import Event
from spec.vllm_v0.config import Scheduling, VllmV0Config
from spec.vllm_v0.records import (
    Budget,
    Context,
    Group,
    Pairs,
    Sequence,
    State,
    Step,
    sequence_names,
    sequences_of,
)

FIRST_BLOCK = 1  # the number of a device's first block; drivers begin with 0
_DECIDED = (
    *("admitted", "swapped_in", "preempted", "swapped_out", "by_priority", "ignored"),
    *("prefills", "sampling"),
)
_COPIED = ("swaps_out", "swaps_in", "copies")


class VllmV0Decoder(StepDecoder[State]):
    """Decodes the records of one episode into steps, in their order."""

    queues = ("waiting", "running", "swapped")

    def __init__(self, machine: VllmV0Machine) -> None:
        """`machine`: the reference's, for the requests of the episode."""
        super().__init__(machine)
        self._cpu = Pools(self.ctx.keys)

    def past_before(self, _action: Action) -> Json:
        """State of earlier steps that records lack: requests ignored, whether a prompt ran."""
        return {"ignored": self.last.ignored, "has_prefilled": self.last.has_prefilled}

    def past_after(self, record: Json, _action: Action, before: State) -> Json:
        """The same once the step is over."""
        has_prefilled = before.has_prefilled or _prefills(self.ctx.config, record)
        return {"ignored": before.ignored.union(record["ignored"]), "has_prefilled": has_prefilled}

    def state(self, record: Json, **past: Any) -> State:
        """The state in a record: queues, groups and blocks."""
        rows, used = {row["id"]: row for row in record["rows"]}, _ranks(record)
        queues: Json = {
            name: tuple(self._group(rows[id_], used) for id_ in record[name])
            for name in self.queues
        }
        blocks = record.get("blocks", {})
        return State(
            pool=_decoded(self.pools, blocks, self.last.pool),
            cpu=_decoded(self._cpu, record.get("cpu_blocks", {}), self.last.cpu),
            computed=frozenset(FIRST_BLOCK + block for block in blocks.get("computed", ())),
            marks=FrozenMap(
                (FIRST_BLOCK + int(block), used[time])
                for block, time in blocks.get("accessed", {}).items()
            ),
            **queues,
            **past | {"finished": past["finished"] | past["ignored"]},
        )

    def row(self, row: Json, _blocks: Iterable[int]) -> Group:
        """A group that has just arrived."""
        return self._group(row | {"sequences": [row]}, {})

    def whole_step(self, record: Json, common: Json) -> Step:
        """The step with its decisions, block copies, samples and forks."""
        before, config = common["before"], self.ctx.config
        past = {name: getattr(before, name) for name in ("finished", "aborted", "has_prefilled")}
        past["ignored"] = before.ignored.union(record["ignored"])
        planned = self.state(record["planned"], **past)
        sampled = {id_: tuple(tokens) for id_, tokens in record["sampled"].items()}
        decided: Json = {name: tuple(record[name]) for name in _DECIDED}
        decided |= {name: _pairs(record[name]) for name in _COPIED}
        common["outputs"] = {id_: tuple(tokens) for id_, tokens in record["outputs"].items()}
        return Step(
            **common | decided,
            planned=planned,
            budget=_budget(config, record["budget"]),
            lookahead_slots=record["lookahead_slots"],
            forked=_forked(self.ctx, planned, sampled),
            sampled=sampled,
        )

    def _group(self, row: Json, used: Mapping[int, int]) -> Group:
        config, is_prefill = self.ctx.config, row.get("prefilling", True)
        is_swapped, has_hits = row.get("swapped", False), row.get("cached") is not None
        by_priority = config.scheduling is Scheduling.PRIORITY
        # The delay does not distinguish longer times.
        most = config.delay_factor * config.prefill_time + 1 if config.delay_factor else 0.0
        return Group(
            row["id"],
            prompt_len=self.ctx.requests[row["id"]].prompt_len,
            sequences=tuple(map(_sequence, row["sequences"])),
            arrival=self.arrivals[row["id"]] if by_priority else 0,
            computed=row.get("computed", 0),
            is_prefill=is_prefill,
            is_swapped=is_swapped,
            cached=row.get("cached") if is_prefill else None,
            is_forgotten=config.prefix_caching and is_swapped and not is_prefill and not has_hits,
            cross=_shifted(row.get("cross", ())),
            mark=used.get(row.get("accessed", 0), 0),
            waited=min(row.get("waited", 0.0), most),
        )


def _sequence(row: Json) -> Sequence:
    return Sequence(
        row["id"],
        generated=row.get("generated", 0),
        slots=row.get("slots", 0),
        blocks=_shifted(row.get("blocks", ())),
        is_finished=row.get("finished", False),
    )


def _budget(config: VllmV0Config, tables: Json) -> Budget:
    """The counted tokens and sequences; requests without counted tokens count 0."""
    none = dict.fromkeys(tables["seqs"], 0)
    batched, cached = (none | tables[name] for name in ("batched", "cached"))
    return Budget(config.token_budget, config.max_num_seqs, batched, cached, tables["seqs"])


def _shifted(blocks: Iterable[int]) -> tuple[int, ...]:
    return tuple(FIRST_BLOCK + block for block in blocks)


def _pairs(pairs: Iterable[tuple[int, int]]) -> Pairs:
    return tuple((FIRST_BLOCK + source, FIRST_BLOCK + target) for source, target in pairs)


def _decoded(pools: Pools, blocks: Json, last: BlockPool) -> BlockPool:
    """The pool of a device; free blocks with contents are handed out after those without."""
    if "free_list" not in blocks:
        return last
    free = _shifted((*blocks["free_list"], *blocks.get("evictable", ())))
    shifted = {
        "free_list": free,
        "references": {FIRST_BLOCK + int(block): n for block, n in blocks["references"].items()},
        "cached": [
            (id_, index, FIRST_BLOCK + block) for id_, index, block in blocks.get("cached", ())
        ],
    }
    return pools.decoded(shifted, last)


def _ranks(record: Json) -> dict[int, int]:
    """Times of last uses as ranks; 0: never."""
    times = {0, *record.get("blocks", {}).get("accessed", {}).values()}
    times |= {row.get("accessed", 0) for row in record["rows"]}
    return {time: rank for rank, time in enumerate(sorted(times))}


def _prefills(config: VllmV0Config, record: Json) -> bool:
    """True if a prompt was computed and the delay is in use."""
    return config.delay_factor > 0 and bool(record["prefills"])


def _forked(ctx: Context, planned: State, sampled: Iterable[str]) -> dict[str, str]:
    """Sequences that sample and did not exist when the step was planned, each with its parent."""
    earlier = {sequence.id for group in planned.present for sequence in group.sequences}
    return {id_: ctx.owners[id_] for id_ in sampled if id_ not in earlier}


def request_extras(case: Case) -> Mapping[str, Json]:
    """The fields of requests that only this policy has: sequences with tokens, adapter, encoder."""
    extras: dict[str, Json] = {}
    names = sequence_names(case.requests)
    for request in case.requests:
        _, *siblings = sequences_of(request, names[request.id]).values()
        tokens = {sibling.id: sibling.output_tokens(request.max_tokens) for sibling in siblings}
        numbers = {"n": request.n, "lora": request.lora, "encoder_len": request.encoder_len}
        extras[request.id] = numbers | {"siblings": tokens}
    return extras


def totals(_ctx: Context, step: Step, record: Json, strictness: Strictness) -> Iterator[Difference]:
    """Differences between the release's counts of free blocks and its pools."""
    if strictness is Strictness.DECISIONS:
        return
    for name, pool in (("blocks", step.after.pool), ("cpu_blocks", step.after.cpu)):
        due, found = len(pool.free), record.get(name, {}).get("free", len(pool.free))
        if due != found:
            yield Difference(f"{name}.free", "", due, found)


# --- events ---------------------------------------------------------------------------------------

_VISIBLE = (
    *("preempt", "swap_out", "swap_in", "admit", "ignore", "append", "copy"),
    *("chunk", "decode", "fork", "sample", "finish"),
)


def inferred_events(step: Step, config: VllmV0Config) -> tuple[Event, ...]:
    """The decisions of a step, then their effects."""
    decoding = {group.id: len(group.unfinished) for group in step.planned.present}
    tokens = {  # of each sequence
        id_: count if id_ in step.prefills else count // decoding[id_]
        for id_, count in step.scheduled.items()
    }
    computed = {group.id: group.computed for group in step.before.present}
    owners = {row.id: group.id for group in step.planned.running for row in group.sequences}
    owners |= step.forked  # from the first sequence, which has the name of the request
    decided = {"swap_out": step.swapped_out, "swap_in": step.swapped_in, "ignore": step.ignored}
    return (
        *(Event("preempt", id_, "", computed[id_], 0) for id_ in step.preempted),
        *(Event(name, id_, "") for name, ids in decided.items() for id_ in ids),
        *(Event("admit", id_, "", after=tokens.get(id_)) for id_ in step.admitted),
        *_grown(step, config),
        *(Event("copy", "", "", source, target) for source, target in step.copies),
        *(
            Event("chunk" if id_ in step.prefills else "decode", id_, "", after=count)
            for id_, count in tokens.items()
        ),
        *(Event("fork", parent, "", parent, child) for child, parent in step.forked.items()),
        *(Event("sample", owners[id_], "", after=id_) for id_ in step.sampled),
        *(Event("finish", id_, "") for id_ in step.finished),
    )


def _grown(step: Step, config: VllmV0Config) -> Iterator[Event]:
    """Scheduled groups whose tables grew in the step."""
    before = {group.id: group for group in step.before.present}
    for group in step.planned.running:
        if group.id in step.scheduled:
            earlier = before[group.id]
            held = int(block_count(earlier.tokens, config.block_size))
            held = held if group.id in step.admitted else _table_length(earlier)
            if _table_length(group) > held:
                yield Event("append", group.id, "", held, _table_length(group))


def _table_length(group: Group) -> int:
    """The number of blocks in the tables of the group's sequences."""
    return sum(len(row.blocks) for row in group.sequences)


_NAMES = {
    r"\b(pool|cpu)\.(keys|cached)": r"\1.cached",
    r"\b(pool|cpu)\.free": r"\1.free_list",
    r"\bpool\.": "blocks.",
    r"\bcpu\.": "cpu_blocks.",
}

ADAPTER = Adapter(
    decoder=lambda ctx: VllmV0Decoder(VllmV0Machine(ctx)),
    inferred_events=inferred_events,
    fields=Fields(step=Step, visible=_VISIBLE),
    reported_twice=totals,
    request_extras=request_extras,
    infers_all_events=True,
    names=_NAMES | ROW_NAMES,
)
