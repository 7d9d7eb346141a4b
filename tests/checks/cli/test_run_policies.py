"""`lockstep run` and `replay` under every policy: verdicts, metrics and files."""

import json
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from checks.export.trace.line import Violation
from checks.export.trace.reading import read_trace
from checks.export.trace.writing import TraceWriter
from checks.harness.case import Case
from checks.harness.runs.serving import served
from spec.core.requests import Prompt, Request
from spec.vllm_v1.config import VllmV1Config
from tests.checks.command import Ran, lockstep, settings
from tests.requests import request

EXAMPLES = Path(__file__).parents[3] / "examples"
FIRST = EXAMPLES / "first.jsonl"
SIZES = ["block_size=4", "max_num_seqs=3", "num_blocks=150", "max_model_len=512"]
KEPT = ["nano-vllm.token_gate=new_tokens", "nano-vllm.sequence_limit=running"]
KEPT += ["nano-vllm.hit_check=hash", "nano-vllm.full_hit=last_computed"]

each_policy = pytest.mark.parametrize("policy", ["nano-vllm", "vllm-v1"])


def of(policy: str, *more: str) -> list[str]:
    return settings(f"policy={policy}", *SIZES, *KEPT, *more)


def report(*arguments: object) -> Any:
    return json.loads(lockstep("run", *arguments, "--json", "-").out)


@frozen
class Served:
    """A run of `first.jsonl` under a policy, with its report and the files that it wrote."""

    policy: str
    ran: Ran
    report: Any
    trace: Path
    timeline: Path


@pytest.fixture(scope="module", params=["nano-vllm", "vllm-v1"])
def first(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    policy, path = request.param, tmp_path_factory.mktemp("run")
    trace, timeline, json_path = path / "t.jsonl", path / "timeline.json", path / "report.json"
    files = ["--trace", trace, "--timeline", timeline]
    ran = lockstep("run", FIRST, *of(policy), *files)
    assert lockstep("run", FIRST, *of(policy), "--json", json_path).code == 0
    return Served(policy, ran, json.loads(json_path.read_text()), trace, timeline)


# --- what is shown --------------------------------------------------------------------------------


def test_run_is_of_the_engine(first: Served) -> None:
    report = first.report

    assert (report["using"], report["config"]["policy"]) == ("engine", first.policy)
    assert (report["violations"], report["refused_step"]) == ([], None)
    assert (report["finished"], report["aborted"], report["unfinished"]) == (6, 1, 0)
    assert len(report["rules"]) > 30


@each_policy
def test_reference_runs_next_to_a_paged_device_and_the_table_says_so(policy: str) -> None:
    ran = lockstep("run", FIRST, *of(policy), "--using", "reference", "--json", "r.json")

    assert (ran.code, ran.err) == (0, "")
    rows = {line[:20].strip(): line[20:].strip() for line in ran.out.splitlines()}
    assert rows["largest step"] == "260 tokens; 3 requests"
    assert "largest volume" not in rows
    assert "sampled ones compared with serving alone, none wrong" in ran.out
    assert "every rule holds: " in ran.out
    seen = json.loads(Path("r.json").read_text())
    assert seen["device"]["wrong_tokens"] == []
    assert seen["device"]["tokens_compared"] == seen["output_tokens"] > 100


def test_long_violation_is_cut_in_the_table_and_whole_in_the_report() -> None:
    names = [f"a-request-of-a-client-with-a-long-name-{n}" for n in range(60)]
    lines = [json.dumps({"id": name, "prompt_len": 4, "max_tokens": 9}) for name in names]
    Path("w.jsonl").write_text("\n".join(lines), encoding="utf-8")
    options = settings("policy=nano-vllm", "block_size=4", "max_num_seqs=3")

    shown = " ".join(lockstep("run", "w.jsonl", *options, "--json", "r.json").out.split())
    first = json.loads(Path("r.json").read_text())["violations"][0]

    assert (first["rule"], len(first["found"]) > 500) == ("NANO-DEC-1", True)
    assert ", … 40 more]" in first["found"]  # the report bounds a list, too
    assert " … (whole in --json)" in shown
    assert first["found"] not in shown


def test_rule_that_is_broken_again_and_again_is_shown_once() -> None:
    """As released, three sequences a step: a request that runs behind them gets no token."""
    ran = lockstep("run", FIRST, *settings("policy=nano-vllm", *SIZES[:2]))

    assert ran.code == 1
    lines = ran.out.splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith("violated"))
    assert lines[first : first + 3] == [
        "violated NANO-DEC-1 in step 9: running ['0', '1', '2', '3'], decoded ['0', '1', '2']",
        "  In a decode step every running sequence that is not preempted gets a token.",
        "  first again in steps 11, 12, 13, 14, 15, 16, 17, 18, 19",
    ]


