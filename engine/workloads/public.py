"""The formats `azure` and `mooncake`: public traces of production requests."""

import re
from datetime import datetime

from engine.workloads.checked import MOST_TOKENS, NOTHING, brief, json_object, seconds, whole
from engine.workloads.own import own_stream
from spec.core.blocks import block_count
from spec.core.errors import WorkloadError
from spec.core.requests import Prompt, Request

AZURE_HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"

_COLUMNS = AZURE_HEADER.split(",")
_TICKS_PER_SECOND = 10**7  # the trace writes 7 digits, one more than Python's own clock keeps
_TIMESTAMP = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,7}))?(?:\+00:00)?"
)
_EPOCH = datetime(1970, 1, 1)  # only differences count; all rows are in one zone
_SECONDS_PER_DAY = 86_400

HASHED_TOKENS = 512  # tokens of a block that a hash id stands for; independent of our block size
MOONCAKE_KEYS = ("timestamp", "input_length", "output_length", "hash_ids")

_MOST_MILLISECONDS = 10**12
_MOST_HASH_ID = 2**64 - 1


# --- azure --------------------------------------------------------------------------------------


class AzureRows:
    """Reads the lines of one file; time counts from its first row."""

    def __init__(self) -> None:
        self._first_ticks: int | None = None

    def takes_as_header(self, line: str) -> bool:
        """True: the first line must be the header."""
        if [column.strip() for column in line.split(",")] != _COLUMNS:
            raise WorkloadError("header", brief(line), AZURE_HEADER)
        return True

    def request(self, line: str, row: int) -> Request | None:
        """The request of one row; None if it has no prompt or generated nothing."""
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(_COLUMNS):
            raise WorkloadError("row", brief(line), f"{len(_COLUMNS)} columns: {AZURE_HEADER}")
        arrival_s = self._seconds_since_first(cells[0])
        prompt_len, output_len = (
            _tokens(column, cell) for column, cell in zip(_COLUMNS[1:], cells[1:], strict=True)
        )
        if prompt_len == 0 or output_len == 0:
            return None
        return Request(
            id=str(row),
            prompt=Prompt.of_stream(own_stream(str(row)), prompt_len),
            max_tokens=output_len,
            arrival_time=arrival_s,
        )

    def _seconds_since_first(self, cell: str) -> float:
        ticks = _ticks(cell)
        if self._first_ticks is None:
            self._first_ticks = ticks
        if ticks < self._first_ticks:
            raise WorkloadError("TIMESTAMP", cell, "not before that of the first row")
        return (ticks - self._first_ticks) / _TICKS_PER_SECOND


def _ticks(cell: str) -> int:
    """Tenths of microseconds since 1970, exactly."""
    try:
        match = _TIMESTAMP.fullmatch(cell)
        if match is None:
            raise ValueError
        moment = datetime.fromisoformat(match[1]) - _EPOCH
    except ValueError:
        allowed = "YYYY-MM-DD HH:MM:SS with up to 7 decimals"
        raise WorkloadError("TIMESTAMP", brief(cell), allowed) from None
    whole_seconds = moment.days * _SECONDS_PER_DAY + moment.seconds
    return whole_seconds * _TICKS_PER_SECOND + int((match[2] or "").ljust(7, "0"))


def _tokens(column: str, cell: str) -> int:
    # Longer numbers are refused anyway, and the longest cannot even be converted.
    is_number = cell.isascii() and cell.isdigit() and len(cell) <= len(str(MOST_TOKENS))
    return whole(column, int(cell) if is_number else cell, 0, MOST_TOKENS, "tokens")


# --- mooncake -----------------------------------------------------------------------------------


class MooncakeRows:
    """Reads the lines of one file. Keys beyond the four that are needed are ignored."""

    def takes_as_header(self, _line: str) -> bool:
        """False: the format has no header."""
        return False

    def request(self, line: str, row: int) -> Request | None:
        """The request of one line; None if it has no prompt or generated nothing."""
        entry = dict.fromkeys(MOONCAKE_KEYS, NOTHING) | json_object(line)
        arrival_ms = seconds("timestamp", entry["timestamp"], _MOST_MILLISECONDS, "milliseconds")
        prompt_len = whole("input_length", entry["input_length"], 0, MOST_TOKENS, "tokens")
        output_len = whole("output_length", entry["output_length"], 0, MOST_TOKENS, "tokens")
        parts = _hashed_parts(entry["hash_ids"], prompt_len, str(row))
        if prompt_len == 0 or output_len == 0:
            return None
        return Request(
            id=str(row),
            prompt=Prompt.of_parts(parts),
            max_tokens=output_len,
            arrival_time=arrival_ms / 1000,
        )


def _hashed_parts(hash_ids: object, prompt_len: int, request_id: str) -> list[tuple[str, int]]:
    """A stream for each full block, shared by all prompts that have its id.

    A last block that is not full is the request's own: what others with that id have in common
    with it is not known, and no full block depends on it.
    """
    blocks = block_count(prompt_len, HASHED_TOKENS)
    if not isinstance(hash_ids, list) or len(hash_ids) != blocks:
        allowed = f"a list of {blocks} ids, one for each {HASHED_TOKENS} tokens begun"
        raise WorkloadError("hash_ids", brief(hash_ids), allowed)
    ids = [
        whole(f"hash_ids[{index}]", hash_id, 0, _MOST_HASH_ID)
        for index, hash_id in enumerate(hash_ids)
    ]
    full, rest = divmod(prompt_len, HASHED_TOKENS)
    shared = [(f"hash {hash_id}", HASHED_TOKENS) for hash_id in ids[:full]]
    return [*shared, (own_stream(request_id), rest)] if rest else shared
