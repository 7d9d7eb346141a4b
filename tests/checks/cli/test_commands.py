"""The `lockstep` command: output, files and exit codes."""

import json
import re
import subprocess
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path

import click
import pytest
from inline_snapshot import snapshot

from checks.cli import main
from checks.evidence import CONFORMED, recorded
from checks.registry import POLICIES, RULES, claims_of
from tests.checks.command import lockstep, settings

ROOT = Path(__file__).parents[3]
FIRST = ROOT / "examples" / "first.jsonl"
FIRST_CONFIG = ROOT / "examples" / "first.toml"


def workload(text: str, name: str = "w.jsonl") -> Path:
    path = Path(name)
    path.write_text(text, encoding="utf-8")
    return path


def replace_text(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


# --- run --------------------------------------------------------------------------------------


def test_run_of_the_first_example_says_what_it_cost_and_that_every_rule_holds() -> None:
    ran = lockstep("run", FIRST, "--config", FIRST_CONFIG)
    assert ran.code == 0
    assert "7: 6 finished, 1 aborted" in ran.out
    assert re.search(r"every rule holds: \d+ rules, 54 steps", ran.out)
    assert "SPY-VOL-4: A request joins if and only if no step of the worst case" in ran.out
    assert ran.err == ""


def test_the_report_has_the_figures_and_nothing_else_on_standard_output() -> None:
    ran = lockstep("run", FIRST, "--config", FIRST_CONFIG, "--json", "-")
    report = json.loads(ran.out)
    assert report["finished"] == 6
    assert report["waits"]["SPY-VOL-4"] == 25
    assert report["violations"] == []


def test_the_same_run_writes_the_same_bytes() -> None:
    for name in ("a", "b"):
        lockstep("run", FIRST, "--config", FIRST_CONFIG, "--trace", name, "--figures", f"{name}.f")
    assert Path("a").read_bytes() == Path("b").read_bytes()
    assert Path("a.f").read_bytes() == Path("b.f").read_bytes()


def test_a_run_that_breaks_a_rule_says_where_and_exits_1() -> None:
    path = workload(
        '{"id": "0", "prompt_len": 1, "max_tokens": 4}\n'
        '{"id": "1", "prompt_len": 1, "max_tokens": 2}\n'
    )
    sizes = ["block_size=2", "chunk_size=4", "max_model_len=16", "max_batch_tkv_limit=6"]
    options = settings(*sizes, "admission=documented")
    ran = lockstep("run", path, *options, "--trace", "t.jsonl", "--using", "reference")
    assert ran.code == 1
    assert "violated SPY-VOL-1 in step 3: batch 2 x tkv 4 = 8, limit 6" in ran.out
    assert "not every rule holds" in ran.out
    assert json.loads(Path("t.jsonl").read_text().splitlines()[-1])["violation"]["rule"] == (
        "SPY-VOL-1"
    )
    assert lockstep("replay", "t.jsonl").code == 1


# --- explore and replay -------------------------------------------------------------------------


def test_the_documented_rule_is_refuted_with_a_counterexample_that_replays() -> None:
    explored = lockstep("explore", "documented")
    assert explored.code == 1
    assert explored.out[explored.out.index("SPY-VOL-1 is broken") :] == snapshot("""\
SPY-VOL-1 is broken in 'documented'
  says: Batch size times max-tkv never exceeds the limit, in any step.
  found: batch 2 x tkv 4 = 8, limit 6
  after: arrive 0, arrive 1, step, step, step, step
  replay: lockstep replay counterexamples/documented-spy-vol-1.jsonl
  look at it: lockstep view counterexamples/documented-spy-vol-1.jsonl
""")
    replayed = lockstep("replay", "counterexamples/documented-spy-vol-1.jsonl")
    assert replayed.code == 1
    assert replayed.out == snapshot("""\
step 0 prefill: tkv 1, volume 1
    admit 0 (SPY-ADM-1)
    reserve 0 0 -> 3 (SPY-RES-2)
    allocate 0 [] -> [1] (SPY-CHK-1)
    chunk 0 0 -> 1 (SPY-CHK-3)
    join 0 (SPY-CHK-4)
    request 0: computed 0 -> 1, generated 0 -> 1, tkv 0 -> 1
step 1 decode: tkv 2, volume 2, prefill refused by SPY-PRI-3
    decode (SPY-DEC-1)
    request 0: computed 1 -> 2, generated 1 -> 2, tkv 1 -> 2
step 2 prefill: tkv 1, volume 1
    admit 1 (SPY-ADM-1)
    reserve 1 0 -> 2 (SPY-RES-2)
    allocate 1 [] -> [2] (SPY-CHK-1)
    chunk 1 0 -> 1 (SPY-CHK-3)
    join 1 (SPY-CHK-4)
    request 1: computed 0 -> 1, generated 0 -> 1, tkv 0 -> 1
step 3 decode: tkv 4, volume 8
    jump_tkv 1 1 -> 4 (SPY-TKV-4)
    allocate 0 [1] -> [3] (SPY-DEC-5)
    decode (SPY-DEC-1)
    finish 1 (LIF-3)
    request 0: computed 2 -> 3, generated 2 -> 3, tkv 2 -> 3
SPY-VOL-1 is broken in step 3
  says: Batch size times max-tkv never exceeds the limit, in any step.
  found: batch 2 x tkv 4 = 8, limit 6
the violation is confirmed
""")


def test_a_violation_is_as_recorded_until_the_file_changes() -> None:
    lockstep("explore", "documented")
    path = Path("counterexamples/documented-spy-vol-1.jsonl")
    assert lockstep("replay", path, "--expect", "recorded").code == 0
    replace_text(path, '"max_batch_tkv_limit":6', '"max_batch_tkv_limit":8')
    ran = lockstep("replay", path)
    assert ran.code == 1
    assert ran.out.endswith("the violation of SPY-VOL-1 is not confirmed\n")
    assert lockstep("replay", path, "--expect", "recorded").code == 1


def test_a_file_that_names_a_rule_that_is_none_is_refused() -> None:
    lockstep("explore", "documented")
    path = Path("counterexamples/documented-spy-vol-1.jsonl")
    for old, new, line, field in (
        ('"rule":"SPY-VOL-1"', '"rule":"SPY-VOL-99"', 6, "violation.rule"),
        ('"rule":"SPY-ADM-1"', '"rule":"NANO-DEC-1"', 2, "events.rule"),
    ):
        whole = path.read_text(encoding="utf-8")
        replace_text(path, old, new)
        ran = lockstep("replay", path)
        assert ran.code == 2
        found = new.partition(":")[2].strip('"')
        assert ran.err == (
            f"lockstep: {path}, line {line}: {field}: found '{found}'; allowed: a rule of spyre;"
            " see `lockstep rules --policy spyre`\n"
        )
        path.write_text(whole, encoding="utf-8")


def test_a_trace_replays_and_a_step_that_differs_is_shown_side_by_side() -> None:
    lockstep("run", FIRST, "--config", FIRST_CONFIG, "--trace", "run.jsonl")
    ran = lockstep("replay", "run.jsonl")
    assert (ran.code, ran.out) == (0, "54 steps as in the file, no rule broken\n")
    replace_text(Path("run.jsonl"), '"tkv":200', '"tkv":201')
    ran = lockstep("replay", "run.jsonl")
    assert (ran.code, ran.out) == (1, "step 0 differs\n  tkv: the file says 201, now 200\n")


def test_an_exploration_that_a_bound_ends_is_incomplete() -> None:
    ran = lockstep("explore", "exact", "--max-states", 100)
    assert ran.code == 3
    assert re.search(r"incomplete \(max_states\), \d+ rules hold so far, \d+ not seen", ran.out)


def test_an_exploration_goes_on_from_where_it_stopped_to_the_same_counts() -> None:
    at_once = json.loads(lockstep("explore", "preemption", "--json", "-").out)["instances"][0]
    assert lockstep("explore", "preemption", "--max-states", 100, "--resume", "saved").code == 3
    resumed = lockstep("explore", "preemption", "--resume", "saved", "--json", "-")
    later = json.loads(resumed.out)["instances"][0]
    counts = ("states", "transitions", "depth", "witnesses", "actions", "outcome")
    assert {name: later[name] for name in counts} == {name: at_once[name] for name in counts}


def test_an_instance_of_ones_own_is_explored() -> None:
    tiny = ROOT / "examples"
    ran = lockstep(
        "explore", "--workload", tiny / "tiny.jsonl", "--config", tiny / "tiny.toml", "--json", "-"
    )
    assert ran.code == 0
    assert json.loads(ran.out)["outcome"] == "holds"


def test_a_key_of_the_default_instances_can_be_changed() -> None:
    assert lockstep("explore", "documented", "--set", "admission=exact").code == 0
    assert lockstep("explore", "exact", "--set", "admission=documented").code == 0


def test_a_state_graph_is_written_as_graphml() -> None:
    import networkx as nx

    assert lockstep("explore", "dialogue", "--graph", "g.graphml").code == 0
    graph = nx.read_graphml("g.graphml")
    assert graph.nodes["0"] == dict.fromkeys(graph.nodes["0"], "")  # no request is there yet
    assert graph.edges["0", "1"] == {"actions": "arrive 0"}


# --- rules ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        (
            "spy-vol-1",
            "says: Batch size times max-tkv never exceeds the limit, in any step.\n"
            "source: spyre, Key concepts, Max batch-tkv limit\n"
            "refuted in: documented\n",
        ),
        (
            "NANO-PFX-9",
            "policy: nano-vllm\n"
            "source: nano-vllm, With Prefix Cache: Reuse the Work\n"
            "refuted in: nano-vllm, same answers; nano-vllm, newest, shared prefix\n",
        ),
    ],
)
def test_one_rule_is_shown_with_its_source_and_verdict(asked: str, shown: str) -> None:
    ran = lockstep("rules", asked)
    assert ran.code == 0
    for line in shown.splitlines():
        assert f"{line}\n" in ran.out


