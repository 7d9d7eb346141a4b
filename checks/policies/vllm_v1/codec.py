"""Traces of vLLM V1.

`decoding` lists the running requests and `tkv` is the longest row of the step; `prefilling` is
null, `paused` empty, `volume` 0. Further fields, as they stand in `spec.vllm_v1.records.Step`:
`budget_left`, `statistics`, `drafts`, `external`, `accepted`, `admitted`, `preempted`, `reported`
and `failed_loads`; and `skipped`, the requests that stand before the waiting.

In full traces `state` has `planned`, the state when all was decided and nothing computed.
"""

from collections.abc import Mapping

from attrs import frozen

from checks.export.trace.codec import Codec
from checks.export.trace.line import Line, Past, tables_of
from checks.export.trace.records import Json
from spec.vllm_v1.records import Sequence, State, Step


@frozen(kw_only=True)
class _Line(Line):
    """A line; the step has its tokens as tuples."""

    outputs: Mapping[str, tuple[int, ...]]  # type: ignore[assignment]


class VllmV1Codec(Codec[State, Step]):
    """Steps and states of vLLM V1 as JSON values, and back."""

    def shown(self, step: Step, past: Past) -> Json:
        """With the longest row, and the blocks of requests that wait or drain, too."""
        holders = (*step.after.present, *step.after.draining)
        return super().shown(step, past) | {
            "tkv": _longest_row(step),
            "block_tables": tables_of(holders),
        }

    def prefills(self, step: Step) -> dict[str, str]:
        """The requests that computed more than their newest token."""
        rows = {one.id: one for one in step.planned.running}
        computed = super().prefills(step)
        return {name: text for name, text in computed.items() if not rows[name].decodes}


def _longest_row(step: Step) -> int:
    """Positions that the longest row of the step reaches, in tokens."""
    rows = (one for one in step.planned.running if one.id in step.scheduled)
    return max((one.computed + step.scheduled[one.id] for one in rows), default=0)


CODEC = VllmV1Codec(
    state=State,
    step=Step,
    sequence=Sequence,
    line=_Line,
    queues=("waiting", "skipped"),
    further=(
        *("budget_left", "statistics", "drafts", "external", "accepted"),
        *("admitted", "preempted", "reported", "failed_loads"),
    ),
    done={"drafts": {}, "accepted": {}},
)
