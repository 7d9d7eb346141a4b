"""Faults of what comes of a step: tokens, ends, and what the scheduler remembers of it."""

from reference.vllm_v0 import results
from tests.checks.faults.vllm_v0.table import fault

fault(results, "_tokens", of="work_in", on="chunked, multi-step", caught_by="V0-LKA-3")(
    lambda right, *given: right(*given)[:1], "several steps sample one token"
)
