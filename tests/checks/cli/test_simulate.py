"""`lockstep simulate`: the figures of `run`, and what it says of itself."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from checks.harness.runs.simulating import random_slices
from engine.spyre.decisions import DecisionObserver
from lockstep import api
from tests.checks.command import lockstep
from tests.requests import request

EXAMPLES = Path(__file__).parents[3] / "examples"
FIRST = (EXAMPLES / "first.jsonl", "--config", EXAMPLES / "first.toml")
JUDGED = {"device", "using", "rules", "held", "verified"}
FIGURES = JUDGED | {"command", "seconds", "steps_per_second"}


def report_of(*words: object) -> dict[str, Any]:
    assert lockstep(*words, "--json", "r.json").code == 0
    report: dict[str, Any] = json.loads(Path("r.json").read_text())
    return report


def figures(report: dict[str, Any]) -> dict[str, Any]:
    """All but what is judged and how fast."""
    return {key: value for key, value in report.items() if key not in FIGURES}


def test_a_simulation_reports_the_figures_of_the_run() -> None:
    bounds = ("--slo", "ttft=20,e2e=60", "--limit", "5")
    simulated = report_of("simulate", *FIRST, *bounds)
    assert simulated["using"] == "simulation"
    assert simulated["rules"] == []
    assert figures(simulated) == figures(report_of("run", *FIRST, *bounds))


@pytest.mark.parametrize(
    "policy", ["nano-vllm", pytest.param("vllm-v0", marks=pytest.mark.thorough), "vllm-v1"]
)
def test_every_policy_is_simulated(policy: str) -> None:
    words = (EXAMPLES / "azure_sample.csv", "--set", f"policy={policy}", "--limit", "4")
    assert figures(report_of("simulate", *words)) == figures(report_of("run", *words))


def test_it_says_that_nothing_was_judged() -> None:
    ran = lockstep("simulate", *FIRST)
    assert (ran.code, ran.err) == (0, "")
    assert "no rule was judged: 54 steps" in ran.out
    compared = lockstep("simulate", *FIRST, "--compare", "admission=exact,shipped")
    assert "not judged" in compared.out
    assert "rules judged" not in compared.out


def test_the_timeline_is_that_of_the_run() -> None:
    for command in ("run", "simulate"):
        assert lockstep(command, *FIRST, "--timeline", f"{command}.json").code == 0
    assert Path("run.json").read_text() == Path("simulate.json").read_text()


def test_random_slices_are_judged_and_compared_if_asked_for() -> None:
    words = (EXAMPLES / "azure_sample.csv", "--set", "policy=nano-vllm", "--verify", "2")
    ran = lockstep("simulate", *words, "--json", "r.json")
    assert ran.code == 0
    assert ran.out.count("decisions and tokens of `run`, every rule holds (45 rules)") == 2
    slices = json.loads(Path("r.json").read_text())["verified"]
    assert all(part["holds"] and part["requests"] == 32 for part in slices)
    again, other = (report_of("simulate", *words, "--seed", seed)["verified"] for seed in (0, 1))
    assert again == slices
    assert [part["first"] for part in other] != [part["first"] for part in slices]


def test_a_small_workload_is_one_slice() -> None:
    ran = lockstep("simulate", *FIRST, "--verify", "1")
    assert ran.code == 0
    assert "verified: 7 requests from 0 on, 52 steps: " in ran.out
    ran = lockstep("simulate", *FIRST, "--verify", "2")
    assert (ran.code, ran.out) == (2, "")
    assert "--verify: found 2; allowed: at most 1 slice of 7 requests, of 7" in ran.err


def test_a_slice_begins_with_its_first_arrival() -> None:
    turn = request("2", 4, 2, arrival_time=3.0, after="0")
    asked = [request("1", 4, 2, arrival=9, abort_at=12), turn, request("3", 4, 2, arrival=11)]
    ((first, second, third),) = random_slices(asked, 1, 0)
    assert (first.arrival, first.abort_at, third.arrival) == (0, 3, 2)
    assert (second.after, second.arrival_time) == (None, 3.0)
    timed = [request("1", 4, 2, arrival_time=7.5), evolve(turn, after="1")]
    ((first, second),) = random_slices(timed, 1, 0)
    assert (first.arrival_time, second.after, second.arrival_time) == (0.0, "1", 3.0)


def test_a_simulation_that_decides_otherwise_is_a_violation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = DecisionObserver._work

    def one_token_more(observer: Any, plan: Any, outcome: Any) -> Any:
        work, tokens, requests = right(observer, plan, outcome)
        return work, tokens + 1, requests

    monkeypatch.setattr(DecisionObserver, "_work", one_token_more)
    ran = lockstep("simulate", *FIRST, "--verify", "1", "--json", "r.json")
    assert ran.code == 1
    assert "step 0 decides otherwise than `run`" in ran.out
    assert json.loads(Path("r.json").read_text())["outcome"] == "violated"


def test_several_configurations_are_not_verified() -> None:
    ran = lockstep("simulate", *FIRST, "--compare", "admission=exact,shipped", "--verify", "3")
    assert ran.code == 2
    assert "--verify: found 3; allowed: one configuration, without --compare" in ran.err


def test_it_says_with_which_release_decisions_were_compared() -> None:
    """As conformed.json has it: the values that random cases had of each key."""
    keys = {"block_size": 4, "num_blocks": 50, "max_num_seqs": 4, "max_num_batched_tokens": 150}
    words = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
    asked = ("simulate", "w.jsonl", "--set", "policy=nano-vllm", "--set", "max_model_len=100")
    Path("w.jsonl").write_text('{"id": "0", "prompt_len": 60, "max_tokens": 10}')

    inside = lockstep(*asked, *words)
    assert "decisions compared with nano-vllm-npu 0.0.2: equal in " in inside.out
    assert "  each value of this configuration was drawn in them" in inside.out

    outside = lockstep(*asked, *words, "--set", "num_blocks=1000000", "--json", "r.json")
    assert "  not in such a configuration:\n    num_blocks = 1,000,000; drawn: 2 to " in outside.out
    assert "compare this run: lockstep conform RELEASE --workload FILE" in outside.out
    nearest = json.loads(Path("r.json").read_text())["held"][0]
    assert nearest["outside"]["num_blocks"]["value"] == 1_000_000

    compared = lockstep(*asked, *words, "--compare", "token_gate=full_length,new_tokens")
    assert re.search(r"compared with a release +nano-vllm-npu .* +no: token_gate", compared.out)


def test_a_policy_without_a_release_on_record_is_not_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("checks.cli.held.recorded", lambda _path: {})
    ran = lockstep("simulate", EXAMPLES / "tiny.jsonl", "--set", "policy=vllm-v0")
    assert "release: not known, none of vllm-v0 is on record" in ran.out


def test_python_gives_the_figures() -> None:
    config = api.configuration("vllm-v1", block_size=4, max_model_len=64)
    requests = api.requests([{"id": str(name), "prompt_len": 9, "max_tokens": 3} for name in "ab"])
    summary = api.simulate(config, requests, {"prefill_time": 2.0, "decode_time": 1.0})
    assert (summary.finished, summary.output_tokens, summary.duration_units) == (2, 6, 4.0)
    with pytest.raises(api.InputError, match=r"cost\.none"):
        api.simulate(config, requests, {"none": 1.0})
