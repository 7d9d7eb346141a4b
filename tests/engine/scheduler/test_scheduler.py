"""What the scheduler promises to its caller; that it is the reference is shown elsewhere."""

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from checks.policies.spyre.engine import sampled_alone
from engine.core import state
from engine.core.blocks import BlockManager
from engine.core.scheduler import StalePlanError
from engine.spyre.observing import Observer
from engine.spyre.scheduler import (
    DecodePlan,
    IdlePlan,
    Plan,
    PrefillPlan,
    Scheduler,
    prefill,
)
from engine.spyre.scheduler.requests import RequestState, WaitingQueue
from spec.core.errors import ConfigError, WorkloadError
from spec.core.requests import BlockKeys, Prompt, Request
from spec.spyre.state import Past
from spec.spyre.variants import Queue
from tests.engine.scenes import config, copied, scheduler_with, sharing, step, steps
from tests.requests import request

PREEMPTING = {"reservation": False, "num_blocks": 8, "max_num_seqs": 3}
PAUSING = {"pausing": True, "max_batch_tkv_limit": 40}


def test_the_reading_of_the_release_is_refused() -> None:
    with pytest.raises(
        ConfigError, match="reading: found 'released'; allowed: text, of the engine"
    ):
        Scheduler(config(reading="released"))


# --- a run --------------------------------------------------------------------------------------


def test_two_requests_take_turns() -> None:
    scheduler = scheduler_with(config(), [request("a", 10, 3), request("b", 3, 2)])

    served = [(plan.kind, outcome.tkv, outcome.sampled) for plan, outcome in steps(scheduler)]

    assert served == [
        ("prefill", 10, ()),
        ("prefill", 10, ("a",)),
        ("decode", 11, ("a",)),
        ("prefill", 3, ("b",)),
        ("decode", 12, ("b", "a")),
    ]
    assert set(scheduler.state.finished) == {"a", "b"}


def test_sampled_tokens_are_handed_on() -> None:
    scheduler = scheduler_with(config(), [request("a", 3, 3)])

    tokens = [outcome.tokens.tolist() for _, outcome in steps(scheduler)]

    assert tokens == [[request("a", 3, 3).output_token(index)] for index in range(3)]


def test_prescribed_tokens_go_before_those_of_the_device() -> None:
    scheduler = scheduler_with(config(), [request("a", 3, 3, output=(7, 8)), request("b", 3, 3)])
    seen: list[tuple[str, int]] = []
    while scheduler.has_requests:
        plan = scheduler.schedule()
        outcome = scheduler.update(plan, np.full(plan.samples, 99))
        seen += zip(outcome.sampled, outcome.tokens.tolist(), strict=True)

    assert seen == [("a", 7), ("a", 8), ("b", 99), ("b", 99), ("b", 99)]


def test_environment_decides_which_requests_end_if_it_is_asked() -> None:
    scheduler = scheduler_with(config(), [request("a", 3, 9, output_len=2), request("b", 3, 9)])
    finished = []
    for ends in ((), (), (), (), ("b",), (), ("a",)):
        plan = scheduler.schedule()
        finished.append(scheduler.update(plan, sampled_alone(plan), ends).finished)

    assert finished == [(), (), (), (), ("b",), (), ("a",)]


def test_idle_scheduler() -> None:
    plan, outcome = step(Scheduler(config()))

    assert isinstance(plan, IdlePlan)
    assert (plan.kind, outcome.sampled, outcome.finished) == ("idle", (), ())


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt_len", "max_tokens", "changes", "field"),
    [
        (60, 5, {}, "prompt_len + max_tokens"),
        (50, 10, {"max_batch_tkv_limit": 58}, "prompt_len + max_tokens - 1 (its largest tkv)"),
        (50, 10, {"num_blocks": 14}, "blocks of prompt_len + max_tokens"),
    ],
)
def test_request_that_can_never_be_served_is_refused(
    prompt_len: int, max_tokens: int, changes: dict[str, Any], field: str
) -> None:
    scheduler = Scheduler(config(**changes))

    with pytest.raises(WorkloadError) as refused:
        scheduler.add(request("a", prompt_len, max_tokens))

    assert refused.value.field == field
    assert not scheduler.has_requests


