"""Workload files: allowed fields and refusals."""

import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine.workloads import (
    FORMATS,
    Workload,
    asking,
    at_rate,
    checked,
    own,
    read_workload,
    with_shuffled_gaps,
)
from spec.core.errors import WorkloadError
from tests.engine.workload_files import (
    HEADER,
    check_read_or_refused,
    entry,
    mooncake,
    only_request,
    read_lines,
    refusal,
)
from tests.refusals import refusal as refused

# --- our own format -----------------------------------------------------------------------------


def test_a_request_has_what_its_line_says(file: Path) -> None:
    request = only_request(
        file, entry(id="a", arrival=3, prompt="-", abort_at=9, output_len=4, priority=-1)
    )

    assert (request.id, request.prompt_len, request.max_tokens) == ("a", 60, 10)
    assert (request.arrival, request.arrival_time, request.abort_at) == (3, None, 9)
    assert (request.output_len, request.end, request.priority) == (4, 4, -1)


@pytest.mark.parametrize(
    ("says", "field", "value"),
    [
        pytest.param({"arrival_s": 0.731}, "arrival_time", 0.731, id="a moment on the clock"),
        pytest.param({"arrival_s": 2}, "arrival_time", 2.0, id="a whole number of seconds"),
        pytest.param({"output_len": 10}, "end", 10, id="all of max_tokens"),
        pytest.param({"output": [7] * 10, "output_len": 10}, "end", 10, id="all, prescribed"),
        pytest.param({"arrival": 5, "abort_at": 5}, "abort_at", 5, id="leaves as it comes"),
    ],
)
def test_line_at_the_edge_of_what_is_allowed(
    file: Path, says: dict[str, object], field: str, value: object
) -> None:
    assert getattr(only_request(file, entry(**says)), field) == value


def test_equal_names_are_equal_tokens(file: Path) -> None:
    first, second = read_lines(
        file,
        entry(id="a", prompt_len="-", prompt_parts=[["system", 40], ["a", 20]]),
        entry(id="b", prompt_len="-", prompt_parts=[["system", 40], ["b", 20]]),
    ).requests

    assert first.prompt.tokens()[:40] == second.prompt.tokens()[:40]
    assert first.prompt.tokens()[40:] != second.prompt.tokens()[40:]


def test_prompt_of_prompt_len_is_not_shared(file: Path) -> None:
    first, second = read_lines(file, entry(id="a"), entry(id="b")).requests

    assert first.prompt.tokens() != second.prompt.tokens()
    assert refusal(
        file, entry(id="a"), entry(id="b", prompt_len="-", prompt_parts=[["own:a", 60]])
    ) == (
        "w.jsonl, line 2: prompt_parts[0]: found 'own:a'; "
        "allowed: a name that does not begin with 'own:': prompt_len uses those"
    )


def test_a_request_may_name_its_own_stream(file: Path) -> None:
    by_length = only_request(file, entry(id="a"))
    by_name = only_request(file, entry(id="a", prompt_len="-", prompt_parts=[["own:a", 60]]))

    assert by_name == by_length


def test_blank_lines_line_endings_and_a_byte_order_mark_mean_nothing(file: Path) -> None:
    file.write_bytes(f"\ufeff\r\n  \n{entry(id='a')}\r\n\n{entry(id='b')}".encode())

    workload = read_workload(file)

    assert [request.id for request in workload.requests] == ["a", "b"]
    assert workload.lines == (3, 5)


def test_a_first_line_may_name_format_and_version(file: Path) -> None:
    header = '{"format": "lockstep-workload", "version": 1}'

    assert read_lines(file, header, entry()).lines == (2,)
    assert refusal(file, header.replace("1", "2"), entry()) == (
        "w.jsonl, line 1: version: found 2; allowed: a whole number from 1 to 1"
    )
    assert refusal(file, '{"format": "lockstep-trace", "version": 1}') == (
        "w.jsonl, line 1: format: found 'lockstep-trace'; allowed: lockstep-workload"
    )


def test_a_limit_reads_the_first_requests_and_nothing_behind_them(file: Path) -> None:
    workload = read_lines(file, entry(id="a"), entry(id="b"), "broken", limit=2)

    assert [request.id for request in workload.requests] == ["a", "b"]
    assert refusal(file, entry(), limit=0) == (
        "limit: found 0; allowed: a whole number of requests from 1 to 1000000"
    )


