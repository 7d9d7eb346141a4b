"""Every policy's engine, observed on its simulated device, takes the steps of the reference."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from checks.cli.configuration import read_settings
from checks.harness.campaigns.campaign import Plan
from checks.harness.case import Case
from checks.harness.comparison import compare
from checks.harness.finding import Episode, Finding
from checks.harness.policy import Own
from checks.harness.runs.serving import served, served_by
from checks.harness.system import ENGINE
from checks.policies.nano_vllm import engine as nano_vllm
from checks.policies.spyre import engine as spyre
from checks.policies.vllm_v1 import engine as vllm_v1
from checks.registry import claims_of
from engine.workloads import fit_for, read_workload
from spec.nano_vllm.config import FullHit, HitCheck, NanoVllmConfig, repaired
from spec.spyre.config import SpyreConfig
from spec.vllm_v1.config import VllmV1Config
from spec.vllm_v1.releases import Release

EXAMPLES = Path(__file__).parents[3] / "examples"
ENGINES: dict[str, Any] = {"nano-vllm": nano_vllm, "spyre": spyre, "vllm-v1": vllm_v1}
SMALL: Any = {"block_size": 4, "max_num_seqs": 3, "num_blocks": 150, "max_model_len": 512}
OWN: Any = read_settings(EXAMPLES / "first.toml").config


# --- workloads ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workload", "config"),
    [
        ("first.jsonl", OWN),
        ("tiny.jsonl", read_settings(EXAMPLES / "tiny.toml").config),
        ("shared_prefix.jsonl", SpyreConfig()),
        ("shared_prefix.jsonl", OWN),
        ("mooncake_sample.jsonl", SpyreConfig(max_num_seqs=4)),
        ("azure_sample.csv", SpyreConfig(pausing=True, max_batch_tkv_limit=40_000)),
        ("shared_prefix.jsonl", repaired(**SMALL)),
        ("azure_sample.csv", NanoVllmConfig(num_blocks=90)),
        ("mooncake_sample.jsonl", repaired(max_model_len=16_384, num_blocks=200)),
        ("shared_prefix.jsonl", VllmV1Config(**SMALL, num_speculative_tokens=2, accepted_drafts=1)),
        ("azure_sample.csv", VllmV1Config(num_blocks=1_000, max_num_seqs=8)),
    ],
)
def test_example_workloads_are_served_as_by_the_reference(workload: str, config: Any) -> None:
    refuse = claims_of(config.policy).refuse_unservable
    requests, _ = fit_for(read_workload(EXAMPLES / workload), lambda asked: refuse(asked, config))
    case = Case(config, tuple(requests))

    steps = list(served(case, ENGINE))

    assert steps == list(served(case))
    assert steps == list(served_by(ENGINES[config.policy].without_device(case), case))
    assert steps[-1].after.is_idle


# --- random cases -------------------------------------------------------------------------------


def outcomes(policy: str, count: int, seed: int, **pinned: Any) -> Iterator[Episode]:
    """The outcomes of random cases; `pinned`: configuration keys with a fixed value."""
    plan = Plan(Own(policy, ENGINE), seed, pinned=pinned)
    return (compare(plan.system.open(), plan.case(n), plan.terms_of(n)) for n in range(count))


def findings(policy: str, count: int, seed: int, **pinned: Any) -> Iterator[Finding]:
    episodes = outcomes(policy, count, seed, **pinned)
    return (episode.finding for episode in episodes if episode.finding is not None)


SITUATIONS = {
    "nano-vllm": ("prefix_hit", "preempt", "allocate", "early end", "abort, running"),
    "spyre": ("prefix_hit", "eviction", "preempt", "pause", "resume", "jump_tkv", "early end"),
    "vllm-v1": ("prefix_hit", "preempt", "chunk", "accepted draft", "loaded", "load_failed"),
}


@pytest.mark.parametrize("policy", SITUATIONS)
def test_random_cases_are_served_as_by_the_reference(policy: str) -> None:
    episodes = [*outcomes(policy, 50, seed=4)]

    assert [episode.finding for episode in episodes if episode.finding is not None] == []
    counts = sum((Counter(episode.counts) for episode in episodes), Counter[str]())
    assert [situation for situation in SITUATIONS[policy] if not counts[situation]] == []


@pytest.mark.parametrize("count", [5, pytest.param(40, marks=pytest.mark.thorough)])
@pytest.mark.parametrize(
    ("policy", "pinned"),
    [
        ("nano-vllm", {"hit_check": HitCheck.HASH, "full_hit": FullHit.LAST_COMPUTED}),
        ("vllm-v1", {"release": Release.V0_11_2}),
        ("vllm-v1", {"connector": "async"}),
        ("vllm-v1", {"connector": "async", "release": "0.11.2"}),
        ("spyre", {"reservation": False, "max_num_seqs": 4, "block_size": 2}),
        ("spyre", {"queue": "overtaking", "reservation": False, "block_size": 2}),
        ("spyre", {"queue": "overtaking", "reservation": True, "prefix_caching": True}),
        ("spyre", {"queue": "overtaking", "pausing": True}),
    ],
    ids=str,
)
def test_random_cases_of_a_configuration_are_served_as_by_the_reference(
    policy: str, pinned: dict[str, Any], count: int
) -> None:
    assert [*findings(policy, count, seed=7, **pinned)] == []


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("policy", ENGINES)
def test_many_random_cases_are_served_as_by_the_reference(policy: str, seed: int) -> None:
    episodes = 600 if policy == "vllm-v1" else 1_000

    assert [*findings(policy, episodes, seed=1_000 + seed)] == []
