"""Guided campaigns: what they keep, how it is mutated, what they reach and find."""

from pathlib import Path
from time import process_time
from typing import Any

import pytest

from checks.harness.campaigns import guiding
from checks.harness.campaigns.campaign import Batches, Campaign, Plan, campaign, run_batch
from checks.harness.campaigns.guiding import Kept, Start, known_episodes, start
from checks.harness.campaigns.resuming import read_campaign, save_campaign
from checks.harness.choices import Choices
from checks.harness.comparison import Terms
from checks.harness.policy import Own, evidence_of
from checks.harness.situations import Advice, all_situations
from checks.registry import POLICIES, claims_of
from tests.checks.harness.campaigns.blind_spots import BLIND_SPOTS
from tests.checks.harness.cases import UNJUDGED, There, faulty

EPISODES = 40
SECONDS = 60.0  # of a core, within which each blind spot is found
ADVICE = [
    pytest.param(policy, advice, id=f"{policy}, {advice.situation}")
    for policy in POLICIES
    for advice in evidence_of(policy).labels.advice
]
each_policy = pytest.mark.parametrize("policy", POLICIES)


def plan(policy: str, seed: int = 0, **pinned: Any) -> Plan:
    return Plan(Own(policy, "reference"), seed, UNJUDGED, pinned)


def in_turn(plan: Plan, episodes: int = EPISODES, seen: Campaign | None = None) -> Campaign:
    """The campaign, one episode after the other; `seen`: what it has seen so far."""
    seen = seen or Campaign(plan)
    for episode in range(seen.episodes, episodes):
        seen.add(run_batch(plan, seen.starts([episode])))
    return seen


@pytest.mark.parametrize(
    "policy",
    [
        name if name == "nano-vllm" else pytest.param(name, marks=pytest.mark.thorough)
        for name in POLICIES
    ],
)
def test_a_campaign_is_the_same_on_one_core_and_on_several(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guiding, "DRAWN_FIRST", 4)
    here = plan(policy)

    alone, together = in_turn(here), campaign(here, Batches(1, EPISODES, 0.0), lambda _seen: None)

    assert any(entry.parents for first in range(EPISODES) for entry in together.starts([first]))
    assert (alone.kept, alone.situations) == (together.kept, together.situations)
    assert alone.counts == together.counts


def test_a_campaign_that_is_resumed_mutates_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guiding, "DRAWN_FIRST", 4)
    here, path = plan("nano-vllm"), tmp_path / "kept"
    save_campaign(in_turn(here, EPISODES // 2), path)

    whole, resumed = in_turn(here), in_turn(here, seen=read_campaign(here, path))

    assert (whole.kept, whole.situations) == (resumed.kept, resumed.situations)


@each_policy
def test_what_is_reached_is_in_the_table(policy: str) -> None:
    seen = in_turn(plan(policy))

    assert seen.situations.keys() <= all_situations(evidence_of(policy).labels.situations)
    assert len(seen.situations) > 200
    assert {name for kept in seen.kept for name in kept.reached} == {
        *seen.situations,
        *seen.pairs,
    }


@each_policy
def test_a_mutated_case_can_be_served_and_made_again(policy: str) -> None:
    here = plan(policy)
    parents = [here.case(episode).choices for episode in range(20)]

    for episode in range(100):
        case = here.started(Start(episode, (parents[episode % 20], parents[episode // 5])))
        for request in case.requests:
            claims_of(policy).refuse_unservable(request, case.config)
        assert here.drawn(Choices.again(case.choices)) == case


def test_an_episode_mutates_what_was_kept_well_before_it() -> None:
    kept = [Kept(episode, (episode,), frozenset({str(episode)})) for episode in range(300)]
    seen = Campaign(plan("nano-vllm"), kept=kept)

    starts = [entry for first in range(200, 300) for entry in seen.starts([first])]
    mutated = [entry for entry in starts if entry.parents]

    assert 0.1 < len(mutated) / len(starts) < 0.4
    for entry in mutated:
        assert all(node[0] < known_episodes(entry.episode) for node in entry.parents)


def test_without_anything_kept_an_episode_is_drawn() -> None:
    assert [start(0, n, ()) for n in range(200, 240)] == [Start(n) for n in range(200, 240)]


@pytest.mark.parametrize(("policy", "advice"), ADVICE)
def test_advice_reaches_its_situation(policy: str, advice: Advice) -> None:
    config = claims_of(policy).config.from_mapping(dict(advice.settings))
    pinned = {key: getattr(config, key) for key in advice.settings}

    seen = Campaign(plan(policy, **pinned))
    while seen.episodes < 600 and not seen.situations[advice.situation]:
        seen.add(run_batch(seen.plan, seen.starts(range(seen.episodes, seen.episodes + 20))))

    assert seen.situations[advice.situation], str(advice)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", BLIND_SPOTS)
def test_a_blind_spot_is_found_within_a_minute(name: str, seed: int) -> None:
    policy, fault = BLIND_SPOTS[name]
    here = Plan(There(faulty(fault, policy)), seed, Terms())

    seen, began, episode = Campaign(here), process_time(), 0
    while not seen.first_seen and process_time() - began < SECONDS:
        seen.add(run_batch(here, seen.starts([episode])))
        episode += 1

    assert seen.first_seen, f"not in {seen.episodes} episodes"
