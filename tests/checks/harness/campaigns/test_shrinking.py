"""Shrinking keeps the finding under every policy."""

from functools import cache
from typing import Any

import pytest
from attrs import evolve

from checks.harness.campaigns.campaign import FirstSeen, Plan, shrunk
from checks.harness.campaigns.shrinking import MOST_STEPS, Budget, Shrunk, simpler_nodes
from checks.harness.choices import Choices
from checks.harness.finding import Kind
from checks.harness.policy import Own
from checks.harness.system import InProcess
from spec.vllm_v1.config import Connector
from tests.checks.faults.nano_vllm import FAULTS as NANO_VLLM_FAULTS
from tests.checks.faults.vllm_v1 import FAULTS as VLLM_V1_FAULTS
from tests.checks.harness.cases import SPYRE_FAULTS, UNJUDGED, case, faulty, found_in, hunt
from tests.recorded.scenes import asks

FAULTS = {
    "spyre": SPYRE_FAULTS,
    "nano-vllm": {fault.name: fault for fault in NANO_VLLM_FAULTS},
    "vllm-v1": {fault.name: fault for fault in VLLM_V1_FAULTS},
}


@cache
def system(policy: str, name: str) -> InProcess:
    return faulty(FAULTS[policy][name], policy)


def small(system: InProcess, most_steps: int = MOST_STEPS, **pinned: Any) -> Shrunk:
    """The first finding in random cases, shrunk."""
    found = hunt(system, 100, **pinned)
    assert found.case is not None
    assert found.finding is not None
    first = FirstSeen(found.episode, found.case, UNJUDGED, found.finding)
    return shrunk(Plan(system, 1, UNJUDGED, pinned), first, Budget(most_steps))


@pytest.mark.parametrize(
    ("policy", "name", "requests", "tokens"),
    [
        ("spyre", "exact forgets the candidate", 3, 9),  # the third overtakes
        ("spyre", "second holder not counted", 2, 13),
        ("nano-vllm", "last in first out", 2, 4),
        ("vllm-v1", "running tokens are free", 1, 3),
        ("vllm-v1", "rejected drafts stay", 1, 4),
        *(
            pytest.param(*row, marks=pytest.mark.thorough)
            for row in (
                ("spyre", "prefills not interleaved", 2, 6),
                ("spyre", "preempted goes to the back", 3, 16),
                ("spyre", "none paused", 2, 7),
                ("nano-vllm", "hashes not chained", 1, 4),
                ("nano-vllm", "victim keeps its table", 2, 9),
                ("vllm-v1", "victim keeps its blocks", 2, 8),
                ("vllm-v1", "victim at the end of the queue", 4, 11),  # contended: four slots
                ("vllm-v1", "blocks of a lost load are given back", 2, 6),  # the loss is drawn
            )
        ),
    ],
)
def test_a_shrunk_case_is_small_and_shows_the_same(
    policy: str, name: str, requests: int, tokens: int
) -> None:
    shrunk = small(system(policy, name))

    assert shrunk.size[0] <= requests
    assert shrunk.size[1] <= tokens
    assert found_in(system(policy, name), shrunk.case) == shrunk.finding


FORGETS = system("spyre", "exact forgets the candidate")


def test_shrinking_stops_at_its_limit_of_steps() -> None:
    shrunk = small(FORGETS, most_steps=100)

    assert 100 <= shrunk.steps < 300
    assert found_in(FORGETS, shrunk.case) == shrunk.finding


def test_nothing_is_left_out_that_the_finding_needs() -> None:
    """One request arrives before another: neither can go, nor can the order."""
    shrunk = small(system("spyre", "arrives in front"))

    assert shrunk.finding.signature == (Kind.DIVERGENCE, "before.waiting")
    assert shrunk.case.as_mapping()["requests"] == [
        {"id": "0", "arrival": 0, "prompt_len": 1, "max_tokens": 1},
        {"id": "1", "arrival": 0, "prompt_len": 1, "max_tokens": 1},
    ]
    config = shrunk.case.config
    assert (config.block_size, config.chunk_size, config.max_model_len) == (1, 1, 2)
    assert (config.pausing, config.prefix_caching, config.num_blocks) == (False, False, None)


def test_pinned_keys_stay() -> None:
    config = small(system("spyre", "arrives in front"), pausing=True, block_size=2).case.config

    assert (config.pausing, config.block_size) == (True, 2)


def test_a_system_is_not_asked_for_what_it_cannot_do() -> None:
    able = system("spyre", "arrives in front")
    able = evolve(able, hello=evolve(able.hello, config={"block_size": [2, 4]}))

    assert small(able).case.config.block_size == 2


def test_a_case_that_was_not_drawn_stays_as_it_is() -> None:
    here = case(asks("0", 3, 3), asks("1", 5, 2))
    arrives = system("spyre", "arrives in front")
    first = FirstSeen(0, here, UNJUDGED, found_in(arrives, here))

    small = shrunk(Plan(arrives), first)

    assert evolve(small, finding=first.finding) == Shrunk(here, first.finding)
    assert small.finding.evidence == (
        "in step 0; no rule broke in 6 further steps; its tokens equal those served alone, as it"
        " reports them"
    )


@pytest.mark.thorough
def test_a_prompt_made_as_short_as_a_token_has_nothing_to_load() -> None:
    """All of it loaded, it would be loaded again for ever, which is another finding."""
    plan = Plan(Own("vllm-v1", "reference"), pinned={"connector": Connector.ASYNC})
    case = next(case for case in map(plan.case, range(100)) if case.surroundings.get("external"))

    simpler = [plan.drawn(Choices.again(node)) for node in simpler_nodes(case.choices)]

    assert any("external" in candidate.surroundings for candidate in simpler)
    for candidate in simpler:
        short = {request.id for request in candidate.requests if request.prompt_len == 1}
        assert not short & candidate.surroundings.get("external", {}).keys()
