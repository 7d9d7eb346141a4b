"""The format `azure`: arrival, prompt length and output length of production requests, as CSV."""

import re
from datetime import datetime

from engine.workloads.checked import MOST_TOKENS, brief, whole
from engine.workloads.own import own_stream
from spec.core.errors import WorkloadError
from spec.core.requests import Prompt, Request

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"

_COLUMNS = HEADER.split(",")
_TICKS_PER_SECOND = 10**7  # the trace writes 7 digits, one more than Python's own clock keeps
_TIMESTAMP = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,7}))?(?:\+00:00)?"
)
_EPOCH = datetime(1970, 1, 1)  # only differences count; all rows are in one zone
_SECONDS_PER_DAY = 86_400


class AzureRows:
    """Reads the lines of one file; time counts from its first row."""

    def __init__(self) -> None:
        self._first_ticks: int | None = None

    def takes_as_header(self, line: str) -> bool:
        """True: the first line must be the header."""
        if [column.strip() for column in line.split(",")] != _COLUMNS:
            raise WorkloadError("header", brief(line), HEADER)
        return True

    def request(self, line: str, row: int) -> Request | None:
        """The request of one row; None if it has no prompt or generated nothing."""
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(_COLUMNS):
            raise WorkloadError("row", brief(line), f"{len(_COLUMNS)} columns: {HEADER}")
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
