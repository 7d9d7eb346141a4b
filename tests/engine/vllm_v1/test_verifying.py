"""Rows that all verify drafts: planned at once, with the lengths of rows that take turns."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from engine.vllm_v1 import apply, planning
from engine.vllm_v1.requests import RequestState
from engine.vllm_v1.running_turns import plan_verification
from engine.vllm_v1.scheduler import Scheduler
from engine.vllm_v1.verifying import VerifyingRows
from spec.core.requests import Prompt
from spec.vllm_v1.config import VllmV1Config
from tests.requests import request

KEYS: dict[str, Any] = {"block_size": 4, "num_speculative_tokens": 2, "max_model_len": 64}


def scheduler_of(*lengths: tuple[int, int], **keys: Any) -> Scheduler:
    """Requests of these prompt and answer lengths, whose prompts have been computed."""
    scheduler = Scheduler(VllmV1Config(**KEYS | keys))
    for index, (prompt, answer) in enumerate(lengths):
        scheduler.add(request(str(index), prompt, answer))
    step(scheduler)
    return scheduler


def step(scheduler: Scheduler, **accepted: int) -> Any:
    """A step with tokens 0, 1, 2 ...; accepted drafts by the request's name behind `of`."""
    plan = scheduler.schedule()
    tokens = np.arange(plan.samples)
    by_name = {name.removeprefix("of"): count for name, count in accepted.items()}
    return plan, scheduler.update(plan, tokens, accepted=by_name)


def lengths(scheduler: Scheduler) -> list[tuple[int, int, int]]:
    return [(row.computed, row.tokens, row.drafts) for row in scheduler.state.running.rows]


def test_each_row_gets_its_accepted_drafts_and_one_token_more() -> None:
    scheduler = scheduler_of((5, 9), (6, 9), (7, 9))

    plan, outcome = step(scheduler, of0=2, of2=1)

    assert plan.verification is not None
    assert outcome.outputs == {"0": [0, 1, 2], "1": [3], "2": [6, 7]}
    assert outcome.accepted == {"0": 2, "1": 0, "2": 1}
    assert lengths(scheduler) == [(8, 9, 2), (7, 8, 2), (9, 10, 2)]


def test_rows_that_verify_no_longer_have_their_lengths_themselves() -> None:
    scheduler = scheduler_of((5, 9), (6, 9))
    step(scheduler, of0=2)
    running = scheduler.state.running

    running.verify_no_longer()

    assert [(row.computed, row.tokens) for row in running.members] == [(8, 9), (7, 8)]


def test_no_row_is_asked_for_its_drafts_where_none_is_accepted() -> None:
    unknown: Any = SimpleNamespace()  # nothing of the rows

    assert VerifyingRows.accepted(unknown, {}) == 0


def test_a_row_gets_no_token_behind_its_end_and_leaves_the_others_as_they_are() -> None:
    scheduler = scheduler_of((5, 9), (6, 3), (7, 9))

    _, outcome = step(scheduler, of0=1, of1=2, of2=2)
    assert (outcome.outputs["1"], outcome.finished) == ([3, 4], ("1",))

    plan, outcome = step(scheduler, of2=1)
    assert plan.verification is not None
    assert outcome.outputs == {"0": [0], "2": [3, 4]}
    assert lengths(scheduler) == [(8, 9, 2), (12, 13, 2)]


def test_where_ends_are_named_the_others_go_on_up_to_their_most_tokens() -> None:
    scheduler = scheduler_of((5, 9), (6, 9), (7, 4), (8, 3), (9, 9))
    plan = scheduler.schedule()
    accepted = {"0": 2, "1": 1, "2": 2, "3": 2}

    outcome = scheduler.update(plan, np.arange(plan.samples), ends={"1"}, accepted=accepted)

    due = {"0": [0, 1, 2], "1": [3, 4], "2": [6, 7, 8], "3": [9, 10], "4": [12]}
    assert outcome.outputs == due
    # Named; with its last token; with one less than verified.
    assert outcome.finished == ("1", "2", "3")


def test_a_row_that_others_let_pass_its_end_gets_a_token_and_ends() -> None:
    scheduler = Scheduler(VllmV1Config(**KEYS))
    for name in "01":
        scheduler.add(evolve(request(name, 5, 9), output_len=2))
    step(scheduler)
    plan = scheduler.schedule()
    passed = scheduler.update(plan, np.arange(6), ends=set(), accepted={"0": 2, "1": 1})
    assert passed.finished == ()

    _, outcome = step(scheduler, of0=1)

    assert outcome.outputs == {"0": [0], "1": [3]}
    assert outcome.finished == ("0", "1")


def test_a_row_that_others_let_pass_its_end_gets_a_token_and_ends_where_it_is_named() -> None:
    scheduler = Scheduler(VllmV1Config(**KEYS))
    for name in "01":
        scheduler.add(evolve(request(name, 5, 9), output_len=2))
    step(scheduler)
    scheduler.update(scheduler.schedule(), np.arange(6), ends=set(), accepted={"0": 2, "1": 2})

    outcome = scheduler.update(scheduler.schedule(), np.arange(6), ends={"1"}, accepted={})

    assert outcome.outputs == {"0": [0], "1": [3]}
    assert outcome.finished == ("1",)


