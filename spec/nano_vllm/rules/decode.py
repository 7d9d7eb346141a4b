"""Rules of the running queue and of the decode step.

Source: nano-vllm, chapters 6 and 9.
"""

from collections.abc import Iterator

from spec.core.blocks import block_index, slot
from spec.core.judging import ids
from spec.core.records import DECODE
from spec.nano_vllm.formulas import graph_batch_size
from spec.nano_vllm.records import Context, Sequence, Step
from spec.nano_vllm.rules.counting import captured_size, first_position, needed_blocks
from spec.nano_vllm.rules.registry import of_step, release, text, witness
from spec.nano_vllm.rules.replay import queue_of


def _ids(rows: tuple[Sequence, ...]) -> list[str]:
    return [row.id for row in rows]


@of_step("NANO-DEC-1", text("The Decode Path: Advancing All Running Sequences"))
@witness(lambda _, step: step.kind == DECODE and len(step.batch) > 1)
def all_running_decode(_ctx: Context, step: Step) -> Iterator[str]:
    """In a decode step every running sequence that is not preempted gets a token."""
    # A sequence limit on the step alone leaves some out.
    preempted = {event.id for event in step.happened("preempt")}
    expected = [row.id for row in queue_of(step) if row.id not in preempted]
    if step.kind == DECODE and _ids(step.batch) != expected:
        yield f"running {expected}, decoded {_ids(step.batch)}"


@of_step("NANO-DEC-2", text("The Decode Path: Advancing All Running Sequences"))
@witness(lambda _, step: step.kind == DECODE and len(step.after.running) > 1)
def running_keeps_its_order(_ctx: Context, step: Step) -> Iterator[str]:
    """The running queue keeps its order: the admitted go to the back, the others stay."""
    # What was taken out for the batch is put back in its place. One whose prefill is cut comes with
    # its last part.
    gone = {event.id for event in step.happened("preempt", "finish")}
    gone |= ids(step.after.in_progress)
    came = [*_ids(step.before.in_progress), *(event.id for event in step.happened("admit"))]
    expected = [id_ for id_ in [*_ids(step.before.running), *came] if id_ not in gone]
    if _ids(step.after.running) != expected:
        yield f"running {_ids(step.after.running)}, expected {expected}"


@of_step("NANO-DEC-3", text("BlockManager: Three Core Operations"))
@witness(lambda _, step: step.kind == DECODE and step.happened("allocate"))
def one_block_at_a_boundary(ctx: Context, step: Step) -> Iterator[str]:
    """A decode step hands a sequence one new block if its newest token starts one, else none."""
    # The newest token stands at the position of the tokens computed before the step.
    if step.kind != DECODE:
        return
    tables = {row.id: row.blocks for row in step.before.running}
    found = {event.id: tuple(event.after) for event in step.happened("prefix_hit")}
    for row in step.batch:
        old = tables[row.id] if row.id in tables else found[row.id]
        expected = needed_blocks(row.computed, ctx.config.block_size)
        if row.blocks[: len(old)] != old or len(row.blocks) != expected:
            yield f"request {row.id}: blocks {list(old)}, then {list(row.blocks)}"


@of_step("NANO-DEC-4", text("CUDA Graphs: Why Decode Gets Special Treatment"))
@witness(lambda _, step: step.kind == DECODE and len(step.batch) == 3)
def some_graph_holds_the_batch(ctx: Context, step: Step) -> Iterator[str]:
    """A decode batch is padded to a captured size that holds it."""
    # What is handed out is the least that was captured.
    if step.kind != DECODE or not step.batch:
        return
    batch, config = len(step.batch), ctx.config
    padded = graph_batch_size(batch, config.max_num_seqs, config.graph_sizes)
    if padded is None or padded != captured_size(config, batch):
        yield f"{batch} sequences, captured size {padded}"


@of_step("NANO-DEC-5", release("max_num_seqs"))
@witness(lambda _, step: step.kind == DECODE and len(step.before.running) > len(step.batch) > 0)
def the_front_decodes(ctx: Context, step: Step) -> Iterator[str]:
    """A decode step computes the running queue from its front, in its order, as many sequences as
    the sequence limit allows.
    """
    # Those that were not preempted.
    preempted = {event.id for event in step.happened("preempt")}
    kept = [row.id for row in queue_of(step) if row.id not in preempted]
    due = kept[: ctx.config.max_num_seqs]
    if step.kind == DECODE and _ids(step.batch) != due:
        yield f"running {kept}, decoded {_ids(step.batch)}"


@of_step("NANO-SLT-1", text("Block Tables: Logical Memory Map"))
@witness(lambda ctx, step: any(count > ctx.config.block_size for count in step.scheduled.values()))
def every_token_has_its_slot(ctx: Context, step: Step) -> Iterator[str]:
    """Each token that a step computes has a slot of its own, in a block of its sequence's table."""
    # Position p lies in block table[p // block_size], at p % block_size, and is handed out so.
    size = ctx.config.block_size
    owners: dict[int, str] = {}
    for row in step.batch:
        start = first_position(step, row, size)
        for position in range(start, row.computed):
            place, offset = divmod(position, size)
            if place >= len(row.blocks):
                yield f"request {row.id}: no block for position {position}"
                continue
            where = row.blocks[place] * size + offset
            named = int(block_index(position, size)), int(slot(row.blocks[place], position, size))
            if named != (place, where):
                yield f"request {row.id}: position {position} is handed out as {named}"
            if where in owners:
                yield f"slot {where} is written for {owners[where]} and {row.id}"
            owners[where] = row.id
