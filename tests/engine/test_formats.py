"""Workload files of other tools: each format is known by its content, and read as it means."""

import json
import re
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.workloads import FORMATS, read_workload
from engine.workloads.formats import GROUP
from tests.engine.foreign_files import SAMPLES, Sample, summary
from tests.engine.workload_files import check_read_or_refused, entry, read_lines, refusal

CHAPTER = (Path(__file__).parents[2] / "spec/chapters/workloads.md").read_text("utf-8")


@pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
def test_a_file_is_known_by_its_content_and_read(file: Path, sample: Sample) -> None:
    file.write_text(sample.text, encoding="utf-8")

    workload = read_workload(file)

    assert workload.format == sample.format
    assert [summary(request) for request in workload.requests] == sample.requests
    assert workload.notes == sample.notes
    assert read_workload(file, sample.format) == workload


def test_every_format_has_a_sample() -> None:
    assert {sample.format for sample in SAMPLES.values()} == {*FORMATS}


def test_every_format_has_a_row_in_the_chapter_that_names_what_is_read() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \|[^|]*\|([^|]*)\|", CHAPTER, re.MULTILINE)
    read = {name: cells for name, cells in rows if name in FORMATS}

    assert {*read} == FORMATS.keys() - {"lockstep"}
    for name, cells in read.items():
        assert all(f"`{column}`" in cells for column in FORMATS[name].columns)


KNOWN = (
    "azure (CSV with TIMESTAMP, ContextTokens, GeneratedTokens); "
    "burstgpt (CSV with Timestamp, Request tokens, Response tokens); "
    "servegen (CSV with timestamp, input_tokens, output_tokens); "
    "bailian (JSON with chat_id); "
    "mooncake (JSON with input_length or hash_ids or text_input); "
    "sharegpt (JSON with conversations or conversation); "
    "bench-serve (JSON with input_lens or request_throughput); "
    "aiperf (JSON with metrics); "
    "genai-perf (JSON with experiments); "
    "guidellm (JSON with benchmarks); "
    "aiperf-inputs (JSON with turns or text or texts or data); "
    "lockstep (JSON with id or max_tokens or prompt_len or prompt_parts or format); "
    "custom (JSON with prompt)"
)


@pytest.mark.parametrize(
    ("line", "found", "nearest"),
    [
        ("block_size = 64", "'block_size = 64'", ""),
        ('{"question": "why?", "answer": 3}', "'keys question, answer'", ""),
        ("{}", "'keys (none)'", ""),
        (
            "TIMESTAMP,ContextTokens,Tokens",
            "'TIMESTAMP,ContextTokens,Tokens'",
            "; nearest: azure, but without GeneratedTokens",
        ),
    ],
)
def test_a_file_that_fits_nothing_is_refused_with_all_that_is_known(
    file: Path, line: str, found: str, nearest: str
) -> None:
    assert refusal(file, line) == (
        f"w.jsonl, line 1: format: found {found}; allowed: {KNOWN}{nearest}"
    )


def test_an_unknown_format_is_refused(file: Path) -> None:
    assert refusal(file, entry(), format="csv") == (
        f"format: found 'csv'; allowed: {', '.join(FORMATS)}"
    )


TOKENS = "a whole number of tokens from 0 to 1048576"
BROKEN: dict[
    str, tuple[str, Any, str]
] = {  # by format: a field of the third row, a wrong value, and what the message says
    "burstgpt": (
        "Response tokens",
        "many",
        f"line 4: Response tokens: found 'many'; allowed: {TOKENS}",
    ),
    "servegen": (
        "timestamp",
        "now",
        "line 4: timestamp: found 'now'; allowed: a number of seconds from 0 to 1000000000",
    ),
    "bailian": (
        "hash_ids",
        [1],
        "line 3: hash_ids: found [1]; allowed: a list of 3 ids, one for each 16 tokens begun",
    ),
    "mooncake": (
        "session_id",
        7,
        "line 3: session_id: found 7; allowed: printable text of 1 to 200 characters",
    ),
    "sharegpt": (
        "conversation",
        [3, 4],
        "line 3: conversation[0]: found 3; allowed: a JSON object",
    ),
    "custom": ("prompt", 3, "line 3: prompt: found 3; allowed: a JSON string"),
    "aiperf": (
        "metadata",
        {"request_start_ns": 1.5},
        "line 3: request_start_ns: found 1.5; "
        "allowed: a whole number of nanoseconds from 0 to 9223372036854775807",
    ),
    "aiperf-inputs": (
        "text",
        3,
        "line 3: text: found 3; allowed: texts",
    ),
}