def test_arrivals_stretched_to_a_rate_keep_their_spacing_and_begin_at_nothing(file: Path) -> None:
    moments = {"a": 5, "b": 6, "c": 9}
    read = read_lines(file, *(entry(id=id_, arrival_s=when) for id_, when in moments.items()))

    slow = at_rate(read, 0.01)  # three requests, two spaces of 100 units in the mean

    assert {request.id: request.arrival_time for request in slow.requests} == {
        "a": 0,
        "b": 50,
        "c": 200,
    }
    assert slow.lines == read.lines


def test_clients_that_ask_for_more_than_they_use_get_the_same_answers(file: Path) -> None:
    read = read_lines(
        file,
        entry(id="a", max_tokens=5),
        entry(id="b", max_tokens=9, output_len=3),
        entry(id="c", max_tokens=4, output=[1, 2]),
    )

    asked = asking(read, 2.5).requests

    assert [request.max_tokens for request in asked] == [13, 8, 5]
    assert (
        [request.end for request in asked]
        == [request.end for request in read.requests]
        == [5, 3, 2]
    )


def test_only_requests_with_moments_can_be_stretched_to_a_rate(file: Path) -> None:
    of_steps = read_lines(file, entry(id="a", arrival_s=1), entry(id="b", arrival=3))
    assert refused(WorkloadError, at_rate, of_steps, 1) == (
        "w.jsonl, line 2: arrival: found 3; allowed: arrival_s, to be stretched to a rate"
    )


def test_arrivals_at_one_moment_are_spaced_evenly_and_turns_keep_their_delays(file: Path) -> None:
    at_once = [entry(id=id_, arrival_s=1) for id_ in "ab"]
    read = read_lines(
        file, *at_once, entry(id="c", after="a", arrival_s=7), entry(id="d", arrival_s=1)
    )

    assert [request.arrival_time for request in at_rate(read, 2).requests] == [0, 0.5, 7, 1]


def test_the_length_of_a_turn_counts_what_is_kept_of_the_one_before(file: Path) -> None:
    read = read_lines(
        file,
        entry(id="a", prompt_len=4, max_tokens=3, continued_by="b"),
        entry(id="b", prompt_len=9, after="a"),
    )
    first, turn = read.requests
    tokens = [*turn.prompt.tokens()]

    assert tokens[:6] == [*first.prompt.tokens(), *first.output_tokens(2)]
    assert len(tokens) == 9


@pytest.mark.parametrize(
    ("turn", "message"),
    [
        (
            {"id": "c", "after": "a"},
            "line 1: continued_by: found 'b'; allowed: a request that comes after 'a'",
        ),
        (
            {"id": "b", "after": "a", "prompt_len": 6},
            "line 2: prompt_len: found 6; allowed: more than the 6 tokens that are kept of 'a'",
        ),
        (
            {"id": "b", "after": "a", "prompt": [1, 2, 3], "prompt_len": "-"},
            "line 1: prompt: found \"3 tokens of 'b'\"; allowed: the 6 tokens of 'a' without its"
            " last, and more behind them",
        ),
        (
            {"id": "b", "after": "a", "prompt_len": 9, "encoder_spans": [[7, 2, "cat"]]},
            "line 1: encoder_spans: found [[7, 2, 'cat']]; allowed: no such key of a turn of a"
            " session",
        ),
        (
            {"id": "c", "continued_by": "b"},
            "line 2: continued_by: found 'b'; allowed: the id of a later request that no other"
            " names",
        ),
    ],
)
def test_a_session_that_does_not_go_on_is_refused(
    file: Path, turn: dict[str, object], message: str
) -> None:
    first = entry(id="a", prompt_len=4, max_tokens=3, continued_by="b")

    assert refused(WorkloadError, read_lines, file, first, entry(**turn)) == (f"w.jsonl, {message}")


def arrivals(workload: Workload) -> list[float | None]:
    return [request.arrival_time for request in workload.requests]


