"""The scope of the proofs about nano-vLLM: each configuration key, covered or excluded."""

from functools import partial

from checks.proofs import registry
from checks.proofs.scope import IN_SETTING, Scope
from spec.nano_vllm.config import NanoVllmConfig

SCOPE = Scope(
    NanoVllmConfig,
    {
        "policy": "names the scheduler",
        "block_size": IN_SETTING,
        "num_blocks": IN_SETTING,
        "max_num_seqs": IN_SETTING,
        "max_num_batched_tokens": IN_SETTING,
        "max_model_len": IN_SETTING,
        "token_gate": IN_SETTING,
        "memory_gate": IN_SETTING,
        "sequence_limit": "how many sequences run enters no formula; exploring looks at both",
        "new_block": IN_SETTING,
        "hit_check": "which blocks are hits is not proven about: whatever is found is given",
        "full_hit": IN_SETTING,
        "prefill": "the proofs are about whole prefills; exploring looks at those that are cut",
        "hashing": "when a block is hashed enters no formula; exploring looks at both",
        "graph_sizes": IN_SETTING,
        "oversized": IN_SETTING,
        "prefill_time": "the simulated clock decides nothing in a step",
        "decode_time": "the simulated clock decides nothing in a step",
    },
)

obligation = partial(registry.obligation, basis=SCOPE.stale)