def gone(scheduler: Scheduler) -> None:
    list(steps(scheduler))


@pytest.mark.parametrize(
    "later",
    [
        lambda _: None,
        step,
        lambda scheduler: [step(scheduler) for _ in range(3)],
        gone,
        lambda scheduler: scheduler.abort("a"),
    ],
    ids=["waiting", "prefilling", "decoding", "finished", "aborted"],
)
def test_name_is_used_only_once(later: Callable[[Scheduler], object]) -> None:
    scheduler = scheduler_with(config(), [request("a", 10, 5)])
    later(scheduler)

    with pytest.raises(WorkloadError, match="'a'; allowed: a name that none here has"):
        scheduler.add(request("a", 3, 3))


@pytest.mark.parametrize(
    "then",
    [
        lambda scheduler, plan: scheduler.update(plan, sampled_alone(plan)),
        lambda scheduler, _plan: scheduler.abort("a"),
    ],
    ids=["it was applied", "a client left"],
)
def test_plan_is_stale_once(then: Callable[[Scheduler, Plan], object]) -> None:
    scheduler = scheduler_with(config(), [request("a", 3, 3)])
    plan = scheduler.schedule()
    then(scheduler, plan)

    with pytest.raises(StalePlanError):
        scheduler.update(plan, sampled_alone(plan))


def test_request_may_come_while_the_device_computes() -> None:
    scheduler = scheduler_with(config(), [request("a", 3, 3)])
    plan = scheduler.schedule()
    scheduler.add(request("b", 3, 3))
    scheduler.update(plan, sampled_alone(plan))

    assert [row.id for row in Observer(scheduler).state().waiting] == ["b"]
    assert len(list(steps(scheduler))) == 4


@pytest.mark.parametrize("count", [0, 2])
def test_wrong_number_of_tokens_is_refused(count: int) -> None:
    scheduler = scheduler_with(config(), [request("a", 3, 3)])
    plan = scheduler.schedule()

    with pytest.raises(ValueError, match=f"{count} tokens; 1 are to be sampled"):
        scheduler.update(plan, np.zeros(count, np.int64))


def test_abort_of_an_unknown_request_changes_nothing() -> None:
    scheduler = scheduler_with(config(), [request("a", 3, 3)])
    before = Observer(scheduler).state()

    assert not scheduler.abort("unknown")
    assert Observer(scheduler).state() == before


@pytest.mark.parametrize("leaver", ["a", "b", "c", "unknown"])
def test_places_in_the_arrays_are_given_back(leaver: str) -> None:
    tight = config(**PREEMPTING)
    scheduler = scheduler_with(tight, [request(name, 17, 8) for name in "abcdefghij"])
    preempted = 0
    for index, (plan, _) in enumerate(steps(scheduler)):
        preempted += len(getattr(plan, "preempted", ()))
        if index == 8:
            scheduler.abort(leaver)

    slots = scheduler.state.slots
    assert preempted
    assert sorted(slots._free) == list(range(len(slots.tables)))
    assert len(slots.tables) == 8  # of at most three at a time


# --- a plan changes nothing ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "happens"),
    [
        ({}, "hit_blocks"),
        (PREEMPTING, "preempted"),
        (PAUSING, "newly_paused"),
        (PAUSING, "resumed"),
    ],
)
def test_plan_made_twice_is_the_same_and_changes_nothing(
    changes: dict[str, Any], happens: str
) -> None:
    requests = [sharing(name, 9, index, 12) for index, name in enumerate("abc")]
    scheduler = scheduler_with(config(**changes), requests)
    happened = False
    while scheduler.has_requests:
        before = Observer(scheduler).state()
        plan, again = scheduler.schedule(), scheduler.schedule()

        assert Observer(scheduler).state() == before
        assert described(plan) == described(again)
        happened |= bool(getattr(plan, happens, 0))
        scheduler.update(again, sampled_alone(again))
    assert happened


