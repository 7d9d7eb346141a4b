"""Worlds: every edge is taken and compared, a fault on a rare edge is found, counts are kept."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve, frozen

from checks.explore.policy import machine_of
from checks.harness.campaigns.campaign import own_system
from checks.harness.campaigns.recording import read_recording, record
from checks.harness.campaigns.worlds import (
    Coverage,
    World,
    WorldPlan,
    cover_worlds,
    read_coverage,
    run_part,
    save_coverage,
    world_plan,
    worlds_of,
)
from checks.harness.choices import Choices
from checks.harness.comparison import Terms, compare
from checks.harness.decoding import decoded
from checks.harness.driver.system import DriverCommand
from checks.harness.finding import Kind
from checks.harness.paths import case_of_path, choices_of_path, path_script, redrawn_path
from checks.harness.policy import system_of
from checks.harness.system import ABILITIES_HERE, REFERENCE, Action, Failure, Hello, Step, Taken
from checks.releases.filing import filed_findings
from spec.core.errors import InputError, WorkloadError
from tests.checks.harness.driver.files import TEMPLATE, faulty_driver

POLICY = "nano-vllm"
Wrong = Callable[[Step], Step | Failure]


@frozen
class Changed:
    """The reference with a fault: its steps as `wrong` changes them."""

    wrong: Wrong
    abilities: frozenset[str] = ABILITIES_HERE
    policy: str = POLICY

    def open(self) -> "Changed":
        return self

    def close(self) -> None:
        pass

    @property
    def hello(self) -> Hello:
        return Hello(REFERENCE, REFERENCE, self.policy, abilities=self.abilities)

    def play(self, case: Any, actions: Iterable[Action]) -> Iterator[Taken | Failure]:
        for taken in system_of(self.policy, REFERENCE).play(case, actions):
            if isinstance(taken, Failure):
                yield taken
                return
            step = self.wrong(taken.step)
            if isinstance(step, Failure):
                yield step
                return
            yield Taken(step)


def right(step: Step) -> Step:
    return step


def rarely_wrong(step: Step) -> Step:
    """Tokens are lost where two wait in this order and the second ends with its first."""
    waiting = [row.id for row in step.before.waiting]
    is_rare = not step.before.running and waiting == ["1", "0"]
    return evolve(step, outputs={}) if is_rare and step.finished == ("0",) else step


def always_wrong(step: Step) -> Step:
    """A prompt is never computed beside another one."""
    return evolve(step, kind="idle") if len(step.scheduled) > 1 and step.kind == "prefill" else step


def failing(step: Step) -> Failure:
    return Failure("RuntimeError", "out of order")


BATCHED, CACHED, SHARED = "batch of one", "all cached, few blocks", "two blocks in common"


def small(name: str, requests: int = 2) -> World:
    """A world with its first requests only."""
    (instance,) = (world for world in machine_of(POLICY).worlds if world.name == name)
    known = instance.requests[:requests]
    ids = {request.id for request in known}
    kept = evolve(instance, requests=known, early_ends=instance.early_ends & ids, edges=0)
    return World.of(kept, Changed(right).hello)


def plan_of(wrong: Wrong, *names: str) -> WorldPlan:
    return world_plan(Changed(wrong), [*map(small, names)], Terms(judged=False))


def covered(plan: WorldPlan) -> Coverage:
    return cover_worlds(plan, lambda _seen: None)


def test_every_edge_of_a_world_is_taken() -> None:
    seen = covered(plan_of(right, BATCHED, SHARED))
    assert seen.taken == seen.edges
    assert {*seen.edges} == {BATCHED, SHARED}
    assert (seen.left, seen.behind.total(), seen.campaign.interrupted) == (0, 0, False)
    assert not seen.campaign.first_seen
    assert seen.campaign.steps > seen.campaign.episodes > 50


def test_a_fault_that_few_edges_show_is_found_made_small_and_replayed(tmp_path: Path) -> None:
    plan = plan_of(rarely_wrong, SHARED)
    seen = covered(plan)
    (found,) = filed_findings(seen.campaign, "some driver", tmp_path)
    assert found.finding.kind is Kind.DIVERGENCE
    assert found.times == 2
    assert seen.taken.total() + seen.behind.total() == seen.total
    assert found.case.path == ("arrive 1", "arrive 0", "step, 0 ends")
    again = compare(own_system(plan.system), found.case, plan.terms)
    assert again.finding is not None
    assert again.finding.signature == found.finding.signature
    assert compare(system_of(POLICY, REFERENCE), found.case, plan.terms).finding is None


def played_by_a_driver(path: Path) -> Coverage:
    source = DriverCommand((sys.executable, str(path)))
    plan = world_plan(source, worlds_of(own_system(source).hello), Terms())
    with closing(own_system(source)):
        return run_part(plan, inf, 0)


def test_a_record_that_was_equal_on_the_same_edges_is_not_decoded_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    records: list[Any] = []

    def counting(decoder: Any, record: Any, *rest: Any) -> Step:
        records.append(record)
        return decoded(decoder, record, *rest)

    monkeypatch.setattr("checks.harness.driver.system.decoded", counting)
    seen = played_by_a_driver(TEMPLATE)
    assert seen.taken == seen.edges
    assert 0 < len(records) < 0.6 * seen.campaign.steps


def test_another_record_on_the_same_edges_is_compared(tmp_path: Path) -> None:
    seen = played_by_a_driver(faulty_driver(tmp_path, "last come first served, in the end"))
    assert [kind for kind, _ in seen.campaign.first_seen] == [Kind.DIVERGENCE]
    assert seen.behind.total() < seen.taken.total() / 2


def test_a_path_is_recorded_and_read_again(tmp_path: Path) -> None:
    case = case_of_path(small(SHARED).instance, ["arrive 1", "arrive 0", "step, 0 ends", "step"])
    system = Changed(failing, frozenset({"abort", "ends"}))
    record(system, case, Terms(), tmp_path / "path", about="", command="")
    assert read_recording(tmp_path / "path").case == case


def test_edges_behind_a_difference_are_counted_and_no_others() -> None:
    seen = covered(plan_of(always_wrong, BATCHED, SHARED))
    assert seen.behind[BATCHED] == 0  # where no two prompts share a step
    assert 0 < seen.behind[SHARED] < seen.total / 2
    assert seen.taken.total() + seen.behind.total() == seen.total
    assert len(seen.campaign.first_seen) == 1


def test_an_error_in_the_first_step_is_a_finding() -> None:
    seen = covered(plan_of(failing, BATCHED))
    assert [kind for kind, _ in seen.campaign.first_seen] == [Kind.CRASH]
    assert not seen.refused


@frozen
class Refusing:
    """A system that refuses a configuration at its start."""

    @property
    def hello(self) -> Hello:
        return Changed(right).hello

    def open(self) -> "Refusing":
        return self

    def close(self) -> None:
        pass

    def play(self, case: Any, actions: Iterable[Action]) -> Iterator[Taken | Failure]:
        yield Failure("ValueError", "blocks of 256 only")


def test_a_configuration_that_is_refused_at_the_start_is_a_result() -> None:
    source = Refusing()
    seen = covered(world_plan(source, [small(BATCHED)], Terms()))
    assert seen.refused == {BATCHED: "ValueError: blocks of 256 only"}
    assert not seen.campaign.first_seen
    assert (seen.total, seen.left) == (0, 0)


def test_ended_and_resumed_it_has_the_same_counts(tmp_path: Path) -> None:
    others = (
        "batch of two",
        "all cached",
        "block of another prefix",
        "boundaries",
        "blocks of 256",
    )
    plan, path = plan_of(rarely_wrong, BATCHED, SHARED, CACHED, *others), tmp_path / "kept"
    whole = covered(plan)
    runs = 0
    earlier = None
    while earlier is None or earlier.campaign.interrupted:
        earlier = cover_worlds(plan, lambda _seen: None, seconds=0.001, earlier=earlier, whole=True)
        save_coverage(earlier, path)
        interrupted = earlier.campaign.interrupted
        earlier = read_coverage(plan, path)
        earlier.campaign.interrupted = interrupted
        runs += 1
    assert runs >= 2
    for name in ("taken", "edges", "behind", "parts"):
        assert getattr(earlier, name) == getattr(whole, name)
    for name in ("episodes", "steps", "counts", "pairs", "times", "expected"):
        assert getattr(earlier.campaign, name) == getattr(whole.campaign, name)
    assert {*earlier.campaign.first_seen} == {*whole.campaign.first_seen}


def test_a_part_that_time_ends_says_what_is_left() -> None:
    seen = run_part(plan_of(right, BATCHED), 0.0, 0)
    assert seen.parts == 0
    assert 0 < seen.taken.total() < seen.total == seen.taken.total() + seen.left


def test_aborts_between_two_steps_keep_the_order_of_the_path() -> None:
    (world,) = (world for world in machine_of("vllm-v1").worlds if world.name == "nothing binds")
    labels = ["arrive 0", "arrive 1", "step", "abort 1", "abort 0", "arrive 2", "step"]
    script = path_script(case_of_path(world, labels))
    assert (script.actions[1].arrive, script.actions[1].abort) == (("2",), ("1", "0"))
    assert script.steps[1].aborted == ("1", "0")
    assert script.edges == [3, 7]


def test_an_end_of_a_path_is_the_length_of_its_request() -> None:
    (world,) = (world for world in machine_of(POLICY).worlds if world.name == "batch of one")
    labels = ["arrive 0", "step", "step, 0 ends"]
    case = case_of_path(world, labels)
    assert [(request.id, request.output_len) for request in case.requests] == [("0", 2)]
    assert path_script(case).over
    with pytest.raises(WorkloadError, match="what the environment can do there"):
        case_of_path(world, ["arrive 0", "step", "abort 0", "step, 1 ends"])


def test_a_client_that_leaves_in_a_step_does_not_end_in_it() -> None:
    (world,) = (world for world in machine_of("vllm-v1").worlds if world.name == "drafts")
    case = case_of_path(world, ["arrive 1", "step, 1 ends, 1 leaves"])
    assert [request.output_len for request in case.requests] == [None]


def test_a_path_that_ends_in_an_idle_scheduler_has_an_idle_step() -> None:
    (world,) = (world for world in machine_of("vllm-v0").worlds if world.name == "swap")
    script = path_script(case_of_path(world, ["arrive 0", "step", "abort 0"]))
    assert [step.kind for step in script.steps] == ["prefill", "idle"]


def test_the_choices_of_a_path_make_it_again() -> None:
    (world,) = (world for world in machine_of(POLICY).worlds if world.name == "batch of one")
    case = case_of_path(world, ["arrive 1", "step", "arrive 0", "step", "step, 1 ends", "step"])
    case = evolve(case, choices=choices_of_path(case.path))
    assert redrawn_path(case, Choices.again(case.choices)) == case
    (entries,) = case.choices
    without = redrawn_path(case, Choices.again(((*entries[:2], *entries[3:-1]),)))
    assert [request.id for request in without.requests] == ["1"]


def test_a_name_that_is_no_instance_is_refused_with_those_that_are() -> None:
    with pytest.raises(InputError, match="'batch of one', 'batch of two'"):
        worlds_of(Changed(right).hello, ["no such world"])


def test_what_the_driver_cannot_do_is_left_out_and_named() -> None:
    hello = evolve(Changed(right, policy="vllm-v1").hello, abilities=frozenset({"ends"}))
    worlds = worlds_of(hello, ["nothing binds"])
    assert [world.lacks for world in worlds] == [("abort", "abort_running")]
    assert not worlds[0].instance.aborts | worlds[0].instance.leavers
    (again,) = worlds_of(Changed(right).hello, ["open", "open"])
    assert (again.lacks, again.instance.returning) == (("returning",), frozenset())


def test_aborts_are_left_out_where_loads_end_between_two_steps() -> None:
    # An action has the aborts before the ends of loads; the graph has them in any order.
    hello = Changed(right, policy="vllm-v1").hello
    (world,) = worlds_of(hello, ["async load"])
    assert "order_between_steps" in world.lacks
    assert not world.instance.aborts


def test_a_world_is_served_as_each_release_has_it() -> None:
    hello = evolve(Changed(right, policy="vllm-v1").hello, config={"release": ["0.33.0"]})
    assert len(worlds_of(hello)) == len(machine_of("vllm-v1").worlds) / 2


def test_a_checkpoint_is_of_the_same_worlds_in_every_process() -> None:
    """Sets of ids have another order in each process."""
    code = (
        "from tests.checks.harness.campaigns import test_worlds as tests\n"
        "from checks.harness.campaigns import worlds\n"
        "print(worlds._about(tests.plan_of(tests.right, tests.BATCHED, tests.CACHED)))"
    )
    run = partial(
        subprocess.run, [sys.executable, "-c", code], text=True, capture_output=True, check=True
    )
    first, second = (run(env=os.environ | {"PYTHONHASHSEED": seed}).stdout for seed in "12")
    assert first == second != ""
