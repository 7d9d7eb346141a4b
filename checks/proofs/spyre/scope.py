"""What the proofs about Spyre are about, key by key."""

from functools import partial

from checks.proofs import registry
from checks.proofs.scope import IN_SETTING, Scope
from spec.spyre.config import SpyreConfig

_NO_PAUSING = "off: the numeric machine pauses no request; what pausing does is left to exploring"

SCOPE = Scope(
    SpyreConfig,
    {
        "policy": "names the scheduler",
        "block_size": IN_SETTING,
        "chunk_size": IN_SETTING,
        "max_model_len": IN_SETTING,
        "max_num_seqs": IN_SETTING,
        "max_batch_tkv_limit": IN_SETTING,
        "num_blocks": "enough for every request; that promised blocks are there is PRV-RES-1 to 5",
        "interleave": IN_SETTING,
        "prefix_caching": "off: a hit only shortens a prefill, and exploring looks at hits",
        "admission": IN_SETTING,
        "queue": "fcfs: the head of the waiting queue alone; exploring looks at the others",
        "max_overtakes": "of queue = aligned only: any number in PRV-ALN-1 to 3",
        "reservation": "on, which without hits and with enough blocks refuses no request",
        "pausing": _NO_PAUSING,
        "long_output_first": _NO_PAUSING,
        "reading": "text: prefixes are not cached, and promised blocks are PRV-RES-1 to 5",
        "prefill_time": "the simulated clock decides nothing in a step",
        "decode_time": "the simulated clock decides nothing in a step",
    },
)

obligation = partial(registry.obligation, basis=SCOPE.stale)