def test_shuffled_arrivals_have_the_same_gaps_and_the_same_order(file: Path) -> None:
    moments = [9, 0, 1, 3, 40, 20]  # rows of others are not in the order of time
    read = read_lines(
        file,
        *(entry(id=f"{when}", arrival_s=when) for when in moments),
        entry(id="turn", after="3", arrival_s=7),
    )
    orders = {tuple(arrivals(with_shuffled_gaps(read, seed))[:-1]) for seed in range(9)}
    assert len(orders) > 5
    for order in orders:
        new = sorted(moment for moment in order if moment is not None)
        assert [order[moments.index(when)] for when in sorted(moments)] == new
        assert sorted(late - early for early, late in pairwise(new)) == [1, 2, 6, 11, 20]
    assert with_shuffled_gaps(read, 1) == with_shuffled_gaps(read, 1)
    assert with_shuffled_gaps(read, 1).requests[-1].arrival_time == 7


@pytest.mark.parametrize(("gap", "mean"), [(0, 1), (0.1, 0.1), (3, 3)])
def test_equal_gaps_are_replaced_by_exponential_ones_of_their_mean(
    file: Path, gap: float, mean: float
) -> None:
    read = read_lines(file, *(entry(id=f"{row}", arrival_s=row * gap) for row in range(2_000)))
    last = arrivals(with_shuffled_gaps(read, 1))[-1]
    assert last is not None
    assert last / 1_999 == pytest.approx(mean, rel=0.1)
    assert len(set(arrivals(with_shuffled_gaps(read, 1)))) == 2_000


BAD_VALUES: dict[str, list[tuple[dict[str, object], str]]] = {  # by what is allowed
    "printable text of 1 to 200 characters": [
        ({"id": "-"}, "id: found nothing"),
        ({"id": "\x1b[2J"}, "id: found '\\x1b[2J'"),
        ({"id": "\ud800"}, "id: found '\\ud800'"),
    ],
    "id, arrival, arrival_s, prompt_len, prompt, "
    "prompt_parts, encoder_spans, max_tokens, output_len, output, abort_at, priority, n, lora, "
    "encoder_len, external, external_if_lost, right_drafts, grammar, has_images, reads_cache, "
    "continued_by, after; "
    "nearest: prompt_len": [
        ({"prompt_length": 3}, "key: found 'prompt_length'"),
    ],
    "exactly one of prompt_len, prompt, prompt_parts": [
        ({"prompt": [1]}, "prompt: found ['prompt_len', 'prompt']"),
        ({"prompt_len": "-"}, "prompt: found nothing"),
    ],
    "a whole number of tokens from 1 to 1048576": [
        ({"prompt_len": 0}, "prompt_len: found 0"),
        ({"prompt_len": 10**12}, "prompt_len: found 1000000000000"),
        ({"max_tokens": "-"}, "max_tokens: found nothing"),
        ({"prompt_len": "-", "prompt_parts": [["system", 0]]}, "prompt_parts[0]: found 0"),
    ],
    "a whole number of steps from 0 to 1000000000": [
        ({"arrival": -1}, "arrival: found -1"),
    ],
    "one of the two": [
        ({"arrival": 1, "arrival_s": 1}, "arrival: found ['arrival', 'arrival_s']"),
    ],
    "a number of seconds from 0 to 1000000000": [
        ({"arrival_s": float("nan")}, "arrival_s: found nan"),
        ({"arrival_s": float("inf")}, "arrival_s: found inf"),
    ],
    "at most max_tokens (10) tokens": [
        ({"output_len": 11}, "output_len: found 11"),
    ],
    "a list of 1 to 1048576 token ids": [
        ({"output": []}, "output: found []"),
        (
            {"prompt_len": "-", "prompt": "hello " * 20},
            "prompt: found 'hello hello hello hello hello hello hello hello hello hello…'",
        ),
    ],
    "the id of an earlier request": [({"after": "z"}, "after: found 'z'")],
    "arrival_s, counted from that end": [
        ({"after": "0", "arrival": 1}, "arrival: found ['arrival', 'after']"),
    ],
    "a whole number from 0 to 2147483647": [
        ({"output": [7, -1]}, "output[1]: found -1"),
    ],
    "the number of tokens in output (2)": [
        ({"output": [7, 7], "output_len": 3}, "output_len: found 3"),
    ],
    "arrival (5) or later": [
        ({"arrival": 5, "abort_at": 4}, "abort_at: found 4"),
    ],
    "a whole number from -1000000000 to 1000000000": [
        ({"priority": "high"}, "priority: found 'high'"),
    ],
    "[name, tokens]": [
        (
            {"prompt_len": "-", "prompt_parts": [["system", 5], ["user"]]},
            "prompt_parts[1]: found ['user']",
        ),
    ],
    "a list of [name, tokens]": [
        ({"prompt_len": "-", "prompt_parts": []}, "prompt_parts: found []"),
    ],
    "a whole number of tokens of the prompt from 0 to 6": [
        ({"prompt_len": 6, "external": 7}, "external: found 7"),
    ],
    "a whole number of tokens of the prompt from 0 to 0": [
        ({"prompt_len": 1, "external": 1}, "external: found 1"),
    ],
    "a whole number of tokens, as external from 0 to 4": [
        ({"prompt_len": 6, "external": 4, "external_if_lost": 5}, "external_if_lost: found 5"),
    ],
    "ones, zeros, and - for no draft": [
        ({"right_drafts": "120"}, "right_drafts: found '120'"),
    ],
    "at most 1048576 tokens in all": [
        (
            {"prompt_len": "-", "prompt_parts": [["system", 2**20], ["user", 1]]},
            "prompt_parts: found 1048577",
        ),
    ],
}