def described(plan: object) -> object:
    """A plan without the arrays that it has for itself."""
    match plan:
        case PrefillPlan():
            return plan.chunk, plan.held, plan.new_blocks, plan.promised
        case DecodePlan():
            padding = plan.rows.left_padding if plan.left_padding is None else plan.left_padding
            people = (plan.resumed, plan.newly_paused, plan.preempted)
            rows = (plan.rows.ids, plan.paused.ids, list(plan.growing), plan.new_blocks)
            return people, rows, padding.tolist(), plan.tkv
    return None


# --- cost ---------------------------------------------------------------------------------------


def test_step_looks_at_no_request_behind_the_head_of_the_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_at = []
    every_one = WaitingQueue.__iter__

    def counted(queue: WaitingQueue) -> Any:
        for one in every_one(queue):
            looked_at.append(one.id)
            yield one

    monkeypatch.setattr(WaitingQueue, "__iter__", counted)
    scheduler = scheduler_with(
        config(max_num_seqs=2), [request(f"{index}", 5, 6) for index in range(500)]
    )
    for _ in range(40):
        looked_at.clear()
        step(scheduler)

        assert len({*looked_at}) <= 1
    assert len(scheduler.state.finished) > 5


def test_long_prompt_that_waits_for_blocks_is_not_looked_up_in_every_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_up = []
    lookup = BlockManager.lookup

    def counted(blocks: BlockManager, key: bytes) -> int | None:
        looked_up.append(key)
        return lookup(blocks, key)

    monkeypatch.setattr(BlockManager, "lookup", counted)
    tight = config(max_model_len=256, num_blocks=60)
    scheduler = scheduler_with(tight, [sharing("a", 160, 8, 40), sharing("b", 160, 9, 60)])
    times = []
    while not scheduler.state.finished:
        looked_up.clear()
        step(scheduler)
        times.append(len(looked_up))

    assert scheduler.state.queue.find("b")  # it waited, and found 40 blocks of a's prompt
    assert sum(times) < 2 * 40 + 2 * len(times)
    assert max(times[-30:]) <= 2


def test_every_token_is_hashed_at_most_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[bytes] = []
    key_behind = BlockKeys.key_behind

    def noted(parent: bytes, content: bytes) -> bytes:
        hashed.append(parent + content)
        return key_behind(parent, content)

    monkeypatch.setattr(BlockKeys, "key_behind", staticmethod(noted))
    scheduler = scheduler_with(config(**PREEMPTING), [request(name, 17, 8) for name in "abc"])
    preempted = sum(len(getattr(plan, "preempted", ())) for plan, _ in steps(scheduler))

    assert preempted
    assert len(hashed) == len(set(hashed))
    assert len(hashed) == 3 * (17 + 8 - 1) // 4


# --- long service ---------------------------------------------------------------------------------


def test_a_name_is_refused_until_so_many_others_have_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "NAMES_KEPT", 3)
    scheduler = scheduler_with(config(), [request(name, 2, 1) for name in "abc"])
    list(steps(scheduler))
    with pytest.raises(WorkloadError, match="'a'; allowed: a name that none here has"):
        scheduler.add(request("a", 2, 1))

    scheduler.add(request("d", 2, 1))
    list(steps(scheduler))
    scheduler.add(request("a", 2, 1))

    assert [outcome.finished for _, outcome in steps(scheduler)] == [("a",)]


def test_an_observed_state_has_all_that_have_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "NAMES_KEPT", 2)
    scheduler = scheduler_with(config(), [request(name, 2, 1) for name in "abcde"])
    observer = Observer(scheduler)
    for _ in steps(scheduler):
        seen = observer.state()

    assert seen.finished == set("abcde")
    assert len(scheduler.state.finished) == 2