def test_transition_that_a_guard_forbids_ends_the_run() -> None:
    """To the letter of the text a prompt that fills its block has no slot for its first answer."""
    Path("w.jsonl").write_text('{"id": "0", "prompt_len": 4, "max_tokens": 3}\n')
    options = settings("policy=nano-vllm", *SIZES, "new_block=at_boundary")
    options += ["--using", "reference"]

    ran = lockstep("run", "w.jsonl", *options, "--trace", "t.jsonl")

    assert ran.code == 1
    assert "refused step 1: decode is not allowed here: NANO-SLT-1" in ran.out
    assert "1 step until a guard refused one" in ran.out
    violation = read_trace(Path("t.jsonl")).violation
    assert violation == Violation(
        "machine-error",
        "No transition is taken where its guard does not hold.",
        "step 1: decode is not allowed here: NANO-SLT-1",
    )
    assert report("w.jsonl", *options)["refused_step"] == {
        "step": 1,
        "transition": "decode",
        "rule": "NANO-SLT-1",
    }


def test_policies_are_compared_in_one_table() -> None:
    compare = ["--compare", "policy=spyre,vllm-v1,nano-vllm", *settings(*SIZES, *KEPT)]

    ran = lockstep("run", FIRST, *compare, "--set", "spyre.chunk_size=8")

    assert ran.code == 0
    head, *rows = ran.out.splitlines()
    assert head.split() == ["policy=spyre", "policy=vllm-v1", "policy=nano-vllm"]
    cells = {row[:28].strip(): row[28:].split("  ") for row in rows}
    figures = {name: [cell.strip() for cell in row if cell.strip()] for name, row in cells.items()}
    assert figures["outcome"] == ["every rule holds"] * 3
    assert figures["requests finished"] == ["6 of 7"] * 3
    assert figures["largest volume"][1:] == ["-", "-"]
    assert figures["largest step, tokens"] == ["-", "260", "260"]


def test_requests_of_a_public_trace_that_are_too_long_are_left_out_and_counted() -> None:
    asked = [EXAMPLES / "mooncake_sample.jsonl", *of("vllm-v1", "num_blocks=5000")]
    reported = report(*asked)

    assert reported["refused"] > 0
    assert reported["finished"] == reported["requests"] == 30 - reported["refused"]
    assert "more refused, could never be served" in lockstep("run", *asked).out


# --- files ----------------------------------------------------------------------------------------


@each_policy
def test_full_trace_with_costs_replays(policy: str) -> None:
    costs = settings("cost.per_chunk_token=0.01")
    assert lockstep("run", FIRST, *of(policy), *costs, "--trace", "t.jsonl", "--full").code == 0

    again = lockstep("replay", "t.jsonl")

    steps, _, says = again.out.partition(" ")
    assert (again.code, says) == (0, "steps as in the file, no rule broken\n")
    assert int(steps) > 50


def test_a_trace_says_when_a_grammar_is_ready_and_replays() -> None:
    Path("w.jsonl").write_text('{"id": "0", "prompt_len": 4, "max_tokens": 2, "grammar": true}\n')
    lockstep("run", "w.jsonl", *of("vllm-v1"), "--trace", "t.jsonl")

    again = lockstep("replay", "t.jsonl")

    assert '"compiled"' in Path("t.jsonl").read_text()
    assert (again.code, again.out) == (0, "2 steps as in the file, no rule broken\n")


