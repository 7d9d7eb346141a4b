"""Public traces of production requests: times and lengths, and hashes of prompts in some."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from engine.workloads.checked import MOST_TOKENS, NOTHING, brief, milliseconds, seconds, text, whole
from engine.workloads.own import own_stream
from engine.workloads.recorded import Conversation, Reading, cell, cell_seconds, recorded
from engine.workloads.texts import body_text
from spec.core.blocks import block_count
from spec.core.errors import WorkloadError
from spec.core.requests import Prompt, Request

AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
BURSTGPT_COLUMNS = ("Timestamp", "Request tokens", "Response tokens")
SERVEGEN_COLUMNS = ("timestamp", "input_tokens", "output_tokens")

_TICKS_PER_SECOND = 10**7  # Azure writes 7 digits, one more than Python's own clock keeps
_TIMESTAMP = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,7}))?(?:\+00:00)?"
)
_EPOCH = datetime(1970, 1, 1)  # only differences count; all rows are in one zone
_SECONDS_PER_DAY = 86_400

MOONCAKE_HASHED = 512  # tokens of a block that a hash id stands for; independent of our block size
BAILIAN_HASHED = 16

_MOST_HASH_ID = 2**64 - 1


# --- CSV ------------------------------------------------------------------------------------------


def azure(rows: Iterator[Any], _reading: Reading) -> Iterator[Request | None]:
    """Azure LLM inference traces: time counts from the first row."""
    first: int | None = None
    for number, row in enumerate(rows):
        ticks = _ticks(row["TIMESTAMP"])
        first = ticks if first is None else first
        prompt_len, output_len = (cell(row, column) for column in AZURE_COLUMNS[1:])
        yield recorded(str(number), prompt_len, output_len, (ticks - first) / _TICKS_PER_SECOND)


def _ticks(value: str) -> int:
    """Tenths of microseconds since 1970, exactly."""
    try:
        match = _TIMESTAMP.fullmatch(value)
        if match is None:
            raise ValueError
        moment = datetime.fromisoformat(match[1]) - _EPOCH
    except ValueError:
        allowed = "YYYY-MM-DD HH:MM:SS with up to 7 decimals"
        raise WorkloadError("TIMESTAMP", brief(value), allowed) from None
    whole_seconds = moment.days * _SECONDS_PER_DAY + moment.seconds
    return whole_seconds * _TICKS_PER_SECOND + int((match[2] or "").ljust(7, "0"))


def burstgpt(rows: Iterator[Any], _reading: Reading) -> Iterator[Request | None]:
    """BurstGPT: seconds since the first day began. A response of 0 tokens is a failure."""
    return _in_seconds(rows, BURSTGPT_COLUMNS)


def servegen(rows: Iterator[Any], _reading: Reading) -> Iterator[Request | None]:
    """Requests that ServeGen generated and saved: seconds."""
    return _in_seconds(rows, SERVEGEN_COLUMNS)


def _in_seconds(rows: Iterator[Any], columns: tuple[str, str, str]) -> Iterator[Request | None]:
    """Requests by time, prompt length and output length; time counts from the first row."""
    first: float | None = None
    for number, row in enumerate(rows):
        moment = cell_seconds(row, columns[0])
        first = moment if first is None else first
        prompt_len, output_len = (cell(row, column) for column in columns[1:])
        yield recorded(str(number), prompt_len, output_len, moment - first)


# --- JSON lines -----------------------------------------------------------------------------------


def mooncake(rows: Iterator[Any], reading: Reading) -> Iterator[Request | None]:
    """Mooncake traces, and the payloads of AIPerf and genai-perf, which look like them.

    A line with a `session_id` is a turn of that conversation, see `Conversation`.
    """
    conversations: defaultdict[str, Conversation] = defaultdict(Conversation)
    for number, entry in enumerate(rows):
        request_id, session = str(number), entry.get("session_id")
        moment = milliseconds(
            "timestamp", entry.get("timestamp", NOTHING if session is None else None)
        )
        if "input_length" not in entry and {"text_input", "text"} & entry.keys():
            prompt_len = reading.tokens(body_text(entry))
        else:
            prompt_len = _tokens(entry, "input_length")
        output_len = reading.output("output_length", entry.get("output_length"))
        parts = hashed_parts(entry.get("hash_ids"), prompt_len, request_id, MOONCAKE_HASHED)
        if session is None:
            prompt = Prompt.of_parts(parts)
            yield recorded(request_id, prompt_len, output_len, moment or 0.0, prompt=prompt)
        else:
            conversation, delay = (
                conversations[text("session_id", session)],
                milliseconds("delay", entry.get("delay")),
            )
            yield conversation.turn(request_id, parts, output_len, moment, delay or 0.0)


def bailian(rows: Iterator[Any], _reading: Reading) -> Iterator[Request | None]:
    """Traces of Alibaba's Bailian: seconds, a hash for each 16 tokens of the whole context."""
    for number, entry in enumerate(rows):
        moment = seconds("timestamp", entry.get("timestamp", NOTHING))
        prompt_len, output_len = _tokens(entry, "input_length"), _tokens(entry, "output_length")
        parts = hashed_parts(entry.get("hash_ids"), prompt_len, str(number), BAILIAN_HASHED)
        prompt = Prompt.of_parts(parts)
        yield recorded(str(number), prompt_len, output_len, moment, prompt=prompt)


def _tokens(entry: Mapping[str, Any], name: str) -> int:
    return whole(name, entry.get(name, NOTHING), 0, MOST_TOKENS, "tokens")


def hashed_parts(
    hash_ids: object, prompt_len: int, request_id: str, hashed: int
) -> list[tuple[str, int]]:
    """A stream for each full block of `hashed` tokens, shared by all prompts that have its id.

    The rest is the request's own: a last block that is not full, since what others with that id
    have in common with it is not known, and no full block depends on it; all without `hash_ids`.
    """
    ids: list[int] = []
    if hash_ids is not None:
        blocks = block_count(prompt_len, hashed)
        if not isinstance(hash_ids, list) or len(hash_ids) != blocks:
            allowed = f"a list of {blocks} ids, one for each {hashed} tokens begun"
            raise WorkloadError("hash_ids", brief(hash_ids), allowed)
        ids = [
            whole(f"hash_ids[{index}]", hash_id, 0, _MOST_HASH_ID)
            for index, hash_id in enumerate(hash_ids)
        ]
    full = ids[: prompt_len // hashed]
    rest = prompt_len - len(full) * hashed
    shared = [(f"hash {hash_id}", hashed) for hash_id in full]
    return [*shared, (own_stream(request_id), rest)] if rest else shared
