"""Traces of vLLM V1.

`decoding` lists the running requests and `tkv` is the longest row of the step; `prefilling` is
null, `paused` empty, `volume` 0. Further fields, as they stand in `spec.vllm_v1.records.Step`:
`budget_left`, `statistics`, `drafts`, `external`, `accepted`, `proposed`, `admitted`, `preempted`,
`reported` and `failed_loads`; and `skipped`, the requests that stand before the waiting.

In full traces `state` has `planned`, the state when all was decided and nothing computed.
"""

from cattrs import override

from checks.export.trace.codec import Codec
from checks.export.trace.line import Past
from checks.export.trace.records import Json
from spec.vllm_v1.records import Sequence, State, Step


class VllmV1Codec(Codec[State, Step]):
    """Steps and states of vLLM V1 as JSON values, and back."""

    def holders(self, state: State) -> tuple[Sequence, ...]:
        """All requests that may hold blocks: present and draining."""
        return (*state.present, *state.draining)

    def shown(self, step: Step, _past: Past) -> Json:
        """The longest row."""
        rows = (row for row in step.planned.running if row.id in step.scheduled)
        ends = (row.computed + step.scheduled[row.id] for row in rows)
        return {"tkv": max(ends, default=0)}

    def read_apart(self, line: Json) -> Json:
        """The sampled tokens, as tuples."""
        return {"outputs": {name: tuple(tokens) for name, tokens in line["outputs"].items()}}

    def prefills(self, step: Step) -> dict[str, str]:
        """The number of tokens of each request that computed more than its newest token."""
        rows = {row.id: row for row in (*step.before.present, *step.planned.running)}
        computed = super().prefills(step)
        return {
            name: text for name, text in computed.items() if name in rows and not rows[name].decodes
        }


CODEC = VllmV1Codec(
    step=Step,
    queues=("waiting", "skipped"),
    further=(
        *("budget_left", "statistics", "drafts", "external", "accepted", "proposed"),
        *("admitted", "preempted", "reported", "failed_loads"),
    ),
    state_fields={
        **dict.fromkeys(
            ("flights", "preempted", "compiling", "awaited", "early", "encoder"),
            override(omit_if_default=True),
        ),
        "unfilled": override(omit=True),
    },
    done={"drafts": {}, "accepted": {}, "proposed": {}},
)
