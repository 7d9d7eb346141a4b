"""`lockstep explore` under every policy: listed instances, a user's own instances, graphs."""

import json
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from inline_snapshot import snapshot

from checks.explore.policy import machine_of
from checks.registry import POLICIES
from tests.checks.command import lockstep, settings

SMALL = ["block_size=2", "max_model_len=8", "max_num_seqs=2", "num_blocks=4"]
LOADS = "requests with external tokens, and a configuration in which loads may be lost"
SESSION = (
    '{"id": "a", "prompt_len": 2, "max_tokens": 1, "continued_by": "b"}\n'
    '{"id": "b", "prompt_len": 4, "max_tokens": 1, "after": "a"}\n'
)


def report(*arguments: object) -> Any:
    return json.loads(lockstep("explore", *arguments, "--json", "-").out)["instances"]


def listed(*arguments: object) -> list[str]:
    """The lines of `--list` without the heading and the continuation lines."""
    lines = lockstep("explore", "--list", *arguments).out.splitlines()[1:]
    return [line for line in lines if not line.startswith(" ")]


def test_default_instances_of_every_policy_are_offered_and_those_of_one() -> None:
    everything = listed()

    assert len(everything) == sum(len(machine_of(policy).instances) for policy in POLICIES)
    assert any(line.startswith("layout ") for line in everything)
    assert any(line.startswith("nano-vllm, preemption ") for line in everything)
    of_one = listed("--set", "policy=vllm-v1")
    assert len(of_one) == len(machine_of("vllm-v1").instances)
    assert all(line.startswith("vllm-v1, ") for line in of_one)
    of_spyre = listed("--set", "max_num_seqs=2")
    assert len(of_spyre) == len(machine_of("spyre").instances)


@pytest.mark.parametrize(
    ("arguments", "title", "states"),
    [
        (["nano-vllm, oversized"], "nano-vllm, oversized", 28),
        (["oversized"], "nano-vllm, oversized", 28),
        (["oversized", *settings("policy=nano-vllm")], "nano-vllm, oversized", 28),
        (["documented"], "documented", 29),
        (["lookahead"], "vllm-v1, lookahead", 108),
    ],
)
def test_instance_is_known_by_its_title_or_its_name(
    arguments: list[str], title: str, states: int
) -> None:
    (reported,) = report(*arguments)

    assert (reported["instance"], reported["states"]) == (title, states)


def test_machine_that_stops_at_a_guard_is_a_counterexample_that_replays() -> None:
    ran = lockstep("explore", "nano-vllm, documented")

    assert ran.code == 1
    broken = ran.out.partition("machine-error is broken")[2].partition("\n\n")[0]
    assert broken == snapshot("""\
 in 'nano-vllm, documented'
  says: No transition is taken where its guard does not hold.
  found: raised GuardError: decode is not allowed here: NANO-SLT-1
  after: arrive 1, step
  replay: lockstep replay counterexamples/nano-vllm-documented-machine-error.jsonl
  look at it: lockstep view counterexamples/nano-vllm-documented-machine-error.jsonl\
""")
    again = lockstep("replay", "counterexamples/nano-vllm-documented-machine-error.jsonl")
    assert again.code == 1
    assert again.out.splitlines()[-1] == "the violation is confirmed"


def test_counterexample_of_vllm_v1_shows_tokens_drafts_and_what_the_connector_lost() -> None:
    lockstep("explore", "sync load, lost")
    files = sorted(Path("counterexamples").iterdir())
    assert [file.stem[-8:] for file in files] == ["v1-kv-10", "v1-kv-12", "v1-kv-19"]

    for file in files:
        again = lockstep("replay", file)
        assert again.code == 1
        both = ", 1 of 1" * file.stem.endswith("v1-kv-19")  # the other relies on it
        assert again.out.splitlines()[0] == f"step 0 prefill: tokens 1 of 0{both}"
        assert "lose_load 0" in again.out
        assert again.out.splitlines()[-1] == "the violation is confirmed"


@pytest.mark.parametrize("policy", ["nano-vllm", "vllm-v1"])
def test_instance_of_ones_own_is_explored_under_another_policy(policy: str) -> None:
    Path("w.jsonl").write_text(
        '{"id": "0", "prompt_len": 3, "max_tokens": 2}\n'
        '{"id": "1", "prompt_len": 2, "max_tokens": 3}\n'
    )

    (reported,) = report("--workload", "w.jsonl", *settings(f"policy={policy}", *SMALL))

    assert (reported["instance"], reported["stopped_by"]) == (f"{policy}, w", None)
    assert reported["states"] > 50
    assert reported["violations"] == {}
    assert {"arrive", "abort", "step"} <= set(reported["actions"])


