"""The contract of every policy's scheduler with its callers, and the cost of its steps."""

from collections.abc import Callable, Collection, Mapping
from itertools import count
from time import thread_time_ns
from typing import Any, TypeAlias

import numpy as np
import pytest
from attrs import frozen

from engine.core import state
from engine.core.scheduler import Scheduler, StalePlanError
from engine.core.state import LeftNames
from engine.nano_vllm import observing as nano_vllm_observing
from engine.nano_vllm import running as nano_vllm_running
from engine.nano_vllm import scheduler as nano_vllm
from engine.spyre import scheduler as spyre
from engine.vllm_v1 import observing as vllm_v1_observing
from engine.vllm_v1 import running as vllm_v1_running
from engine.vllm_v1 import scheduler as vllm_v1
from spec.core.errors import WorkloadError
from spec.nano_vllm.config import NanoVllmConfig, SequenceLimit
from spec.spyre.config import SpyreConfig
from spec.vllm_v1.config import Connector, VllmV1Config
from tests.requests import request

SomeScheduler: TypeAlias = Scheduler[Any, Any, Any]
SIZES: Mapping[str, Any] = {"block_size": 4, "max_num_seqs": 3, "max_model_len": 64}
MAKERS: Mapping[str, Callable[[], SomeScheduler]] = {
    "spyre": lambda: spyre.Scheduler(
        SpyreConfig(**SIZES, chunk_size=8, max_batch_tkv_limit=256, num_blocks=48)
    ),
    "nano-vllm": lambda: nano_vllm.Scheduler(
        NanoVllmConfig(**SIZES, max_num_batched_tokens=64, num_blocks=48)
    ),
    "vllm-v1": lambda: vllm_v1.Scheduler(
        VllmV1Config(**SIZES, max_num_batched_tokens=64, num_blocks=48)
    ),
}


@pytest.fixture(params=MAKERS)
def scheduler(request: pytest.FixtureRequest) -> SomeScheduler:
    return MAKERS[request.param]()


def step(scheduler: SomeScheduler, ends: Collection[str] | None = None) -> Any:
    plan = scheduler.schedule()
    return scheduler.update(plan, np.zeros(plan.samples, np.int64), ends)


def steps_until(scheduler: SomeScheduler, name: str, ends: Collection[str] | None = None) -> int:
    """The tokens of the request, step by step until it is finished."""
    tokens: int = 0
    for _ in count():
        outcome = step(scheduler, ends)
        tokens += int(outcome.sampled.count(name))
        if name in outcome.finished:
            return tokens
    return tokens


# --- names ----------------------------------------------------------------------------------------


def refuses(scheduler: SomeScheduler, name: str) -> bool:
    try:
        scheduler.add(request(name, 3, 2))
    except WorkloadError as error:
        return error.field == "id"
    return False


def test_a_name_is_refused_from_its_arrival_until_long_after_it_has_left(
    scheduler: SomeScheduler,
) -> None:
    for name in "abcdef":
        scheduler.add(request(name, 3, 2))
    step(scheduler)

    assert refuses(scheduler, "a")  # which runs
    assert refuses(scheduler, "f")  # which waits
    assert scheduler.abort("f")
    assert refuses(scheduler, "f")
    steps_until(scheduler, "a")
    assert refuses(scheduler, "a")
    assert not refuses(scheduler, "g")


def test_the_last_names_to_leave_are_kept_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "NAMES_KEPT", 3)
    names = LeftNames()

    for name in "abcde":
        names.add(name)

    assert [*names] == ["c", "d", "e"]
    assert (len(names), "b" in names, "c" in names) == (3, False, True)


# --- who is there ---------------------------------------------------------------------------------


def test_there_are_requests_as_long_as_one_waits_or_runs(scheduler: SomeScheduler) -> None:
    seen = [scheduler.has_requests]
    scheduler.add(request("a", 3, 2))
    seen.append(scheduler.has_requests)  # it waits
    step(scheduler)
    seen.append(scheduler.has_requests)  # it runs
    steps_until(scheduler, "a")
    seen.append(scheduler.has_requests)

    assert seen == [False, True, True, False]


def test_of_vllm_v1_those_that_load_are_there_too_and_those_that_left_meanwhile() -> None:
    scheduler = vllm_v1.Scheduler(VllmV1Config(**SIZES, num_blocks=48, connector=Connector.ASYNC))
    scheduler.add(request("a", 14, 3), external=12)
    step(scheduler)

    assert scheduler.has_requests
    scheduler.abort("a")
    assert scheduler.has_requests
    scheduler.end_load("a")
    assert not scheduler.has_requests


# --- plans ----------------------------------------------------------------------------------------


def planned(scheduler: SomeScheduler) -> Any:
    scheduler.add(request("a", 3, 9))
    scheduler.add(request("b", 3, 9))
    step(scheduler)
    return scheduler.schedule()


def is_stale(scheduler: SomeScheduler, plan: Any) -> bool:
    try:
        scheduler.update(plan, np.zeros(plan.samples, np.int64))
    except StalePlanError:
        return True
    return False


def test_a_plan_is_applied_once(scheduler: SomeScheduler) -> None:
    plan = planned(scheduler)

    assert not is_stale(scheduler, plan)
    assert is_stale(scheduler, plan)


@pytest.mark.parametrize("what", ["schedule", "abort b", "abort nothing", "restart"])
def test_a_plan_becomes_stale(what: str, scheduler: SomeScheduler) -> None:
    plan = planned(scheduler)
    name, _, given = what.partition(" ")

    getattr(scheduler, name)(*filter(None, [given]))

    assert is_stale(scheduler, plan)


