"""What a step did, as `spec.spyre.records.Step`: a plan and its outcome, between two states."""

from collections.abc import Collection, Iterator
from typing import Any

from engine.spyre.observing.states import Observer
from engine.spyre.scheduler import DecodePlan, Outcome, Plan, PrefillPlan, Scheduler
from engine.spyre.scheduler.chunks import with_block_table
from spec.core.records import Event
from spec.spyre.config import SpyreConfig
from spec.spyre.padding import volume
from spec.spyre.records import Step
from spec.spyre.state import Sequence, State


class StepObserver:
    """Watches one scheduler step by step: call `begin` before each step and `end` after it."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._config = scheduler.core.config
        self._observer = Observer(scheduler)
        self._before = self._observer.state()

    def begin(self) -> None:
        """A step begins: what arrived or went away has done so."""
        self._before = self._observer.state()

    def end(
        self,
        plan: Plan,
        outcome: Outcome,
        index: int,
        time: float,
        ends: Collection[str] | None = None,
        aborted: tuple[str, ...] = (),
    ) -> Step:
        """The step that began last and has been carried out.

        `ends`: who sampled the end of sequence, where the environment decided so. `aborted`: who
        went away since the step before.
        """
        match plan:
            case PrefillPlan():
                done = _prefill(self._config, self._before, plan, outcome)
            case DecodePlan():
                batch = self._observer.rows(plan.rows)
                done = _decode(self._config, self._before, batch, plan, outcome)
            case _:
                done = {}
        return Step(
            index=index,
            time=time,
            kind=plan.kind,
            before=self._before,
            after=self._observer.state(),
            tkv=outcome.tkv,
            outputs={
                name: [token]
                for name, token in zip(outcome.sampled, outcome.tokens.tolist(), strict=True)
            },
            ended=tuple(name for name in outcome.sampled if name in (ends or ())),
            finished=outcome.finished,
            aborted=aborted,
            refusal=plan.refusal,
            **done,
        )


# --- prefill ------------------------------------------------------------------------------------


def _prefill(
    config: SpyreConfig, before: State, plan: PrefillPlan, outcome: Outcome
) -> dict[str, Any]:
    chunk = with_block_table(config, plan.chunk, plan.table, plan.hit_blocks)
    return {
        "scheduled": {chunk.id: chunk.end - chunk.start},
        "volume": int(volume(1, outcome.tkv)),
        "chunk": chunk,
        "events": tuple(_prefill_events(config, before, plan, outcome)),
    }


def _prefill_events(
    config: SpyreConfig, before: State, plan: PrefillPlan, outcome: Outcome
) -> Iterator[Event]:
    """What a prefill step consists of, in order."""
    chunk, name = plan.chunk, plan.chunk.id
    computed = chunk.cached_tokens if before.prefilling is None else before.prefilling.computed
    if plan.is_new:
        yield Event("admit", name, "SPY-ADM-1")
        if plan.held:
            yield Event("prefix_hit", name, "SPY-PFX-3", (), plan.held)
        if config.reservation:
            yield Event("reserve", name, "SPY-RES-2", 0, plan.promised)
    if plan.new_blocks:
        yield Event("allocate", name, "SPY-CHK-1", plan.held, plan.new_blocks)
    yield Event("chunk", name, "SPY-CHK-3", computed, chunk.end)
    if chunk.is_last:
        yield Event("join", name, "SPY-CHK-4")
    yield from _finishes(outcome)


def _finishes(outcome: Outcome) -> Iterator[Event]:
    return (Event("finish", name, "LIF-3") for name in outcome.finished)


# --- decode -------------------------------------------------------------------------------------


def _decode(
    config: SpyreConfig,
    before: State,
    batch: tuple[Sequence, ...],
    plan: DecodePlan,
    outcome: Outcome,
) -> dict[str, Any]:
    return {
        "scheduled": dict.fromkeys(outcome.sampled, 1),
        "volume": int(volume(len(batch), outcome.tkv)),
        "batch": batch,
        "events": tuple(_decode_events(config, before, batch, plan, outcome)),
    }


def _decode_events(
    config: SpyreConfig,
    before: State,
    batch: tuple[Sequence, ...],
    plan: DecodePlan,
    outcome: Outcome,
) -> Iterator[Event]:
    """What a decode step consists of, in order."""
    yield from (Event("resume", one.id, "SPY-PAU-3") for one in plan.resumed)
    yield from (Event("pause", one.id, "SPY-PAU-2") for one in plan.benched)
    yield from (Event("preempt", one.id, "SPY-PRE-1") for one in plan.preempted)
    if plan.left_padding is not None:
        yield from _jumps(config, before, batch)
    for row, block in zip(plan.growing, plan.new_blocks, strict=True):
        grown = batch[row]
        yield Event("allocate", grown.id, "SPY-DEC-5", grown.blocks[:-1], (block,))
    yield Event("decode", "", "SPY-DEC-1")
    yield from _finishes(outcome)


def _jumps(config: SpyreConfig, before: State, batch: tuple[Sequence, ...]) -> Iterator[Event]:
    """Rows whose padding changed. Source: spyre, "tkv jumping"."""
    was = {row.id: row for row in (*before.decoding, *before.paused)}
    pairs = [(was[row.id], row) for row in batch]
    somebody_grew = any(
        old.computed % config.block_size == 0
        and old.computed > old.prefill_len
        and old.left_padding == new.left_padding == 0
        for old, new in pairs
    )
    for old, new in pairs:
        if new.left_padding > old.left_padding:
            rule = "SPY-TKV-4" if somebody_grew else "SPY-TKV-7"
            yield Event("jump_tkv", new.id, rule, old.tkv, new.tkv)
        elif new.left_padding < old.left_padding:
            rule = "SPY-TKV-3" if old.computed % config.block_size == 0 else "SPY-TKV-5"
            yield Event("jump_tkv", new.id, rule, old.tkv, new.tkv)
