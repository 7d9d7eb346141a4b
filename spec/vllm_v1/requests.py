"""Which requests a configuration of vLLM V1 serves, and the blocks that one needs."""

from spec.core.arithmetic import Number, cdiv, minimum
from spec.core.errors import WorkloadError
from spec.core.requests import Oversized, Request, refuse_above, refuse_too_long, refuse_unserved
from spec.vllm_v1.config import Connector, VllmV1Config, capped_tokens, largest_end
from spec.vllm_v1.groups import KvGroup, most_blocks
from spec.vllm_v1.modelled import Feature, unmodelled_beside


def blocks_alone(request: Request, config: VllmV1Config) -> int:
    """Blocks of a request with all the tokens that it may have, in all groups."""
    end = largest_end(
        request.prompt_len,
        request.max_tokens,
        config.num_speculative_tokens,
        config.num_lookahead_tokens,
        config.max_model_len,
    )
    return sum(int(blocks_of_group(group, end, config)) for group in config.all_groups)


def blocks_of_group(group: KvGroup, end: Number, config: VllmV1Config) -> Number:
    """Blocks that a request with `end` positions holds at most in a group at one time.

    Source: vLLM 0.28.0; the last state of a group of states is copied from the one before it.
    """
    places = cdiv(end, group.block_size)
    if group.is_mamba:
        return places if config.leaves_states else minimum(places, 2 + config.steps_in_flight)
    if group.reach is None:
        return places
    uncertain = config.uncertain_tokens + config.num_lookahead_tokens
    return minimum(
        places, most_blocks(group.reach, uncertain, config.max_model_len, group.block_size)
    )


def refuse_unservable(request: Request, config: VllmV1Config) -> None:
    """Raise if no step could ever complete the request under this configuration.

    One that exceeds the pool or the model length is let in where such ones are queued: a release
    does not look at the length of a session's later turns.

    A request that is preempted computes its answer again like a prompt; where only the threshold
    cuts, that must fit the budget too, and all of it where the threshold spares the only request.

    Raises:
        WorkloadError: it exceeds the model length, the whole pool, or, uncut, the budget; names
            what a connector or a drafter does, and none is configured; has spans that can never
            be encoded; or is a turn of a session, or has spans or a grammar, beside what is not
            modelled.
    """
    served = (
        *("external", "external_if_lost", "right_drafts", "grammar"),
        *("reads_cache", "encoder_spans"),
    )
    if request.continued_by is not None:
        _refuse_key("continued_by", request.continued_by, Feature.SESSIONS, config)
    if request.grammar:
        _refuse_key("grammar", request.grammar, Feature.GRAMMARS, config)
    if config.pooling:
        refuse_unserved(request, config, served)
        refuse_above("max_tokens", request.max_tokens, "a result of a model that pools", 1)
        refuse_above("prompt_len", request.prompt_len, "max_model_len", config.max_model_len)
    else:
        refuse_unserved(request, config, (*served, "continued_by"))
        if config.oversized is not Oversized.QUEUED:
            refuse_too_long(request, config, (*served, "continued_by"))
    if request.external and config.connector is Connector.NONE:
        raise WorkloadError("external", request.external, "0 without a connector")
    if request.external_if_lost and config.kv_groups is not None:
        raise WorkloadError("external_if_lost", request.external_if_lost, "0 with kv_groups")
    if request.right_drafts is not None and not config.num_speculative_tokens:
        allowed = "no such key where num_speculative_tokens is 0"
        raise WorkloadError("right_drafts", request.right_drafts, allowed)
    total = request.prompt_len + request.max_tokens
    longest = capped_tokens(total - 1, config.threshold_among(1))
    if not config.chunked_prefill and longest > config.token_budget:
        allowed = f"at most max_num_batched_tokens ({config.token_budget}) without chunked prefill"
        raise WorkloadError("prompt_len + max_tokens - 1", total - 1, allowed)
    if request.encoder_spans:
        _refuse_unencodable(request, config)
    if config.oversized is Oversized.QUEUED:
        return
    blocks = blocks_alone(request, config)
    refuse_above("blocks of prompt_len + max_tokens - 1", blocks, "num_blocks", config.pool_blocks)


def _refuse_unencodable(request: Request, config: VllmV1Config) -> None:
    """Raise if a span of the request can never be encoded, or something beside it is not modelled.

    A release takes the longest content of its model as the least budget and capacity.
    """
    spans = [span.as_written for span in request.encoder_spans]
    _refuse_key("encoder_spans", spans, Feature.SPANS, config)
    longest = max(span.content.tokens for span in request.encoder_spans)
    limits = {
        "max_num_encoder_input_tokens": config.encoder_budget,
        "encoder_cache_size": config.encoder_capacity,
    }
    if config.disable_chunked_mm_input:
        limits["max_num_batched_tokens"] = config.token_budget
    for name, most in limits.items():
        refuse_above("encoder_spans", longest, name, most)


def _refuse_key(key: str, found: object, feature: Feature, config: VllmV1Config) -> None:
    """Raise if the feature that a request's key stands for is not modelled here."""
    for name, value, _ in unmodelled_beside(feature, config):
        raise WorkloadError(key, found, f"no such key where {name} is {value}")