@pytest.mark.parametrize(
    ("changes", "found", "allowed"),
    [(*row, allowed) for allowed, rows in BAD_VALUES.items() for row in rows],
    ids=lambda value: json.dumps(value)[:40] if isinstance(value, dict) else "",
)
def test_a_bad_value_is_refused_by_field(
    file: Path, changes: Mapping[str, object], found: str, allowed: str
) -> None:
    message = f"w.jsonl, line 2: {found}; allowed: {allowed}"

    assert refusal(file, entry(id="fine"), entry(**changes)) == message


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            '{"id": "1" "prompt_len": 6}',
            'line: found \'{"id": "1" "prompt_len": 6}\'; '
            "allowed: one JSON object; this is broken at column 12",
        ),
        ("[1, 2]", "line: found '[1, 2]'; allowed: one JSON object"),
        ('{"id": "1", "id": "2"}', "key: found 'id'; allowed: each key once"),
        (
            '{"id": ' + "[" * 100_000,
            f"line: found '{{\"id\": {'[' * 52}…'; allowed: one JSON object of sane size",
        ),
        (
            '{"arrival": ' + "9" * 5_000 + "}",
            f"line: found '{{\"arrival\": {'9' * 47}…'; allowed: one JSON object of sane size",
        ),
        ("\0", "line: found '\\x00'; allowed: one JSON object; this is broken at column 1"),
    ],
    ids=["broken", "no object", "repeated key", "nesting", "digits", "zero byte"],
)
def test_a_line_that_is_no_request_is_refused(file: Path, line: str, message: str) -> None:
    assert refusal(file, entry(id="fine"), line) == f"w.jsonl, line 2: {message}"


def test_a_second_request_with_an_id_is_refused_with_the_line_of_the_first(file: Path) -> None:
    assert refusal(file, entry(id="a"), "", entry(id="b"), entry(id="a")) == (
        "w.jsonl, line 4: id: found 'a'; allowed: an id of its own; line 1 has this one"
    )


