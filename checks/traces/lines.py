"""The lines of a trace as checks: which fields there are and what they may be."""

from checks.traces.shapes import (
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
from spec.records import DECODE, IDLE, PREFILL

_KIND = one_of(PREFILL, DECODE, IDLE)

HEADER = record(
    {"policy": text, "source": text, "config": map_of(text, anything)},
    {"requests": list_of(map_of(text, anything)), "full": flag, "actions": list_of(anything)},
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
_STEP_FIELDS = {
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

STEP = record(_STEP_FIELDS)

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
_POOL = record(
    {
        "size": whole,
        "free": wholes,
        "references": map_of(block_number, whole),
        "keys": map_of(block_number, block_key),
        "cached": map_of(block_key, wholes),
    }
)
_STATE = record(
    {
        "waiting": list_of(_SEQUENCE),
        "prefilling": maybe(_SEQUENCE),
        "decoding": list_of(_SEQUENCE),
        "paused": list_of(_SEQUENCE),
        "finished": texts,
        "aborted": texts,
        "last_kind": _KIND,
        "last_tkv": whole,
        "pool": _POOL,
    }
)

FULL_STEP = record(
    {
        **_STEP_FIELDS,
        "arrived": texts,
        "refusal": maybe(text),
        "state": record(
            {"after": _STATE},
            {
                "before": _STATE,
                "batch": list_of(_SEQUENCE),
                "block_table": wholes,
                "writes": wholes,
                "ended": texts,
            },
        ),
    }
)

VIOLATION = record(
    {
        "violation": record(
            {"rule": text, "says": text, "found": anything},
            {"loop": maybe(whole), "state": maybe(_STATE)},
        )
    }
)
