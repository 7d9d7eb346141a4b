"""Traces of nano-vLLM.

`decoding` lists the running queue and `tkv` is the longest row of the step; `prefilling` is null,
`paused` empty, `volume` and `last_tkv` 0, and `last_kind` idle. The `batch` of a full line holds
the rows of a prefill, too.
"""

from cattrs import override

from checks.export.trace.codec import Codec
from checks.export.trace.line import Past
from checks.export.trace.records import Json
from spec.core.records import IDLE
from spec.nano_vllm.records import State, Step


class NanoVllmCodec(Codec[State, Step]):
    """Steps and states of nano-vLLM as JSON values, and back."""

    def shown(self, step: Step, _past: Past) -> Json:
        """The longest row."""
        return {"tkv": max((row.computed for row in step.batch), default=0)}


CODEC = NanoVllmCodec(
    step=Step,
    state_fields={"running": override(rename="decoding")},
    constant={
        "waiting": [],
        "prefilling": None,
        "decoding": [],
        "paused": [],
        "finished": [],
        "aborted": [],
        "last_kind": IDLE,
        "last_tkv": 0,
    },
    done={"batch": ()},
)