def test_memory_of_the_scheduler_stays_flat_however_many_it_serves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state, "NAMES_KEPT", 100)
    scheduler, held_bytes = Scheduler(config()), []
    tracemalloc.start()
    for served in range(3_000):
        scheduler.add(request(f"{served:05}", 2, 1))
        list(steps(scheduler))
        if served % 1_000 == 999:
            gc.collect()
            held_bytes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()

    # Other threads of the test process allocate, too; an id that is kept takes 54 bytes.
    assert held_bytes[-1] - held_bytes[0] < 2_000 * 16


def test_block_hashes_are_those_of_the_specification() -> None:
    asked = Request(id="a", prompt=Prompt.of_parts([("x", 9), ("y", 6)]), max_tokens=20)
    scheduler = scheduler_with(config(), [asked])
    expected = BlockKeys({"a": asked}, 4)
    for _ in range(18):
        step(scheduler)

    found = scheduler.state.decoding.members[0].hashes

    assert len(found) == (15 + 16) // 4
    assert list(found) == list(expected.of("a", len(found)))


def test_copy_goes_its_own_way() -> None:
    scheduler = scheduler_with(config(), [sharing(name, 9, 3, 6) for name in "abc"])
    for _ in range(5):
        step(scheduler)
    before = Observer(scheduler).state()

    twin = copied(scheduler)
    assert Observer(twin).state() == before
    list(steps(twin))

    assert Observer(scheduler).state() == before
    assert [one.finished for _, one in steps(scheduler)][-1] == ("c",)


def test_after_a_restart_nothing_is_known_of_the_steps_before() -> None:
    scheduler = scheduler_with(config(), [request("a", 3, 9)])
    step(scheduler)
    step(scheduler)
    assert scheduler.state.past != Past()

    scheduler.restart()

    assert scheduler.state.past == Past()


def is_judged_by_shape(prompt_len: int, free: int, reserved: int = 0, **keys: Any) -> bool:
    """With so many free blocks, of which so many are set aside."""
    state = Scheduler(config(**keys)).state
    state.blocks.allocate(state.blocks.next_free(40 - free))
    state.reserved = reserved
    return prefill._is_judged_by_shape(state, RequestState.of(request("a", prompt_len, 9)))


def test_a_request_is_judged_by_its_shape_where_nothing_else_can_refuse_it() -> None:
    worst_case = RequestState.of(request("a", 8, 9)).worst_case_blocks(4)

    assert is_judged_by_shape(8, worst_case)
    assert not is_judged_by_shape(8, worst_case - 1)
    assert is_judged_by_shape(8, worst_case + 2, reserved=2)
    assert not is_judged_by_shape(8, worst_case + 1, reserved=2)
    assert is_judged_by_shape(8, 2, reservation=False)
    assert not is_judged_by_shape(8, 1, reservation=False)
    assert is_judged_by_shape(5, 2, reservation=False)
    assert [is_judged_by_shape(length, 40, reservation=False) for length in (8, 9)] == [True, False]


@pytest.mark.parametrize(("most", "overtakes"), [(24, False), (20, True)])
def test_nothing_overtakes_a_request_that_lacks_blocks(most: int, overtakes: bool) -> None:
    """The volume refuses b; c, of `most` tokens, is refused for its blocks or for the volume."""
    room = {"queue": Queue.OVERTAKING, "max_batch_tkv_limit": 32, "num_blocks": 15}
    requests = [request("a", 8, 24), request("b", 8, 20), request("c", 8, most), request("d", 4, 1)]
    scheduler = scheduler_with(config(**room), requests)

    plans = [step(scheduler)[0] for _ in range(4)]

    begun = [plan.request.id for plan in plans if isinstance(plan, PrefillPlan)]
    assert begun == (["a", "d"] if overtakes else ["a"])
