"""Traces: what is written, that it comes back whole, and what is refused."""

import json
import os
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from checks.export.files import write_lines
from checks.export.trace.line import Past
from checks.export.trace.reading import read_trace, steps_of
from checks.export.trace.requests import request_as_json
from checks.export.trace.violation import Violation
from checks.export.trace.writing import TraceWriter
from checks.harness.case import Case
from checks.harness.serving import served
from checks.policies.spyre.codec import CODEC
from engine.workloads.own import own_stream, request_of
from reference.spyre.machine import SpyreMachine
from spec.core.blocks import block_count
from spec.core.errors import TraceError
from spec.core.requests import Prompt, Request
from spec.spyre.config import Admission, Queue, SpyreConfig
from tests.checks.export.figures_data import Run, of_prompt, run_of

Json = dict[str, Any]
Edit = Callable[[list[Json]], None]

VIOLATION = Violation("SPY-VOL-1", "The volume never exceeds the limit.", "3 x 6 = 18 > 16")


def tight_run() -> Run:
    """Two requests that share a prefix in a small pool; a third one's client goes away."""
    config = SpyreConfig(
        block_size=2,
        chunk_size=4,
        max_model_len=12,
        max_num_seqs=2,
        max_batch_tkv_limit=24,
        num_blocks=6,
    )
    return run_of(
        config,
        Request(id="a", prompt=Prompt.of_parts([("p", 3)]), max_tokens=3),
        Request(id="b", prompt=Prompt.of_parts([("p", 4), ("q", 1)]), max_tokens=2, arrival=2),
        Request(id="c", prompt=Prompt.of_tokens([7, 7]), max_tokens=1, arrival=2, abort_at=3),
    )


def written(run: Run, path: Path, violation: Violation | None = None, full: bool = True) -> Path:
    with TraceWriter(path, run.config, run.requests, full=full) as trace:
        for step in run.steps:
            trace.write(step)
        if violation is not None:
            trace.violated(violation)
    return path


def lines_of(path: Path) -> list[Json]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def edited(run: Run, path: Path, edit: Edit, full: bool = True) -> Path:
    """A trace of the run in which somebody has changed something."""
    lines = lines_of(written(run, path, VIOLATION, full))
    edit(lines)
    write_lines(path, lines)
    return path


# --- what is written --------------------------------------------------------------------------


def test_step_of_the_documented_example() -> None:
    """Two requests, the second one block longer: the first jumps by a block of padding."""
    config = SpyreConfig(
        block_size=64,
        chunk_size=128,
        max_model_len=512,
        max_num_seqs=4,
        max_batch_tkv_limit=1536,
        num_blocks=4,
    )
    first = Request(id="0", prompt=Prompt.of_stream("x", 60), max_tokens=10, output=(1, 2, 7, 4))
    second = Request(id="1", prompt=Prompt.of_stream("y", 111), max_tokens=17, output=(5, 31, 6))
    steps = run_of(config, first, second).steps

    line = CODEC.step_as_json(steps[3], Past(steps[2].after, steps[2].chunk))

    assert line == {
        "step": 3,
        "time": 17.0,
        "kind": "decode",
        "scheduled": {"1": 1, "0": 1},
        "tkv": 126,
        "volume": 252,
        "waiting": [],
        "prefilling": None,
        "decoding": [
            {"id": "1", "tkv": 112, "left_padding": 0, "computed": 112, "generated": 2},
            {"id": "0", "tkv": 126, "left_padding": 64, "computed": 62, "generated": 3},
        ],
        "running": ["1", "0"],
        "paused": [],
        "outputs": {"1": [31], "0": [7]},
        "finished": [],
        "aborted": [],
        "blocks": {"used": 3, "reserved": 1, "free": 1},
        "block_tables": {"1": [2, 3], "0": [1]},
        "events": [
            {"transition": "jump_tkv", "id": "0", "from": 61, "to": 126, "rule": "SPY-TKV-7"},
            {"transition": "decode", "id": "", "rule": "SPY-DEC-1"},
        ],
        "arrived": [],
        "refusal": None,
    }


