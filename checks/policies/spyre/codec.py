"""Traces of Spyre: chunks of prefills, padding, reserved blocks.

The common fields are those of `checks.export.trace`. The `state` of a full prefill line has the
`block_table` and the `writes` of its chunk.
"""

from attrs import evolve, fields, frozen
from cattrs import Converter, override

from checks.export.trace.codec import Codec
from checks.export.trace.line import Line, Past, blocks_as_json, ids_of, row_as_json
from checks.export.trace.records import Json, at_least, one_of, record, structured
from engine.workloads.checked import NOTHING
from spec.core.errors import TraceError
from spec.core.records import DECODE, IDLE, PREFILL
from spec.spyre.records import Chunk, Step
from spec.spyre.state import Sequence, State

_BLOCKS = ("block_table", "writes")
_SHOWN = [key.name for key in fields(Chunk) if key.name not in _BLOCKS]


@frozen(kw_only=True)
class _Line(Line):
    """A line; its chunk has no blocks."""

    prefilling: Chunk | None


class SpyreCodec(Codec[State, Step]):
    """Steps and states of Spyre as JSON values, and back."""

    def register(self, converter: Converter) -> None:
        """A prompt has one chunk at least."""
        record(converter, Chunk, chunks=override(struct_hook=at_least(1)))
        super().register(converter)

    def rows(self, state: State) -> list[Json]:
        """The decode batch, with its padding."""
        return [row_as_json(row, row.left_padding) for row in state.decoding]

    def holders(self, state: State) -> tuple[Sequence, ...]:
        """Every request that was admitted."""
        return state.admitted

    def shown(self, step: Step, past: Past) -> Json:
        """The measures of the step, the chunk, the paused requests, the reserved blocks."""
        after, chunk = step.after, _chunk_shown(step, past)
        return {
            "tkv": step.tkv,
            "volume": step.volume,
            "prefilling": chunk and {name: getattr(chunk, name) for name in _SHOWN},
            "paused": ids_of(after.paused),
            "blocks": blocks_as_json(after.pool, _reserved(after)),
        }

    def states_as_json(self, step: Step, past: Past) -> Json:
        """The `state` of a full line, with the blocks of the chunk before `ended`."""
        states = super().states_as_json(step, past)
        if step.chunk is None:
            return states
        ended = {"ended": states.pop("ended")} if step.ended else {}
        return states | {name: list(getattr(step.chunk, name)) for name in _BLOCKS} | ended

    def read_apart(self, line: Json) -> Json:
        """The chunk of a prefill step.

        Raises:
            TraceError: the chunk is missing, or its blocks are missing or malformed.
        """
        if line["kind"] != PREFILL:
            return {}
        chunk = structured(self.converter, line, _Line).prefilling
        if chunk is None:
            raise TraceError("prefilling", None, "the chunk of this prefill step")
        blocks: Json = {}
        for name in _BLOCKS:
            path, found = f"state.{name}", line["state"].get(name)
            if found is None:
                raise TraceError(path, NOTHING, "the blocks of this prefill step's chunk")
            blocks[name] = structured(self.converter, found, tuple[int, ...], path)
        return {"chunk": evolve(chunk, **blocks)}

    def past_after(self, step: Step, past: Past) -> Past:
        """The past for the line after `step`: its state and the last chunk."""
        return Past(step.after, step.chunk or past.chunk)

    def size(self, step: Step) -> dict[str, int]:
        """The longest row and the volume of the batch, in tokens."""
        return {"tkv": step.tkv, "volume": step.volume}

    def served(self, step: Step) -> Json:
        """The request that a chunk was computed for, or the size of the batch."""
        return super().served(step) if step.chunk is None else {"request": step.chunk.id}

    def prefills(self, step: Step) -> dict[str, str]:
        """The request that a chunk was computed for, and which chunk it was."""
        chunk = step.chunk
        return {} if chunk is None else {chunk.id: f"chunk {chunk.chunk + 1} of {chunk.chunks}"}


def _reserved(state: State) -> int:
    return sum(row.reserved for row in state.admitted) + state.orphaned


def _chunk_shown(step: Step, past: Past) -> Chunk | None:
    """The chunk that ran, or the last one of the prefill under way."""
    slot, last = step.after.prefilling, past.chunk
    if step.chunk is not None or slot is None or last is None:
        return step.chunk
    return last if last.id == slot.id else None


CODEC = SpyreCodec(
    step=Step,
    line=_Line,
    state_fields={
        "last_kind": override(struct_hook=one_of(PREFILL, DECODE, IDLE)),
        **dict.fromkeys(
            ("compiling", "unencoded", "encoding", "untold", "behind", "orphaned", "cohort"),
            override(omit_if_default=True),
        ),
    },
    apart=("chunk",),
    done={"tkv": 0, "volume": 0, "chunk": None, "batch": ()},
)
