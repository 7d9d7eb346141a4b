"""Findings get small and stay what they are."""

import pytest
from attrs import evolve
from checks.fuzz.campaign import Plan
from checks.fuzz.cases import Case, External
from checks.fuzz.finding import Kind
from checks.fuzz.lockstep import Terms, run_case
from checks.fuzz.paged_shrink import simpler_paged_cases
from checks.fuzz.shrink import MOST_STEPS, Shrunk, shrink
from tests.checks.fuzz.cases import case, request
from tests.checks.fuzz.faulty import faulty

from spec.vllm_v1.config import Connector, VllmV1Config


def shrunk(name: str, most_steps: int = MOST_STEPS) -> Shrunk:
    """The first finding of a fault, made smaller."""
    subject = faulty(name)
    plan = Plan(subject)
    for episode in range(100):
        drawn = plan.case(episode)
        finding = run_case(subject, drawn).finding
        if finding is not None:
            return shrink(subject, drawn, finding, plan.terms, most_steps=most_steps)
    raise AssertionError("not found")


@pytest.mark.parametrize(
    ("name", "requests", "tokens"),
    [
        ("arrives in front", 2, 4),
        ("prefills not interleaved", 2, 6),
        ("exact forgets the candidate", 2, 8),
        ("second holder not counted", 2, 10),
        ("preempted goes to the back", 3, 16),
        ("none paused", 2, 7),
    ],
)
def test_a_shrunk_case_is_small_and_shows_the_same(name: str, requests: int, tokens: int) -> None:
    small = shrunk(name)

    assert len(small.case.requests) <= requests
    assert sum(one.prompt_len + one.max_tokens for one in small.case.requests) <= tokens
    again = run_case(faulty(name), small.case).finding
    assert again is not None
    assert again == small.finding


def test_shrinking_ends_where_it_ended_before() -> None:
    assert shrunk("exact forgets the candidate") == shrunk("exact forgets the candidate")


def test_shrinking_stops_when_its_steps_are_used_up() -> None:
    small = shrunk("exact forgets the candidate", most_steps=100)

    assert 100 <= small.steps < 300
    assert run_case(faulty("exact forgets the candidate"), small.case).finding == small.finding


def test_nothing_is_left_out_that_the_finding_needs() -> None:
    """One request arrives before another: neither can go, nor can the order."""
    here = case(
        request("7", 9, 5, output=(1, 2), abort_at=9),
        request("8", 6, 6, arrival=3, output_len=2),
        request("9", 6, 6, arrival=3),
        prefix_caching=True,
        pausing=True,
        num_blocks=30,
    )
    subject = faulty("arrives in front")
    finding = run_case(subject, here).finding
    assert finding is not None

    small = shrink(subject, here, finding, Terms())

    assert small.finding.signature == (Kind.DIVERGENCE, "before.waiting")
    assert small.case.as_mapping()["requests"] == [
        {"id": "0", "arrival": 0, "prompt_len": 1, "max_tokens": 1},
        {"id": "1", "arrival": 0, "prompt_len": 1, "max_tokens": 1},
    ]
    config = small.case.config
    assert (config.block_size, config.chunk_size, config.max_model_len) == (1, 1, 2)
    assert (config.pausing, config.prefix_caching, config.num_blocks) == (False, False, None)


def test_pinned_keys_stay() -> None:
    here = case(request("0", 3, 3), request("1", 5, 2), pausing=True, block_size=2)
    subject = faulty("arrives in front")
    finding = run_case(subject, here).finding
    assert finding is not None

    small = shrink(subject, here, finding, Terms(), pinned=("pausing", "block_size"))

    assert (small.case.config.pausing, small.case.config.block_size) == (True, 2)


def test_a_target_is_not_asked_for_what_it_cannot_do() -> None:
    here = case(request("0", 3, 3), request("1", 5, 2))
    subject = evolve(faulty("arrives in front"), can_do=lambda config: config.block_size == 2)
    finding = run_case(subject, here).finding
    assert finding is not None

    assert shrink(subject, here, finding, Terms()).case.config.block_size == 2


def test_a_prompt_made_as_short_as_a_token_has_nothing_to_load() -> None:
    """All of it loaded, it would be loaded again for ever, which is another finding."""
    config = VllmV1Config(block_size=4, max_model_len=16, connector=Connector.ASYNC)
    drawn = Case(config, (request("a", 2, 2), request("b", 5, 2)), external={"a": External(4)})

    simpler = list(simpler_paged_cases(drawn))

    shorter = [one for one in simpler if one.requests[0].prompt_len == 1]
    assert shorter
    assert all(not one.external for one in shorter)