def test_header_of_a_trace(tmp_path: Path) -> None:
    run = tight_run()
    path = tmp_path / "trace.jsonl"

    with TraceWriter(
        path, run.config, run.requests[1:], source="engine", full=True, actions=["arrive b", "step"]
    ):
        pass

    [header] = lines_of(path)
    assert header.pop("config") == json.loads(json.dumps(run.config.as_mapping()))
    assert header == {
        "format": "lockstep-trace",
        "version": 1,
        "policy": "spyre",
        "source": "engine",
        "requests": [
            {"id": "b", "arrival": 2, "prompt_parts": [["p", 4], ["q", 1]], "max_tokens": 2},
            {"id": "c", "arrival": 2, "prompt": [7, 7], "max_tokens": 1, "abort_at": 3},
        ],
        "full": True,
        "actions": ["arrive b", "step"],
    }


def test_arrivals_and_aborts_stand_in_the_step_that_they_come_before(tmp_path: Path) -> None:
    _, *lines = lines_of(written(tight_run(), tmp_path / "trace.jsonl", full=False))

    came = {line["step"]: line["arrived"] for line in lines if line["arrived"]}
    left = {line["step"]: line["aborted"] for line in lines if line["aborted"]}

    assert came == {0: ["a"], 2: ["b", "c"]}
    assert left == {3: ["c"]}


def test_aborts_that_the_record_does_not_name_are_told_by_the_states(tmp_path: Path) -> None:
    run = tight_run()
    silent = evolve(run, steps=tuple(evolve(step, aborted=()) for step in run.steps))

    lines = lines_of(written(silent, tmp_path / "trace.jsonl", full=False))

    assert lines[4]["aborted"] == ["c"]


def test_request_that_came_and_left_between_two_steps_is_in_both_lists() -> None:
    run = tight_run()
    machine = SpyreMachine.of(run.config, run.requests)
    first, state = run.steps[0], run.steps[0].after
    state = machine.abort(machine.arrive(machine.arrive(state, "c"), "b"), "c")

    line = CODEC.step_as_json(machine.step(state, index=1), CODEC.past_after(first, Past()))

    assert (line["arrived"], line["aborted"]) == (["b", "c"], ["c"])


def test_prefill_under_way_shows_the_chunk_that_it_computed_last() -> None:
    config = SpyreConfig(block_size=4, chunk_size=4, max_model_len=32, max_batch_tkv_limit=20)
    run = run_of(config, of_prompt("0", 4, 5), of_prompt("1", 10, 2))
    past, shown = Past(), []

    for step in run.steps:
        prefilling = CODEC.step_as_json(step, past)["prefilling"]
        shown.append((step.kind, prefilling and (prefilling["id"], prefilling["chunk"])))
        past = CODEC.past_after(step, past)

    assert shown == [
        ("prefill", ("0", 0)),
        ("decode", None),
        ("prefill", ("1", 0)),
        ("decode", ("1", 0)),
        ("prefill", ("1", 1)),
        ("decode", ("1", 1)),
        ("decode", ("1", 1)),
        ("prefill", ("1", 2)),
        ("decode", None),
    ]


def test_chunk_of_somebody_else_is_not_shown_for_a_prefill_under_way() -> None:
    config = SpyreConfig(block_size=4, chunk_size=4, max_model_len=32)
    steps = run_of(config, of_prompt("0", 4, 5), of_prompt("1", 10, 2)).steps

    line = CODEC.step_as_json(steps[3], Past(steps[2].after, steps[0].chunk))

    assert (steps[3].kind, line["prefilling"]) == ("decode", None)


def test_used_and_free_blocks_add_up_to_the_pool(tmp_path: Path) -> None:
    _, *lines = lines_of(written(tight_run(), tmp_path / "trace.jsonl", full=False))

    assert {line["blocks"]["used"] + line["blocks"]["free"] for line in lines} == {6}
    assert all(line["blocks"]["reserved"] <= line["blocks"]["free"] for line in lines)


