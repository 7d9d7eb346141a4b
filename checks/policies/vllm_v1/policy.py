"""vLLM V1: the reference, which has no engine, next to the paged device."""

from collections.abc import Iterable, Sequence

from checks.harness.paging import vllm_v1_watch
from checks.harness.reference import MachineServer
from checks.policies.policy import Policy
from checks.policies.vllm_v1.codec import CODEC
from checks.policies.vllm_v1.instances import DEFAULT
from checks.policies.vllm_v1.model import vllm_v1_model
from engine.core.clock import Prefill, Work
from reference.vllm_v1.machine import VllmV1Machine, refuse_unservable
from spec.core.requests import BlockKeys, Request
from spec.vllm_v1.config import VllmV1Config
from spec.vllm_v1.records import Context, State, Step
from spec.vllm_v1.records import Sequence as Row
from spec.vllm_v1.rules import VLLM_V1 as RULES


def context_of(config: VllmV1Config, requests: Iterable[Request]) -> Context:
    """What rules look up; nobody has external keys and values."""
    by_id = {request.id: request for request in requests}
    return Context(config, by_id, BlockKeys(by_id, config.block_size))


def _reference(config: VllmV1Config, requests: Sequence[Request]) -> MachineServer[Step]:
    return MachineServer(VllmV1Machine.of(config, requests))


def work(_config: VllmV1Config, step: Step) -> Work:
    """Chunks and decodes of one step; an admitted request begins its prefill."""
    rows = [one for one in step.planned.running if one.id in step.scheduled]
    chunks = [one for one in rows if not one.decodes]
    return Work(
        kind=step.kind,
        chunk_tokens=sum(step.scheduled[one.id] for one in chunks),
        rows=len(rows) - len(chunks),
        cached_tokens=sum(one.computed for one in rows),
        prefills=tuple(_prefill(one) for one in rows if one.id in step.admitted),
    )


def _prefill(row: Row) -> Prefill:
    return Prefill(row.id, row.tokens, reused=row.computed)


VLLM_V1: Policy[VllmV1Config, Context, State, Step] = Policy(
    config=VllmV1Config,
    registry=RULES,
    context_of=context_of,
    refuse_unservable=refuse_unservable,
    reference=_reference,
    codec=CODEC,
    work=work,
    judged_apart=("V1-KV-", "V1-PFX-"),
    watch=vllm_v1_watch,
    step=Step,
    model=vllm_v1_model,
    instances=DEFAULT,
)
