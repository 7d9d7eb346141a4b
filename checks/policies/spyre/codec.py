"""Traces of Spyre: the chunks of prefills, the padding of rows, the reserved blocks.

A line says what `checks.export.trace` says. The `state` of a full prefill line has the
`block_table` and the `writes` of its chunk.
"""

from typing import Any

from attrs import evolve, frozen
from cattrs import Converter, override

from checks.export.trace.codec import Codec
from checks.export.trace.line import Line, Past, blocks_of, ids_of, tables_of
from checks.export.trace.records import Json, one_of, positive, record
from engine.workloads.checked import NOTHING
from spec.core.errors import TraceError
from spec.core.records import DECODE, IDLE, PREFILL
from spec.spyre.records import Chunk, Step
from spec.spyre.state import Sequence, State


@frozen(kw_only=True)
class _Line(Line):
    """A line; the chunk is without its blocks."""

    prefilling: Chunk | None


@frozen(kw_only=True)
class _States:
    """The blocks of a prefill step's chunk."""

    block_table: tuple[int, ...] | None = None
    writes: tuple[int, ...] | None = None


class SpyreCodec(Codec[State, Step]):
    """Steps and states of Spyre as JSON values, and back."""

    def register(self, converter: Converter) -> None:
        """Of a chunk, the blocks stand in `state`."""
        left_out = override(omit=True)
        record(
            converter,
            Chunk,
            chunks=override(struct_hook=positive),
            block_table=left_out,
            writes=left_out,
        )
        super().register(converter)

    def shown(self, step: Step, past: Past) -> Json:
        """The fields of the line that other policies have not."""
        after = step.after
        return {
            "tkv": step.tkv,
            "volume": step.volume,
            "prefilling": self.converter.unstructure(_chunk_shown(step, past)),
            "decoding": [_row(row) for row in after.decoding],
            "paused": ids_of(after.paused),
            "blocks": blocks_of(after.pool, reserved=sum(one.reserved for one in after.admitted)),
            "block_tables": tables_of(after.admitted),
        }

    def states_as_json(self, step: Step, past: Past) -> Json:
        """The states, and the blocks of the chunk."""
        states = super().states_as_json(step, past)
        if step.chunk is None:
            return states
        blocks = {"block_table": list(step.chunk.block_table), "writes": list(step.chunk.writes)}
        ended = {"ended": states.pop("ended")} if step.ended else {}
        return states | blocks | ended

    def step_values(self, full: Any) -> Json:
        """The chunk of a prefill step.

        Raises:
            TraceError: the chunk or its blocks are missing.
        """
        if full.kind != PREFILL:
            return {}
        if full.prefilling is None:
            raise TraceError("prefilling", None, "the chunk of this prefill step")
        blocks = {name: getattr(full.state, name) for name in ("block_table", "writes")}
        for name, found in blocks.items():
            if found is None:
                allowed = "the blocks of this prefill step's chunk"
                raise TraceError(f"state.{name}", NOTHING, allowed)
        return {"chunk": evolve(full.prefilling, **blocks)}

    def past_after(self, step: Step, past: Past) -> Past:
        """With the chunk that ran last."""
        return Past(step.after, step.chunk or past.chunk)

    def size(self, step: Step) -> dict[str, int]:
        """The longest row and the volume of the batch."""
        return {"tkv": step.tkv, "volume": step.volume}

    def prefills(self, step: Step) -> dict[str, str]:
        """The request whose chunk ran."""
        chunk = step.chunk
        return {} if chunk is None else {chunk.id: f"chunk {chunk.chunk + 1} of {chunk.chunks}"}


def _chunk_shown(step: Step, past: Past) -> Chunk | None:
    """The chunk that ran, or the last one of the prefill under way."""
    slot, last = step.after.prefilling, past.chunk
    if step.chunk is not None or slot is None or last is None:
        return step.chunk
    return last if last.id == slot.id else None


def _row(row: Sequence) -> Json:
    return {
        "id": row.id,
        "tkv": row.tkv,
        "left_padding": row.left_padding,
        "computed": row.computed,
        "generated": row.generated,
    }


CODEC = SpyreCodec(
    state=State,
    step=Step,
    sequence=Sequence,
    line=_Line,
    states=_States,
    state_fields={"last_kind": override(struct_hook=one_of(PREFILL, DECODE, IDLE))},
    apart=("chunk",),
    done={"tkv": 0, "volume": 0, "chunk": None, "batch": ()},
)
