"""Faults of the results of a step: tokens, ends, and fields kept for the next step."""

from reference.vllm_v0 import results, step
from tests.checks.faults.vllm_v0.table import fault

fault(results, "_tokens", of="work_in", on="chunked, multi-step", rules="V0-LKA-3")(
    lambda right, *given: right(*given)[:1], "several steps sample one token"
)
fault(step, "aged", of="scheduler_step", on="chunked, delay", rules="V0-ADM-8")(
    lambda right, ctx, state, is_prefill: right(ctx, state, False), "all steps are short"
)