def test_a_line_longer_than_any_request_is_refused(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.workloads.files.MOST_LINE_BYTES", 100)

    assert refusal(file, entry(), " " * 101) == (
        "w.jsonl, line 2: line: found 'over 100 bytes'; allowed: a shorter line"
    )


def test_more_requests_than_the_memory_may_hold_are_refused(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.workloads.workload.MOST_REQUESTS", 2)

    assert refusal(file, *(entry(id=name) for name in "abc")) == (
        "w.jsonl, line 3: requests: found 'one more'; allowed: 2; a limit reads the first ones"
    )


# --- files --------------------------------------------------------------------------------------


def test_a_file_that_cannot_be_read_is_refused(file: Path) -> None:
    missing = "cannot read w.jsonl: no such file or directory"
    directory = "cannot read .: is a directory"

    assert refused(WorkloadError, read_workload, file) == missing
    assert refused(WorkloadError, read_workload, Path()) == directory
    with pytest.raises(WorkloadError, match="cannot read a\0b: embedded null byte"):
        read_workload("a\0b")


@pytest.mark.parametrize(
    "lines",
    [(), ("", "  "), ('{"format": "lockstep-workload", "version": 1}',), (HEADER,)],
    ids=["empty", "blank", "own header", "azure header"],
)
def test_a_file_without_requests_is_refused(file: Path, lines: tuple[str, ...]) -> None:
    assert refusal(file, *lines) == (
        "w.jsonl: file: found 'no request'; allowed: one request or more"
    )


def test_a_binary_file_is_refused(file: Path) -> None:
    file.write_bytes(entry().encode() + b"\n\x1f\x8b\x08\x00")

    assert refused(WorkloadError, read_workload, file) == (
        "w.jsonl, line 2: line: found 'byte 0x8b at column 2'; allowed: UTF-8 text"
    )


def test_a_named_format_goes_before_what_the_file_looks_like(file: Path) -> None:
    assert refusal(file, HEADER, format="lockstep") == (
        f"w.jsonl, line 1: line: found {HEADER!r}; "
        "allowed: one JSON object; this is broken at column 1"
    )
    assert refusal(file, entry(), format="azure") == (
        """w.jsonl, line 1: header: found '{"id": "0","prompt_len": 60,"max_tokens": 10}'; """
        f"allowed: {HEADER}"
    )
    assert refusal(file, entry(), format="mooncake") == (
        "w.jsonl, line 1: timestamp: found nothing; "
        "allowed: a number of milliseconds from 0 to 1000000000000"
    )


# --- whatever a file holds ------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
VALUES = st.integers(-1, 12) | st.lists(st.integers(0, 3), max_size=3) | JSON
REQUESTS: list[dict[str, object]] = [
    {"id": "1", "prompt_len": 5, "max_tokens": 3},
    {"id": "2", "prompt": [3, 3], "max_tokens": 3, "arrival": 2, "output": [2]},
    {"id": "3", "prompt_parts": [["a", 1], ["b", 2]], "max_tokens": 3, "arrival_s": 0.5},
]
MOONCAKE_ROW = {"timestamp": 3, "input_length": 5, "output_length": 3, "hash_ids": [7]}


def changed(
    plain: dict[str, object], keys: tuple[str, ...]
) -> st.SearchStrategy[dict[str, object]]:
    """`plain` with other values under some of the keys."""
    changes = st.dictionaries(st.sampled_from(keys) | st.text(max_size=3), VALUES, max_size=2)
    return changes.map(lambda some: plain | some)


ENTRIES = st.one_of(
    *(changed(plain, own.KEYS) for plain in REQUESTS), changed(MOONCAKE_ROW, (*MOONCAKE_ROW,))
)
AZURE_CELLS = st.sampled_from(
    ["2023-11-16 18:15:46.6805900", "2023-02-30 00:00:00", "0", "12", "-1", "", "x"]
)
LINES = (
    ENTRIES.map(lambda entry: json.dumps(entry).encode())
    | st.tuples(AZURE_CELLS, AZURE_CELLS, AZURE_CELLS).map(lambda cells: ",".join(cells).encode())
    | st.binary(max_size=40)
    | st.text(max_size=40).map(lambda text: text.encode("utf-8", "surrogatepass"))
)


@given(
    lines=st.lists(LINES, max_size=4),
    first=st.sampled_from([b"", HEADER.encode(), entry().encode(), mooncake(5, 7).encode()]),
    name=st.sampled_from([None, *FORMATS]),
)
def test_whatever_a_file_holds_it_is_read_or_refused_with_its_place(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], first: bytes, name: str | None
) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    check_read_or_refused(path, b"\n".join([first, *lines]), name)


@given(line=ENTRIES.map(json.dumps))
@example(line='{"id": "1", "prompt_len": 5, "max_tokens": 3, "arrival_s": 1e999}')
@example(line='{"id": "1", "prompt_len": 5, "max_tokens": 3, "arrival_s": 1%s}' % ("0" * 400))
def test_whatever_a_request_says_it_is_read_or_refused_with_its_place(
    tmp_path_factory: pytest.TempPathFactory, line: str
) -> None:
    check_read_or_refused(tmp_path_factory.getbasetemp() / "any", line.encode())


def test_the_limits_let_the_longest_allowed_line_through() -> None:
    longest = 2 * checked.MOST_TOKENS * len(f"{checked.MOST_TOKEN_ID}, ")

    assert longest < checked.MOST_LINE_BYTES
