"""A toy policy outside the package: one call registers it, and every command works with it."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from checks.registry import POLICIES, RULES, register, unregister
from tests.checks.command import lockstep, settings
from tests.toy.policy import PARTS
from tests.toy.scheduler import Queue

HERE = Path(__file__).parent
OF_TOY = settings("policy=toy")


@pytest.fixture(autouse=True)
def _registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    register("toy", **PARTS)
    yield
    unregister("toy")


def report(*arguments: object) -> Any:
    return json.loads(lockstep(*arguments, "--json", "-").out)


@pytest.fixture
def workload() -> Path:
    """An early end, and a client that goes away."""
    path = Path("w.jsonl")
    path.write_text(
        '{"id": "0", "prompt_len": 7, "max_tokens": 3}\n'
        '{"id": "1", "arrival": 1, "prompt_len": 2, "max_tokens": 3, "output_len": 2}\n'
        '{"id": "2", "prompt_len": 2, "max_tokens": 3, "abort_at": 2}\n'
    )
    return path


def test_it_is_registered_for_as_long_as_it_should_be() -> None:
    assert list(POLICIES) == ["spyre", "nano-vllm", "vllm-v1", "vllm-v0", "toy"]
    assert RULES["TOY-1"].sentence.startswith("A step computes at most `limit` tokens")
    with pytest.raises(ValueError, match="two policies are called toy"):
        register("toy", **PARTS)


def test_its_rules_are_listed() -> None:
    ran = lockstep("rules", "TOY")

    assert ran.code == 0
    assert "id: TOY-1\npolicy: toy\n" in ran.out
    assert "\ntoy\nTOY-1 " in lockstep("rules").out


def test_it_is_explored() -> None:
    (explored,) = report("explore", *OF_TOY)["instances"]

    assert (explored["instance"], explored["states"]) == ("toy, two", 24)
    assert (explored["rules"], explored["violations"]) == (["TOY-1"], {})
    assert explored["witnesses"]["TOY-1"] > 0


def test_planted_fault_of_the_machine_is_explored_and_replayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tests.toy.policy.min", lambda _limit, left: left, raising=False)

    assert lockstep("explore", "--set", "policy=toy").code == 1
    (file,) = Path("counterexamples").iterdir()
    again = lockstep("replay", file)
    assert (again.code, again.out.splitlines()[-1]) == (1, "the violation is confirmed")


def test_workload_of_ones_own_is_explored(workload: Path) -> None:
    (explored,) = report("explore", "--workload", workload, *OF_TOY)["instances"]

    assert (explored["instance"], explored["violations"]) == ("toy, w", {})
    assert explored["states"] > 100


@pytest.mark.parametrize("using", ["engine", "reference"])
def test_it_serves_a_workload(workload: Path, using: str) -> None:
    run = report("run", workload, *OF_TOY, "--using", using)

    assert (run["finished"], run["aborted"], run["violations"]) == (2, 1, [])
    assert (run["prompt_tokens"], run["output_tokens"]) == (9, 5)


@pytest.mark.parametrize("full", [(), ("--full",)], ids=["plain", "full"])
def test_its_trace_replays(workload: Path, full: tuple[str, ...]) -> None:
    assert lockstep("run", workload, *OF_TOY, "--trace", "t.jsonl", *full).code == 0

    for target in ("reference", "engine"):
        again = lockstep("replay", "t.jsonl", "--target", target)
        assert (again.code, again.out) == (0, "7 steps as in the file, no rule broken\n")


@pytest.mark.parametrize("using", ["engine", "reference"])
def test_it_is_fuzzed(using: str) -> None:
    fuzzed = report("fuzz", "--policy", "toy", "--using", using, "--judge", "--episodes", "40")

    assert fuzzed["findings"] == []
    assert fuzzed["steps"] > 1_000
    assert {"prefill step", "decode step", "abort, waiting", "early end"} <= set(fuzzed["actions"])


def test_planted_fault_of_the_engine_is_found_and_made_small(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last that came goes first."""
    monkeypatch.setattr(Queue, "add", added_in_front)

    (found,) = report("fuzz", "--policy", "toy", "--episodes", "40")["findings"]

    assert found["kind"] == "divergence"
    assert [request["max_tokens"] for request in found["requests"]] == [1, 1]
    again = lockstep("replay", next(Path("corpus").iterdir()), "--target", "engine")
    assert again.code == 1


def added_in_front(queue: Queue, name: str, prompt_len: int) -> None:
    queue.prompts[name] = prompt_len
    queue.rows.insert(0, {"id": name, "computed": 0, "generated": 0})


def test_its_driver_conforms() -> None:
    conformed = report("conform", HERE / "driver.py", "--episodes", "40")

    assert conformed["findings"] == []
    assert conformed["judged"] == conformed["steps"] > 1_000
    assert conformed["rules"] == ["TOY-1"]


def test_planted_fault_of_the_driver_is_found_and_runs_again() -> None:
    shutil.copy(HERE / "driver.py", "driver.py")
    text = (HERE / "scheduler.py").read_text()
    Path("scheduler.py").write_text(text.replace("min(self.limit, left)", "left"))

    (found,) = report("conform", "driver.py", "--episodes", "20")["findings"]

    assert (found["kind"], found["cause"]) == ("divergence", "scheduled")
    (file,) = Path("findings").iterdir()
    assert lockstep("conform", "driver.py", "--case", file).code == 1
    assert lockstep("conform", HERE / "driver.py", "--case", file).code == 0  # and is gone
