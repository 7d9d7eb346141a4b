"""A system judged by rules alone, without reference steps to compare."""

from collections.abc import Callable, Iterable, Iterator

import pytest
from attrs import evolve

from checks.harness.case import Case
from checks.harness.comparison import Terms, compare
from checks.harness.finding import Episode, Kind, Signature
from checks.harness.policy import evidence_of
from checks.harness.system import Action, Failure, Json, System, Taken
from checks.registry import claims_of
from tests.checks.policies.spyre.driver import STRANGER, driver
from tests.checks.policies.spyre.test_adapter import PLAN, two_requests

RULES_ONLY = Terms(rules_only=True)


def judged(system: System) -> Episode:
    return compare(system, two_requests(), RULES_ONLY)


def test_nothing_is_found_where_nothing_is_broken() -> None:
    steps = 0
    for number in range(16):
        case, terms = PLAN.case(number), Terms(aborts_while_running=number % 2 == 1)
        episode = compare(driver(), case, evolve(terms, rules_only=True))
        reason = evidence_of(case.config.policy).expected_reason
        assert all(reason(rule, case.config) for _, rule in episode.findings), episode.findings
        steps += episode.steps

    assert steps > 400


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
        (reserve_one_more, (Kind.BROKEN_RULE, "count: blocks.reserved")),
        (schedule_two_tokens, (Kind.BROKEN_RULE, "SPY-DEC-1")),
        (lose_a_block, (Kind.BROKEN_RULE, "BLK-1")),
        (pad_too_much, (Kind.BROKEN_RULE, "SPY-DEC-3")),
    ],
)
def test_a_violation_is_reported_once_and_the_episode_continues(
    change: Callable[[Json], None], cause: Signature
) -> None:
    def fault(records: list[Json]) -> None:
        for record in records:
            if record["kind"] == "decode":
                change(record)

    wrong = judged(driver(fault=fault))
    right = judged(driver())

    assert wrong.findings[cause].step == 2
    assert wrong.steps == right.steps
    assert not right.findings


def test_a_crash_is_a_finding_named_by_type_and_function() -> None:
    failure = Failure("ValueError", "no", "toy.py:1 step")
    episode = judged(driver(failing_step=3, failure=failure))

    assert list(episode.findings) == [("crash", "ValueError step")]
    assert episode.findings[Kind.CRASH, "ValueError step"].step == 3


class Sleeper:
    """Serves no request."""

    hello = STRANGER

    def play(self, case: Case, actions: Iterable[Action]) -> Iterator[Taken]:
        policy = case.config.policy
        decoder = evidence_of(policy).adapter.decoder(
            claims_of(policy).context_of(case.config, case.requests)
        )
        waiting: list[str] = []
        for index, action in enumerate(actions):
            waiting += action.arrive
            record = asleep(waiting, changed=bool(action.arrive))
            yield Taken(decoder.step(record, action, index), record)

    def close(self) -> None:
        """Nothing is held."""


def asleep(waiting: list[str], *, changed: bool) -> Json:
    state: Json = {"waiting": list(waiting), "decoding": [], "running": [], "paused": []}
    step = {"kind": "idle", "scheduled": {}, "outputs": {}, "finished": []}
    return state | step | ({"before": state} if changed else {})


def test_a_system_that_serves_no_request_is_found_idle_and_without_end() -> None:
    episode = judged(Sleeper())

    assert episode.findings[Kind.BROKEN_RULE, "SPY-PRI-4"].step == 0
    assert episode.findings[Kind.ENDLESS, "a request waits for ever"].step == episode.steps