def test_a_plan_is_stale_once_a_load_has_ended() -> None:
    scheduler = vllm_v1.Scheduler(VllmV1Config(**SIZES, num_blocks=48, connector=Connector.ASYNC))
    scheduler.add(request("a", 14, 3), external=12)
    step(scheduler)
    plan = scheduler.schedule()
    scheduler.end_load("a")

    assert is_stale(scheduler, plan)


@pytest.mark.parametrize("more", [-1, 1])
def test_tokens_are_as_many_as_are_sampled(more: int, scheduler: SomeScheduler) -> None:
    plan = planned(scheduler)

    with pytest.raises(ValueError, match=f"{plan.samples} are to be sampled"):
        scheduler.update(plan, np.zeros(plan.samples + more, np.int64))
    assert not is_stale(scheduler, plan)


# --- ends -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("end", "most"), [(1, 1), (1, 4), (3, 5), (5, 5)])
def test_a_request_ends_where_it_says_or_where_it_may_have_no_more(
    end: int, most: int, scheduler: SomeScheduler
) -> None:
    """With ends that are named for each step it ends as named, and with its last token."""
    for name in "abc":
        scheduler.add(request(name, 3, most, output_len=end))

    assert steps_until(scheduler, "a") == end
    for name in "bc":
        scheduler.abort(name)
    for name in "de":
        scheduler.add(request(name, 3, most, output_len=end))
    assert steps_until(scheduler, "d", ends=()) == most


def test_a_request_that_is_named_ends_at_once(scheduler: SomeScheduler) -> None:
    for name in "ab":
        scheduler.add(request(name, 3, 9))
    while "b" not in step(scheduler, ends=()).sampled:
        pass

    outcome = step(scheduler, ends=("b",))

    assert (sorted(outcome.sampled), outcome.finished) == (["a", "b"], ("b",))


# --- slots ----------------------------------------------------------------------------------------


def test_slots_are_given_back_however_a_request_leaves(scheduler: SomeScheduler) -> None:
    for number in range(30):
        scheduler.add(request(f"ends {number}", 3, 2))
        scheduler.add(request(f"aborted {number}", 3, 9))
        steps_until(scheduler, f"ends {number}")
        assert scheduler.abort(f"aborted {number}")
        scheduler.add(request(f"restarted {number}", 3, 3))
        step(scheduler)
        scheduler.restart()
        steps_until(scheduler, f"restarted {number}")

    assert len(scheduler.state.slots.tables) == 8
    assert sorted(scheduler.state.slots._free) == [*range(8)]


# --- cost -----------------------------------------------------------------------------------------


@frozen
class Decoding:
    """How a policy's scheduler is watched while it decodes.

    `of`: one for so many rows. `rows`, `length`: its rows and the method that looks at one of them.
    """

    of: Callable[[int], SomeScheduler]
    observer: Callable[[Any], Any]
    rows: Any
    length: str

    def scheduler(self, rows: int, waiting: int) -> SomeScheduler:
        """A scheduler with so many rows that decode, and as many requests as that behind them."""
        scheduler = self.of(rows)
        for index in range(rows + waiting):
            scheduler.add(request(str(index), 20 + index % 16, 3_000))
        step(scheduler)
        return scheduler


PAGED = {
    "nano-vllm": Decoding(
        lambda rows: nano_vllm.Scheduler(
            NanoVllmConfig(block_size=16, max_num_seqs=rows, sequence_limit=SequenceLimit.RUNNING)
        ),
        nano_vllm_observing.Observer,
        nano_vllm_running.Running,
        "computed",
    ),
    "vllm-v1": Decoding(
        lambda rows: vllm_v1.Scheduler(VllmV1Config(block_size=16, max_num_seqs=rows)),
        vllm_v1_observing.Observer,
        vllm_v1_running.Running,
        "tokens",
    ),
}

each_paged = pytest.mark.parametrize("decoding", PAGED.values(), ids=PAGED)


@each_paged
def test_rows_are_looked_at_only_where_their_blocks_end(
    decoding: Decoding, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler, looked_at = decoding.scheduler(32, 5), list[str]()
    right = getattr(decoding.rows, decoding.length)

    def noted(rows: Any, row: Any) -> Any:
        looked_at.append(row.id)
        return right(rows, row)

    monkeypatch.setattr(decoding.rows, decoding.length, noted)
    sampled = [len(step(scheduler).sampled) for _ in range(16)]

    assert sampled == [32] * 16
    assert sorted(looked_at) == sorted(map(str, range(32)))


@each_paged
def test_a_step_takes_as_long_whatever_waits(decoding: Decoding) -> None:
    def fastest(scheduler: SomeScheduler) -> int:
        times = []
        for _ in range(100):
            began = thread_time_ns()
            step(scheduler)
            times.append(thread_time_ns() - began)
        return sorted(times)[10]

    none, many = (fastest(decoding.scheduler(8, waiting)) for waiting in (0, 5_000))

    assert many < 3 * none


@each_paged
def test_a_decode_step_shares_queue_and_pool_with_the_previous_state(decoding: Decoding) -> None:
    scheduler = decoding.scheduler(2, 9)
    observer = decoding.observer(scheduler)
    before = observer.state()
    assert observer.state() is before

    step(scheduler)
    after = observer.state()

    assert after.waiting is before.waiting
    assert after.pool is before.pool
    assert not after.finished
