"""The record of the default instances: exact counts and verdicts, no vacuous rule."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from checks.evidence import EXPLORED, recorded, recorded_verdicts
from checks.explore.instance import title_of
from checks.explore.policy import machine_of
from checks.registry import POLICIES, claims_of
from tests.checks import refuted_vllm_v0
from tests.checks.command import Ran, lockstep

INSTANCES = [instance for policy in POLICIES for instance in machine_of(policy).instances]

each_policy = pytest.mark.parametrize("policy", POLICIES)


_FAST_STATES = 500  # larger instances are explored in the thorough tier


def telling_instances() -> list[str]:
    """For each rule the smallest instance that witnesses it, and the smallest that refutes it."""
    kept = sorted(recorded(EXPLORED).items(), key=lambda entry: entry[1]["states"])
    shown: set[tuple[str, str]] = set()
    telling = []
    for title, entry in kept:
        shows = {(part, rule) for part in ("witnesses", "violations") for rule in entry[part]}
        if entry["states"] < _FAST_STATES and not shows <= shown:
            telling.append(title)
            shown |= shows
    return telling


@pytest.fixture(scope="module", params=["telling", pytest.param("all", marks=pytest.mark.thorough)])
def explored(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Ran, Mapping[str, Any], Path]:
    """Instances compared with the record: exit code, report, counterexamples."""
    place = tmp_path_factory.mktemp("explored")
    report = place / "report.json"
    asked = telling_instances() if request.param == "telling" else []
    ran = lockstep("explore", *asked, "--expect", "recorded", "--json", report, "--out", place)
    instances = json.loads(report.read_text(encoding="utf-8"))["instances"]
    titles = {instance["instance"] for instance in instances}
    assert titles == {*(asked or recorded(EXPLORED))}
    return ran, {instance["instance"]: instance for instance in instances}, place


def test_the_default_set_is_explored_to_the_recorded_counts_and_verdicts(
    explored: tuple[Ran, Mapping[str, Any], Path],
) -> None:
    ran, report, _ = explored
    assert ran.code == 0
    assert " verdicts as expected, 0 otherwise" in ran.out
    for name, found in report.items():
        kept = recorded(EXPLORED)[name]
        assert found["stopped_by"] is None
        seen = {rule: edges for rule, edges in found["witnesses"].items() if edges}
        now = {key: found[key] for key in kept if key != "witnesses"} | {"witnesses": seen}
        assert now == kept, name


def test_every_instance_is_on_record_under_a_title_of_its_own() -> None:
    assert list(recorded(EXPLORED)) == [title_of(instance) for instance in INSTANCES]


_STARVES = (
    "open, exact, overtaking",
    "open, shortest",
    "open, exact, not interleaved",
    "open, shipped",
    "open, pausing, a single token",
    "open, pausing, not interleaved, a single token",
)

_NEVER_SERVED = (
    "pausing, over the limit",
    "exact, over the limit",
    "exact, larger than the pool",
)
WAITS_FOR_EVER = (  # a session or an image, and all behind it
    *("sessions", "sessions, 0.33.0", "sessions, blocks", "sessions, blocks, 0.33.0"),
    *("sessions, too long", "sessions, too long, 0.33.0"),
    *("sessions, preempted", "sessions, preempted, 0.33.0"),
    *("encoder, whole and capped, 0.33.0", "encoder, read ahead, side by side"),
    "groups, states, encoder, whole, 0.33.0",
)
REFUTED = {
    "LIF-6": (*_NEVER_SERVED, "released", *_STARVES),
    **dict.fromkeys(("SPY-CHK-3", "SPY-CHK-5", "SPY-RES-4"), ("released",)),
    "LIF-5": ("released", "grammar, released"),
    **dict.fromkeys(("SPY-ENC-1", "SPY-ENC-4"), ("images, released",)),
    "SPY-PRI-4": (*_NEVER_SERVED, "released", "grammar, released"),
    "SPY-PAU-5": (_NEVER_SERVED[0], *_STARVES[-2:]),
    "SPY-VOL-1": ("documented",),
    "SPY-LEN-1": ("odd length, shipped", "odd length, documented", "odd length, exact"),
    "SPY-PAU-6": ("shipped, not interleaved",),
    "NANO-BLK-4": ("same tokens twice", "documented"),
    "NANO-DEC-1": ("budget", "left behind", "newest, budget", "open, left behind"),
    "NANO-DEC-3": ("documented",),
    "NANO-LIF-6": ("oversized", "open, a single token", "open, repaired, a single token"),
    "NANO-LIF-7": ("oversized",),
    "NANO-PFX-1": ("documented", "hashed ahead"),
    "NANO-PFX-2": ("same tokens twice",),
    "NANO-PFX-3": (
        "same block elsewhere",
        "same tokens twice",
        "documented",
        "documented, eviction",
    ),
    "NANO-PFX-4": ("same tokens twice", "documented"),
    "NANO-PFX-6": (
        "shared prefix",
        "all of it shared",
        "decoded first",
        "decoded first, preemption",
        "same answers",
        "repaired, shared prefix",
    ),
    "NANO-PFX-7": ("shared prefix",),
    "NANO-PFX-8": (
        "shared prefix",
        "all of it shared",
        "same block elsewhere",
        "same tokens twice",
        "documented, eviction",
    ),
    "NANO-PFX-9": ("same answers", "newest, shared prefix"),
    "NANO-PRE-3": ("left behind", "decoded first, preemption"),
    "NANO-PRE-4": (
        "preemption",
        "left behind",
        "decoded first, preemption",
        "same tokens twice",
        "same answers",
        "documented",
        "repaired, preemption",
        "repaired, shared prefix",
        "newest, budget",
        "newest, preemption",
        "newest, shared prefix",
    ),
    "NANO-SLT-1": ("decoded first",),
    "V1-BUD-4": ("priority", "encoder, priority"),
    "V1-ENC-2": ("encoder, priority", "encoder, priority, 0.33.0"),
    "V1-ENC-5": ("encoder, repeated",),
    "V1-ENC-6": ("encoder, read ahead, side by side",),
    "V1-ENC-9": (
        *("encoder, whole", "encoder, whole and capped", "encoder, read ahead, whole"),
        "groups, states, encoder, whole",
    ),
    "V1-ENC-10": ("encoder, read ahead, side by side",),
    "V1-GRP-1": ("groups, window, async, whole", "groups, window, async, whole, 0.33.0"),
    "V1-GRP-2": ("groups, states in flight",),
    "V1-KV-7": ("sessions, too long", "sessions, too long, 0.33.0"),
    "V1-KV-10": ("sync load, lost", "sync load, gone", "in flight, loads lost"),
    "V1-KV-19": (
        *("priority, hashed ahead", "sync load, lost", "sync load, gone"),
        "groups, priority, hashed ahead",
    ),
    "V1-KV-12": ("priority, hashed ahead", "sync load, lost", "sync load, gone"),
    "V1-PRG-3": ("speculation, padding, model length", "encoder, read ahead, side by side"),
    "V1-LIF-7": ("oversized", "oversized, answer"),
    "V1-PRG-4": (
        "async load, answered in front",
        "async load, priority",
        "async load, lookahead",
        "oversized",
        "oversized, answer",
        "pooling",
        *WAITS_FOR_EVER,
    ),
    "V1-PRG-5": (
        "async load, answered in front",
        "async load, priority",
        "async load, lookahead",
        "open, priority",
        "open, uncut, 0.11.2",
        "oversized",
        "oversized, answer",
        "in flight, preempted in vain",
        "pooling",
        *WAITS_FOR_EVER,
    ),
    **refuted_vllm_v0.REFUTED,
}


@each_policy
def test_exactly_the_known_rules_are_refuted(policy: str) -> None:
    rules = [*claims_of(policy).registry.rules.values()]
    titles = {title_of(instance): instance.name for instance in machine_of(policy).instances}
    refuted = {verdict.rule.id: verdict.refuted_in for verdict in recorded_verdicts(rules)}

    named = {
        rule: tuple(titles[instance] for instance in where)
        for rule, where in refuted.items()
        if where
    }

    assert named == {rule: where for rule, where in REFUTED.items() if rule in refuted}


def test_every_counterexample_is_confirmed_by_replay(
    explored: tuple[Ran, Mapping[str, Any], Path],
) -> None:
    _, report, place = explored
    files = sorted(place.glob("*.jsonl"))
    assert len(files) == sum(len(found["violations"]) for found in report.values()) > 50
    for file in files:
        ran = lockstep("replay", file)
        assert (ran.code, ran.out.splitlines()[-1]) == (1, "the violation is confirmed")