def test_refusal_names_the_rule_that_kept_somebody_from_a_prefill() -> None:
    config = SpyreConfig(block_size=2, chunk_size=2, max_model_len=8)
    run = run_of(config, of_prompt("a", 2, 3), of_prompt("b", 2, 1))

    lines = [CODEC.step_as_json(step) for step in run.steps]

    assert [(line["kind"], line["refusal"]) for line in lines[:3]] == [
        ("prefill", None),
        ("decode", "SPY-PRI-3"),
        ("prefill", None),
    ]


def test_only_a_full_trace_has_the_states(tmp_path: Path) -> None:
    plain = lines_of(written(tight_run(), tmp_path / "plain.jsonl", full=False))
    full = lines_of(written(tight_run(), tmp_path / "full.jsonl", full=True))

    assert [line.pop("state", None) is None for line in full[1:]] == [False] * len(full[1:])
    assert full[1:] == plain[1:]


def test_state_before_a_step_stands_there_only_if_something_happened(tmp_path: Path) -> None:
    _, *lines = lines_of(written(tight_run(), tmp_path / "trace.jsonl"))

    assert [line["step"] for line in lines if "before" in line["state"]] == [0, 2, 3]


# --- files ------------------------------------------------------------------------------------


def test_nothing_is_left_of_a_trace_that_was_not_finished(tmp_path: Path) -> None:
    run, path = tight_run(), tmp_path / "trace.jsonl"
    path.write_text("the one before\n")

    with suppress(KeyboardInterrupt), TraceWriter(path, run.config, run.requests) as trace:
        trace.write(run.steps[0])
        raise KeyboardInterrupt

    assert [one.name for one in tmp_path.iterdir()] == ["trace.jsonl"]
    assert path.read_text() == "the one before\n"


def test_link_stays_a_link_and_its_target_is_written(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")

    written(tight_run(), tmp_path / "link")

    assert (tmp_path / "link").is_symlink()
    assert read_trace(tmp_path / "target").steps


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)

    written(evolve(tight_run(), steps=()), pipe)

    assert os.read(reader, 40).startswith(b'{"format":"lockstep-trace"')
    assert pipe.is_fifo()
    os.close(reader)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "Is a directory"),
        ("nowhere/trace.jsonl", "No such file or directory"),
        ("n" * 300, "File name too long"),
    ],
)
def test_file_that_cannot_be_written_is_refused_before_the_run(
    tmp_path: Path, name: str, reason: str
) -> None:
    path, run = tmp_path / name, tight_run()

    with pytest.raises(TraceError) as error, TraceWriter(path, run.config, run.requests):
        pytest.fail("the run began")

    assert str(error.value) == (
        f"file: found {str(path)!r}; allowed: a file that can be written ({reason})"
    )


def test_step_out_of_turn_is_a_mistake_of_the_caller(tmp_path: Path) -> None:
    run = tight_run()

    with TraceWriter(tmp_path / "t", run.config, run.requests) as trace:
        trace.write(run.steps[0])
        with pytest.raises(ValueError, match="step 2 written where step 1 is due"):
            trace.write(run.steps[2])
        trace.violated(VIOLATION)
        with pytest.raises(ValueError, match="step 1 written where nothing is due"):
            trace.write(run.steps[1])

    assert len(lines_of(tmp_path / "t")) == 3


# --- there and back ---------------------------------------------------------------------------


@st.composite
def prompts(draw: st.DrawFn) -> Prompt:
    """Short ones, most of them out of two streams, so that many have a prefix in common."""
    if draw(st.booleans()):
        first = (draw(st.sampled_from("pq")), draw(st.integers(1, 6)))
        second = (draw(st.sampled_from("pr")), draw(st.integers(1, 3)))
        return Prompt.of_parts([first, second][: draw(st.integers(1, 2))])
    return Prompt.of_tokens(draw(st.lists(st.integers(0, 1), min_size=1, max_size=6)))


