"""How drivers of vLLM V1 are held against its machine."""

from checks.conformance.counterpart import Counterpart
from checks.conformance.leftout import FIELDS
from checks.conformance.paged import PagedHardware, compared_by
from checks.fuzz.compare import Strictness
from checks.fuzz.paged_cases import vllm_v1_case
from checks.fuzz.paged_shrink import simpler_paged_cases
from checks.harness.paging import vllm_v1_watch
from checks.policies import VLLM_V1 as POLICY
from checks.policies.vllm_v1.driver.counts import COUNTS
from checks.policies.vllm_v1.driver.moves import seen_events
from checks.policies.vllm_v1.driver.serving import ScriptedMachine, leave, surroundings
from checks.policies.vllm_v1.driver.told import Teller
from spec.vllm_v1.config import VllmV1Config
from spec.vllm_v1.records import Context

_DECISIONS = ("scheduled", "drafts", "preempted", "outputs", "finished")

# What a step decided comes before what follows from it.
_EXACT = (
    *("before", "scheduled", "drafts", "admitted", "preempted", "planned", "budget_left"),
    *("reported", "accepted", "outputs", "finished", "external", "failed_loads", "ended"),
    *("aborted", "after", "statistics"),
)


def _tokens_at_once(config: VllmV1Config) -> int:
    return min(config.token_budget, config.long_prefill_token_threshold or config.token_budget)


def _device(ctx: Context) -> PagedHardware:
    size = ctx.config.block_size
    return PagedHardware(vllm_v1_watch(ctx), lambda step: seen_events(step, size))


VLLM_V1 = Counterpart(
    policy=POLICY,
    draw=vllm_v1_case,
    simpler=simpler_paged_cases,
    machine=ScriptedMachine.of,
    tokens_at_once=_tokens_at_once,
    surroundings=surroundings,
    leave=leave,
    teller=Teller,
    differences=compared_by(
        {
            Strictness.DECISIONS: _DECISIONS,
            Strictness.OBSERVABLE: (*_DECISIONS, "after", "statistics"),
            Strictness.EXACT: _EXACT,
        }
    ),
    fields=FIELDS[POLICY.name],
    moves=seen_events,
    device=_device,
    counts=COUNTS,
    rules_know_leavers=True,
)
