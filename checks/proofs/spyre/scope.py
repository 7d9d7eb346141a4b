"""The scope of the proofs about Spyre: each configuration key, covered or excluded."""

from functools import partial

from checks.proofs import registry
from checks.proofs.scope import IN_SETTING, Scope
from spec.spyre.config import SpyreConfig

SCOPE = Scope(
    SpyreConfig,
    {
        "policy": "names the scheduler",
        "block_size": IN_SETTING,
        "chunk_size": IN_SETTING,
        "max_model_len": IN_SETTING,
        "keep_model_len": "refuses a configuration and decides nothing in a step",
        "max_num_seqs": IN_SETTING,
        "max_batch_tkv_limit": IN_SETTING,
        "num_blocks": IN_SETTING,
        "interleave": IN_SETTING,
        "prefix_caching": IN_SETTING,
        "admission": "exact, and shipped with interleaving",
        "queue": IN_SETTING,
        "max_overtakes": IN_SETTING,
        "reservation": IN_SETTING,
        "pausing": "off: the rows that decode are then chosen in each step, by the limit",
        "long_output_first": "an order of pausing",
        "oversized": "refused: others decode over the limit, or make every step idle",
        "reading": "text: what the release accounts for otherwise is over before a row joins",
        "prefill_time": "the simulated clock decides nothing in a step",
        "decode_time": "the simulated clock decides nothing in a step",
    },
)

obligation = partial(registry.obligation, basis=SCOPE.stale)
