"""The command as a person or a script meets it: output, files, exit codes."""

import json
import os
from collections import Counter
from pathlib import Path

import pytest

from tests.checks.command import Ran, lockstep

ROOT = Path(__file__).parents[2]
FIRST = ROOT / "examples" / "first.jsonl"
FIRST_CONFIG = ROOT / "examples" / "first.toml"
ALONE = '{"id": "0", "prompt_len": 60, "max_tokens": 10}\n'


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def workload(text: str, name: str = "w.jsonl") -> Path:
    path = Path(name)
    path.write_text(text, encoding="utf-8")
    return path


def replace_in(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


# --- run --------------------------------------------------------------------------------------


def test_run_of_the_first_example_says_what_it_cost_and_that_every_rule_holds() -> None:
    ran = lockstep("run", FIRST, "--config", FIRST_CONFIG)
    assert ran.code == 0
    assert "7: 6 finished, 1 aborted" in ran.out
    assert "every rule holds: 69 rules, 54 steps" in ran.out
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


def test_a_trace_of_a_run_replays() -> None:
    lockstep("run", FIRST, "--config", FIRST_CONFIG, "--trace", "run.jsonl")
    ran = lockstep("replay", "run.jsonl")
    assert (ran.code, ran.out) == (0, "54 steps as in the file, no rule broken\n")


def test_a_run_that_breaks_a_rule_says_where_and_exits_1() -> None:
    path = workload(
        '{"id": "0", "prompt_len": 1, "max_tokens": 4}\n'
        '{"id": "1", "prompt_len": 1, "max_tokens": 2}\n'
    )
    sizes = ["block_size=2", "chunk_size=4", "max_model_len=16", "max_batch_tkv_limit=6"]
    options = [word for size in (*sizes, "admission=documented") for word in ("--set", size)]
    ran = lockstep("run", path, *options, "--trace", "t.jsonl", "--using", "reference")
    assert ran.code == 1
    assert "violated SPY-VOL-1 in step 3: batch 2 x tkv 4 = 8, limit 6" in ran.out
    assert "not every rule holds: 70 rules" in ran.out
    assert json.loads(Path("t.jsonl").read_text().splitlines()[-1])["violation"]["rule"] == (
        "SPY-VOL-1"
    )
    assert lockstep("replay", "t.jsonl").code == 1


def test_requests_of_a_public_trace_that_can_never_be_served_are_counted() -> None:
    sample = ROOT / "examples" / "azure_sample.csv"
    ran = lockstep("run", sample, "--set", "max_model_len=1024", "--set", "max_num_seqs=4")
    assert ran.code == 0
    assert "more refused, could never be served" in ran.out


# --- explore and replay -------------------------------------------------------------------------


def test_the_documented_rule_is_refuted_with_a_counterexample_that_replays() -> None:
    explored = lockstep("explore", "documented")
    assert explored.code == 1
    told = explored.out[explored.out.index("SPY-VOL-1 is broken") :]
    assert told == (
        "SPY-VOL-1 is broken in 'documented'\n"
        "  says: Batch size times max-tkv never exceeds the limit, in any step.\n"
        "  found: batch 2 x tkv 4 = 8, limit 6\n"
        "  after: arrive 0, arrive 1, step, step, step, step\n"
        "  replay: lockstep replay counterexamples/documented-spy-vol-1.jsonl\n"
    )
    replayed = lockstep("replay", "counterexamples/documented-spy-vol-1.jsonl")
    assert replayed.code == 1
    assert replayed.out == (
        "step 0 prefill: tkv 1, volume 1\n"
        "    admit 0  (SPY-ADM-1)\n"
        "    reserve 0 0 -> 3  (SPY-RES-2)\n"
        "    allocate 0 () -> (1,)  (SPY-CHK-1)\n"
        "    chunk 0 0 -> 1  (SPY-CHK-3)\n"
        "    join 0  (SPY-CHK-4)\n"
        "    request 0: computed 0 -> 1, generated 0 -> 1, tkv 0 -> 1\n"
        "step 1 decode: tkv 2, volume 2, prefill refused by SPY-PRI-3\n"
        "    decode   (SPY-DEC-1)\n"
        "    request 0: computed 1 -> 2, generated 1 -> 2, tkv 1 -> 2\n"
        "step 2 prefill: tkv 1, volume 1\n"
        "    admit 1  (SPY-ADM-1)\n"
        "    reserve 1 0 -> 2  (SPY-RES-2)\n"
        "    allocate 1 () -> (2,)  (SPY-CHK-1)\n"
        "    chunk 1 0 -> 1  (SPY-CHK-3)\n"
        "    join 1  (SPY-CHK-4)\n"
        "    request 1: computed 0 -> 1, generated 0 -> 1, tkv 0 -> 1\n"
        "step 3 decode: tkv 4, volume 8\n"
        "    jump_tkv 1 1 -> 4  (SPY-TKV-4)\n"
        "    allocate 0 (1,) -> (3,)  (SPY-DEC-5)\n"
        "    decode   (SPY-DEC-1)\n"
        "    finish 1  (LIF-3)\n"
        "    request 0: computed 2 -> 3, generated 2 -> 3, tkv 2 -> 3\n"
        "SPY-VOL-1 is broken in step 3\n"
        "  says: Batch size times max-tkv never exceeds the limit, in any step.\n"
        "  found: batch 2 x tkv 4 = 8, limit 6\n"
        "the violation is confirmed\n"
    )


def test_a_violation_that_does_not_come_about_is_not_confirmed() -> None:
    lockstep("explore", "documented")
    path = Path("counterexamples/documented-spy-vol-1.jsonl")
    replace_in(path, '"max_batch_tkv_limit":6', '"max_batch_tkv_limit":8')
    ran = lockstep("replay", path)
    assert ran.code == 0
    assert ran.out.endswith("the violation of SPY-VOL-1 is not confirmed\n")


def test_a_step_that_is_not_as_the_file_says_is_shown_side_by_side() -> None:
    lockstep("run", FIRST, "--config", FIRST_CONFIG, "--trace", "run.jsonl")
    replace_in(Path("run.jsonl"), '"tkv":200', '"tkv":201')
    ran = lockstep("replay", "run.jsonl")
    assert ran.code == 1
    assert ran.out == "step 0 differs\n  tkv: the file says 201, now 200\n"


def test_an_exploration_that_a_bound_ends_is_incomplete() -> None:
    ran = lockstep("explore", "exact", "--max-states", 100)
    assert ran.code == 3
    assert "incomplete (max_states), 59 rules hold so far" in ran.out


def test_an_exploration_goes_on_from_where_it_stopped_to_the_same_counts() -> None:
    at_once = json.loads(lockstep("explore", "preemption", "--json", "-").out)[0]
    assert lockstep("explore", "preemption", "--max-states", 400, "--resume", "saved").code == 3
    later = json.loads(lockstep("explore", "preemption", "--resume", "saved", "--json", "-").out)[0]
    counts = ("states", "transitions", "depth", "witnesses", "actions", "outcome")
    assert {name: later[name] for name in counts} == {name: at_once[name] for name in counts}


def test_an_instance_of_ones_own_is_explored() -> None:
    tiny = ROOT / "examples"
    ran = lockstep(
        "explore", "--workload", tiny / "tiny.jsonl", "--config", tiny / "tiny.toml", "--json", "-"
    )
    assert ran.code == 0
    assert json.loads(ran.out)[0]["outcome"] == "holds"


def test_a_key_of_the_default_instances_can_be_changed() -> None:
    assert lockstep("explore", "documented", "--set", "admission=exact").code == 0
    assert lockstep("explore", "exact", "--set", "admission=documented").code == 0
    ran = lockstep("explore", "exact", "--set", "max_batch_tkv_limit=8")
    assert_refused(ran, "prompt_len + max_tokens - 1 (its largest tkv): found 10; allowed: at most")


def test_a_state_graph_is_written_as_graphml() -> None:
    import networkx as nx

    assert lockstep("explore", "dialogue", "--graph", "g.graphml").code == 0
    graph = nx.read_graphml("g.graphml")
    assert len(graph) == 392
    assert graph.nodes["0"] == dict.fromkeys(graph.nodes["0"], "")  # nobody is there yet
    assert graph.edges["0", "1"] == {"actions": "arrive 0"}


def test_a_counterexample_is_written_as_itf() -> None:
    lockstep("explore", "documented")
    lockstep("replay", "counterexamples/documented-spy-vol-1.jsonl", "--itf", "c.itf.json")
    assert json.loads(Path("c.itf.json").read_text())["#meta"]["format"] == "ITF"


# --- rules ----------------------------------------------------------------------------------------


def test_one_rule_is_shown_with_its_source_and_verdict() -> None:
    ran = lockstep("rules", "spy-vol-1")
    assert ran.code == 0
    assert "says: Batch size times max-tkv never exceeds the limit, in any step.\n" in ran.out
    assert "source: spyre, Key concepts, Max batch-tkv limit\n" in ran.out
    assert "refuted in: ['documented']\n" in ran.out


def test_every_rule_is_listed() -> None:
    listed = json.loads(lockstep("rules", "--json", "-").out)
    assert Counter(one["policy"] for one in listed) == {"spyre": 83, "nano-vllm": 41, "vllm-v1": 55}
    assert all(one["explored"] != "not judged" for one in listed)


def test_rules_of_another_policy_are_shown_under_its_name() -> None:
    ran = lockstep("rules", "v1-spc-1", "nano-pfx-9")
    assert ran.code == 0
    lines = [line.split()[0] for line in ran.out.splitlines() if not line.startswith(" ")]
    assert lines == ["nano-vllm", "rule", "NANO-PFX-9", "vllm-v1", "rule", "V1-SPC-1", "2"]


def test_rule_of_nano_vllm_is_shown_with_its_verdict() -> None:
    told = lockstep("rules", "NANO-PFX-9").out
    assert "policy: nano-vllm\n" in told
    assert "source: nano-vllm, With Prefix Cache: Reuse the Work\n" in told
    assert "refuted in: ['nano-vllm, same answers']\n" in told


# --- bad input ----------------------------------------------------------------------------------

LIMIT = "max_batch_tkv_limit"


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        pytest.param(
            ALONE,
            ["chunk=64"],
            "--set: key: found 'chunk'; allowed: policy, block_size, chunk_size, ",
            id="an unknown key",
        ),
        pytest.param(
            ALONE,
            ["chunk_size=100"],
            "--set chunk_size: chunk_size: found 100; allowed: a multiple of block_size (64)",
            id="a chunk that is no multiple of the block",
        ),
        pytest.param(
            ALONE,
            [f"{LIMIT}=64"],
            "w.jsonl, line 1: prompt_len + max_tokens - 1 (its largest tkv): found 69; "
            f"allowed: at most {LIMIT} (64)",
            id="a limit below what one request needs",
        ),
        pytest.param(
            ALONE,
            ["max_model_len=64"],
            "w.jsonl, line 1: prompt_len + max_tokens: found 70; "
            "allowed: at most max_model_len (64)",
            id="a request over the model length",
        ),
        pytest.param(
            ALONE,
            ["num_blocks=1"],
            "w.jsonl, line 1: blocks of prompt_len + max_tokens: found 2; "
            "allowed: at most num_blocks (1)",
            id="a pool smaller than one request",
        ),
        pytest.param(
            '{"id": "0", "prompt_len": 0, "max_tokens": 10}\n',
            [],
            "w.jsonl, line 1: prompt_len: found 0; allowed: a whole number of tokens from 1",
            id="a prompt of 0 tokens",
        ),
        pytest.param(
            '{"id": "0", "prompt_len": 5, "max_tokens": 0}\n',
            [],
            "w.jsonl, line 1: max_tokens: found 0; allowed: a whole number of tokens from 1",
            id="no token to generate",
        ),
        pytest.param(
            ALONE + ALONE,
            [],
            "w.jsonl, line 2: id: found '0'; allowed: an id of its own; line 1 has this one",
            id="duplicate ids",
        ),
        pytest.param(ALONE + '{"id": "1", \n', [], "w.jsonl, line 2: ", id="a broken JSON line"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(
    text: str, settings: list[str], message: str
) -> None:
    options = [word for setting in settings for word in ("--set", setting)]
    ran = lockstep("run", workload(text), *options, "--trace", "t.jsonl")
    assert_refused(ran, message)
    assert not Path("t.jsonl").exists()


def assert_refused(ran: Ran, message: str) -> None:
    assert ran.code == 2
    assert ran.out == ""
    assert ran.err.startswith(f"lockstep: {message}")
    assert ran.err.count("\n") == 1


def test_a_directory_in_place_of_a_file_is_refused() -> None:
    Path("w").mkdir()
    for arguments in (["run", "w"], ["replay", "w"], ["run", workload(ALONE), "--config", "w"]):
        message = "w: file: found 'Is a directory'; allowed: a file that can be read"
        assert_refused(lockstep(*arguments), message)


def test_a_counterexample_file_of_another_version_is_refused() -> None:
    lockstep("explore", "documented")
    path = Path("counterexamples/documented-spy-vol-1.jsonl")
    replace_in(path, '"version":1', '"version":2')
    assert_refused(lockstep("replay", path), f"{path}, line 1: version: found 2; allowed: 1")


def test_unknown_names_are_refused_with_what_there_is() -> None:
    assert_refused(lockstep("explore", "nothing"), "INSTANCE: found 'nothing'; allowed: layout; ")
    assert_refused(lockstep("rules", "SPY-VOL-9"), "ID: found 'SPY-VOL-9'; allowed: SPY-VOL-")


@pytest.mark.parametrize(
    "arguments",
    [["run"], ["run", "w", "--nothing"], ["fly"], ["explore", "--max-states", "none"]],
    ids=" ".join,
)
def test_a_usage_error_exits_2(arguments: list[str]) -> None:
    ran = lockstep(*arguments)
    assert ran.code == 2
    assert "Usage: lockstep" in ran.err


def test_output_that_cannot_be_written_is_refused_before_the_run() -> None:
    ran = lockstep("run", FIRST, "--config", FIRST_CONFIG, "--trace", f"missing{os.sep}t.jsonl")
    assert ran.code == 2
    assert "missing" in ran.err
