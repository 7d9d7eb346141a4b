"""Presentation of steps of vLLM V0."""

from checks.export.policy import Presentation
from checks.policies.vllm_v0.codec import CODEC
from checks.policies.vllm_v0.examples import EXAMPLES
from checks.policies.vllm_v0.picture import PICTURE
from engine.core.clock import GPU_ESTIMATE, Prefill, Work, attended
from spec.vllm_v0.config import VllmV0Config
from spec.vllm_v0.records import State, Step


def work(_config: VllmV0Config, step: Step) -> Work:
    """The work of a step: whole or chunked prompts, and a row for each decoding sequence."""
    groups = {row.id: row for row in step.planned.running}
    decodes = [
        groups[request_id] for request_id in step.scheduled if request_id not in step.prefills
    ]
    rows = [group.tokens for group in decodes for _ in group.unfinished]
    prompts = [groups[request_id] for request_id in step.prefills]
    computed = {row.id: row.computed + step.budget.cached[row.id] for row in prompts}
    batched = step.budget.batched
    return Work(
        kind=step.kind,
        chunk_tokens=sum(batched[request_id] for request_id in step.prefills),
        rows=len(rows),
        cached_tokens=sum(rows) - len(rows) + sum(computed.values()),
        attended_tokens=sum(rows)
        + sum(attended(tokens, batched[request_id]) for request_id, tokens in computed.items()),
        prefills=tuple(
            Prefill(row.id, row.tokens, computed[row.id])
            for row in prompts
            if row.id in step.admitted
        ),
        transfers={
            "swapped_out": len(step.swaps_out),
            "swapped_in": len(step.swaps_in),
            "copied": len(step.copies),
        },
    )


PRESENTATION: Presentation[VllmV0Config, State, Step] = Presentation(
    codec=CODEC, picture=PICTURE, work=work, cost=GPU_ESTIMATE, examples=EXAMPLES
)