def test_changed_trace_differs_in_its_first_changed_step(first: Served) -> None:
    lines = first.trace.read_text().splitlines()
    fourth = json.loads(lines[4])
    fourth["scheduled"]["0"] += 1
    Path("t.jsonl").write_text("\n".join([*lines[:4], json.dumps(fourth), *lines[5:]]))

    again = lockstep("replay", "t.jsonl")

    assert again.code == 1
    assert again.out.startswith('step 3 differs\n  scheduled: the file says {"0":2,')


def test_trace_is_replayed_on_reference_and_engine(first: Served) -> None:
    steps = len(read_trace(first.trace).steps)

    assert steps > 50
    for target in ("reference", "engine"):
        again = lockstep("replay", first.trace, "--target", target)
        assert (again.code, again.out) == (0, f"{steps} steps as in the file, no rule broken\n")


def test_device_of_an_engine_refuses_what_a_guard_forbids() -> None:
    Path("w.jsonl").write_text('{"id": "0", "prompt_len": 4, "max_tokens": 3}\n')

    ran = lockstep("run", "w.jsonl", *settings("policy=nano-vllm", *SIZES, "new_block=at_boundary"))

    assert ran.code == 1
    assert "refused step 1: the device refuses: table length: " in ran.out


def test_timeline_draws_prefills_decodes_and_tokens(first: Served) -> None:
    events = json.loads(first.timeline.read_text())["traceEvents"]

    spans = {event["name"] for event in events if event["ph"] == "X" and event["pid"] == 2}
    assert {"prefill of 200 tokens", "prefill of 60 tokens", "waiting", "decode"} <= spans
    counters = {event["name"] for event in events if event["ph"] == "C"}
    assert counters == {"tokens", "free blocks", "waiting"}


def test_run_is_an_itf_trace_with_the_states_of_its_policy(first: Served) -> None:
    assert lockstep("replay", first.trace, "--itf", "t.itf.json").code == 0

    itf = json.loads(Path("t.itf.json").read_text())
    running = "running" if first.policy == "vllm-v1" else "decoding"
    assert {"action", "waiting", running, "scheduled", "outputs"} <= set(itf["vars"])
    assert all(set(state) - {"#meta"} == set(itf["vars"]) for state in itf["states"])


# --- traces as they are read ----------------------------------------------------------------------


def requests() -> tuple[Request, ...]:
    """A shared prefix, an abort, an early end, and a pool that runs dry."""
    shared = Prompt.of_parts([("system", 8), ("a", 3)])
    return (
        Request(id="0", prompt=shared, max_tokens=12),
        request("1", 9, 14, output_len=12),
        Request(id="2", prompt=shared, max_tokens=9, arrival=2),
        request("3", 5, 6, abort_at=4),
    )


def full_trace(path: Path, **more: Any) -> None:
    """A run of vLLM V1, written to the file."""
    sizes: dict[str, Any] = {
        "block_size": 4,
        "max_model_len": 32,
        "num_blocks": 8,
        "max_num_seqs": 4,
    }
    config = VllmV1Config(**sizes, **more)
    with TraceWriter(path, config, requests(), full=True) as trace:
        for step in served(Case(config, requests())):
            trace.write(step)


def test_line_of_vllm_v1_says_what_was_drafted_accepted_and_left_of_the_budget() -> None:
    full_trace(Path("t.jsonl"), num_speculative_tokens=2, max_num_batched_tokens=20)
    first, second = (read_trace(Path("t.jsonl")).steps[index] for index in (0, 1))

    assert first["kind"] == "prefill"
    assert first["scheduled"] == {"0": 11, "1": 9}
    assert (first["budget_left"], first["tkv"], first["volume"]) == (0, 11, 0)
    assert (second["drafts"], second["accepted"]) == ({"0": 2, "1": 2}, {"0": 2, "1": 2})
