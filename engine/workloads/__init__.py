"""Workloads: the requests that a run serves, read from files of many formats.

`lockstep`: JSON lines, one request a line, optionally after a first line
`{"format": "lockstep-workload", "version": 1}`. Keys of a request:

- `id`: printable text, unique in the file.
- `arrival`: the step before which the request is handed in (default 0), or `arrival_s`: seconds on
  the simulated clock; with `after`, the id of an earlier request, seconds from the end of that one.
- one of `prompt_len` (tokens that no other request shares), `prompt` (token ids) and
  `prompt_parts` (`[[name, tokens], …]`: equal names are equal tokens).
- `max_tokens`; optionally `output_len` (it samples end-of-sequence as this token), `output` (the
  token ids that it samples), `abort_at` (the client goes away before this step), `priority`, and
  for schedulers that serve them `n` (sequences sampled from the prompt), `lora` (number of an
  adapter), `encoder_len` (tokens that an encoder reads first), `external` (tokens at its beginning
  that a connector has) and `right_drafts` (which of its tokens a drafter foresees, as ones and
  zeros that repeat themselves: "110", the first two of every three).

Files of other tools are read, too (`FORMATS`; `spec/chapters/workloads.md` says what of each): a
request is named by its row, from 0, and generates exactly as many tokens as it did there. Packages
add formats by entry points (`engine.workloads.formats.Plugin`).

Blank lines are skipped. Numbers have upper limits (`engine.workloads.checked`), so that a slip of
the pen cannot exhaust the memory.
"""

from engine.workloads.formats import FORMATS
from engine.workloads.workload import (
    Workload,
    asking,
    at_rate,
    fit_for,
    read_workload,
    with_shuffled_gaps,
)

__all__ = [
    "FORMATS",
    "Workload",
    "asking",
    "at_rate",
    "fit_for",
    "read_workload",
    "with_shuffled_gaps",
]