LINES = {  # by format: the sample whose rows are lines, if it is not named as the format
    "sharegpt": "sharegpt, lines",
    "mooncake": "mooncake, conversations of AIPerf",
    "aiperf-inputs": "aiperf inputs, a turn a line",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_third_row_is_refused_with_its_place(file: Path, name: str) -> None:
    field, value, message = BROKEN[name]
    sample = SAMPLES[LINES.get(name, name)]
    first, *rest = sample.text.splitlines()
    if FORMATS[name].columns:
        cells = dict(zip(first.split(","), rest[0].split(","), strict=True)) | {field: value}
        broken = ",".join(cells.values())
        lines = [first, rest[0], rest[0], broken]
    else:
        lines = [first, first, json.dumps(json.loads(first) | {field: value})]

    assert refusal(file, *lines) == f"w.jsonl, {message}"


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        (
            "sharegpt",
            '"value": "alone"',
            '"value": 3',
            "[1].value: found 3; allowed: a JSON string",
        ),
        ("sharegpt", "[", "[7,", "[0]: found 7; allowed: a JSON object"),
        (
            "vllm bench serve",
            '"input_lens": [30, 40, 50], ',
            "",
            "line 1: input_lens: found nothing; allowed: a JSON array",
        ),
        (
            "vllm bench serve",
            "[30, 40, 50]",
            "[30, 40]",
            "line 1: values of output_lens: found 3; allowed: 2, as many as input_lens",
        ),
        (
            "sglang bench_serving",
            "}",
            ",",
            "line 26: line: found ','; allowed: one JSON document; this is broken at column 2",
        ),
        (
            "sglang bench_serving",
            "}",
            "\n",
            "line 27: line: found ''; allowed: one JSON document; this is broken at column 1",
        ),
        (
            "guidellm",
            '"prompt_tokens": 250',
            '"prompt_tokens": -1',
            f"line 1: prompt_tokens: found -1; allowed: {TOKENS}",
        ),
        (
            "genai-perf",
            '"request_inputs"',
            '"inputs"',
            "line 1: request_inputs: found nothing; allowed: a JSON object",
        ),
    ],
)
def test_a_broken_document_is_refused_with_the_place_in_it(
    file: Path, name: str, old: str, new: str, message: str
) -> None:
    assert old in SAMPLES[name].text

    assert refusal(file, SAMPLES[name].text.replace(old, new)) == f"w.jsonl, {message}".replace(
        "w.jsonl, [", "w.jsonl: ["
    )


def test_two_results_of_a_benchmark_are_refused(file: Path) -> None:
    text = SAMPLES["vllm bench serve"].text

    assert refusal(file, text, text) == (
        "w.jsonl, line 2: result: found 'one more'; "
        "allowed: one in a file, since the clocks of two need not be the same"
    )


# --- lengths and prompts --------------------------------------------------------------------------


def test_lengths_of_texts_and_missing_lengths_are_as_asked_for(file: Path) -> None:
    file.write_text(SAMPLES["custom"].text)

    read = read_workload(file, chars_per_token=2.5, output_len=9)

    assert [(request.prompt_len, request.end) for request in read.requests] == [(5, 10), (6, 9)]
    assert read.notes[0] == "texts: 2 (lengths estimated at 2.5 characters a token)"


def test_a_turn_begins_with_the_prompt_and_the_answer_of_the_turn_before(file: Path) -> None:
    file.write_text(SAMPLES["mooncake, conversations of genai-perf"].text)

    first, second, third = read_workload(file).requests

    so_far = [*first.prompt.tokens(), *first.output_tokens(10)]
    assert [*second.prompt.tokens()[:60]] == so_far
    assert third.prompt.tokens()[:110] == second.prompt.tokens()
    assert second.prompt.tokens()[60:] != first.prompt.tokens()


def test_hashes_of_16_tokens_are_shared_up_to_the_first_other_one(file: Path) -> None:
    file.write_text(SAMPLES["bailian"].text)

    first, second = (request.prompt.tokens() for request in read_workload(file).requests)

    assert first[:32] == second[:32]
    assert first[32:40] != second[32:40]


# --- whatever a file holds ------------------------------------------------------------------------

VALUES = st.sampled_from([None, -1, 1.5, 10**30, "x", "", [], [3], {}, {"value": 3}, True])


@given(name=st.sampled_from([*SAMPLES]), data=st.data())
def test_a_changed_file_is_read_or_refused_with_its_place(
    tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject
) -> None:
    text, path = SAMPLES[name].text, tmp_path_factory.getbasetemp() / "any"
    leaves = [match.span(1) for match in re.finditer(r'(?:: |, |\[)("[^"]*"|[0-9.]+)', text)]
    start, end = data.draw(st.sampled_from(leaves or [(0, len(text))]))
    changed = text[:start] + json.dumps(data.draw(VALUES)) + text[end:]

    check_read_or_refused(path, changed.encode(), data.draw(st.sampled_from([None, *FORMATS])))


# --- formats of other packages --------------------------------------------------------------------


def read(path: Path) -> Any:
    """The reader of another package that the chapter shows: `# ours`, then a length a line."""
    (source,) = re.findall(r"```python\n(.*?)```", CHAPTER, re.DOTALL)
    module: dict[str, Any] = {}
    exec(source, module)
    return module["read"](path)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("ours", "tests.engine.test_formats:read", GROUP)
    monkeypatch.setattr("engine.workloads.formats.entry_points", lambda group: [point])


@pytest.mark.usefixtures("installed")
def test_a_format_of_another_package_is_read(file: Path) -> None:
    workload = read_lines(file, "# ours", "9", "7")

    assert (workload.format, [*map(summary, workload.requests)]) == (
        "ours",
        [("0", 9, 4, 0, None), ("1", 7, 4, 0, None)],
    )
    assert read_workload(file, "ours") == workload
    assert refusal(file, "# ours", "9", "0") == (
        "w.jsonl: [1].prompt_len: found 0; allowed: a whole number of tokens from 1 to 1048576"
    )
    assert refusal(file, "# ours", "nine") == (
        "w.jsonl: format: found \"ValueError: invalid literal for int() with base 10: 'nine'\"; "
        "allowed: no error of tests.engine.test_formats:read, which reads ours"
    )
    assert refusal(file, entry(), format="ours") == (
        "w.jsonl: format: found 'ours'; allowed: a file that its reader takes"
    )
