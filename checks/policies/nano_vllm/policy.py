"""nano-vLLM: the reference next to the paged device, and the engine on it."""

from pathlib import Path

from checks.explore.instance import read_instances
from checks.policies.labels import STEPS, Labels, named_actions
from checks.policies.later import imported_when_called
from checks.policies.nano_vllm.adapter import ADAPTER
from checks.policies.nano_vllm.codec import CODEC
from checks.policies.nano_vllm.examples import EXAMPLES
from checks.policies.nano_vllm.expected import EXPECTED_VIOLATIONS
from checks.policies.nano_vllm.generator import generate
from checks.policies.nano_vllm.picture import PICTURE
from checks.policies.policy import Policy
from engine.core.clock import Prefill, Work
from reference.nano_vllm.machine import NanoVllmMachine
from spec.core.records import PREFILL
from spec.nano_vllm.config import FullHit, NanoVllmConfig, documented, refuse_unservable, repaired
from spec.nano_vllm.records import Context, State, Step, context_of
from spec.nano_vllm.rules import NANO_VLLM as RULES


def work(_config: NanoVllmConfig, step: Step) -> Work:
    """All rows of a prefill step begin their prefill, and end it."""
    new = sum(step.scheduled.values())
    read = sum(row.computed for row in step.batch) - new
    if step.kind != PREFILL:
        return Work(kind=step.kind, rows=len(step.batch), cached_tokens=read)
    prefills = tuple(
        Prefill(row.id, row.prefill_len, row.prefill_len - step.scheduled[row.id])
        for row in step.batch
    )
    return Work(kind=step.kind, chunk_tokens=new, cached_tokens=read, prefills=prefills)


_LABELS = Labels(
    actions=named_actions(
        *STEPS,
        *("admit", "prefix_hit", "allocate", "prefill", "decode", "preempt", "finish"),
        refusals=("NANO-ADM-1", "NANO-ADM-2", "NANO-ADM-3"),
        phases=("waiting", "running"),
    )
)

_ENGINE = "policies.nano_vllm.engine"

POLICY: Policy[NanoVllmConfig, Context, State, Step] = Policy(
    config=NanoVllmConfig,
    registry=RULES,
    step=Step,
    machine=NanoVllmMachine.of,
    context_of=context_of,
    refuse_unservable=refuse_unservable,
    codec=CODEC,
    picture=PICTURE,
    engine=imported_when_called(_ENGINE, "engine"),
    engine_under_test=imported_when_called(_ENGINE, "engine_under_test"),
    new_device=imported_when_called(_ENGINE, "new_device"),
    engine_config={"full_hit": (FullHit.ALL_CACHED, FullHit.LAST_COMPUTED)},
    tokens_at_once=lambda config: config.max_model_len,
    examples=EXAMPLES,
    instances=read_instances(
        Path(__file__).with_name("instances.toml"),
        plain=NanoVllmConfig,
        documented=documented,
        repaired=repaired,
    ),
    generate=generate,
    looks=imported_when_called("policies.nano_vllm.looks", "looks"),
    labels=_LABELS,
    adapter=ADAPTER,
    expected_violations=EXPECTED_VIOLATIONS,
    work=work,
    watch=imported_when_called("policies.nano_vllm.paging", "nano_vllm_watch"),
)
