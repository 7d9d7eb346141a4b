"""The engine's reachable states and steps are the reference's: all of them, not a sample."""

from collections.abc import Sequence
from typing import Any

import pytest
from attrs import evolve

from checks.explore.policy import machine_of
from checks.harness.policy import system_of
from checks.harness.system import ENGINE
from engine.core.blocks import BlockManager
from engine.nano_vllm import running as nano_vllm_running
from engine.nano_vllm.blocks import BlockManager as NanoVllmBlockManager
from engine.nano_vllm.scheduler import Scheduler as NanoVllmScheduler
from engine.vllm_v1 import apply, running
from engine.vllm_v1.blocks import BlockManager as VllmV1BlockManager
from spec.core.errors import ConfigError
from spec.nano_vllm.config import Hashing, Prefill
from tests.checks.faults.patches import Wrong, always
from tests.checks.faults.planting import Planted
from tests.checks.policies.engine_model import first_difference, models

BY_NAME = {
    policy: {instance.name: instance for instance in machine_of(policy).instances}
    for policy in ("spyre", "nano-vllm", "vllm-v1")
}
# Small enough for every run. Together they have the fields of COVERED, and:
FAST = {
    # caching, eviction and preemption
    "spyre": {
        *("documented, length", "odd length, shipped", "preemption, shared prefix"),
        *("aligned, preemption", "open, shortest", "open, pausing, a single token"),
    },
    # caching and eviction, false hits, preemption, requests that can never be served
    "nano-vllm": {
        *("budget", "left behind", "same block elsewhere", "same tokens twice", "oversized"),
        *("documented, eviction", "repaired, same block elsewhere"),
    },
    # preemption by both policies, caching within a step and eviction, drafts and filling up,
    # lookahead, loads that come, are lost or left, steps in flight, groups of layers, sessions,
    # images
    "vllm-v1": {
        *("fcfs, two victims", "open, priority", "priority, hashed ahead", "uncut, 0.11.2"),
        *("eviction, 0.11.2", "speculation, padding, model length", "lookahead"),
        *(
            "speculation, padding, 0.33.0",
            "speculation, fewer drafts",
            "async load, drafts, 0.33.0",
        ),
        *("async load, priority", "sync load, lost", "sync load, gone", "open, async load"),
        *("in flight, drafts", "in flight, preempted in vain"),
        *("groups, not cached", "groups, states and a window", "groups, windows of larger blocks"),
        *("sessions, blocks", "pooling", "encoder, evicted"),
    },
}
COVERED = {
    "spyre": ("aborts early_ends", "reservation may_pause admission queue"),
    "nano-vllm": ("aborts early_ends", "token_gate sequence_limit hit_check full_hit oversized"),
    "vllm-v1": (
        "aborts early_ends failing leavers fewer_drafts",
        "scheduling release connector chunked_prefill prefix_caching",
    ),
}
UNREAD = {"decoded first", "decoded first, preemption"}  # a reading that nano-vLLM's engine lacks
LATER = {  # readings of later commits, which it lacks, too
    name
    for name, instance in BY_NAME["nano-vllm"].items()
    if instance.config.prefill is not Prefill.WHOLE
    or instance.config.hashing is not Hashing.ALLOCATED
}
NOT_COMPARED = {
    # a reading that the engine refuses
    "spyre": {"released", "grammar, released", "images, released"},
    "nano-vllm": UNREAD | LATER | {"documented"},  # where the reference stops, at NANO-SLT-1
    "vllm-v1": set[str](),
}
COMPARED = {
    policy: [name for name in instances if name not in NOT_COMPARED[policy]]
    for policy, instances in BY_NAME.items()
}


def fast(policy: str) -> set[str]:
    """The instances of every run: those named, and the first with each value that they lack."""
    chosen = {*FAST[policy]}
    for key in COVERED[policy][1].split():
        value = {name: getattr(BY_NAME[policy][name].config, key) for name in COMPARED[policy]}
        lacking = {*value.values()} - {value[name] for name in chosen}
        chosen |= {next(name for name in value if value[name] == each) for each in lacking}
    return chosen


@pytest.mark.parametrize(
    ("policy", "name"),
    [
        pytest.param(policy, name, marks=() if name in fast(policy) else pytest.mark.thorough)
        for policy, names in COMPARED.items()
        for name in names
    ],
)
def test_engine_has_the_states_and_steps_of_the_reference(policy: str, name: str) -> None:
    assert first_difference(*models(policy, BY_NAME[policy][name])) is None


@pytest.mark.parametrize("policy", FAST)
def test_fast_instances_bring_about_what_is_worth_comparing(policy: str) -> None:
    instances = [BY_NAME[policy][name] for name in fast(policy)]

    for event in COVERED[policy][0].split():
        assert any(getattr(instance, event) for instance in instances), event


def test_engines_refuse_what_only_the_reference_can_do() -> None:
    for policy in ("spyre", "vllm-v1"):
        can_do = system_of(policy, ENGINE).hello.can_do
        refused = {name for name, case in BY_NAME[policy].items() if not can_do(case.config)}
        assert refused == NOT_COMPARED[policy]
    for names, keys in ((UNREAD, "full_hit"), (LATER, "prefill|hashing")):
        for name in names:
            with pytest.raises(ConfigError, match=keys):
                NanoVllmScheduler(BY_NAME["nano-vllm"][name].config)


# --- faults ---------------------------------------------------------------------------------------


def head_first(right: Wrong, blocks: Any, table: Sequence[int]) -> None:
    """A block table is released from its head on."""
    right(blocks, table[::-1])


def by_content(_right: Wrong, _blocks: Any, _block: int, key: object) -> bool:
    """Blocks without content go in front of the free list in every release."""
    return key is not None


def leavers_stay(right: Wrong, state: Any, results: Any, outcome: Any, turns: Any) -> None:
    """A client that goes away while the model runs is not noticed."""
    right(state, evolve(results, leavers=()), outcome, turns)


# Where the fault shows, where it is planted, and the wrong function. Only the graph shows those
# that random cases do not reach: they name no request that ends, no client leaves while the model
# runs, they follow the newest release and rarely have a victim by priority.
FAULTS: dict[str, tuple[str, str, Any, str, Any]] = {
    "head first, Spyre": ("spyre", "documented, length", BlockManager, "release", head_first),
    "head first, nano-vLLM": (
        *("nano-vllm", "left behind"),
        *(NanoVllmBlockManager, "release", head_first),
    ),
    "limit not seen, nano-vLLM": (
        *("nano-vllm", "left behind"),
        *(nano_vllm_running.Running, "full", always([])),
    ),
    "head first, vLLM V1": (
        *("vllm-v1", "speculation"),
        *(VllmV1BlockManager, "release", head_first),
    ),
    "leavers stay": ("vllm-v1", "sync load, gone", apply, "let_go", leavers_stay),
    "release not asked": (
        *("vllm-v1", "eviction, 0.11.2"),
        *(VllmV1BlockManager, "is_kept", by_content),
    ),
    "left out and counted on": ("vllm-v1", "priority", apply, "_stop_decoding", always(None)),
    "limit not seen, vLLM V1": ("vllm-v1", "priority", running.Running, "full", always([])),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_noticed(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, name, place, attribute, wrong = FAULTS[fault]
    Planted("", "", place, attribute, wrong).plant(monkeypatch)

    assert first_difference(*models(policy, BY_NAME[policy][name])) is not None
