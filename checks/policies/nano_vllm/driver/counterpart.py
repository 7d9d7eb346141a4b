"""How drivers of nano-vLLM are held against its machine."""

from checks.conformance.counterpart import Counterpart
from checks.conformance.leftout import FIELDS
from checks.conformance.paged import PagedHardware, compared_by
from checks.fuzz.cases import Case
from checks.fuzz.compare import Strictness
from checks.fuzz.paged_cases import nano_vllm_case
from checks.fuzz.paged_shrink import simpler_paged_cases
from checks.harness.paging import nano_vllm_watch
from checks.policies import NANO_VLLM as POLICY
from checks.policies.nano_vllm.driver.counts import COUNTS
from checks.policies.nano_vllm.driver.moves import seen_events
from checks.policies.nano_vllm.driver.told import Teller
from reference.nano_vllm.machine import NanoVllmMachine
from spec.nano_vllm.records import Context

_DECISIONS = ("kind", "scheduled", "outputs", "finished")


def _machine(case: Case) -> NanoVllmMachine:
    return NanoVllmMachine.of(case.config, case.requests)


def _device(ctx: Context) -> PagedHardware:
    size = ctx.config.block_size
    return PagedHardware(nano_vllm_watch(ctx), lambda step: seen_events(step, size))


NANO_VLLM = Counterpart(
    policy=POLICY,
    draw=nano_vllm_case,
    simpler=simpler_paged_cases,
    machine=_machine,
    tokens_at_once=lambda config: config.max_model_len,
    teller=Teller,
    differences=compared_by(
        {
            Strictness.DECISIONS: _DECISIONS,
            Strictness.OBSERVABLE: (*_DECISIONS, "after"),
            Strictness.EXACT: ("before", *_DECISIONS, "ended", "aborted", "batch", "after"),
        }
    ),
    fields=FIELDS[POLICY.name],
    moves=seen_events,
    device=_device,
    counts=COUNTS,
)
