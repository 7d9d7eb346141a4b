"""Every policy is served, judged by its own rules and measured in the same way."""

from typing import Any

import pytest

from checks.export.policy import presentation_of
from checks.harness.case import Case
from checks.harness.judging import judgeable
from checks.harness.runs.serving import Run, run_workload, served
from checks.harness.runs.settings import Settings
from checks.harness.system import REFERENCE
from checks.registry import POLICIES, RULES, claims_of
from engine.core.clock import CostModel, Prefill, Work
from spec.core.errors import WorkloadError
from spec.core.requests import Prompt, Request
from tests.requests import request

SIZES: dict[str, Any] = {"block_size": 4, "max_model_len": 32, "max_num_seqs": 4, "num_blocks": 20}

SPYRE, NANO_VLLM, VLLM_V1, VLLM_V0 = POLICIES
each_policy = pytest.mark.parametrize("policy", POLICIES, ids=POLICIES)


def configured(policy: str, **more: Any) -> Any:
    chunk = {"chunk_size": 8} if policy == "spyre" else {}
    return claims_of(policy).config(**SIZES, **chunk, **more)


def several() -> list[Request]:
    """Two prompts with the same first eight tokens, an abort, an early end."""
    shared = (("system", 8), ("a", 3)), (("system", 8), ("b", 2))
    first, second = (
        Request(id=str(index), prompt=Prompt.of_parts(parts), max_tokens=5, arrival=3 * index)
        for index, parts in enumerate(shared)
    )
    return [first, second, request("2", 6, 9, abort_at=5), request("3", 4, 6, output_len=2)]


def run_of(policy: str, requests: list[Request], **more: Any) -> Run:
    config = configured(policy, **more)
    cost = CostModel.from_mapping({}, config)
    return run_workload(Settings(config, cost), requests, using=REFERENCE)


def test_policies_are_found_by_their_names_and_configurations() -> None:
    assert list(POLICIES) == ["spyre", "nano-vllm", "vllm-v1", "vllm-v0"]
    assert [configured(policy).policy for policy in POLICIES] == [*POLICIES]


def test_no_two_policies_have_a_rule_of_the_same_id() -> None:
    assert len(RULES) == sum(len(claims_of(policy).registry.rules) for policy in POLICIES)


@each_policy
def test_workload_is_served_to_its_end_and_keeps_the_rules(policy: str) -> None:
    run = run_of(policy, several())

    assert run.broken == []
    assert run.rules == judgeable(configured(policy))
    assert (run.summary.finished, run.summary.aborted, run.summary.unfinished) == (3, 1, 0)
    assert run.summary.output_tokens >= 5 + 5 + 2


@each_policy
def test_client_that_leaves_before_the_step_of_its_arrival_breaks_no_rule(
    policy: str,
) -> None:
    fleeting = request("4", 5, 3, arrival=2, abort_at=2)

    run = run_of(policy, [*several(), fleeting])

    assert run.broken == []
    assert run.summary.aborted == 2


@pytest.mark.parametrize(
    ("policy", "reused", "recomputed"),
    [(SPYRE, 4, 4), (NANO_VLLM, 8, 0), (VLLM_V1, 8, 0)],  # Spyre skips whole chunks only
    ids=["spyre", "nano-vllm", "vllm-v1"],
)
def test_shared_prefix_is_found_in_the_cache(policy: str, reused: int, recomputed: int) -> None:
    summary = run_of(policy, several()[:2]).summary

    assert (summary.reused_tokens, summary.recomputed_tokens) == (reused, recomputed)


@each_policy
def test_request_that_no_run_completes_is_refused(policy: str) -> None:
    with pytest.raises(WorkloadError, match="prompt_len \\+ max_tokens: found 33"):
        claims_of(policy).refuse_unservable(request("0", 30, 3), configured(policy))


def batch_works(policy: str, requests: list[Request], **more: Any) -> list[Work]:
    case = Case(configured(policy, **more), tuple(requests))
    return [presentation_of(policy).work(case.config, step) for step in served(case)]


def test_work_of_a_mixed_step_is_chunks_and_rows() -> None:
    """A budget of 6: 4 tokens of 0; then its second token and 5 of 1; then the rest of both."""
    requests = [request("0", 4, 3), request("1", 7, 2, arrival=1)]

    assert batch_works(VLLM_V1, requests, max_num_batched_tokens=6) == [
        Work(
            kind="prefill",
            chunk_tokens=4,
            attended_tokens=1 + 2 + 3 + 4,
            prefills=(Prefill("0", 4),),
        ),
        Work(
            kind="prefill",
            chunk_tokens=5,
            rows=1,
            cached_tokens=4,
            attended_tokens=5 + (1 + 2 + 3 + 4 + 5),
            prefills=(Prefill("1", 7),),
        ),
        Work(
            kind="prefill",
            chunk_tokens=2,
            rows=1,
            cached_tokens=10,
            attended_tokens=6 + (6 + 7),
        ),
        Work(kind="decode", rows=1, cached_tokens=7, attended_tokens=8),
    ]


def test_work_of_a_batched_prefill_reads_what_is_cached() -> None:
    """The second prompt finds two blocks of the first."""
    assert batch_works(NANO_VLLM, several()[:2])[:4] == [
        Work(
            kind="prefill",
            chunk_tokens=11,
            attended_tokens=66,
            prefills=(Prefill("0", 11),),
        ),
        Work(kind="decode", rows=1, cached_tokens=11, attended_tokens=12),
        Work(kind="decode", rows=1, cached_tokens=12, attended_tokens=13),
        Work(
            kind="prefill",
            chunk_tokens=2,
            cached_tokens=8,
            attended_tokens=9 + 10,
            prefills=(Prefill("1", 10, 8),),
        ),
    ]


def test_clock_charges_a_step_that_computes_any_part_of_a_prompt_for_a_prefill() -> None:
    config = configured(VLLM_V1, max_num_batched_tokens=6, prefill_time=5)
    requests = (request("0", 4, 3), request("1", 7, 2, arrival=1))
    cost = CostModel.from_mapping({"per_row": 0.5, "per_chunk_token": 0.25}, config)

    steps = served(Case(config, requests), cost=cost)

    assert [step.time for step in steps] == [0, 6, 6 + 6.75, 6 + 6.75 + 6]
