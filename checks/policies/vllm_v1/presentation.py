"""Presentation of steps of vLLM V1."""

from checks.export.policy import Presentation
from checks.harness.once import once
from checks.policies.vllm_v1.codec import CODEC
from checks.policies.vllm_v1.examples import EXAMPLES
from checks.policies.vllm_v1.picture import PICTURE
from engine.core.clock import GPU_ESTIMATE, Prefill, Work, attended
from spec.vllm_v1.config import VllmV1Config
from spec.vllm_v1.records import State, Step


@once
def work(_config: VllmV1Config, step: Step) -> Work:
    """The work of a step: chunks and decoding rows; an admitted request begins its prefill."""
    rows = [row for row in step.planned.running if row.id in step.scheduled]
    chunks = [row for row in rows if not row.decodes]
    new = [row for row in rows if row.id in step.admitted]
    return Work(
        kind=step.kind,
        chunk_tokens=sum(step.scheduled[row.id] for row in chunks),
        rows=len(rows) - len(chunks),
        cached_tokens=sum(row.computed for row in rows),
        attended_tokens=sum(attended(row.computed, step.scheduled[row.id]) for row in rows),
        prefills=tuple(Prefill(row.id, row.tokens, row.computed) for row in new),
    )


PRESENTATION: Presentation[VllmV1Config, State, Step] = Presentation(
    codec=CODEC, picture=PICTURE, work=work, cost=GPU_ESTIMATE, examples=EXAMPLES
)
