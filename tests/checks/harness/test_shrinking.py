"""Findings get small and stay what they are, whatever the policy."""

import pytest

from checks.harness.campaign import MOST_STEPS, FirstSeen, Plan, shrunk
from checks.harness.finding import Finding
from checks.harness.shrinking import Shrunk
from checks.harness.system import InProcess
from tests.checks.harness.cases import UNJUDGED, faulty_spyre, found_in, hunt


def small(system: InProcess, most_steps: int = MOST_STEPS) -> Shrunk[Finding]:
    """The first finding of a system, made smaller."""
    found = hunt(system, 100)
    assert found.case is not None
    assert found.finding is not None
    first = FirstSeen(found.episode, found.case, UNJUDGED, found.finding)
    return shrunk(Plan(system, terms=UNJUDGED), first, most_steps)


def size(shrunk: Shrunk[Finding]) -> tuple[int, int]:
    """Requests, and tokens of all prompts and answers."""
    requests = shrunk.case.requests
    return len(requests), sum(one.prompt_len + one.max_tokens for one in requests)


@pytest.mark.parametrize(
    ("name", "requests", "tokens"),
    [
        ("arrives in front", 2, 4),
        ("prefills not interleaved", 2, 6),
        ("exact forgets the candidate", 3, 10),
        ("second holder not counted", 2, 10),
        ("preempted goes to the back", 3, 16),
        ("none paused", 2, 7),
    ],
)
def test_a_shrunk_case_is_small_and_shows_the_same(name: str, requests: int, tokens: int) -> None:
    shrunk = small(faulty_spyre(name))

    found = size(shrunk)
    assert found[0] <= requests
    assert found[1] <= tokens
    assert found_in(faulty_spyre(name), shrunk.case) == shrunk.finding