def test_a_request_of_ones_own_that_waits_for_its_grammar_is_explored() -> None:
    Path("w.jsonl").write_text(
        '{"id": "0", "prompt_len": 3, "max_tokens": 2, "grammar": true}\n'
        '{"id": "1", "prompt_len": 2, "max_tokens": 2}\n'
    )

    ran = lockstep("explore", "--workload", "w.jsonl", *settings("policy=vllm-v1", *SMALL))

    assert "assumed: request 0 waits for its grammar, but not for ever" in ran.out
    assert ran.code == 0


def test_a_request_of_ones_own_that_waits_for_its_images_is_explored() -> None:
    Path("w.jsonl").write_text(
        '{"id": "0", "prompt_len": 3, "max_tokens": 2, "has_images": true}\n'
        '{"id": "1", "prompt_len": 2, "max_tokens": 2}\n'
    )

    ran = lockstep("explore", "--workload", "w.jsonl", *settings("policy=spyre", *SMALL))

    assert "assumed: request 0 waits for its images, but not for ever" in ran.out
    assert ran.code == 0


def test_a_grammar_is_no_word_but_true_or_false_and_no_business_of_nano_vllm() -> None:
    line = '{"id": "0", "prompt_len": 3, "max_tokens": 2, "grammar": %s}\n'
    Path("word.jsonl").write_text(line % '"json"')
    Path("true.jsonl").write_text(line % "true")

    word = lockstep("run", "word.jsonl")
    other = lockstep("run", "true.jsonl", "--set", "policy=nano-vllm")

    assert (word.code, other.code) == (2, 2)
    assert "grammar: found 'json'; allowed: true or false" in word.err
    assert "grammar: found True; allowed: False under policy nano-vllm" in other.err


@pytest.mark.parametrize("part", [("--resume", "a.ck"), ("--order", "random", "--max-depth", "5")])
def test_a_part_of_a_search_does_not_go_to_a_cluster(
    part: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("checks.cli.explore.is_elsewhere", lambda: True)

    ran = lockstep("explore", "exact", "--time", "5", *part)

    assert (ran.code, ran.out) == (2, "")
    assert "allowed: instances as a whole; --resume, --graph and random walks" in ran.err


def test_an_instance_of_ones_own_whose_clients_come_back_starves_by_priority() -> None:
    Path("w.jsonl").write_text(
        '{"id": "late", "prompt_len": 2, "max_tokens": 2, "priority": 1}\n'
        '{"id": "urgent", "prompt_len": 2, "max_tokens": 2}\n'
    )
    by_priority = settings("policy=vllm-v1", "scheduling=priority", *SMALL, "max_num_seqs=1")
    own = ("--workload", "w.jsonl", "--fixed-ends", "--no-aborts", *by_priority)

    (once,), (returning,) = report(*own), report(*own, "--returning")
    again = lockstep("replay", "counterexamples/vllm-v1-w-v1-prg-5.jsonl")

    assert once["violations"] == {}
    assert [*returning["violations"]] == ["V1-PRG-5"]
    assert returning["violations"]["V1-PRG-5"]["found"].startswith("request late: steps ")
    assert again.out.splitlines()[-1] == "the violation is confirmed"


def test_lost_loads_are_refused_where_they_are_not_modelled() -> None:
    Path("w.jsonl").write_text('{"id": "a", "prompt_len": 4, "max_tokens": 1, "external": 2}\n')
    keys = settings("policy=vllm-v1", "connector=async", "kv_groups=sliding 3", *SMALL)

    ran = lockstep("explore", *keys, "--workload", "w.jsonl", "--lost-loads")

    assert (ran.code, ran.err) == (2, f"lockstep: --lost-loads: found True; allowed: {LOADS}\n")


@pytest.mark.parametrize(
    ("option", "allowed"),
    [
        ("--lost-loads", LOADS),
        ("--returning", "requests without continued_by"),
    ],
)
def test_an_option_that_could_do_nothing_or_makes_no_sense_is_refused(
    option: str, allowed: str
) -> None:
    Path("w.jsonl").write_text(SESSION)

    ran = lockstep("explore", *settings("policy=vllm-v1", *SMALL), "--workload", "w.jsonl", option)

    assert (ran.code, ran.err) == (2, f"lockstep: {option}: found True; allowed: {allowed}\n")


def test_what_is_assumed_of_the_turns_of_a_session_is_printed() -> None:
    Path("w.jsonl").write_text(SESSION)

    ran = lockstep("explore", *settings("policy=vllm-v1", *SMALL), "--workload", "w.jsonl")

    line = "assumed: request b, the turn after a, comes at any time after that one has ended, or"
    assert line in ran.out


@pytest.mark.parametrize(
    ("title", "places"),
    [
        ("nano-vllm, oversized", {"waiting", "prefilling", "decoding", "paused"}),
        ("vllm-v1, lookahead", {"waiting", "skipped", "running", "draining", "lost"}),
    ],
)
def test_state_graph_tells_who_is_where(title: str, places: set[str]) -> None:
    lockstep("explore", title, "--graph", "g.graphml")

    graph = nx.read_graphml("g.graphml")

    assert places <= set(graph.nodes["n0"] if "n0" in graph else graph.nodes["0"])
