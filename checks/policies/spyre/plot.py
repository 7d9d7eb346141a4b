"""A run in the plot format of the published figures.

The format is JSON lines: a header with the configuration, one line for each scheduler step, and a
last line `done`. It follows the conventions of the published files:

- A line shows the batch *with* the token of its step: `decoded` counts it, and `tkv` is `left
  padding + prompt + decoded`, where the padding is that of a batch of these lengths. The device has
  written one token less in the same step, so `tkv` is one more than the device's, and a row jumps
  one step earlier: when the next token will need a block, not when it gets it.
- `reserved` is what a request may still generate, `max_tokens - decoded`, in tokens.
- A request is drawn in the step in which it samples its last token, with all padding as if it
  stayed; `completed` names it in that line only. The others jump back in the next line.
- Rows stand in the order of admission.
- `prefilling` is the chunk of the step. `chunks_done` does not count it, and the request is drawn
  there alone even if the chunk is its last: it is among `decoding` from the next line on.
- `chunk_prompt_token_start` and `..._end` are positions in the prompt, padding left out. Where
  cached blocks are computed again (`inner_padding`), the chunk is drawn from the token before the
  first that is not cached.
- `cached_tokens` (those of skipped chunks) and `inner_padding` are there after a prefix hit only.

The published files are silent on four things, which are decided here. A prefill under way is drawn
in a decode step too, with the chunks done so far and an empty range. `waiting` lists `id`,
`prompt_len` and `max_tokens` of each request that still waits. Paused requests are listed in
`paused`, where there are any. After a preemption the `prompt_len` in `prefilling` is all that is
computed again, generated tokens included.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from attrs import evolve

from spec.core.records import DECODE
from spec.core.requests import Request
from spec.spyre.config import SpyreConfig
from spec.spyre.padding import batch_width_blocks, row_left_padding
from spec.spyre.records import Chunk, Step
from spec.spyre.state import Sequence as Row

Line = dict[str, Any]

_HEADER = (
    "max_model_len",
    "max_num_seqs",
    "block_size",
    "chunk_size",
    "max_batch_tkv_limit",
    "interleave",
)


def plot_lines(
    config: SpyreConfig, requests: Mapping[str, Request], steps: Iterable[Step]
) -> Iterator[Line]:
    """The lines of the figure of a run, one at a time.

    `requests` by id. The line `done` comes only if no request is left after the last step.
    """
    yield {name: getattr(config, name) for name in _HEADER}
    step, chunk = None, None
    admissions: dict[str, int] = {}  # by id: the step of the last chunk so far
    for step in steps:
        _note_admissions(step, admissions)
        chunk = _drawn_chunk(step, chunk)
        # The batch with the tokens of this step; in a prefill step it stands still.
        batch = step.batch if step.kind == DECODE else step.before.decoding
        rows = sorted(batch, key=lambda row: admissions[row.id])
        yield _line(config.block_size, requests, step, chunk, rows)
    if step is not None and step.after.is_idle:
        yield {"step_type": "done", "waiting": [], "prefilling": None, "decoding": []}


# --- the drawn parts of a step ----------------------------------------------------------------


def _note_admissions(step: Step, admissions: dict[str, int]) -> None:
    """Note the step in which a request was prefilled last: prefills do not overlap."""
    if step.chunk is not None:
        admissions[step.chunk.id] = step.index
    # A plot may begin in the middle of a run; the newest rows come first in the batch.
    for age, row in enumerate((*step.before.decoding, *step.before.paused), start=1):
        admissions.setdefault(row.id, -age)


def _drawn_chunk(step: Step, last: Chunk | None) -> Chunk | None:
    """The chunk of the step, or an empty chunk after the last one of the current prefill."""
    slot = step.after.prefilling
    if step.chunk is not None:
        return step.chunk
    if last is None or slot is None or last.id != slot.id:
        return None
    is_empty = last.start == last.end
    return last if is_empty else evolve(last, chunk=last.chunk + 1, start=last.end)


# --- lines ----------------------------------------------------------------------------------------


def _line(
    block_size: int,
    requests: Mapping[str, Request],
    step: Step,
    chunk: Chunk | None,
    rows: Sequence[Row],
) -> Line:
    line: Line = {
        "step_type": step.kind,
        "waiting": [_asked(requests[row.id]) for row in step.after.waiting],
        "prefilling": None,
        "decoding": list(_decoding(block_size, requests, rows)),
    }
    if chunk is not None:
        slot = step.after.prefilling
        prompt_len = step.tkv if slot is None else slot.prefill_len
        line["prefilling"] = _prefilling(requests[chunk.id], prompt_len, chunk)
    if step.after.paused:
        line["paused"] = [
            _asked(requests[row.id]) | {"decoded": row.generated} for row in step.after.paused
        ]
    if step.finished:
        line["completed"] = list(step.finished)
    return line


def _asked(request: Request) -> Line:
    return {
        "id": request.id,
        "prompt_len": request.prompt_len,
        "max_tokens": request.max_tokens,
    }


def _decoding(
    block_size: int, requests: Mapping[str, Request], rows: Sequence[Row]
) -> Iterator[Line]:
    lengths = [requests[row.id].prompt_len + row.generated for row in rows]
    width = batch_width_blocks(lengths, block_size) if rows else 0
    for row, length in zip(rows, lengths, strict=True):
        padding = row_left_padding(length, width, block_size)
        yield _asked(requests[row.id]) | {
            "tkv": padding + length,
            "padding": padding,
            "decoded": row.generated,
            "reserved": requests[row.id].max_tokens - row.generated,
        }


def _prefilling(request: Request, prompt_len: int, chunk: Chunk) -> Line:
    hit = chunk.cached_tokens > 0 or chunk.inner_padding > 0
    return {
        "id": request.id,
        **({"cached_tokens": chunk.cached_tokens} if hit else {}),
        "prompt_len": prompt_len,
        "max_tokens": request.max_tokens,
        "chunks_total": chunk.chunks,
        "chunks_done": chunk.chunk,
        "chunk_prompt_token_start": _drawn_start(chunk),
        "chunk_prompt_token_end": chunk.end,
        "left_padding": chunk.left_padding,
        "right_padding": chunk.right_padding,
        **({"inner_padding": chunk.inner_padding} if hit else {}),
    }


def _drawn_start(chunk: Chunk) -> int:
    """The drawn start of the chunk: one token before the first that is not computed again."""
    computes_again = chunk.inner_padding > 0 and chunk.start == chunk.cached_tokens
    return chunk.start + chunk.inner_padding - 1 if computes_again else chunk.start
