"""Drafters: which tokens they propose, and which of these are right."""

import pytest

from checks.harness.case import Case, with_all_drafts
from checks.harness.speculation import foreseen, proposed
from spec.vllm_v1.config import VllmV1Config
from tests.requests import request


@pytest.mark.parametrize(
    ("foresight", "first", "right", "drafts"),
    [("110", 0, 2, 4), ("110", 2, 0, 4), ("1", 3, 4, 4), ("11-", 0, 2, 2), ("-", 5, 0, 0)],
)
def test_of_4_drafts_so_many_are_right_and_so_many_proposed(
    foresight: str, first: int, right: int, drafts: int
) -> None:
    assert foreseen(foresight, first, 4) == right
    assert proposed(foresight, first, 4) == drafts


def test_a_driver_that_cannot_be_told_is_always_proposed_all_drafts() -> None:
    requests = (request("a", 3, right_drafts="1-"), request("b", 3))
    case = Case(VllmV1Config(num_speculative_tokens=2), requests, {"right_drafts": {"b": "-0"}})

    plain = with_all_drafts(case)

    assert plain.requests[0].right_drafts == "10"
    assert plain.surroundings == {"right_drafts": {"b": "00"}}
