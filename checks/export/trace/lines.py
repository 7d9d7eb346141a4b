"""The lines of a trace as checks: which fields there are and what they may be.

`STEP` is what a line of every policy has. `FULL_STEP` and `STATE` are of Spyre and nano-vLLM, whose
states are of the same class; those of vLLM V1 are in `checks.policies.vllm_v1.codec`.
"""

from checks.export.trace.shapes import (
    Check,
    anything,
    block_key,
    block_number,
    flag,
    list_of,
    map_of,
    maybe,
    number,
    one_of,
    positive,
    record,
    text,
    texts,
    whole,
    wholes,
)
from spec.core.records import DECODE, IDLE, PREFILL

_KIND = one_of(PREFILL, DECODE, IDLE)

HEADER = record(
    {"policy": text, "source": text, "config": map_of(text, anything)},
    {
        "requests": list_of(map_of(text, anything)),
        "full": flag,
        "actions": list_of(anything),
        "external": map_of(text, whole),
    },
)

_CHUNK = record(
    {
        "id": text,
        "chunk": whole,
        "chunks": positive,
        "start": whole,
        "end": whole,
        "left_padding": whole,
        "right_padding": whole,
        "cached_tokens": whole,
        "inner_padding": whole,
    }
)
_ROW = record(
    {"id": text, "tkv": whole, "left_padding": whole, "computed": whole, "generated": whole}
)
_EVENT = record({"transition": text, "id": text, "rule": text}, {"from": anything, "to": anything})
STEP_FIELDS = {
    "step": whole,
    "time": number,
    "kind": _KIND,
    "scheduled": map_of(text, whole),
    "tkv": whole,
    "volume": whole,
    "waiting": texts,
    "prefilling": maybe(_CHUNK),
    "decoding": list_of(_ROW),
    "running": texts,
    "paused": texts,
    "outputs": map_of(text, wholes),
    "finished": texts,
    "aborted": texts,
    "blocks": record({"used": whole, "reserved": whole, "free": whole}),
    "block_tables": map_of(text, wholes),
    "events": list_of(_EVENT),
}

STEP = record(STEP_FIELDS)

_SEQUENCE = record(
    {"id": text, "prefill_len": whole},
    {
        "computed": whole,
        "generated": whole,
        "left_padding": whole,
        "blocks": wholes,
        "reserved": whole,
        "hit_blocks": whole,
        "waited_steps": whole,
    },
)
POOL = record(
    {
        "size": whole,
        "free": wholes,
        "references": map_of(block_number, whole),
        "keys": map_of(block_number, block_key),
        "cached": map_of(block_key, wholes),
    }
)
STATE = record(
    {
        "waiting": list_of(_SEQUENCE),
        "prefilling": maybe(_SEQUENCE),
        "decoding": list_of(_SEQUENCE),
        "paused": list_of(_SEQUENCE),
        "finished": texts,
        "aborted": texts,
        "last_kind": _KIND,
        "last_tkv": whole,
        "pool": POOL,
    }
)

FULL_STEP = record(
    {
        **STEP_FIELDS,
        "arrived": texts,
        "refusal": maybe(text),
        "state": record(
            {"after": STATE},
            {
                "before": STATE,
                "batch": list_of(_SEQUENCE),
                "block_table": wholes,
                "writes": wholes,
                "ended": texts,
            },
        ),
    }
)


def violation_of(state: Check) -> Check:
    """The last line, whose state, if it has one, is as `state` allows."""
    fields = {"rule": text, "says": text, "found": anything}
    options = {"loop": maybe(whole), "state": maybe(state)}
    return record({"violation": record(fields, options)})
