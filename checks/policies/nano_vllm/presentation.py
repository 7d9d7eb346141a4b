"""Presentation of steps of nano-vLLM."""

from checks.export.policy import Presentation
from checks.policies.nano_vllm.codec import CODEC
from checks.policies.nano_vllm.examples import EXAMPLES
from checks.policies.nano_vllm.picture import PICTURE
from engine.core.clock import GPU_ESTIMATE, Prefill, Work, attended
from spec.core.judging import ids
from spec.core.records import PREFILL
from spec.nano_vllm.config import NanoVllmConfig
from spec.nano_vllm.records import State, Step


def work(_config: NanoVllmConfig, step: Step) -> Work:
    """The work of a step; rows of a prefill step begin their prefill in it, unless it was cut."""
    new = sum(step.scheduled.values())
    read = sum(row.computed for row in step.batch) - new
    pairs = sum(
        attended(row.computed - step.scheduled[row.id], step.scheduled[row.id])
        for row in step.batch
    )
    if step.kind != PREFILL:
        return Work(kind=step.kind, rows=len(step.batch), cached_tokens=read, attended_tokens=pairs)
    begun = ids(step.before.in_progress)
    prefills = tuple(
        Prefill(row.id, row.prefill_len, row.computed - step.scheduled[row.id])
        for row in step.batch
        if row.id not in begun
    )
    return Work(
        kind=step.kind,
        chunk_tokens=new,
        cached_tokens=read,
        attended_tokens=pairs,
        prefills=prefills,
    )


PRESENTATION: Presentation[NanoVllmConfig, State, Step] = Presentation(
    codec=CODEC, picture=PICTURE, work=work, cost=GPU_ESTIMATE, examples=EXAMPLES
)
