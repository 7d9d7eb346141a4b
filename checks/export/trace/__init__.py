"""Traces: what a scheduler did, step by step, as a file that stands for itself.

JSON lines. The first line is the header `{"format": "lockstep-trace", "version": 1, "policy",
"source", "config"}`, then comes one line per scheduler step (numbered from 0) with the state after
it, last, where a rule was broken, `{"violation": {"rule", "says", "found"}}`. Readers accept fields
that are unknown to them.

The header also has:

- `requests`: the workload, one request an entry, in the form of workload files. Prompts are written
  as `prompt_parts` or `prompt`, so that equal prompts stay equal; `prompt_len` alone would make
  them different.
- `full`: true if every step carries `state` (below).
- `cost`, optional: what steps cost on the clock beyond their times, as the table `[cost]` of a
  configuration.
- `external`, optional: tokens of each request that a connector has, where the policy has one.
- `surroundings`, optional: what else a generated case has, such as the drafts that are right.
- `actions`, optional: what the environment chose, as the explorer that wrote the file notes it.
- `returning`, optional: requests whose clients come back, each time as a request of its own: 0,
  then 0#2, 0#3, ….

Of the fields of a step, read with care:

- `scheduled`, `tkv`, `volume`, `outputs`, `finished`, `events` are what the step did; `waiting`,
  `decoding`, `running`, `paused`, `blocks`, `block_tables` are of the state that it left.
- `prefilling` of a prefill step is the chunk that ran, the last chunk too, after which the request
  is already among `decoding`. Of any other step it is the chunk that the request in the prefill
  slot computed last, or null if there is none: a prefill under way never drops out of sight.
- `blocks`: `used` and `free` add up to the pool; `reserved` ones are among the free.
- `arrived` and `aborted`: requests that came and clients that left since the step before.
- `refusal`: the rule that kept every request from a prefill although one waited for it.

`state`, in full traces only, is all that rules can ask about, so that the step can be judged
without the scheduler that made it: `after`, `before` where it is not the `after` of the step
before, of a decode step the rows of its `batch` as computed, of a prefill step `block_table` and
`writes` of the chunk. Requests are objects that leave out what is 0 or empty. A `pool` has the
`free` blocks in their order, the `references` to held ones, the `keys` of cached ones
(hexadecimal) and the `cached` blocks by key.

Lines of every policy have the same fields with the same meaning; what a policy leaves empty or adds
stands in its codec, `checks.policies.<policy>.codec`.

A violation that is a cycle has `loop`: the step with which the part that repeats for ever begins.
Where clients come back that part stands there twice, and `loop` is where the second time begins: it
ends in the state in which it began, but for the names of requests that came again.
One that was found after arrivals or aborts that no step followed has `state`, the state then.
"""
