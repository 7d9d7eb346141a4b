"""Traces: self-contained files with the steps of a scheduler.

A trace has JSON lines. The first line is the header `{"format": "lockstep-trace", "version": 1,
"policy", "source", "config"}`, then follows a line per scheduler step (numbered from 0) with the
state after it. If a rule is broken, the last line is `{"violation": {"rule", "says", "found"}}`.
Readers ignore unknown fields.

The header also has:

- `requests`: the workload, one request per entry, in the form of workload files. Prompts are
  written as `prompt_parts` or `prompt`, so that equal prompts stay equal; `prompt_len` alone would
  make them different.
- `full`: true if every step has `state` (below).
- `cost`, optional: the costs of steps on the clock, as in the table `[cost]` of a configuration.
- `external`, optional: the external tokens of each request, if the policy has a connector.
- `surroundings`, optional: further inputs of a generated case, such as the correct drafts.
- `actions`, optional: the actions of the environment, written by the explorer.
- `returning`, optional: requests whose clients return, each time as a new request: 0, then 0#2,
  0#3, ….

Fields of a step with a special meaning:

- `scheduled`, `tkv`, `volume`, `outputs`, `finished`, `events` describe the step; `waiting`,
  `decoding`, `running`, `paused`, `blocks`, `block_tables` describe the state after it.
- `prefilling` of a prefill step is the computed chunk, also for the last chunk, after which the
  request is already in `decoding`. In any other step it is the last computed chunk of the request
  in the prefill slot, or null if the slot is empty.
- `blocks`: `used` and `free` add up to the pool; `reserved` blocks are among the free ones.
- `arrived` and `aborted`: requests that arrived and clients that left since the previous step.
- `refusal`: the rule that refused a prefill to every waiting request.

`state`, in full traces only, has all fields that rules read, so that a step can be judged without
its scheduler: `after`; `before` if it differs from the `after` of the previous step; for a decode
step the computed rows of its `batch`; for a prefill step `block_table` and `writes` of the chunk.
Requests are objects without fields that are 0 or empty. A `pool` has the `free` blocks in order,
the `references` of held blocks, the `keys` of cached blocks (hexadecimal) and the `cached` blocks
by key.

Lines of every policy have the same fields with the same meaning; the policy's codec,
`checks.policies.<policy>.codec`, describes fields that it adds or leaves empty.

If the violation is a cycle, `loop` is the first step of the repeating part. If clients return, the
repeating part is in the file twice, and `loop` is the first step of the second round: the round
ends in the state in which it began, except for the ids of returning requests. A violation after
arrivals or aborts at the end of the run has `state`, the violating state.
"""
