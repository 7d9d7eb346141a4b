"""The published figures of Spyre's scheduler: the numbers in them, and our runs.

The numbers of each figure were read off the figure; a test compares them with the published data
if the files are available, and the book shows ours beside them.
"""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from checks.export.figures import Lines, Numbers, PublishedFigure

_PREFIX = "spyre, the figures on prefix caching"
_CHUNKS = "spyre, the figures on chunked prefill"


def decode_lines(lines: Lines) -> list[Mapping[str, Any]]:
    """The lines in the figure of tkv jumps: from the first in which all three requests decode."""
    decodes = [line for line in lines if line.get("step_type") == "decode"]
    first = next(index for index, line in enumerate(decodes) if len(line["decoding"]) == 3)
    return decodes[first:]


def jumps(lines: Lines) -> dict[int, list[tuple[str, int, int]]]:
    """By line, the rows whose tkv did not move by +1, with both values, in tokens."""
    by_line = {}
    for index, (line, after) in enumerate(pairwise(lines), start=1):
        tkv = {row["id"]: row["tkv"] for row in line["decoding"]}
        moved = [
            (row["id"], tkv[row["id"]], row["tkv"])
            for row in after["decoding"]
            if row["tkv"] != tkv[row["id"]] + 1
        ]
        if moved:
            by_line[index] = moved
    return by_line


def ends(lines: Lines) -> dict[int, list[str]]:
    """By line, the requests that end in it."""
    return {index: line["completed"] for index, line in enumerate(lines) if "completed" in line}


# --- numbers in the figures -----------------------------------------------------------------------


def _prefills(lines: Lines) -> list[Mapping[str, Any]]:
    """The chunks of the request that is prefilled last."""
    chunks = [line["prefilling"] for line in lines if line.get("step_type") == "prefill"]
    return [chunk for chunk in chunks if chunk["id"] == chunks[-1]["id"]]


def _tokens(chunk: Mapping[str, Any]) -> str:
    return f"{chunk['chunk_prompt_token_start']} to {chunk['chunk_prompt_token_end']}"


def _chunks(lines: Lines) -> Numbers:
    chunks = _prefills(lines)
    first = chunks[0]
    return {
        "padding on the left, tokens": first["left_padding"],
        "padding on the right, tokens": first["right_padding"],
        "chunks": first["chunks_total"],
        **{
            f"tokens of chunk {number}": _tokens(chunk)
            for number, chunk in enumerate(chunks, start=1)
        },
    }


def _cached(lines: Lines) -> Numbers:
    chunks = _prefills(lines)
    first = chunks[0]
    return {
        "chunks": first["chunks_total"],
        "chunks skipped": first["chunks_done"],
        "tokens read from the cache before the first chunk": first["cached_tokens"],
        "tokens redirected to the dummy block": first["inner_padding"],
        **{
            f"tokens of computed chunk {number}": _tokens(chunk)
            for number, chunk in enumerate(chunks, start=1)
        },
    }


def _tkv_jumps(lines: Lines) -> Numbers:
    shown = decode_lines(lines)
    return {"decode lines": len(shown), **dict(_moves(jumps(shown))), **dict(_ends(ends(shown)))}


def _moves(by_line: Mapping[int, list[tuple[str, int, int]]]) -> Iterator[tuple[str, str]]:
    for line, moved in by_line.items():
        for request, before, after in moved:
            yield f"tkv of request {request} in line {line}", f"{before} to {after}"


def _ends(by_line: Mapping[int, list[str]]) -> Iterator[tuple[str, int]]:
    for line, requests in by_line.items():
        for request in requests:
            yield f"line in which request {request} ends", line


def _constraints(lines: Lines) -> Numbers:
    """The numbers in the figure of scheduler constraints; its first step has number 1."""
    steps = [line for line in lines if line.get("step_type") in ("prefill", "decode")]
    chunks: dict[str, list[int]] = {}
    for number, line in enumerate(steps, start=1):
        if line["step_type"] == "prefill":
            chunks.setdefault(line["prefilling"]["id"], []).append(number)
    prefills = {
        f"steps that prefill request {request}": ", ".join(map(str, numbers))
        for request, numbers in chunks.items()
    }
    ended = {
        f"step in which request {request} ends": index + 1
        for index, requests in ends(steps).items()
        for request in requests
    }
    volume = _volume_with(steps[_REFUSED - 1], "4", lines[0]["block_size"])
    return prefills | ended | {f"volume if request 4 decoded in step {_REFUSED}": volume}


_REFUSED = 35  # the step in which the volume constraint begins to hold request 4 back