def test_every_rule_is_listed() -> None:
    listed = json.loads(lockstep("rules", "--json", "-").out)["rules"]
    counts = {name: len(claims_of(name).registry.rules) for name in POLICIES}
    assert Counter(rule["policy"] for rule in listed) == counts
    assert all(rule["explored"] != "not judged" for rule in listed)


def test_each_rule_takes_one_line_with_its_verdict() -> None:
    ran = lockstep("rules")
    lines = ran.out.splitlines()
    releases = 4 * len(recorded(CONFORMED))  # each with three kinds of evidence
    assert len(lines) == len(RULES) + len(POLICIES) + releases + 1
    assert (
        "SPY-VOL-1    refuted          Batch size times max-tkv never exceeds the limit," in ran.out
    )
    counts = (
        rf"{len(RULES)} rules: \d+ proven of every run of the machine, \d+ proven of the formula, "
        r"\d+ proven in part, \d+ holds, \d+ refuted; "
    )
    assert re.fullmatch(counts + "one alone: lockstep rules SPY-VOL-1", lines[-1])


def test_rules_are_found_by_policy_verdict_and_words() -> None:
    def ids(*asked: str) -> list[str]:
        listed = json.loads(lockstep("rules", *asked, "--json", "-").out)["rules"]
        return [rule["id"] for rule in listed]

    assert ids("--policy", "nano-vllm", "--refuted", "prefix")[:2] == ["NANO-PFX-1", "NANO-PFX-4"]
    assert all(rule.startswith("V1-") for rule in ids("--policy", "vllm-v1", "--unproven"))
    assert ids("SPY-VOL", "never", "exceeds") == ["SPY-VOL-1"]
    assert "SPY-VOL-4" not in ids("--unproven")
    unknown = lockstep("rules", "SPY-VIL-1")
    assert unknown.code == 2
    assert "ID: found 'SPY-VIL-1'; allowed: SPY-VOL-1" in unknown.err


HEAVY = {"networkx", "numpy", "rich", "z3"}


def test_help_imports_no_solver_no_graphs_and_no_arrays() -> None:
    code = (
        "import atexit, sys; sys.argv = ['lockstep', '--help'];"
        f"atexit.register(lambda: print({HEAVY} & sys.modules.keys()));"
        "from checks.cli.main import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Usage: lockstep [OPTIONS] COMMAND [ARGS]...\n")
    assert done.stdout.endswith("set()\n")


@pytest.mark.parametrize("name", main.lockstep.commands)
def test_a_command_is_listed_with_the_first_sentence_of_its_own_help(name: str) -> None:
    command: click.Command = getattr(import_module(f"checks.cli.{name}"), name)
    sentence = " ".join(str(command.help).partition("\n\n")[0].split())
    assert main.lockstep.commands[name].help == sentence
