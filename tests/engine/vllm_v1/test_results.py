"""Results of a step: verified drafts, ends, aborts during the step, lost loads."""

from typing import Any

import numpy as np
import pytest

from engine.vllm_v1.plan import Admission, Turn
from engine.vllm_v1.requests import RequestState
from engine.vllm_v1.results import Missing, Outcome
from engine.vllm_v1.scheduler import Scheduler
from spec.vllm_v1.config import VllmV1Config
from tests.requests import request


def scheduler_with(names: str, *, most: int = 9, **keys: Any) -> Scheduler:
    """Requests with prompts of 5 tokens; blocks of 4."""
    sizes = {"block_size": 4, "max_num_seqs": 4, "max_model_len": 64, "num_blocks": 60}
    scheduler = Scheduler(VllmV1Config(**(sizes | keys)))
    for name in names:
        scheduler.add(request(name, 5, most))
    return scheduler


def step(scheduler: Scheduler, **results: Any) -> Outcome:
    plan = scheduler.schedule()
    return scheduler.update(plan, np.arange(plan.samples), **results)


def arrive(scheduler: Scheduler, newcomers: str) -> None:
    """These arrive: the next step is one in which every row has a turn of its own."""
    for name in newcomers:
        scheduler.add(request(name, 5, 9))


# --- drafts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("said", "accepted"), [({}, 0), ({"a": 2}, 2), ({"a": 5}, 3)])
def test_so_many_drafts_are_right_as_is_said_and_no_more_than_there_are(
    said: dict[str, int], accepted: int
) -> None:
    scheduler = scheduler_with("a", num_speculative_tokens=3)
    step(scheduler)

    outcome = step(scheduler, accepted=said)

    assert outcome.accepted == {"a": accepted}
    assert outcome.sampled == ("a",) * (accepted + 1)


def test_a_row_verifies_as_many_drafts_as_are_proposed_for_it() -> None:
    scheduler = scheduler_with("abc", num_speculative_tokens=3)
    counts = {"a": 0, "b": 2, "c": 3}

    first = step(scheduler, proposes=lambda row, _most: counts[row.id])
    second = scheduler.schedule()

    assert first.proposed == {"a": 0, "b": 2}
    assert {turn.row.id: turn.drafts for turn in second.turns} == counts
    scheduler.update(second, np.arange(second.samples))
    assert [turn.drafts for turn in scheduler.schedule().turns] == [3, 3, 3]


@pytest.mark.parametrize("newcomers", ["", "b"])
def test_behind_prescribed_tokens_come_those_that_were_sampled(newcomers: str) -> None:
    scheduler = scheduler_with("", num_speculative_tokens=3)
    scheduler.add(request("a", 5, 9, output=(70, 71)))

    first = step(scheduler, ends=())
    arrive(scheduler, newcomers)
    second = step(scheduler, ends=(), accepted={"a": 3})

    assert first.tokens.tolist() == [70]
    assert second.sampled == ("a", "a", "a", "a", *newcomers)
    assert second.tokens.tolist()[:4] == [71, 1, 2, 3]


# --- ends -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("newcomers", ["", "b"])
def test_a_request_that_was_not_named_at_its_end_ends_with_the_next_token(newcomers: str) -> None:
    scheduler = scheduler_with("", num_speculative_tokens=1)
    scheduler.add(request("a", 5, 9, output_len=2))
    for _ in range(3):
        assert step(scheduler, ends=()).sampled == ("a",)
    arrive(scheduler, newcomers)

    outcome = step(scheduler)

    assert (outcome.sampled, outcome.finished) == (("a", *newcomers), ("a",))


@pytest.mark.parametrize("drafts", [0, 2])
def test_a_request_that_is_named_ends_with_what_it_gets_in_the_step(drafts: int) -> None:
    scheduler = scheduler_with("ab", num_speculative_tokens=drafts)

    outcome = step(scheduler, ends=("a",))
    assert outcome.finished == ("a",)
    outcome = step(scheduler, ends=("b",), accepted={"b": drafts})
    assert (outcome.sampled, outcome.finished) == (("b",) * (drafts + 1), ("b",))


# --- clients that leave ---------------------------------------------------------------------------


@pytest.mark.parametrize("ends", [None, ("a", "b")])
@pytest.mark.parametrize("drafts", [0, 1])
def test_a_client_that_leaves_in_the_last_step_of_its_request_gets_nothing(
    drafts: int, ends: tuple[str, ...] | None
) -> None:
    scheduler = scheduler_with("ab", most=2, num_speculative_tokens=drafts)
    step(scheduler)

    outcome = step(scheduler, leavers=("a", "of another server"), ends=ends)

    assert outcome.leavers == ("a",)
    assert (outcome.sampled, outcome.finished) == (("b",), ("b",))
    assert ("a" in scheduler.state.aborted, "a" in scheduler.state.finished) == (True, False)
    assert not scheduler.has_requests
    assert scheduler.state.blocks.free.count == 60


# --- loads that are lost --------------------------------------------------------------------------

ROW = RequestState.of(request("a", 14, 3))


def admitted(table: tuple[int, ...], computed: int, external: int) -> Admission:
    """With a prompt of 14 tokens, so many computed and, of these, brought."""
    return Admission(ROW, 14, computed, 14 - computed, (), table, (), external)


def turn(table: tuple[int, ...], computed: int) -> Turn:
    return Turn(ROW, 14, computed, 14 - computed, table, ())


@pytest.mark.parametrize(
    ("computed", "external", "valid"), [(12, 12, 0), (12, 8, 4), (10, 6, 4), (13, 5, 8)]
)
def test_tokens_before_the_first_missing_block_are_valid(
    computed: int, external: int, valid: int
) -> None:
    lost = admitted((11, 12, 13, 14), computed, external)

    assert Missing([lost], 4).valid_tokens(lost) == valid


def test_a_row_that_shares_missing_blocks_relies_on_the_first_that_holds_them() -> None:
    lost = admitted((11, 12, 13, 14), 12, 8)  # 12 and 13 are missing
    missing = Missing([lost], 4)

    assert missing.valid_tokens(turn((11, 21, 22, 23), 12)) is None
    assert missing.valid_tokens(turn((11, 21, 12, 23), 8)) is None  # it does not read that one
    assert missing.valid_tokens(turn((11, 14, 22, 23), 12)) is None  # which was not to be brought
    assert missing.valid_tokens(turn((11, 12, 13, 24), 10)) == 4
    assert missing.valid_tokens(lost) == 12