@st.composite
def requests(draw: st.DrawFn, id_: str) -> Request:
    max_tokens = draw(st.integers(1, 9))
    arrival = draw(st.integers(0, 4))
    on_the_clock = draw(st.booleans())
    ends = draw(st.sampled_from(["", "", "output_len", "output"]))
    return Request(
        id=id_,
        prompt=draw(prompts()),
        max_tokens=max_tokens,
        arrival=0 if on_the_clock else arrival,
        arrival_time=float(arrival) if on_the_clock else None,
        output_len=draw(st.integers(1, max_tokens)) if ends == "output_len" else None,
        output=(3,) * draw(st.integers(1, max_tokens)) if ends == "output" else None,
        abort_at=draw(st.integers(arrival, 20)) if draw(st.integers(0, 3)) == 3 else None,
        priority=draw(st.integers(-1, 1)),
    )


@st.composite
def runs(draw: st.DrawFn) -> Run:
    """A small workload, a pool and a limit hardly above what its largest request needs."""
    wanted = tuple(draw(requests(id_)) for id_ in "abcd"[-draw(st.integers(1, 4)) :])
    longest = max(one.prompt_len + one.max_tokens for one in wanted)
    block_size = draw(st.integers(2, 4))
    config = SpyreConfig(
        block_size=block_size,
        chunk_size=block_size * draw(st.integers(1, 3)),
        max_model_len=longest,
        max_num_seqs=4 - draw(st.integers(0, 3)),
        max_batch_tkv_limit=longest + draw(st.integers(0, 8)),
        num_blocks=block_count(longest, block_size) + draw(st.integers(0, 3)),
        interleave=draw(st.booleans()),
        prefix_caching=draw(st.booleans()),
        admission=draw(st.sampled_from(Admission)),
        queue=draw(st.sampled_from(Queue)),
        pausing=draw(st.booleans()),
        long_output_first=draw(st.booleans()),
    )
    if not config.may_pause and draw(st.booleans()):
        # Without reservation the pool is what may run dry, not the limit.
        config = evolve(config, reservation=False, max_batch_tkv_limit=4 * longest)
    steps = served(Case(config, wanted))
    return Run(config, wanted, tuple(islice(steps, 60)))


@given(run=runs())
def test_full_trace_gives_back_every_step(
    run: Run, tmp_path_factory: pytest.TempPathFactory
) -> None:
    trace = read_trace(written(run, tmp_path_factory.mktemp("trace") / "t.jsonl"))

    assert tuple(steps_of(trace)) == run.steps
    assert trace.config == run.config
    assert tuple(trace.requests.values()) == run.requests


@given(run=runs())
def test_plain_trace_has_a_line_for_every_step(
    run: Run, tmp_path_factory: pytest.TempPathFactory
) -> None:
    trace = read_trace(written(run, tmp_path_factory.mktemp("trace") / "t.jsonl", full=False))

    assert [line["events"] for line in trace.steps] == [
        CODEC.step_as_json(step)["events"] for step in run.steps
    ]


def test_generated_runs_reach_what_a_state_can_hold() -> None:
    """The round trip is worth what the runs contain: here is everything at least once."""
    seen: set[str] = set()

    @settings(max_examples=400)
    @given(run=runs())
    def look(run: Run) -> None:
        for step in run.steps:
            seen.update(event.transition for event in step.events)
            seen.update({"abort"} if step.aborted else ())
            seen.update({"waited"} if any(row.waited_steps for row in step.after.paused) else ())
            seen.update({"shared"} if 2 in step.after.pool.references.values() else ())

    look()

    assert seen >= {
        *("admit", "prefix_hit", "reserve", "allocate", "chunk", "join", "decode", "jump_tkv"),
        *("finish", "preempt", "pause", "resume", "abort", "waited", "shared"),
    }


@given(request=requests("a"))
def test_request_comes_back_from_the_form_of_workload_files(request: Request) -> None:
    assert request_of(request_as_json(request)) == request


def test_prompt_of_its_own_is_written_by_its_length() -> None:
    own = Prompt.of_stream(own_stream("a"), 5)

    line = request_as_json(Request(id="a", prompt=own, max_tokens=1, arrival_time=0.5, priority=2))

    assert line == {"id": "a", "arrival_s": 0.5, "prompt_len": 5, "max_tokens": 1, "priority": 2}


