"""How vLLM V0 is drawn: groups of sequences, two pools of blocks and the swaps between them."""

from collections.abc import Iterator, Mapping
from typing import Any

from checks.export.pages.picture import Meter, Picture, Row, held_cells, joined
from spec.vllm_v0.records import Context, Group, State, Step


def rows(ctx: Context, state: State, step: Step | None) -> Iterator[Row]:
    """The sequences of the running groups, then of those whose blocks are on the CPU."""
    size = ctx.config.block_size
    scheduled = {} if step is None else step.scheduled
    for place, groups in (("running", state.running), ("swapped", state.swapped)):
        for group in groups:
            kind = "cpu" if group.is_swapped else None
            computed = range(group.computed - scheduled.get(group.id, 0), group.computed)
            for one in group.unfinished:
                cells = held_cells(
                    state.cpu if group.is_swapped else state.pool,
                    one.blocks,
                    size,
                    filled=group.computed,
                    computed=computed if group.id in scheduled else range(0),
                    kind=kind,
                )
                note = _note(group, step) if one is group.unfinished[0] else ""
                yield Row(id=one.id, place=place, cells=joined(cells, size), note=note)


def _note(group: Group, step: Step | None) -> str:
    """What was moved between GPU and CPU for the group."""
    if step is None:
        return ""
    moved = {"swapped out": step.swapped_out, "swapped in": step.swapped_in}
    return ", ".join(what for what, ids in moved.items() if group.id in ids)


def meters(ctx: Context, step: Step) -> Iterator[Meter]:
    """What was counted against the budget of tokens, and of sequences; blocks that moved."""
    budget = step.budget
    parts = tuple((name, count) for name, count in budget.batched.items() if count)
    tokens = sum(budget.batched.values())
    yield Meter(name="tokens", value=tokens, limit=budget.token_budget, parts=parts)
    seqs = sum(budget.seqs.values())
    yield Meter(name="sequences", value=seqs, limit=budget.max_num_seqs, unit="sequences")
    moved = {"out": step.swaps_out, "in": step.swaps_in, "copied": step.copies}
    pairs = tuple((name, len(blocks)) for name, blocks in moved.items() if blocks)
    if ctx.config.num_cpu_blocks:
        total = sum(count for _, count in pairs)
        yield Meter(name="blocks moved", value=total, unit="blocks", parts=pairs)


def _owners(state: State) -> Mapping[str, Any]:
    """Sequences by id; of a group that waits, the group."""
    waiting: dict[str, Any] = {group.id: group for group in state.waiting}
    return waiting | {
        one.id: one for group in (*state.running, *state.swapped) for one in group.sequences
    }


PICTURE = Picture(
    rows=rows,
    numbers=("generated", "slots"),
    owners=_owners,
    queues=("waiting", "swapped"),
    pools={"pool": "GPU blocks", "cpu": "CPU blocks"},
    meters=meters,
)