def test_rows_with_as_many_accepted_drafts_get_as_many_tokens() -> None:
    scheduler = scheduler_of((5, 9), (6, 9))

    _, outcome = step(scheduler, of0=1, of1=1)
    assert (outcome.outputs, outcome.accepted) == ({"0": [0, 1], "1": [3, 4]}, {"0": 1, "1": 1})

    _, outcome = step(scheduler)
    assert (outcome.outputs, outcome.accepted) == ({"0": [0], "1": [3]}, {"0": 0, "1": 0})
    assert lengths(scheduler) == [(8, 9, 2), (9, 10, 2)]


@given(st.lists(st.lists(st.integers(0, 2), min_size=3, max_size=3), max_size=12))
def test_rows_get_and_keep_the_tokens_that_they_would_get_by_turns(
    accepted: list[list[int]],
) -> None:
    alike = [[count] * 3 for count in (0, 1, 0)]
    served = []
    for plan in (plan_verification, lambda _state: None):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(planning, "plan_verification", plan)
            scheduler, log = scheduler_of((5, 20), (6, 17), (7, 20)), []
            for counts in (*alike, *accepted):
                _, outcome = step(scheduler, **{f"of{row}": n for row, n in enumerate(counts)})
                log.append((outcome.outputs, outcome.accepted, outcome.finished))
            running, slots = scheduler.state.running, scheduler.state.slots
            kept = [
                slots.outputs[row.slot, : row.tokens - row.request.prompt_len].tolist()
                for row in running.rows
            ]
            served.append((log, lengths(scheduler), kept))

    assert served[0] == served[1]


def test_plan_says_the_turns_that_the_rows_would_have_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at_once, one_by_one = scheduler_of((5, 9), (7, 9)), scheduler_of((5, 9), (7, 9))

    def turns(plan: Any) -> list[Any]:
        return [
            (turn.computed, turn.new, turn.drafts, turn.held, turn.fresh) for turn in plan.turns
        ]

    together = at_once.schedule()
    monkeypatch.setattr(planning, "plan_verification", lambda _state: None)
    apart = one_by_one.schedule()

    assert together.verification is not None
    assert (together.samples, together.budget) == (apart.samples, apart.budget)
    at_once.update(together, np.arange(6))  # the blocks of before the step are meant
    assert turns(together) == turns(apart) == [(5, 3, 2, (1, 2), ()), (7, 3, 2, (3, 4), (5,))]


@pytest.mark.parametrize(
    ("keys", "at_once"),
    [
        ({"num_blocks": 10}, True),
        ({"num_blocks": 9}, False),  # a row gives way
        ({"long_prefill_token_threshold": 3, "max_num_batched_tokens": 12}, True),
        ({"max_model_len": 17}, True),
        ({"max_model_len": 16}, False),  # the longest row has one draft less
    ],
)
def test_rows_take_turns_where_not_all_verify_all(keys: dict[str, Any], at_once: bool) -> None:
    scheduler = scheduler_of((3, 2), (3, 2), (3, 2), (13, 2), **keys)
    while scheduler.state.queue or not all(row.drafts for row in scheduler.state.running.rows):
        step(scheduler)

    assert (scheduler.schedule().verification is not None) == at_once


@pytest.mark.parametrize(("budget", "at_once"), [(6, True), (5, False)])
def test_rows_take_turns_where_the_last_one_would_be_cut(budget: int, at_once: bool) -> None:
    scheduler = scheduler_of((3, 9), (3, 9))
    scheduler.state.budget = budget

    assert (scheduler.schedule().verification is not None) == at_once


def test_requests_that_were_passed_over_wait_in_front_again_beside_rows_that_verify() -> None:
    scheduler = scheduler_of((5, 9), (6, 9))
    late = RequestState.of(request("late", 6, 9))
    scheduler.state.skipped.append(late)
    plan = scheduler.schedule()
    plan.own_moves, plan.own_turns, plan.passed, plan.samples = (), (), [late], 6
    assert plan.verification is not None

    scheduler.update(plan, np.arange(6), accepted={})

    assert ([*scheduler.state.queue], scheduler.state.skipped) == ([late], [])
    assert lengths(scheduler) == [(6, 7, 2), (7, 8, 2)]


def test_rows_that_join_stand_behind_those_that_verify_already() -> None:
    scheduler = scheduler_of((5, 9))
    step(scheduler)
    scheduler.add(request("new", 6, 9))
    step(scheduler)

    plan, _ = step(scheduler)

    assert plan.verification is not None
    assert [row.id for row in plan.verification.rows] == ["0", "new"]
    assert lengths(scheduler) == [(8, 9, 2), (7, 8, 2)]