def test_violation_comes_back(tmp_path: Path) -> None:
    run = tight_run()
    cycle = evolve(VIOLATION, found={"volume": [3, 6]}, loop=2, state=run.steps[2].before)

    assert read_trace(written(run, tmp_path / "t", cycle)).violation == cycle
    assert read_trace(written(run, tmp_path / "t", VIOLATION)).violation == VIOLATION
    assert read_trace(written(run, tmp_path / "t")).violation is None


def test_last_line_of_a_counterexample_is_its_violation(tmp_path: Path) -> None:
    last = lines_of(written(tight_run(), tmp_path / "t", VIOLATION))[-1]

    assert last == {
        "violation": {
            "rule": "SPY-VOL-1",
            "says": "The volume never exceeds the limit.",
            "found": "3 x 6 = 18 > 16",
        }
    }


def test_trace_can_be_replayed_from_what_its_header_says(tmp_path: Path) -> None:
    run = tight_run()
    trace = read_trace(written(run, tmp_path / "t", full=False))
    ctx = trace.context()
    assert isinstance(ctx.config, SpyreConfig)

    again = tuple(served(Case(ctx.config, tuple(ctx.requests.values()))))

    assert again == run.steps


def test_line_of_a_step_is_found_by_its_number(tmp_path: Path) -> None:
    run = tight_run()

    steps = read_trace(written(run, tmp_path / "t", full=False)).steps

    assert [steps[index]["step"] for index in range(len(steps))] == [0, 1, 2, 3]


def test_fields_that_nobody_knows_are_welcome(tmp_path: Path) -> None:
    def add(lines: list[Json]) -> None:
        for line in lines:
            line["remark"] = "from outside"
        lines[1]["blocks"]["remark"] = "here too"

    run = tight_run()

    assert tuple(steps_of(read_trace(edited(run, tmp_path / "t", add)))) == run.steps


# --- what is refused --------------------------------------------------------------------------


def rename(lines: list[Json]) -> None:
    lines[0]["format"] = "lockstep-workload"


def raise_version(lines: list[Json]) -> None:
    lines[0]["version"] = 2


def true_version(lines: list[Json]) -> None:
    lines[0]["version"] = True


def misconfigure(lines: list[Json]) -> None:
    lines[0]["config"]["chunk_size"] = 3


def change_policy(lines: list[Json]) -> None:
    lines[0]["policy"] = "vllm-v1"


def misspell_request(lines: list[Json]) -> None:
    lines[0]["requests"][1]["max_tokens"] = 0


def repeat_request(lines: list[Json]) -> None:
    lines[0]["requests"].append(lines[0]["requests"][0])


def drop_field(lines: list[Json]) -> None:
    del lines[1]["tkv"]


def spell_number(lines: list[Json]) -> None:
    lines[1]["blocks"]["free"] = "3"


def negate(lines: list[Json]) -> None:
    lines[2]["decoding"][0]["computed"] = -1


def break_table(lines: list[Json]) -> None:
    lines[2]["block_tables"]["a"][1] = 1.5


def negate_block(lines: list[Json]) -> None:
    lines[2]["block_tables"]["a"][1] = -2


def turn_back_time(lines: list[Json]) -> None:
    lines[2]["time"] = -0.5


def pad_block_number(lines: list[Json]) -> None:
    lines[2]["state"]["after"]["pool"]["references"]["02"] = 1


def cut_block_key(lines: list[Json]) -> None:
    lines[2]["state"]["after"]["pool"]["keys"]["1"] = "abc"


def skip_step(lines: list[Json]) -> None:
    del lines[2]


def go_on(lines: list[Json]) -> None:
    lines.append(lines[1])


def lose_state(lines: list[Json]) -> None:
    del lines[3]["state"]