def _volume_with(line: Mapping[str, Any], request: str, size: int) -> str:
    """The volume of a decode step if this waiting request decoded its first token in it, too."""
    prompt = next(row["prompt_len"] for row in line["waiting"] if row["id"] == request)
    widest = max(row["tkv"] for row in line["decoding"])
    padding = (-(-widest // size) - -(-(prompt + 1) // size)) * size
    tkv = max(widest, padding + prompt + 1)
    rows = len(line["decoding"]) + 1
    return f"{tkv} x {rows} = {tkv * rows}"


# --- the figures ----------------------------------------------------------------------------------

FIGURES = (
    PublishedFigure(
        name="single-chunk",
        title="A prompt of one chunk",
        source=_CHUNKS,
        file="prefill_single_chunks.jsonl",
        example="single-chunk",
        read=_chunks,
        published={
            "padding on the left, tokens": 64,
            "padding on the right, tokens": 49,
            "chunks": 1,
            "tokens of chunk 1": "0 to 15",
        },
    ),
    PublishedFigure(
        name="three-chunks",
        title="A prompt of three chunks",
        source=_CHUNKS,
        file="prefill_three_chunks.jsonl",
        example="chunks",
        read=_chunks,
        published={
            "padding on the left, tokens": 64,
            "padding on the right, tokens": 18,
            "chunks": 3,
            "tokens of chunk 1": "0 to 64",
            "tokens of chunk 2": "64 to 192",
            "tokens of chunk 3": "192 to 302",
        },
    ),
    PublishedFigure(
        name="tkv-jumps",
        title="A decode batch with jumps of tkv",
        source="spyre, the figure on padding and tkv jumps",
        file="scheduling_padding_tkv_jump.jsonl",
        example="published-jumps",
        read=_tkv_jumps,
        published={
            "decode lines": 69,
            "tkv of request 2 in line 12": "320 to 257",
            "tkv of request 1 in line 17": "320 to 257",
            "tkv of request 1 in line 53": "292 to 357",
            "tkv of request 2 in line 53": "297 to 362",
            "tkv of request 1 in line 59": "362 to 171",
            "tkv of request 2 in line 59": "367 to 176",
            "tkv of request 1 in line 66": "177 to 114",
            "line in which request 0 ends": 58,
            "line in which request 2 ends": 65,
            "line in which request 1 ends": 68,
        },
    ),
    PublishedFigure(
        name="constraints",
        title="Every constraint on admission",
        source="spyre, the figure on scheduler constraints. The text has 5, 22, 35, 45 and the"
        " volume; lengths and other steps are those of its data in the plugin's repository"
        " (docs/mkdocs/data/scheduling_admission_constraints.json)",
        file="scheduling_admission_constraints.jsonl",
        example="published-constraints",
        read=_constraints,
        published={
            "steps that prefill request 0": "1",
            "steps that prefill request 1": "3, 5, 23",
            "steps that prefill request 2": "25, 27, 29, 31",
            "steps that prefill request 3": "33",
            "steps that prefill request 4": "46",
            "steps that prefill request 5": "48",
            "steps that prefill request 6": "55",
            "steps that prefill request 7": "71, 73",
            "step in which request 0 ends": 22,
            "step in which request 2 ends": 45,
            "step in which request 4 ends": 54,
            "step in which request 1 ends": 70,
            "step in which request 6 ends": 76,
            "step in which request 3 ends": 81,
            "step in which request 7 ends": 84,
            "step in which request 5 ends": 90,
            "volume if request 4 decoded in step 35": "426 x 4 = 1704",
        },
    ),
    PublishedFigure(
        name="prefix-caching",
        title="Prefix caching, figure 1: two prompts that begin alike",
        source=_PREFIX,
        file="prefix_caching_1.jsonl",
        example="prefix",
        read=_cached,
        published={
            "chunks": 6,
            "chunks skipped": 4,
            "tokens read from the cache before the first chunk": 832,
            "tokens redirected to the dummy block": 64,
            "tokens of computed chunk 1": "895 to 1088",
            "tokens of computed chunk 2": "1088 to 1319",
        },
    ),
    PublishedFigure(
        name="whole-prompt-cached",
        title="Prefix caching, figure 2: the same prompt again",
        source=_PREFIX,
        file="prefix_caching_2.jsonl",
        example="whole-prefix",
        read=_cached,
        published={
            "chunks": 1,
            "chunks skipped": 0,
            "tokens read from the cache before the first chunk": 191,
            "tokens redirected to the dummy block": 256,
            "tokens of computed chunk 1": "447 to 448",
        },
        says="A block of padding and 448 tokens are two chunks of 256, not one. The seventh block"
        " holds the last token, which is computed in any case, so that only six blocks are hits."
        " Release 2.6.3 does as the reference does.",
    ),
    PublishedFigure(
        name="answer-cached",
        title="Prefix caching, figure 3: a prompt that goes on from an answer",
        source=_PREFIX,
        file="prefix_caching_3.jsonl",
        example="answer",
        read=_cached,
        published={
            "chunks": 5,
            "chunks skipped": 4,
            "tokens read from the cache before the first chunk": 896,
            "tokens redirected to the dummy block": 128,
            "tokens of computed chunk 1": "1024 to 1109",
        },
        says="Both mean the same chunk. 896 + 128 = 1,024 tokens stand before the first that is"
        " written; figure 1 draws such a chunk from one token before, and so do our lines.",
    ),
)
