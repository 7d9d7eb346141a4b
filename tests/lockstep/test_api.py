"""`lockstep.api` as the page on adoption documents it."""

import inspect
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any

import pytest

import lockstep
from checks.cli.examples import EXAMPLES
from checks.harness.policy import system_of
from lockstep import api
from tests.lockstep.broken import FAULTS, broken, class_named, write

TWO = [{"id": "a", "prompt_len": 9, "max_tokens": 3}, {"id": "b", "prompt_len": 2, "max_tokens": 2}]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_every_name_is_there_with_a_docstring() -> None:
    for name in api.__all__:
        documented = getattr(api, name)
        assert isinstance(documented, int) or inspect.getdoc(documented), name
    assert Path(str(lockstep.__file__)).with_name("py.typed").exists()


# --- read -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", api.policies())
def test_requests_are_served_by_the_reference_of_each_policy(policy: str) -> None:
    config = api.configuration(policy, block_size=4, max_model_len=64)

    steps = list(api.serve(config, api.requests(TWO)))

    assert {request_id for step in steps for request_id in step.finished} == {"a", "b"}


def test_files_are_read_and_keys_override_them() -> None:
    config = api.read_configuration(EXAMPLES / "first.toml", max_num_seqs=2)

    assert (config.max_num_seqs, config.policy) == (2, "spyre")
    assert len(api.read_requests(EXAMPLES / "azure_sample.csv", limit=5)) == 5


def test_what_cannot_be_used_is_refused_by_key_value_and_remedy() -> None:
    with pytest.raises(api.InputError, match="block_sice: found 4; allowed: "):
        api.configuration(block_sice=4)
    with pytest.raises(api.InputError, match="driver: found 'none:Such'; allowed: a class"):
        api.replay(_recorded("none:Such"))


# --- step and judge -------------------------------------------------------------------------------


def test_steps_are_taken_one_by_one_and_judged() -> None:
    config, requests = api.configuration(block_size=4, max_model_len=64), api.requests(TWO)
    scheduler, judge = api.reference(config, requests), api.judge_of(config, requests)

    scheduler.arrive("b")
    scheduler.arrive("a")
    first = scheduler.step(0, api.Action())

    assert (first.kind, first.scheduled) == ("prefill", {"b": 2})
    assert [event.transition for event in first.events][:1] == ["admit"]
    assert judge.observe(first) == []


def test_a_step_that_breaks_a_rule_is_judged() -> None:
    config, requests = api.configuration(block_size=4, max_model_len=64), api.requests(TWO)
    narrow = api.configuration(block_size=4, max_model_len=64, max_batch_tkv_limit=8)
    judge = api.judge_of(narrow, requests)

    found = [
        violation.rule.id
        for step in api.serve(config, requests)
        for violation in judge.observe(step)
    ]

    assert "SPY-VOL-1" in found


# --- explore --------------------------------------------------------------------------------------


class Counter:
    """A user's own model: a number that grows by 1 or 2, up to 5."""

    def initial(self) -> Iterator[int]:
        yield 0

    def successors(self, state: int) -> Iterator[api.Transition[int]]:
        for summand in (1, 2):
            if state < 5:
                yield api.Transition(f"raise by {summand}", state + summand)

    def canonical(self, state: int) -> Hashable:
        return state

    def unfinished(self, state: int) -> bool:
        return state < 5


def test_a_model_of_a_user_is_explored() -> None:
    small = api.Always[int]("SMALL", lambda state: None if state <= 5 else f"found {state}")

    found = api.explore(Counter(), [small])

    assert found.outcome is api.Outcome.VIOLATED
    (violation,) = found.violations
    actions = [step.action for step in violation.counterexample.steps]
    assert (violation.found, len(actions), actions[-1]) == ("found 6", 3, "raise by 2")


def test_requests_are_explored_under_a_configuration() -> None:
    keys: dict[str, Any] = {"block_size": 2, "chunk_size": 4, "max_model_len": 16}
    keys |= {"max_batch_tkv_limit": 6}
    lines = [{"id": "a", "prompt_len": 1, "max_tokens": 4}]
    requests = api.requests([*lines, {"id": "b", "prompt_len": 1, "max_tokens": 2}])
    exact = api.configuration(**keys)
    documented = api.configuration(**keys, admission="documented")

    assert api.explore_requests(exact, requests).holds
    refuted = api.explore_requests(documented, requests)
    assert not refuted.holds
    assert "SPY-VOL-1 is broken in 'own requests'" in refuted.report
    assert [file.name for file in refuted.files] == ["own-requests-spy-vol-1.jsonl"]
    assert not api.replay(refuted.files[0]).holds


def test_a_search_that_a_bound_ended_does_not_hold() -> None:
    config = api.configuration(block_size=4, max_model_len=64)

    found = api.explore_requests(config, api.requests(TWO), bounds=api.Bounds(max_states=3))

    assert not found.holds
    assert "states: incomplete (max_states), " in found.report


# --- conform --------------------------------------------------------------------------------------


def test_a_class_conforms_in_this_process() -> None:
    conformed = api.conform(class_named(broken()), episodes=5)

    assert (conformed.holds, conformed.findings) == (True, ())
    assert conformed.report.startswith("template (toy 1.0): no unknown difference in 5 episodes, ")
    assert not Path("findings").exists()


def test_a_class_and_its_file_find_the_same() -> None:
    wrong = "last come first served"

    here = api.conform(class_named(broken(wrong)), episodes=4, findings="here", name="driver.py")
    there = api.conform(str(write(Path(), wrong)), episodes=4, findings="there")

    (mine,), (its,) = here.findings, there.findings
    assert mine.path.read_text() == its.path.read_text()
    assert not api.replay(mine.path, "driver.py").holds
    assert api.replay(mine.path, class_named(broken())).holds


def test_a_system_of_a_user_conforms() -> None:
    """Any object with `hello`, `play` and `close` is a system: here the project's own engine."""
    assert api.conform(system_of("nano-vllm", "engine"), episodes=5).holds


def test_a_class_takes_every_edge_of_a_world() -> None:
    name = "first come, first served"
    conformed = api.conform(class_named(broken()), instances=[name])

    assert conformed.holds
    assert conformed.coverage is not None
    assert conformed.coverage.taken == {name: conformed.coverage.total}
    assert f"all {conformed.coverage.total} edges of 1 world, as" in conformed.report
    with pytest.raises(api.InputError, match="INSTANCE: found 'none'; allowed: 'first come"):
        api.conform(class_named(broken()), instances=["none"])


RARE_FAULT = "an abort is lost"


@pytest.mark.parametrize(
    "fault",
    [
        RARE_FAULT,
        *(pytest.param(name, marks=pytest.mark.thorough) for name in FAULTS if name != RARE_FAULT),
    ],
)
def test_the_worlds_alone_find_every_typical_fault(fault: str) -> None:
    found = api.conform(class_named(broken(fault)), instances=[])

    assert not found.holds
    assert found.findings


def test_settings_are_not_drawn() -> None:
    conformed = api.conform(class_named(broken()), episodes=5, settings={"max_num_seqs": 1})

    assert conformed.campaign.plan.pinned == {"max_num_seqs": 1}
    with pytest.raises(api.InputError, match="--set interleave: found True; allowed: false"):
        api.conform(class_named(broken()), episodes=5, settings={"interleave": True})


def _recorded(driver: str) -> Path:
    """A recording that was made with this driver."""
    wrong = class_named(broken("joins behind"))
    (found,) = api.conform(wrong, episodes=5, name=driver).findings
    return found.path