def be_verbose(lines: list[Json]) -> None:
    lines[1]["kind"] = "x" * 500


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (rename, "line 1: format: found 'lockstep-workload'; allowed: lockstep-trace"),
        (raise_version, "line 1: version: found 2; allowed: 1"),
        (true_version, "line 1: version: found True; allowed: 1"),
        (
            misconfigure,
            "line 1: config.chunk_size: found 3; allowed: a multiple of block_size (2)",
        ),
        (change_policy, "line 1: policy: found 'vllm-v1'; allowed: spyre, as config says"),
        (
            misspell_request,
            "line 1: requests[1].max_tokens: found 0; "
            "allowed: a whole number of tokens from 1 to 1048576",
        ),
        (repeat_request, "line 1: requests[3].id: found 'a'; allowed: an id of its own"),
        (drop_field, "line 2: tkv: found nothing; allowed: a value, in every line of this kind"),
        (spell_number, "line 2: blocks.free: found '3'; allowed: a whole number, 0 or more"),
        (negate, "line 3: decoding[0].computed: found -1; allowed: a whole number, 0 or more"),
        (break_table, "line 3: block_tables.a[1]: found 1.5; allowed: a whole number, 0 or more"),
        (negate_block, "line 3: block_tables.a[1]: found -2; allowed: a whole number, 0 or more"),
        (turn_back_time, "line 3: time: found -0.5; allowed: a finite number, 0 or more"),
        (
            pad_block_number,
            "line 3: state.after.pool.references.02: found '02'; allowed: the number of a block",
        ),
        (
            cut_block_key,
            "line 3: state.after.pool.keys.1: found 'abc'; "
            "allowed: an even number of hexadecimal digits, small letters",
        ),
        (skip_step, "line 3: step: found 2; allowed: 1: steps follow each other from 0"),
        (lose_state, "line 4: state: found nothing; allowed: a value, in every line of this kind"),
        (be_verbose, f"line 2: kind: found '{'x' * 59}…'; allowed: prefill, decode, idle"),
    ],
)
def test_bad_line_is_refused_with_place_value_and_what_is_allowed(
    tmp_path: Path, edit: Edit, message: str
) -> None:
    path = edited(tight_run(), tmp_path / "t", edit)

    with pytest.raises(TraceError) as error:
        read_trace(path)

    assert str(error.value) == f"{path}, {message}"


def test_line_after_the_violation_is_refused(tmp_path: Path) -> None:
    run = tight_run()
    path = edited(run, tmp_path / "t", go_on)

    with pytest.raises(TraceError, match="allowed: nothing after the violation") as error:
        read_trace(path)

    assert str(error.value).startswith(f"{path}, line {len(run.steps) + 3}: line: found ")


@pytest.mark.parametrize(
    ("content", "line", "found"),
    [
        (b"", 1, "''"),
        (b"[1, 2]\n", 1, "'[1, 2]'"),
        (b'{"format": \n', 1, "'{\"format\": '"),
        (b"\xff\xfe\n", 1, "'��'"),
        (b'{"time": NaN}', 1, "'{\"time\": NaN}'"),
        (b"[" * 100_000, 1, f"'{'[' * 59}…'"),
    ],
)
def test_line_that_is_no_json_object_is_refused(
    tmp_path: Path, content: bytes, line: int, found: str
) -> None:
    path = tmp_path / "t"
    path.write_bytes(content)

    with pytest.raises(TraceError) as error:
        read_trace(path)

    assert str(error.value) == f"{path}, line {line}: line: found {found}; allowed: a JSON object"


@pytest.mark.parametrize(
    ("name", "reason"), [("", "Is a directory"), ("absent", "No such file or directory")]
)
def test_file_that_cannot_be_read_is_refused(tmp_path: Path, name: str, reason: str) -> None:
    path = tmp_path / name

    with pytest.raises(TraceError) as error:
        read_trace(path)

    allowed = "a file that can be read"
    assert str(error.value) == f"{path}: file: found {reason!r}; allowed: {allowed}"


def test_steps_of_a_plain_trace_are_refused_with_the_remedy(tmp_path: Path) -> None:
    path = written(tight_run(), tmp_path / "t", full=False)

    with pytest.raises(TraceError) as error:
        next(steps_of(read_trace(path)))

    assert str(error.value) == (
        f"{path}, line 1: full: found False; "
        "allowed: true; only a full trace has the states (TraceWriter(…, full=True))"
    )


