"""Reading traces: content and refusals. Traces of random runs are in `test_random_runs`."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from checks.export.files import write_lines
from checks.export.trace.reading import read_trace, steps_of
from checks.export.trace.requests import request_as_json
from checks.harness.case import Case
from checks.harness.runs.serving import served
from engine.workloads.own import request_of
from spec.core.errors import TraceError
from spec.core.requests import Prompt, Request
from spec.spyre.config import SpyreConfig
from tests.checks.export.runs import VIOLATION, tight_run, trace_lines, written
from tests.refusals import refusal as refused

# --- there and back ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "more",
    [
        {"prompt": Prompt.of_tokens([0, 1, 1])},
        {"prompt": Prompt.of_parts([("p", 3), ("q", 1)])},
        {"arrival": 3, "abort_at": 9},
        {"arrival_time": 2.5},
        {"arrival_time": 2.5, "after": "z"},
        {"output_len": 2},
        {"output": (3, 3)},
        {"priority": -1},
    ],
)
def test_request_comes_back_from_the_form_of_workload_files(more: dict[str, Any]) -> None:
    plain: dict[str, Any] = {"id": "a", "prompt": Prompt.of_stream("p", 3), "max_tokens": 4}
    request = Request(**plain | more)

    assert request_of(request_as_json(request)) == request


def test_violation_comes_back(tmp_path: Path) -> None:
    run = tight_run()
    cycle = evolve(VIOLATION, found={"volume": [3, 6]}, loop=2, state=run.steps[2].before)

    assert read_trace(written(run, tmp_path / "t", cycle)).violation == cycle
    assert read_trace(written(run, tmp_path / "t", VIOLATION)).violation == VIOLATION
    assert read_trace(written(run, tmp_path / "t")).violation is None


def test_trace_can_be_replayed_from_what_its_header_says(tmp_path: Path) -> None:
    run = tight_run()
    trace = read_trace(written(run, tmp_path / "t", full=False))
    ctx = trace.context()
    assert isinstance(ctx.config, SpyreConfig)

    again = tuple(served(Case(ctx.config, tuple(ctx.requests.values()))))

    assert again == run.steps


def test_unknown_fields_are_welcome(tmp_path: Path) -> None:
    path = written(tight_run(), tmp_path / "t")
    header, first, *more = trace_lines(path)
    first["blocks"]["remark"] = "here too"
    write_lines(path, [line | {"remark": "from outside"} for line in (header, first, *more)])

    assert tuple(steps_of(read_trace(path))) == tight_run().steps


# --- what is refused --------------------------------------------------------------------------

GONE = object()  # as a value: the place is taken out
MORE = object()  # the line comes once more at the end


def changed(path: Path, place: str, value: Any, full: bool = True) -> Path:
    """A trace of the tight run with another value in one place: line from 0, keys and indices."""
    lines = trace_lines(written(tight_run(), path, VIOLATION, full))
    *inner, last = place.split("/")
    container: Any = lines
    for step in inner:
        container = container[int(step) if isinstance(container, list) else step]
    key = int(last) if isinstance(container, list) else last
    if value is GONE:
        del container[key]
    elif value is MORE:
        container.append(container[key])
    else:
        container[key] = value
    write_lines(path, lines)
    return path


def refusal(path: Path) -> str:
    """The refusal of a trace when its steps are read."""
    return refused(TraceError, lambda: list(steps_of(read_trace(path))))


WHOLE = "allowed: a whole number, 0 or more"
VALUE = "found nothing; allowed: a value, in every line of this kind"


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (
            "0/format",
            "lockstep-workload",
            "line 1: format: found 'lockstep-workload'; allowed: lockstep-trace",
        ),
        ("0/version", 2, "line 1: version: found 2; allowed: 1"),
        (
            "0/config/chunk_size",
            3,
            "line 1: config.chunk_size: found 3; allowed: a multiple of block_size (2)",
        ),
        (
            "0/policy",
            "vllm-v1",
            "line 1: policy: found 'vllm-v1'; allowed: 'spyre', as config says",
        ),
        (
            "0/requests/1/max_tokens",
            0,
            "line 1: requests[1].max_tokens: found 0; "
            "allowed: a whole number of tokens from 1 to 1048576",
        ),
        ("1/tkv", GONE, f"line 2: tkv: {VALUE}"),
        ("1/blocks/free", "3", f"line 2: blocks.free: found '3'; {WHOLE}"),
        ("2/block_tables/a/1", 1.5, f"line 3: block_tables.a[1]: found 1.5; {WHOLE}"),
        ("2/time", -0.5, "line 3: time: found -0.5; allowed: a finite number, 0 or more"),
        (
            "2/state/after/pool/references/02",
            1,
            "line 3: state.after.pool.references.02: found '02'; allowed: the number of a block",
        ),
        (
            "2/state/after/pool/keys/1",
            "abc",
            "line 3: state.after.pool.keys.1: found 'abc'; "
            "allowed: an even number of hexadecimal digits, small letters",
        ),
        ("2", GONE, "line 3: step: found 2; allowed: 1: steps follow each other from 0"),
        ("3/state", GONE, f"line 4: state: {VALUE}"),
        ("1", MORE, "line 7: line: found "),
    ],
)
def test_bad_line_is_refused_with_place_value_and_what_is_allowed(
    tmp_path: Path, place: str, value: Any, message: str
) -> None:
    path = changed(tmp_path / "t", place, value)

    assert refused(TraceError, read_trace, path).startswith(f"{path}, {message}")


@pytest.mark.parametrize(
    ("content", "line", "found"),
    [
        (b"", 1, "''"),
        (b'{"format": \n', 1, "'{\"format\": '"),
        (b"\xff\xfe\n", 1, "'��'"),
        (b"[" * 100_000, 1, f"'{'[' * 59}…'"),
    ],
)
def test_line_that_is_no_json_object_is_refused(
    tmp_path: Path, content: bytes, line: int, found: str
) -> None:
    path = tmp_path / "t"
    path.write_bytes(content)

    assert refused(TraceError, read_trace, path) == (
        f"{path}, line {line}: line: found {found}; allowed: a JSON object"
    )


@pytest.mark.parametrize(
    ("name", "reason"), [("", "Is a directory"), ("absent", "No such file or directory")]
)
def test_file_that_cannot_be_read_is_refused(tmp_path: Path, name: str, reason: str) -> None:
    path = tmp_path / name

    assert refused(TraceError, read_trace, path) == (f"cannot read {path}: {reason.lower()}")


def test_steps_of_a_plain_trace_are_refused_with_the_remedy(tmp_path: Path) -> None:
    path = written(tight_run(), tmp_path / "t", full=False)

    assert refusal(path) == (
        f"{path}, line 1: full: found False; "
        "allowed: true; only a full trace has the states (TraceWriter(…, full=True))"
    )


def test_trace_without_its_requests_cannot_be_judged(tmp_path: Path) -> None:
    path = changed(tmp_path / "t", "0/requests", GONE)

    assert refusal(path) == (
        f"{path}, line 1: requests: found nothing; "
        "allowed: the workload, without which nothing can be judged or replayed"
    )


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("2/decoding/0/tkv", 5, "line 3: decoding: found "),
        ("1/waiting", ["c"], "line 2: waiting: found ['c']; allowed: [], as the states tell"),
        (
            "3/state/after/waiting/0/id",
            "z",
            "line 4: state: found 'z'; allowed: requests that the header names",
        ),
        (
            "1/state/writes",
            GONE,
            "line 2: state.writes: found nothing; allowed: the blocks of this prefill step's chunk",
        ),
    ],
)
def test_full_line_that_contradicts_itself_is_refused(
    tmp_path: Path, place: str, value: Any, message: str
) -> None:
    path = changed(tmp_path / "t", place, value)

    assert refusal(path).startswith(f"{path}, {message}")


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
    """Read a trace or refuse it; any other exception fails the test."""
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
    lines = trace_lines(written(tight_run(), path, VIOLATION))
    for _ in range(data.draw(st.integers(1, 2))):
        container, key = data.draw(st.sampled_from(inner_places(lines)))
        if data.draw(st.booleans()):
            container[key] = data.draw(JSON_VALUES)
        else:
            del container[key]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    read_or_refuse(path)
