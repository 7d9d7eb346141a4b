"""How steps of vLLM V1 are shown."""

from checks.export.policy import Presentation
from checks.policies.vllm_v1.codec import CODEC
from checks.policies.vllm_v1.examples import EXAMPLES
from checks.policies.vllm_v1.picture import PICTURE
from engine.core.clock import Prefill, Work
from spec.core.judging import once
from spec.vllm_v1.config import VllmV1Config
from spec.vllm_v1.records import State, Step


@once
def work(_config: VllmV1Config, step: Step) -> Work:
    """Chunks and decodes of one step; an admitted request begins its prefill."""
    rows = [one for one in step.planned.running if one.id in step.scheduled]
    chunks = [one for one in rows if not one.decodes]
    new = [one for one in rows if one.id in step.admitted]
    return Work(
        kind=step.kind,
        chunk_tokens=sum(step.scheduled[one.id] for one in chunks),
        rows=len(rows) - len(chunks),
        cached_tokens=sum(one.computed for one in rows),
        prefills=tuple(Prefill(one.id, one.tokens, one.computed) for one in new),
    )


PRESENTATION: Presentation[VllmV1Config, State, Step] = Presentation(
    codec=CODEC, picture=PICTURE, work=work, examples=EXAMPLES
)