def test_trace_without_its_requests_cannot_be_judged(tmp_path: Path) -> None:
    def forget(lines: list[Json]) -> None:
        del lines[0]["requests"]

    path = edited(tight_run(), tmp_path / "t", forget, full=False)

    with pytest.raises(TraceError) as error:
        read_trace(path).context()

    assert str(error.value) == (
        f"{path}, line 1: requests: found nothing; "
        "allowed: the workload, without which nothing can be judged or replayed"
    )


def show_other_tkv(lines: list[Json]) -> None:
    lines[2]["decoding"][0]["tkv"] = 5


def show_one_more(lines: list[Json]) -> None:
    lines[1]["waiting"].append("c")


def show_other_table(lines: list[Json]) -> None:
    lines[1]["block_tables"]["c"] = [5]


def change_state_only(lines: list[Json]) -> None:
    lines[2]["state"]["after"]["pool"]["free"].pop()


def name_stranger(lines: list[Json]) -> None:
    lines[3]["state"]["after"]["waiting"][0]["id"] = "z"


def lose_beginning(lines: list[Json]) -> None:
    del lines[1]["state"]["before"]


def lose_chunk(lines: list[Json]) -> None:
    lines[1]["prefilling"] = None


def lose_writes(lines: list[Json]) -> None:
    del lines[1]["state"]["writes"]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (show_other_tkv, "line 3: decoding: found "),
        (show_one_more, "line 2: waiting: found ['c']; allowed: [], as the states tell"),
        (show_other_table, "line 2: block_tables: found {'a': [1, 2], 'c': [5]}; allowed: {'a': ["),
        (change_state_only, "line 3: blocks: found {'used': 2, 'reserved': 1, 'free': 4}; "),
        (name_stranger, "line 4: state: found 'z'; allowed: requests that the header names"),
        (
            lose_beginning,
            "line 2: state.before: found nothing; "
            "allowed: the state from which the first step starts",
        ),
        (
            lose_chunk,
            "line 2: prefilling: found None; allowed: the chunk of this prefill step",
        ),
        (
            lose_writes,
            "line 2: state.writes: found nothing; allowed: the blocks of this prefill step's chunk",
        ),
    ],
)
def test_full_line_that_contradicts_itself_is_refused(
    tmp_path: Path, edit: Edit, message: str
) -> None:
    path = edited(tight_run(), tmp_path / "t", edit)

    with pytest.raises(TraceError) as error:
        list(steps_of(read_trace(path)))

    assert str(error.value).startswith(f"{path}, {message}")


# --- garbage ----------------------------------------------------------------------------------

JSON_VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False),
        st.text(max_size=5),
        st.sampled_from(["prefill", "a", "00", "1", "٣", 10**400]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=4,
)


def read_or_refuse(path: Path) -> None:
    """Anything may be read or refused, but nothing else may happen."""
    with suppress(TraceError):
        list(steps_of(read_trace(path)))


@given(content=st.one_of(st.binary(), st.lists(JSON_VALUES).map(lambda v: json.dumps(v).encode())))
def test_garbage_is_refused(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "garbage.jsonl"
    path.write_bytes(content)

    with pytest.raises(TraceError):
        read_trace(path)


def inner_places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) inside a JSON value."""
    keys: list[Any] = []
    if isinstance(value, (dict, list)):
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    own = [(value, key) for key in keys]
    return own + [place for key in keys for place in inner_places(value[key])]


@given(data=st.data())
def test_trace_with_anything_in_any_place_is_read_or_refused(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.jsonl"
    lines = lines_of(written(tight_run(), path, VIOLATION))
    for _ in range(data.draw(st.integers(1, 2))):
        container, key = data.draw(st.sampled_from(inner_places(lines)))
        if data.draw(st.booleans()):
            container[key] = data.draw(JSON_VALUES)
        else:
            del container[key]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    read_or_refuse(path)