def test_rows_are_built_only_when_they_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler, written = scheduler_of((5, 9), (6, 9)), list[int]()
    write = VerifyingRows.write_back

    def noted(rows: VerifyingRows) -> None:
        written.append(len(rows.rows))
        write(rows)

    monkeypatch.setattr(VerifyingRows, "write_back", noted)
    for _ in range(3):
        step(scheduler)
    assert written == []

    assert lengths(scheduler) == [(8, 9, 2), (9, 10, 2)]
    assert written == [2]


# --- what is worked out for all rows at once --------------------------------------------------


def row(name: str, computed: int, blocks: int, registered: int) -> RequestState:
    """A row that has computed all but its newest token, of a prompt of 5 and an answer of 9."""
    made = RequestState.of(request(name, 5, 9))
    made.computed, made.tokens, made.drafts = computed, computed + 1, 2
    made.blocks, made.registered = tuple(range(blocks)), registered
    return made


def test_slots_are_counted_behind_what_rows_have_computed() -> None:
    """Blocks of 4: row 0 has 8 slots for 5 tokens, row 1 has 12 for 8."""
    rows = VerifyingRows.of([row("0", 5, 2, 1), row("1", 8, 3, 2)], 4)

    assert (rows.crowded(3), rows.crowded(4), rows.crowded(5)) == ([], [0], [0, 1])
    rows.advance(2)
    assert (rows.crowded(1), rows.crowded(2)) == ([], [0])
    rows.grow(0, 1)
    assert (rows.crowded(2), rows.crowded(3), rows.crowded(6)) == ([], [1], [0, 1])


def test_blocks_are_full_once_the_newest_token_fills_them_and_until_they_can_be_found() -> None:
    """Of 6, 7 and 9 tokens in blocks of 4: the last row has a second block that is full."""
    rows = VerifyingRows.of([row("0", 5, 2, 1), row("1", 6, 2, 1), row("2", 8, 3, 1)], 4)

    assert rows.full(1) == [2]
    rows.register(2, 2)
    assert rows.full(1) == []
    rows.advance(1)
    assert rows.full(1) == [1]
    rows.advance(1)
    assert rows.full(1) == [0, 1]
    assert rows.full(0) == [1]


def test_rows_go_on_as_long_as_the_first_to_end_has_a_token_left() -> None:
    rows = VerifyingRows.of([row("0", 5, 2, 1), row("1", 8, 3, 2)], 4)  # 8 and 5 tokens are left

    assert (rows.none_ends(4), rows.none_ends(5)) == (True, False)
    rows.advance(2)
    assert (rows.none_ends(2), rows.none_ends(3)) == (True, False)


def test_of_a_row_that_is_not_named_no_draft_is_verified() -> None:
    rows = VerifyingRows.of([row("0", 5, 2, 1), row("1", 8, 3, 2)], 4)

    accepted = rows.accepted({"1": 3})

    assert isinstance(accepted, np.ndarray)
    assert accepted.tolist() == [0, 2]


def test_rows_of_which_none_ends_are_not_looked_at_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each has three tokens left and gets two."""
    scheduler = scheduler_of((5, 4), (6, 4))
    monkeypatch.delattr(apply, "_verify_each")

    _, outcome = step(scheduler, of0=1, of1=1)

    assert outcome.outputs == {"0": [0, 1], "1": [3, 4]}


def test_rows_with_a_token_each_are_named_as_they_are_known() -> None:
    scheduler = scheduler_of((5, 9), (6, 9))

    plan, outcome = step(scheduler)

    assert plan.verification is not None
    assert outcome.sampled is plan.verification.verifying.ids


def test_a_full_block_is_hashed_in_one_step_and_not_again() -> None:
    scheduler = scheduler_of((7, 20), prefix_caching=True)

    plans = [step(scheduler)[0].verification for _ in range(6)]

    assert [plan.full for plan in plans] == [[0], [], [], [], [0], []]


def test_nothing_is_drafted_where_all_rows_verify_and_none_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler = scheduler_of((5, 9), (6, 9))
    monkeypatch.delattr(planning, "Draft")

    assert scheduler.schedule().verification is not None


def test_rows_go_on_verifying_without_those_that_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = scheduler_of((5, 9), (6, 2), (7, 9))
    _, outcome = step(scheduler)
    assert outcome.finished == ("1",)
    monkeypatch.delattr(VerifyingRows, "of")

    _, outcome = step(scheduler, of2=1)

    assert outcome.outputs == {"0": [0], "2": [3, 4]}


def test_a_prompt_that_waits_finds_the_block_that_a_verifying_row_fills_in_the_same_step() -> None:
    """Blocks of 4: the row's eighth token, the first one sampled, fills its second block."""
    scheduler = scheduler_of((7, 20), prefix_caching=True)
    with_answer = ("prompt 0", 7), (0, 1, 2, 3, 4)
    prompt = Prompt(with_answer, length=12)
    scheduler.add(evolve(request("again", 12, 2), prompt=prompt))

    step(scheduler)

    again = scheduler.state.find("again")
    assert again is not None
    assert again.blocks[:2] == scheduler.state.running.rows[0].blocks[:2]
