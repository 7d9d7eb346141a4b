"""`lockstep simulate`: the figures of `run`, and what it says of itself."""

import json
from pathlib import Path
from typing import Any

import pytest

from engine.spyre.decisions import DecisionObserver
from lockstep import api
from tests.checks.command import lockstep

EXAMPLES = Path(__file__).parents[3] / "examples"
FIRST = (EXAMPLES / "first.jsonl", "--config", EXAMPLES / "first.toml")
FIGURES = {"device", "using", "command", "rules", "seconds", "steps_per_second", "verified"}


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


@pytest.mark.parametrize("policy", ["nano-vllm", "vllm-v0", "vllm-v1"])
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


def test_the_first_requests_are_judged_and_compared_if_asked_for() -> None:
    ran = lockstep("simulate", *FIRST, "--verify", "3", "--json", "r.json")
    assert ran.code == 0
    assert "verified: the first 3 requests, " in ran.out
    (verified,) = json.loads(Path("r.json").read_text())["verified"]
    assert verified["holds"]
    assert verified["rules"] > 50


def test_a_simulation_that_decides_otherwise_is_a_violation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = DecisionObserver._work

    def one_token_more(observer: Any, plan: Any, outcome: Any) -> Any:
        work, tokens, requests = right(observer, plan, outcome)
        return work, tokens + 1, requests

    monkeypatch.setattr(DecisionObserver, "_work", one_token_more)
    ran = lockstep("simulate", *FIRST, "--verify", "3")
    assert ran.code == 1
    assert "step 0 decides otherwise than `run`" in ran.out


def test_several_configurations_are_not_verified() -> None:
    ran = lockstep("simulate", *FIRST, "--compare", "admission=exact,shipped", "--verify", "3")
    assert ran.code == 2
    assert "--verify: found 3; allowed: one configuration, without --compare" in ran.err


def test_python_gives_the_figures() -> None:
    config = api.configuration("vllm-v1", block_size=4, max_model_len=64)
    requests = api.requests([{"id": str(name), "prompt_len": 9, "max_tokens": 3} for name in "ab"])
    summary = api.simulate(config, requests, {"prefill_time": 2.0, "decode_time": 1.0})
    assert (summary.finished, summary.output_tokens, summary.duration_units) == (2, 6, 4.0)
    with pytest.raises(api.InputError, match=r"cost\.none"):
        api.simulate(config, requests, {"none": 1.0})
