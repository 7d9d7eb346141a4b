"""vLLM V1: the reference next to the paged device, and the engine on it."""

from pathlib import Path

from checks.explore.instance import read_instances
from checks.harness.comparing import Strictness, by_fields
from checks.harness.once import once
from checks.policies.labels import Labels, named_actions
from checks.policies.later import imported_when_called
from checks.policies.policy import Policy
from checks.policies.vllm_v1.adapter import ADAPTER
from checks.policies.vllm_v1.codec import CODEC
from checks.policies.vllm_v1.differences import EXPECTED_VIOLATIONS, KNOWN_DIFFERENCES
from checks.policies.vllm_v1.examples import EXAMPLES
from checks.policies.vllm_v1.generator import generate
from checks.policies.vllm_v1.model import vllm_v1_model
from checks.policies.vllm_v1.picture import PICTURE
from checks.policies.vllm_v1.reference import VllmV1Reference
from engine.core.clock import Prefill, Work
from reference.vllm_v1.machine import VllmV1Machine
from spec.vllm_v1.config import VllmV1Config, refuse_unservable
from spec.vllm_v1.records import Context, State, Step, context_of
from spec.vllm_v1.rules import VLLM_V1 as RULES

_DECISIONS = ("scheduled", "drafts", "preempted", "outputs", "finished")
# What a step decided comes before what follows from it.
_COMPARED = {
    Strictness.DECISIONS: by_fields(*_DECISIONS),
    Strictness.OBSERVABLE: by_fields(*_DECISIONS, "after", "statistics"),
    Strictness.EXACT: by_fields(
        *("before", "scheduled", "drafts", "admitted", "preempted", "planned", "budget_left"),
        *("refusal", "reported", "accepted", "outputs", "finished", "external", "failed_loads"),
        *("ended", "aborted", "after", "statistics", "events"),
    ),
}


def _tokens_at_once(config: VllmV1Config) -> int:
    return min(config.token_budget, config.long_prefill_token_threshold or config.token_budget)


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


_TRANSITIONS = (
    *("admit", "prefix_hit", "allocate", "catch_up", "preempt", "rollback", "finish"),
    *("load", "loaded", "load_failed", "promote", "lose_load", "undo", "leave"),
)


def _further(step: Step) -> dict[str, int]:
    """Chunks that are not the last one, drafts, and requests that are admitted with drafts."""
    return {
        "chunk": sum(one not in step.outputs for one in step.scheduled),
        "accepted draft": sum(step.accepted.values()),
        "padded newcomer": sum(one in step.drafts for one in step.admitted),
    }


def _phase(state: State, request_id: str) -> str:
    """Where a request is; one that runs is prefilled or decodes."""
    row = next((one for one in state.present if one.id == request_id), None)
    if row is None or row in state.queued:
        return "waiting" if row else "gone already"
    return "prefilling" if row.prefilling else "decoding"


_LABELS = Labels(
    actions=named_actions(
        *_TRANSITIONS,
        refusals=("V1-BUD-1", "V1-SEQ-1", "V1-KV-1", "V1-PRE-4", "V1-CHK-2", "V1-SPC-5"),
        phases=("waiting", "prefilling", "decoding"),
        others=("eviction", "chunk", "accepted draft", "padded newcomer"),
    ),
    further=_further,
    phase=_phase,
)

_ENGINE = "policies.vllm_v1.engine"

POLICY: Policy[VllmV1Config, Context, State, Step] = Policy(
    config=VllmV1Config,
    registry=RULES,
    step=Step,
    machine=VllmV1Machine.of,
    context_of=context_of,
    refuse_unservable=refuse_unservable,
    codec=CODEC,
    picture=PICTURE,
    reference=VllmV1Reference.of,
    engine=imported_when_called(_ENGINE, "engine"),
    engine_under_test=imported_when_called(_ENGINE, "engine_under_test"),
    new_device=imported_when_called(_ENGINE, "new_device"),
    engine_abilities=frozenset({"abort_running"}),
    tokens_at_once=_tokens_at_once,
    model=vllm_v1_model,
    examples=EXAMPLES,
    instances=read_instances(Path(__file__).with_name("instances.toml"), plain=VllmV1Config),
    generate=generate,
    compared=_COMPARED,
    looks=imported_when_called("policies.vllm_v1.looks", "looks"),
    labels=_LABELS,
    adapter=ADAPTER,
    expected_violations=EXPECTED_VIOLATIONS,
    known_differences=KNOWN_DIFFERENCES,
    work=work,
    watch=imported_when_called("policies.vllm_v1.paging", "vllm_v1_watch"),
)
