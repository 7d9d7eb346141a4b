"""Azure and Mooncake traces: the meaning of their rows, and which rows can be served."""

import sys
from pathlib import Path

import pytest

from spec.core.errors import WorkloadError
from spec.core.requests import BlockKeys
from spec.spyre.config import SpyreConfig
from tests.engine.foreign_files import SAMPLES
from tests.engine.workload_files import HEADER, azure, entry, fit, mooncake, read_lines, refusal
from tests.refusals import refusal as refused

# --- public traces ------------------------------------------------------------------------------


def test_an_azure_row_arrives_as_long_after_the_first_as_it_did(file: Path) -> None:
    workload = read_lines(
        file,
        *azure(
            "2023-11-16 23:59:59.9999999,374,44\r",
            "2023-11-17 00:00:00.0000000,396,109\r",
            "2023-11-18 00:00:01.5,5,1\r",
        ),
    )

    assert workload.format == "azure"
    assert [request.arrival_time for request in workload.requests] == [0, 1e-7, 86_401.5000001]
    second = workload.requests[1]
    assert (second.id, second.prompt_len, second.max_tokens, second.end) == ("1", 396, 109, 109)
    assert workload.lines == (2, 3, 4)


STAMP = "YYYY-MM-DD HH:MM:SS with up to 7 decimals"
TOKENS = "a whole number of tokens from 0 to 1048576"
MILLISECONDS = "a number of milliseconds from 0 to 1000000000000"
BAD_AZURE_ROWS = {
    "columns": ("2023-11-16 18:15:46,374", f"3 columns: {HEADER}", "row"),
    "date": ("2023-13-16 18:15:46,374,44", STAMP, "TIMESTAMP"),
    "text": ("yesterday,374,44", STAMP, "TIMESTAMP"),
    "negative": ("2023-11-16 18:15:46,-1,44", TOKENS, "ContextTokens"),
    "foreign digit": ("2023-11-16 18:15:46,374,\u0661", TOKENS, "GeneratedTokens"),
    "digits": (f"2023-11-16 18:15:46,{'9' * 5_000},44", TOKENS, "ContextTokens"),
}


@pytest.mark.parametrize(("row", "allowed", "column"), BAD_AZURE_ROWS.values(), ids=BAD_AZURE_ROWS)
def test_a_bad_azure_row_is_refused(file: Path, row: str, allowed: str, column: str) -> None:
    columns = dict(zip(HEADER.split(","), row.split(","), strict=False)) | {"row": row}
    value = columns[column]
    found = value if len(value) <= 60 else f"{value[:59]}…"

    assert refusal(file, *azure("2023-11-16 18:15:46.0000000,1,1", row)) == (
        f"w.jsonl, line 3: {column}: found '{found}'; allowed: {allowed}"
    )


def test_rows_without_tokens_are_counted_and_dropped(file: Path) -> None:
    workload = read_lines(
        file,
        *azure(
            "2023-11-16 18:15:46,0,44", "2023-11-16 18:15:47,374,0", "2023-11-16 18:15:48,374,44"
        ),
    )

    assert workload.skipped == 2
    assert [(request.id, request.arrival_time) for request in workload.requests] == [("2", 2.0)]


def test_a_mooncake_row_has_its_lengths_and_arrives_in_milliseconds(file: Path) -> None:
    workload = read_lines(file, mooncake(700, 3, 4), mooncake(5, 6, timestamp=27_482, extra=None))

    assert workload.format == "mooncake"
    assert [request.arrival_time for request in workload.requests] == [0, 27.482]
    assert [request.prompt_len for request in workload.requests] == [700, 5]
    assert [request.end for request in workload.requests] == [9, 9]


