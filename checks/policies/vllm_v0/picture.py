"""Pictures of vLLM V0: groups of sequences, two pools of blocks and the swaps between them."""

from collections.abc import Iterator, Mapping
from typing import Any

from checks.export.pages.picture import Meter, Picture, Row, first_left_waiting, held_cells, joined
from spec.vllm_v0.records import Context, Group, State, Step


def rows(ctx: Context, state: State, step: Step | None) -> Iterator[Row]:
    """The sequences of the running groups, then of those whose blocks are on the CPU."""
    size = ctx.config.block_size
    scheduled = {} if step is None else step.scheduled
    for place, groups in (("running", state.running), ("swapped", state.swapped)):
        for group in groups:
            kind = "cpu" if group.is_swapped else None
            computed = range(group.computed - scheduled.get(group.id, 0), group.computed)
            for sequence in group.unfinished:
                cells = held_cells(
                    state.cpu if group.is_swapped else state.pool,
                    sequence.blocks,
                    size,
                    filled=group.computed,
                    computed=computed if group.id in scheduled else range(0),
                    kind=kind,
                )
                note = _note(group, step) if sequence is group.unfinished[0] else ""
                yield Row(id=sequence.id, place=place, cells=joined(cells, size), note=note)


def _note(group: Group, step: Step | None) -> str:
    """A note if the group was swapped in or out."""
    if step is None:
        return ""
    moved = {"swapped out": step.swapped_out, "swapped in": step.swapped_in}
    return ", ".join(word for word, ids in moved.items() if group.id in ids)


def meters(ctx: Context, step: Step) -> Iterator[Meter]:
    """The tokens and sequences counted in the budget, and the moved blocks."""
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


def refused(ctx: Context, step: Step) -> str | None:
    """The first request left waiting; None if requests may have been passed over."""
    passes_over = ctx.config.max_num_partial_prefills > 1 or ctx.config.max_loras > 0
    return None if passes_over else first_left_waiting(ctx, step)


def _owners(state: State) -> Mapping[str, Any]:
    """Sequences by id, and waiting groups by id."""
    waiting: dict[str, Any] = {group.id: group for group in state.waiting}
    return waiting | {
        sequence.id: sequence
        for group in (*state.running, *state.swapped)
        for sequence in group.sequences
    }


PICTURE = Picture(
    rows=rows,
    numbers=("generated", "slots"),
    owners=_owners,
    queues=("waiting", "swapped"),
    pools={"pool": "GPU blocks", "cpu": "CPU blocks"},
    meters=meters,
    refused=refused,
)
