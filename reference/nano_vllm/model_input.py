"""The model input: the tensors that the model runner makes of a scheduled batch.

Source: nano-vllm, chapter 9; the rows are those of the schedule, before
anything of them is computed.
"""

from attrs import frozen

from reference.nano_vllm.step import Schedule
from spec.core.blocks import block_index, slot
from spec.nano_vllm.formulas import graph_batch_size
from spec.nano_vllm.records import Context, Sequence

NO_BLOCK = -1  # fills up the shorter rows of the block tables


@frozen
class ModelInput:
    """One batch; all sequences are rows in the order of the batch.

    `tokens`, `positions` and `slots`: token ids to compute, their positions and where their keys
    and values go, row after row. `context_lens`: tokens that each row attends to. `block_tables`:
    the rows' blocks, filled up to the same width. `graph_size`: the captured batch size that a
    decode batch is padded to; None for a prefill, and where no captured size holds the batch.
    """

    is_prefill: bool
    tokens: tuple[int, ...]
    positions: tuple[int, ...]
    slots: tuple[int, ...]
    context_lens: tuple[int, ...]
    block_tables: tuple[tuple[int, ...], ...]
    graph_size: int | None


def model_input(ctx: Context, schedule: Schedule) -> ModelInput:
    """The tensors of a schedule that has a batch."""
    rows, size = schedule.batch, ctx.config.block_size
    lengths = [schedule.end_of(row) for row in rows]
    spans = [range(row.computed, end) for row, end in zip(rows, lengths, strict=True)]
    pairs = [(row, position) for row, span in zip(rows, spans, strict=True) for position in span]
    return ModelInput(
        is_prefill=schedule.is_prefill,
        tokens=tuple(
            token
            for row, end in zip(rows, lengths, strict=True)
            for token in ctx.requests[row.id].first_tokens(end)[row.computed :]
        ),
        positions=tuple(position for _, position in pairs),
        slots=tuple(
            slot(row.blocks[block_index(position, size)], position, size) for row, position in pairs
        ),
        context_lens=tuple(lengths),
        block_tables=_rectangular(rows),
        graph_size=None if schedule.is_prefill else _graph_size(ctx, len(rows)),
    )


def _rectangular(rows: tuple[Sequence, ...]) -> tuple[tuple[int, ...], ...]:
    width = max(len(row.blocks) for row in rows)
    return tuple((*row.blocks, *[NO_BLOCK] * (width - len(row.blocks))) for row in rows)


def _graph_size(ctx: Context, batch: int) -> int | None:
    return graph_batch_size(batch, ctx.config.max_num_seqs, ctx.config.graph_sizes)
