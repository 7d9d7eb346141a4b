"""The driver of nano-vLLM under `conform`, on a stand-in for its checkout, then with faults."""

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from attrs import evolve

from checks.harness.campaigns.campaign import Plan
from checks.harness.comparison import compare
from checks.harness.driver.process import DRIVER_FILES
from checks.harness.driver.system import DriverCommand
from checks.harness.finding import Finding
from checks.harness.policy import Own
from checks.harness.script import Script
from checks.policies.nano_vllm.adapter import ADAPTER
from checks.releases.environments import command_of
from tests.checks.command import lockstep
from tests.checks.harness.cases import There

DRIVER = DRIVER_FILES / "nano_vllm.py"
STAND_IN = Path(__file__).parents[2] / "drivers" / "nano_stand_in"
NEWEST = Path(__file__).parents[2] / "drivers" / "nano_stand_in_newest"
EPISODES = 15


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the stand-in, which the driver is given."""
    copy = tmp_path / "checkout"
    shutil.copytree(STAND_IN, copy)
    monkeypatch.setenv("LOCKSTEP_NANO_VLLM", str(copy))
    return copy


def findings(episodes: int) -> Iterator[Finding]:
    """The findings of the first random cases with the driver."""
    with closing(DriverCommand(command_of(str(DRIVER))).open()) as system:
        plan = Plan(There(system))
        for number in range(episodes):
            episode = compare(system, plan.case(number), plan.terms_of(number))
            if episode.finding is not None:
                yield episode.finding


def test_what_happens_shows_in_the_states_in_its_order() -> None:
    """Rules can read the inferred events of a release that reports no events."""
    met: Counter[str] = Counter()
    plan = Plan(Own("nano-vllm", "reference"), seed=3)
    for case in map(plan.case, range(40)):
        script = Script(case)
        assert [*script]
        for step in script.steps:
            admitted = {event.id for event in step.happened("admit")}
            if admitted.intersection(event.id for event in step.happened("preempt")):
                continue  # of which nothing is left to see
            inferred = ADAPTER.inferred_events(evolve(step, events=()), case.config)
            assert inferred == tuple(evolve(event, rule="") for event in step.events)
            met.update(event.transition for event in inferred)

    assert met.keys() == {*ADAPTER.fields.visible}
    assert met["preempt"] > 10


def test_the_stand_in_does_as_the_machine(checkout: Path, tmp_path: Path) -> None:
    assert os.environ["LOCKSTEP_NANO_VLLM"] == str(checkout)

    ran = lockstep("conform", DRIVER, "--episodes", EPISODES, "--findings", tmp_path / "findings")

    assert ran.code == 0, ran.out + ran.err
    assert f"no unknown difference in {EPISODES} episodes" in ran.out
    assert "NANO-PFX-8 is broken in" in ran.out  # a prompt cached as a whole, as known
    for action in ("preempt", "prefix_hit", "refused by NANO-ADM-2", "early end"):
        assert action in ran.out


def test_the_newest_stand_in_does_as_the_machine_where_prompts_are_cut(
    checkout: Path, tmp_path: Path
) -> None:
    shutil.copytree(NEWEST, checkout, dirs_exist_ok=True)

    ran = lockstep("conform", DRIVER, "--episodes", EPISODES, "--findings", tmp_path / "findings")

    assert ran.code == 0, ran.out + ran.err
    assert f"no unknown difference in {EPISODES} episodes" in ran.out
    for rule in ("NANO-PFX-1", "NANO-PFX-3", "NANO-PFX-6", "NANO-PFX-8"):
        assert f"{rule} is broken" not in ran.out
    for action in ("preempt", "prefix_hit", "refused by NANO-ADM-2", "early end"):
        assert action in ran.out


FAULTS = {
    "the front of running is preempted": (
        *("scheduler.py", "running.pop()", "running.popleft()"),
        "batch.blocks",
    ),
    "a victim waits at the back": (
        *("scheduler.py", "waiting.appendleft(seq", "waiting.append(seq"),
        "after.waiting",
    ),
    "admitted though a gate refuses": (
        *("scheduler.py", "if not fits or not", "if not fits and not"),
        "IndexError allocate",
    ),
    "a table is given back from its head": (
        *("block_manager.py", "reversed(sequence.block_table)", "sequence.block_table"),
        "after.pool.free",
    ),
    "freed blocks go first": (
        *("block_manager.py", "free_block_ids.append(block)", "free_block_ids.appendleft(block)"),
        "after.pool.free",
    ),
    "hashes are not chained": (
        *("block_manager.py", "hash((prefix, *token_ids))", "hash(tuple(token_ids))"),
        "after.pool.keys",
    ),
    "a block comes at the boundary": (
        *("block_manager.py", "offset == 1:", "offset == 0:"),
        "batch.blocks",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_it_is_found(checkout: Path, fault: str) -> None:
    file, old, new, cause = FAULTS[fault]
    path = checkout / "nanovllm" / "engine" / file
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")

    assert cause in (found.cause for found in findings(EPISODES))


def test_without_nano_vllm_the_command_says_how_to_have_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("LOCKSTEP_NANO_VLLM", raising=False)

    ran = lockstep("conform", DRIVER, "--episodes", 1)

    assert ran.code == 2
    assert "set LOCKSTEP_NANO_VLLM to a checkout's directory" in ran.err
