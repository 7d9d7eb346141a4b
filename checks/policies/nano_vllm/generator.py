"""Random cases of nano-vLLM, for every reading that can serve all requests."""

from collections.abc import Mapping
from typing import Any

from attrs import evolve

from checks.harness.case import Case
from checks.harness.choices import Choices
from checks.harness.generating import (
    BLOCK_SIZES,
    SLOTS,
    Limits,
    Swarm,
    model_len,
    most_tokens,
    near,
    random_requests,
    random_swarm,
    with_tight_pool,
)
from spec.core.arithmetic import cdiv
from spec.core.requests import Oversized
from spec.nano_vllm.config import (
    FullHit,
    Hashing,
    HitCheck,
    MemoryGate,
    NanoVllmConfig,
    Prefill,
    SequenceLimit,
    TokenGate,
)


def generate(choices: Choices, pinned: Mapping[str, Any]) -> Case:
    """A random case; `pinned`: configuration keys that are not drawn.

    Where requests may be queued that never fit, the pool may be too small for some.

    The reading `new_block = at_boundary` is excluded: its blocks come too late for some prompts.

    Raises:
        ConfigError: the configuration is not allowed.
    """
    swarm = random_swarm(choices)
    block = pinned.get("block_size") or choices.one_of(BLOCK_SIZES[1:])
    length = pinned.get("max_model_len") or model_len(choices.part(), block)
    keys: dict[str, Any] = {
        "block_size": block,
        "max_model_len": length,
        "max_num_seqs": choices.one_of(SLOTS),
        "max_num_batched_tokens": length
        + choices.one_of((0, 1, near(choices.part(), swarm, (block,), length))),
        "token_gate": choices.one_of(tuple(TokenGate)),
        "memory_gate": choices.one_of(tuple(MemoryGate)),
        "sequence_limit": choices.one_of(tuple(SequenceLimit)),
        "hit_check": choices.one_of(tuple(HitCheck)),
        "full_hit": choices.one_of(tuple(FullHit)),
    }
    config = NanoVllmConfig(**(keys | dict(pinned)))
    limits = Limits((block,), most_tokens(config), config.max_num_seqs)
    requests = random_requests(choices, swarm, limits)
    needed = [int(cdiv(request.most_tokens - 1, block)) for request in requests]
    config = with_tight_pool(choices, swarm, config, needed, pinned)
    config = _with_later_choices(choices, swarm, config, max(needed), pinned)
    return Case(config, requests, swarm=swarm)


def _with_later_choices(
    choices: Choices,
    swarm: Swarm,
    config: NanoVllmConfig,
    most_blocks: int,
    pinned: Mapping[str, Any],
) -> NanoVllmConfig:
    """The configuration with a budget that cuts prompts, or a pool that is too small for one.

    `most_blocks`: that a request needs.
    """
    drawn: dict[str, Any] = {
        "prefill": choices.one_of(tuple(Prefill)),
        "hashing": choices.one_of(tuple(Hashing)),
        "oversized": Oversized.QUEUED if choices.chance(0.1) else Oversized.REFUSED,
    }
    config = evolve(config, **{key: drawn[key] for key in drawn if key not in pinned})
    budget = near(choices.part(), swarm, (config.block_size,), config.max_model_len)
    few_blocks = choices.between(1, most_blocks)
    if config.prefill is Prefill.FIRST_CHUNKED and "max_num_batched_tokens" not in pinned:
        config = evolve(config, max_num_batched_tokens=budget)
    if config.oversized is Oversized.QUEUED and "num_blocks" not in pinned:
        config = evolve(config, num_blocks=few_blocks)
    return config
