"""The scope of the proofs about vLLM V1: each configuration key, covered or excluded."""

from functools import partial

from checks.proofs import registry
from checks.proofs.scope import IN_SETTING, Scope
from spec.vllm_v1.config import VllmV1Config

_ANY_HIT = "which tokens are found or loaded is not proven about: whatever is computed is given"

_ENCODER = "images and audio only cut what a request is given; they are explored"

SCOPE = Scope(
    VllmV1Config,
    {
        "policy": "names the scheduler",
        "block_size": IN_SETTING,
        "num_blocks": IN_SETTING,
        "max_num_seqs": "how many requests run enters no formula; exploring looks at it",
        "max_num_batched_tokens": IN_SETTING,
        "max_model_len": IN_SETTING,
        "chunked_prefill": IN_SETTING,
        "long_prefill_token_threshold": IN_SETTING,
        "scheduling": "whose turn it is is not proven about: any request may be at its turn",
        "prefix_caching": _ANY_HIT,
        "num_speculative_tokens": IN_SETTING,
        "num_lookahead_tokens": IN_SETTING,
        "drafter_reads_ahead": _ENCODER,
        "accepted_drafts": "any number of accepted drafts is given",
        "connector": _ANY_HIT,
        "late_lookups": "who is passed over enters no formula; exploring looks at it",
        "sends": "what has left enters no formula; exploring looks at its blocks",
        "reserve_full_prompt": "only refuses more; that no request waits for ever is explored",
        "steps_in_flight": "tokens whose values are not known enter no proof; they are explored",
        "pooling": "a model that pools is explored",
        "max_num_encoder_input_tokens": _ENCODER,
        "encoder_cache_size": _ENCODER,
        "disable_chunked_mm_input": _ENCODER,
        "kv_groups": "several groups of layers are explored",
        "oversized": IN_SETTING,
        "release": "the releases compute with the same formulas; what differs is explored",
        "prefill_time": "the simulated clock decides nothing in a step",
        "decode_time": "the simulated clock decides nothing in a step",
    },
)

obligation = partial(registry.obligation, basis=SCOPE.stale)
