"""vLLM V0: the reference, which has no engine, next to the paged device."""

from pathlib import Path

from checks.explore.instance import read_instances
from checks.harness.comparing import Strictness, by_fields
from checks.policies.labels import STEPS, Labels, named_actions
from checks.policies.later import imported_when_called
from checks.policies.policy import Policy
from checks.policies.vllm_v0.adapter import ADAPTER
from checks.policies.vllm_v0.codec import CODEC
from checks.policies.vllm_v0.differences import KNOWN_DIFFERENCES
from checks.policies.vllm_v0.examples import EXAMPLES
from checks.policies.vllm_v0.expected import EXPECTED_VIOLATIONS
from checks.policies.vllm_v0.generator import generate
from checks.policies.vllm_v0.model import vllm_v0_model
from checks.policies.vllm_v0.picture import PICTURE
from checks.policies.vllm_v0.reference import VllmV0Reference
from engine.core.clock import Prefill, Work
from reference.vllm_v0.machine import VllmV0Machine
from spec.vllm_v0.config import VllmV0Config, refuse_unservable
from spec.vllm_v0.records import Context, State, Step, context_of
from spec.vllm_v0.rules import VLLM_V0 as RULES

_DECISIONS = ("scheduled", "preempted", "swapped_out", "swapped_in", "outputs", "finished")
# What a step decided comes before what follows from it.
_COMPARED = {
    Strictness.DECISIONS: by_fields(*_DECISIONS),
    Strictness.OBSERVABLE: by_fields(*_DECISIONS, "ignored", "after"),
    Strictness.EXACT: by_fields(
        *("before", "ignored", "preempted", "by_priority", "swapped_out", "swapped_in", "admitted"),
        *("scheduled", "prefills", "sampling", "budget", "lookahead_slots", "is_async"),
        *("swaps_out", "swaps_in", "copies", "planned", "refusal", "forked", "sampled", "outputs"),
        *("finished", "ended", "aborted", "after", "events"),
    ),
}


def work(_config: VllmV0Config, step: Step) -> Work:
    """Prompts, in chunks or whole, and a row for each decoding sequence."""
    groups = {one.id: one for one in step.planned.running}
    decodes = [groups[one] for one in step.scheduled if one not in step.prefills]
    rows = [group.tokens for group in decodes for _ in group.unfinished]
    prompts = [groups[one] for one in step.prefills]
    return Work(
        kind=step.kind,
        chunk_tokens=sum(step.budget.batched[one] for one in step.prefills),
        rows=len(rows),
        cached_tokens=sum(rows)
        - len(rows)
        + sum(one.computed + step.budget.cached[one.id] for one in prompts),
        prefills=tuple(
            Prefill(one.id, one.tokens, one.computed + step.budget.cached[one.id])
            for one in prompts
            if one.id in step.admitted
        ),
        transfers={
            "swapped_out": len(step.swaps_out),
            "swapped_in": len(step.swaps_in),
            "copied": len(step.copies),
        },
    )


def _further(step: Step) -> dict[str, int]:
    """Steps with prompts and decodes, hits, victims of priority, several tokens."""
    return {
        "prompts and decodes": 0 < len(step.prefills) < len(step.scheduled),
        "prefix hit": sum(tokens > 0 for tokens in step.budget.cached.values()),
        "preempt by priority": len(step.by_priority),
        "several tokens": sum(len(tokens) > 1 for tokens in step.sampled.values()),
    }


def _phase(state: State, request_id: str) -> str:
    """Where a request is; one that runs is prefilled or decodes."""
    group = next((one for one in state.present if one.id == request_id), None)
    if group is None:
        return "gone already"
    if group not in state.running:
        return "waiting" if group in state.waiting else "swapped"
    return "prefilling" if group.is_prefill else "decoding"


_LABELS = Labels(
    actions=named_actions(
        *STEPS,
        *("admit", "append", "copy", "chunk", "decode", "fork", "sample", "finish"),
        *("preempt", "preempt by priority", "swap_out", "swap_in", "ignore"),
        refusals=("V0-ADM-1", "V0-BUD-1"),
        phases=("waiting", "prefilling", "decoding", "swapped"),
        others=("eviction", "prefix hit", "prompts and decodes", "several tokens"),
    ),
    further=_further,
    phase=_phase,
)

POLICY: Policy[VllmV0Config, Context, State, Step] = Policy(
    config=VllmV0Config,
    registry=RULES,
    step=Step,
    machine=VllmV0Machine.of,
    context_of=context_of,
    refuse_unservable=refuse_unservable,
    codec=CODEC,
    picture=PICTURE,
    reference=VllmV0Reference.of,
    tokens_at_once=lambda config: config.token_budget if config.chunked_prefill else 8_192,
    model=vllm_v0_model,
    examples=EXAMPLES,
    instances=read_instances(Path(__file__).with_name("instances.toml"), plain=VllmV0Config),
    generate=generate,
    compared=_COMPARED,
    labels=_LABELS,
    adapter=ADAPTER,
    expected_violations=EXPECTED_VIOLATIONS,
    known_differences=KNOWN_DIFFERENCES,
    work=work,
    watch=imported_when_called("policies.vllm_v0.paging", "vllm_v0_watch"),
)
