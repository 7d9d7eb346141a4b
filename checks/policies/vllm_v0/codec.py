"""Traces of vLLM V0.

`decoding` lists the running groups, each in the line as its longest sequence, and `tkv` is the
longest row of the step; `prefilling` is null, `paused` empty, `volume` 0. `block_tables` has the
tables of sequences, on the GPU and on the CPU. Further fields, as they stand in
`spec.vllm_v0.records.Step`: `prefills`, `sampling`, `admitted`, `preempted`, `swapped_in`,
`swapped_out`, `ignored`, `swaps_in`, `swaps_out`, `copies`, `lookahead_slots`, `sampled`,
`budget`, `is_async`; and `swapped`, the groups whose blocks are on the CPU.

In full traces `state` has `planned`, the state when all was decided and nothing computed.
"""

from collections.abc import Mapping

from checks.export.trace.codec import Codec
from checks.export.trace.line import Past
from checks.export.trace.records import Json
from spec.core.requests import Request
from spec.vllm_v0.records import Sequence, State, Step, sequence_names


class VllmV0Codec(Codec[State, Step]):
    """Steps and states of vLLM V0 as JSON values, and back."""

    def holders(self, state: State) -> tuple[Sequence, ...]:  # type: ignore[override]
        """The sequences of all groups."""
        return tuple(sequence for group in state.present for sequence in group.sequences)

    def owners(self, requests: Mapping[str, Request]) -> Mapping[str, str]:
        """The request of each sequence."""
        names = sequence_names(requests.values())
        return {name: owner for owner, own in names.items() for name in own}

    def shown(self, step: Step, _past: Past) -> Json:
        """The longest row."""
        rows = (group for group in step.planned.running if group.id in step.scheduled)
        return {"tkv": max((group.tokens for group in rows), default=0)}

    def read_apart(self, line: Json) -> Json:
        """The sampled tokens, as tuples."""
        return {"outputs": {name: tuple(tokens) for name, tokens in line["outputs"].items()}}

    def prefills(self, step: Step) -> dict[str, str]:
        """The number of tokens of each request that computes a prompt."""
        computed = super().prefills(step)
        return {name: text for name, text in computed.items() if name in step.prefills}


CODEC = VllmV0Codec(
    step=Step,
    queues=("waiting", "swapped"),
    further=(
        *("prefills", "sampling", "admitted", "preempted", "swapped_in", "swapped_out"),
        *("ignored", "swaps_in", "swaps_out", "copies", "lookahead_slots", "sampled"),
        *("budget", "is_async"),
    ),
    done={"preempted": (), "swapped_out": (), "swapped_in": ()},
)
