"""Traces of vLLM V1.

`decoding` lists the running requests and `tkv` is the longest row of the step; `prefilling` is
null, `paused` empty, `volume` 0. Further fields, as they stand in `spec.vllm_v1.records.Step`:
`budget_left`, `statistics`, `drafts`, `external`, `accepted`, `admitted`, `preempted`, `reported`
and `failed_loads`; and `skipped`, the requests that stand before the waiting.

In full traces `state` has `planned`, the state when all was decided and nothing computed.
"""

from checks.export.trace.codec import Codec
from checks.export.trace.line import Past
from checks.export.trace.records import Json
from spec.vllm_v1.records import Sequence, State, Step


class VllmV1Codec(Codec[State, Step]):
    """Steps and states of vLLM V1 as JSON values, and back."""

    def holders(self, state: State) -> tuple[Sequence, ...]:
        """Those that wait or drain, too."""
        return (*state.present, *state.draining)

    def shown(self, step: Step, _past: Past) -> Json:
        """The longest row."""
        rows = (one for one in step.planned.running if one.id in step.scheduled)
        ends = (one.computed + step.scheduled[one.id] for one in rows)
        return {"tkv": max(ends, default=0)}

    def read_apart(self, line: Json) -> Json:
        """The sampled tokens, which are tuples here."""
        return {"outputs": {name: tuple(tokens) for name, tokens in line["outputs"].items()}}

    def prefills(self, step: Step) -> dict[str, str]:
        """Of the requests that computed more than their newest token, how many tokens."""
        rows = {one.id: one for one in (*step.before.present, *step.planned.running)}
        computed = super().prefills(step)
        return {
            name: text for name, text in computed.items() if name in rows and not rows[name].decodes
        }


CODEC = VllmV1Codec(
    step=Step,
    queues=("waiting", "skipped"),
    further=(
        *("budget_left", "statistics", "drafts", "external", "accepted"),
        *("admitted", "preempted", "reported", "failed_loads"),
    ),
    done={"drafts": {}, "accepted": {}},
)
