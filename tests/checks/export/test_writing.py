"""Writing traces: their content and files."""

import json
import os
from contextlib import suppress
from pathlib import Path

import pytest
from attrs import evolve

from checks.export.files import new_file, refuse_unwritable
from checks.export.trace.line import Past
from checks.export.trace.reading import read_trace
from checks.export.trace.requests import request_as_json
from checks.export.trace.writing import TraceWriter
from checks.policies.spyre.codec import CODEC
from engine.workloads.own import own_stream
from spec.core.errors import TraceError
from spec.core.requests import Prompt, Request
from tests.checks.export.runs import (
    VIOLATION,
    configured,
    run_of,
    tight_run,
    trace_lines,
    written,
)

# --- what is written --------------------------------------------------------------------------


def test_step_of_the_documented_example() -> None:
    """Two requests, the second one block longer: the first jumps by a block of padding."""
    config = configured(64, 128, 512, max_num_seqs=4, max_batch_tkv_limit=1536, num_blocks=4)
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

    [header] = trace_lines(path)
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


def test_arrivals_and_aborts_stand_in_the_next_step(tmp_path: Path) -> None:
    _, *lines = trace_lines(written(tight_run(), tmp_path / "trace.jsonl", full=False))

    came = {line["step"]: line["arrived"] for line in lines if line["arrived"]}
    left = {line["step"]: line["aborted"] for line in lines if line["aborted"]}

    assert came == {0: ["a"], 2: ["b", "c"]}
    assert left == {3: ["c"]}


def test_aborts_that_the_record_does_not_name_follow_from_the_states(tmp_path: Path) -> None:
    run = tight_run()
    silent = evolve(run, steps=tuple(evolve(step, aborted=()) for step in run.steps))

    lines = trace_lines(written(silent, tmp_path / "trace.jsonl", full=False))

    assert lines[4]["aborted"] == ["c"]


def test_only_a_full_trace_has_the_states(tmp_path: Path) -> None:
    plain = trace_lines(written(tight_run(), tmp_path / "plain.jsonl", full=False))
    full = trace_lines(written(tight_run(), tmp_path / "full.jsonl", full=True))

    assert [line.pop("state", None) is None for line in full[1:]] == [False] * len(full[1:])
    assert full[1:] == plain[1:]


def test_state_before_a_step_stands_there_only_if_something_happened(tmp_path: Path) -> None:
    _, *lines = trace_lines(written(tight_run(), tmp_path / "trace.jsonl"))

    assert [line["step"] for line in lines if "before" in line["state"]] == [0, 2, 3]


def test_prompt_of_its_own_is_written_by_its_length() -> None:
    own = Prompt.of_stream(own_stream("a"), 5)

    line = request_as_json(Request(id="a", prompt=own, max_tokens=1, arrival_time=0.5, priority=2))

    assert line == {"id": "a", "arrival_s": 0.5, "prompt_len": 5, "max_tokens": 1, "priority": 2}


def test_last_line_of_a_counterexample_is_its_violation(tmp_path: Path) -> None:
    last = trace_lines(written(tight_run(), tmp_path / "t", VIOLATION))[-1]

    assert last == {
        "violation": {
            "rule": "SPY-VOL-1",
            "says": "The volume never exceeds the limit.",
            "found": "3 x 6 = 18 > 16",
        }
    }


# --- files ------------------------------------------------------------------------------------


def test_nothing_is_left_of_a_trace_that_was_not_finished(tmp_path: Path) -> None:
    run, path = tight_run(), tmp_path / "trace.jsonl"
    path.write_text("the one before\n")

    with suppress(KeyboardInterrupt), TraceWriter(path, run.config, run.requests) as trace:
        trace.write(run.steps[0])
        raise KeyboardInterrupt

    assert [path.name for path in tmp_path.iterdir()] == ["trace.jsonl"]
    assert path.read_text() == "the one before\n"


def test_a_file_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, looks = tmp_path / "file", list[tuple[int, bool]]()
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: looks.append((os.fstat(descriptor).st_size, path.exists()))
    )

    with new_file(path) as file:
        file.write("whole")

    (content, named_before), (_, named_after) = looks
    assert (content, named_before, named_after) == (len("whole"), False, True)


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

    with pytest.raises(TraceError) as error:
        refuse_unwritable(path)
    with pytest.raises(OSError, match=reason), TraceWriter(path, run.config, run.requests):
        pytest.fail("the run began")

    assert str(error.value) == (f"cannot write {path}: {reason.lower()}")


def test_what_does_not_fit_a_full_disk_is_an_error_with_the_name_of_the_file() -> None:
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        written(tight_run(), Path("/dev/full"))


def test_step_out_of_turn_is_a_mistake_of_the_caller(tmp_path: Path) -> None:
    run = tight_run()

    with TraceWriter(tmp_path / "t", run.config, run.requests) as trace:
        trace.write(run.steps[0])
        with pytest.raises(ValueError, match="step 2 written where step 1 is due"):
            trace.write(run.steps[2])
        trace.violated(VIOLATION)
        with pytest.raises(ValueError, match="step 1 written where nothing is due"):
            trace.write(run.steps[1])

    assert len(trace_lines(tmp_path / "t")) == 3
