"""A driver judged by itself: what its own steps show, with no reference step to compare."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from checks.conformance.alone import Cause, judge_alone
from checks.fuzz.cases import Case, case_of
from checks.fuzz.known import known_reason
from tests.checks.conformance.faithful import STRANGER, FaithfulLab

from checks.harness.driver.protocol import Action, DriverFailure, Hello, Json, Played
from spec.spyre.config import released_2_6_3
from tests.recorded.scenes import asks


def two_requests() -> Case:
    sizes = {"block_size": 4, "chunk_size": 8, "max_model_len": 32, "max_num_seqs": 2}
    config = released_2_6_3(**sizes, max_batch_tkv_limit=64, num_blocks=12)
    return Case(config, (asks("a", 11, 6), asks("b", 6, 4, arrival=2)))


def test_nothing_is_found_where_nothing_is_broken() -> None:
    steps = 0
    for episode in range(40):
        case = case_of(11, episode)
        judged = judge_alone(FaithfulLab(), case, aborts_while_running=episode % 2 == 1)
        broken = {cause for _, cause in judged.findings}
        assert all(known_reason(rule, case.config) for rule in broken), judged.findings
        steps += judged.steps

    assert steps > 1_000


def reserve_one_more(record: Json) -> None:
    record["blocks"]["reserved"] += 1


def schedule_two_tokens(record: Json) -> None:
    record["scheduled"] = dict.fromkeys(record["scheduled"], 2)


def lose_a_block(record: Json) -> None:
    record["free_list"].pop()


def pad_too_much(record: Json) -> None:
    record["batch"][0]["left_padding"] += 4


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (reserve_one_more, ("broken rule", "count: blocks.reserved")),
        (schedule_two_tokens, ("broken rule", "SPY-DEC-1")),
        (lose_a_block, ("broken rule", "BLK-1")),
        (pad_too_much, ("broken rule", "SPY-DEC-3")),
    ],
)
def test_what_a_step_breaks_is_told_once_and_the_episode_goes_on(
    change: Callable[[Json], None], cause: Cause
) -> None:
    def fault(records: list[Json]) -> None:
        for record in records:
            if record["kind"] == "decode":
                change(record)

    judged = judge_alone(FaithfulLab(fault=fault), two_requests())
    right = judge_alone(FaithfulLab(), two_requests())

    assert judged.findings[cause].step == 2
    assert judged.steps == right.steps
    assert not right.findings


def test_a_crash_is_a_finding_named_by_type_and_function() -> None:
    failure = DriverFailure("ValueError", "no", "toy.py:1 step")
    judged = judge_alone(FaithfulLab(raises_at=3, failure=failure), two_requests())

    assert list(judged.findings) == [("crash", "ValueError step")]
    assert judged.findings["crash", "ValueError step"].step == 3


class Sleeper:
    """Never serves anybody."""

    hello: Hello = STRANGER

    def play(self, _case: Case, actions: Sequence[Action]) -> Iterator[Played]:
        waiting: list[str] = []
        for action in actions:
            waiting += action.arrive
            yield Played([asleep(waiting, told=bool(action.arrive))])


def asleep(waiting: list[str], *, told: bool) -> Json:
    state: dict[str, Any] = {"waiting": list(waiting), "decoding": [], "running": [], "paused": []}
    step = {"kind": "idle", "scheduled": {}, "outputs": {}, "finished": []}
    return state | step | ({"before": state} if told else {})


def test_who_serves_nobody_is_found_idle_and_without_end() -> None:
    judged = judge_alone(Sleeper(), two_requests())

    assert judged.findings["broken rule", "SPY-PRI-4"].step == 0
    assert judged.findings["endless", "somebody waits for ever"].step == judged.steps
