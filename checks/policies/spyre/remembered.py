"""The rules that determine each field of a state after a step.

Between two steps LIF-9 determines every field, and BLK-10 the order of free blocks. Tests compare
the table with the classes and put wrong values into each field.
"""

from collections.abc import Mapping
from typing import Any

from spec.core.blocks import BlockPool
from spec.spyre.state import Sequence, State

_OTHERS = ("LIF-11", "SPY-PRI-13")

DEFINING_RULES: Mapping[type[Any], Mapping[str, tuple[str, ...]]] = {
    State: {
        "last_kind": ("SPY-PRI-12",),
        "last_tkv": ("SPY-VOL-5",),
        "pool": ("BLK-1", "BLK-2", "BLK-4", "BLK-5", "BLK-12"),
        "waiting": ("SPY-PRI-13",),
        "prefilling": ("LIF-11",),
        "decoding": ("SPY-DEC-7",),
        "paused": ("SPY-PAU-7", "LIF-2"),
        "finished": ("LIF-10",),
        "aborted": ("LIF-10",),
        "compiling": ("SPY-STR-2",),
        "behind": ("SPY-STR-2",),
        "unencoded": ("SPY-ENC-2",),
        "encoding": ("SPY-ENC-2",),
        "untold": ("SPY-ENC-2",),
        "orphaned": ("SPY-RES-6",),
        "cohort": ("SPY-PRI-9", "SPY-PRI-15"),
    },
    Sequence: {  # of a request that the step leaves alone LIF-11, of one that waits SPY-PRI-13
        "id": ("LIF-2",),
        "prefill_len": ("SPY-CHK-6", *_OTHERS),
        "computed": ("SPY-CHK-7", "LIF-8", *_OTHERS),
        "generated": ("LIF-4", *_OTHERS),
        "left_padding": ("SPY-TKV-1", "SPY-TKV-9", *_OTHERS),
        "blocks": ("BLK-11", *_OTHERS),
        "reserved": ("SPY-RES-2", "SPY-RES-5", *_OTHERS),
        "hit_blocks": ("SPY-PFX-11", *_OTHERS),
        "waited_steps": ("SPY-PAU-8", *_OTHERS),
    },
    BlockPool: {
        "size": ("BLK-1",),
        "free": ("BLK-4",),
        "references": ("BLK-2",),
        "keys": ("BLK-5",),
        "cached": ("BLK-12",),
    },
}