def shared_blocks(file: Path, first: str, second: str, block_size: int) -> int:
    """Leading full blocks that the prompts of two rows have in common."""
    requests = {request.id: request for request in read_lines(file, first, second).requests}
    keys = BlockKeys(requests, block_size)
    both = (keys.of(request.id, request.prompt_len // block_size) for request in requests.values())
    return sum(left == right for left, right in zip(*both, strict=False))


@pytest.mark.parametrize(("block_size", "blocks"), [(512, 2), (64, 16), (48, 21)])
def test_equal_mooncake_ids_are_equal_blocks_of_any_size(
    file: Path, block_size: int, blocks: int
) -> None:
    first, second = mooncake(1_600, 7, 8, 9, 10), mooncake(1_600, 7, 8, 11, 12)

    assert shared_blocks(file, first, second, block_size) == blocks


def test_a_last_mooncake_block_that_is_not_full_is_not_shared(file: Path) -> None:
    assert shared_blocks(file, mooncake(1_023, 7, 8), mooncake(1_023, 7, 8), 64) == 8
    assert shared_blocks(file, mooncake(1_024, 7, 8), mooncake(1_024, 7, 8), 64) == 16
    assert shared_blocks(file, mooncake(1_024, 7, 8), mooncake(1_023, 7, 8), 64) == 8


BAD_MOONCAKE_ROWS = {
    "too few ids": (
        mooncake(1_024, 7),
        "hash_ids: found [7]; allowed: a list of 2 ids, one for each 512 tokens begun",
    ),
    "negative id": (
        mooncake(5, -7),
        f"hash_ids[0]: found -7; allowed: a whole number from 0 to {2**64 - 1}",
    ),
    "negative time": (
        mooncake(5, 7, timestamp=-1),
        f"timestamp: found -1; allowed: {MILLISECONDS}",
    ),
    "text": (mooncake(5, 7, output_length="9"), f"output_length: found '9'; allowed: {TOKENS}"),
    "missing": ('{"input_length": 5}', f"timestamp: found nothing; allowed: {MILLISECONDS}"),
}


@pytest.mark.parametrize(("line", "message"), BAD_MOONCAKE_ROWS.values(), ids=BAD_MOONCAKE_ROWS)
def test_a_bad_mooncake_row_is_refused(file: Path, line: str, message: str) -> None:
    assert refusal(file, mooncake(5, 7), line) == f"w.jsonl, line 2: {message}"


def test_mooncake_rows_without_tokens_are_counted_and_dropped(file: Path) -> None:
    workload = read_lines(file, mooncake(0), mooncake(5, 7, output_length=0), mooncake(5, 8))

    assert workload.skipped == 2
    assert [request.id for request in workload.requests] == ["2"]


# --- what can be served -------------------------------------------------------------------------

SMALL = SpyreConfig(block_size=4, chunk_size=8, max_model_len=64, max_batch_tkv_limit=100)


def test_requests_of_a_public_trace_that_are_too_long_are_dropped(file: Path) -> None:
    workload = read_lines(file, mooncake(55, 7), mooncake(56, 8), mooncake(5, 9))

    servable, refused = fit(workload, SMALL)

    assert [request.id for request in servable] == ["0", "2"]
    assert [str(error) for error in refused] == [
        "w.jsonl, line 2: prompt_len + max_tokens: found 65; allowed: at most max_model_len (64)"
    ]


def test_a_turn_behind_one_that_is_too_long_is_dropped_with_it(file: Path) -> None:
    text = SAMPLES["aiperf"].text.replace("60,", "6,").replace("700", "7")
    servable, refused = fit(read_lines(file, text), SMALL)

    assert [request.id for request in servable] == ["1"]
    assert [(error.field, error.found) for error in refused] == [
        ("prompt_len + max_tokens", 559),
        ("after", "0"),
    ]


def test_a_request_of_an_own_file_that_is_too_long_is_an_error(file: Path) -> None:
    workload = read_lines(file, entry(id="a", prompt_len=5), "", entry(id="b", prompt_len=55))

    assert refused(WorkloadError, fit, workload, SMALL) == (
        "w.jsonl, line 3: prompt_len + max_tokens: found 65; allowed: at most max_model_len (64)"
    )


def test_what_can_be_served_is_served(file: Path) -> None:
    workload = read_lines(file, entry(prompt_len=54))

    assert fit(workload, SMALL) == (list(workload.requests), [])


def test_twenty_thousand_long_prompts_take_little_memory(file: Path) -> None:
    lines = (f"2023-11-16 18:15:46,{30_000 + row % 7},100" for row in range(20_000))

    workload = read_lines(file, *azure(*lines))

    parts = {id(part): part for request in workload.requests for part in request.prompt.parts}
    assert sum(map(sys.getsizeof, parts.values())) < 2_000_000  # the tokens would take 4.8 GB
