"""Random cases of vLLM V0: features on and off, small pools, groups, adapters, encoders."""

from collections.abc import Mapping
from typing import Any

from attrs import asdict, evolve, frozen

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
    random_share,
    random_swarm,
    with_tight_pool,
)
from checks.harness.speculation import foresight
from spec.core.arithmetic import cdiv
from spec.core.requests import Request
from spec.vllm_v0.config import PreemptionMode, Scheduling, VllmV0Config
from spec.vllm_v0.variants import Reading, Strategy

_SWAPPED: Mapping[str, Any] = {
    **{"prefix_caching": False, "num_lookahead_slots": 0, "num_scheduler_steps": 1},
    **{"num_cpu_blocks": 40},
}
"""Keys with which groups of several sequences and an encoder are taken and swapped."""


@frozen
class VllmV0Swarm(Swarm):
    """A swarm with the shares of parallel sampling, adapters, encoders and right guesses."""

    several: float
    adapters: float
    encoders: float
    right: float

    @property
    def swaps(self) -> bool:
        """True if groups of several sequences, some with an encoder, are swapped."""
        return self.several > 0 and self.encoders > 0 and self.tight_pool and self.short_answers


def generate(choices: Choices, pinned: Mapping[str, Any]) -> Case:
    """A random case that the release takes; `pinned`: configuration keys that are not drawn.

    Raises:
        ConfigError: the configuration is not allowed.
    """
    swarm = VllmV0Swarm(
        **asdict(random_swarm(choices)),
        several=random_share(choices, 0.6),
        adapters=random_share(choices, 0.8),
        encoders=random_share(choices, 0.6),
        right=choices.one_of((0.0, 0.5, 0.8, 1.0)),
    )
    if swarm.swaps:
        swarm = evolve(swarm, several=0.9, encoders=0.9)
    config = VllmV0Config(**_keys(choices, swarm, pinned))
    speculates = config.num_lookahead_slots > 0 and not config.is_multi_step
    right_drafts: dict[str, str] = {}
    further: dict[str, dict[str, Any]] = {}

    def surround(drawn: Choices, request: Request) -> None:
        further[request.id] = _further(drawn, swarm, config)
        if speculates:
            right_drafts[request.id] = foresight(drawn, swarm.right)

    limits = Limits((config.block_size,), most_tokens(config), config.max_num_seqs, priorities=True)
    drawn = random_requests(choices, swarm, limits, surround)
    requests = tuple(_servable(config, evolve(request, **further[request.id])) for request in drawn)
    blocks = (_blocks(config, request) for request in requests)
    config = with_tight_pool(choices, swarm, config, blocks, pinned, 1 if swarm.swaps else None)
    if "max_num_batched_tokens" not in pinned and choices.chance(0.06):
        config = evolve(config, max_num_batched_tokens=None)
    surroundings = {"right_drafts": right_drafts} if speculates else {}
    return Case(config, requests, surroundings=surroundings, swarm=swarm)


def _keys(choices: Choices, swarm: VllmV0Swarm, pinned: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration's keys.

    The release demands a budget for all sequences and, without chunks, for the longest prompt. With
    prefix caching it hangs if the budget is smaller than a block; only its reading gets such ones.
    """
    pinned = {**(_SWAPPED if swarm.swaps else {}), **pinned}
    block = pinned.get("block_size") or choices.one_of(BLOCK_SIZES)
    length = pinned.get("max_model_len") or model_len(choices.part(), block)
    chunked = pinned.get("chunked_prefill", choices.chance(0.5))
    steps = pinned.get("num_scheduler_steps", choices.one_of((1, 1, 1, 1, 2, 3)))
    reading = Reading(pinned.get("reading") or choices.one_of(tuple(Reading)))
    budget = near(choices.part(), swarm, (block,), block * choices.between(1, 8))
    hangs = choices.chance(0.1) and reading is Reading.RELEASED
    budget = budget if hangs else max(budget, block)
    slots = pinned.get("max_num_seqs") or choices.one_of(SLOTS)
    prompts = choices.one_of((1, 1, 2, 3)) if chunked else 1
    keys = {
        "block_size": block,
        "num_cpu_blocks": choices.one_of((0, 4, 12, 40, 40)),
        "max_num_seqs": slots,
        "max_num_batched_tokens": max(budget, slots, 0 if chunked else length),
        "max_model_len": length,
        "scheduling": choices.one_of(tuple(Scheduling)),
        "strategy": choices.one_of(tuple(Strategy)),
        "chunked_prefill": chunked,
        "prefix_caching": choices.chance(0.5),
        "preemption_mode": choices.one_of(tuple(PreemptionMode)),
        "watermark_blocks": choices.one_of((0, 0, 1, 2)),
        "num_lookahead_slots": steps - 1 or choices.one_of((0, 0, 0, 1, 3)),
        "num_scheduler_steps": steps,
        "max_num_partial_prefills": prompts,
        "max_long_partial_prefills": choices.between(1, prompts),
        "long_prefill_token_threshold": _threshold(choices.part(), swarm, block, length),
        "delay_factor": choices.one_of((0.0, 0.0, 0.0, 0.5, 2.0)),
        "max_loras": choices.one_of((0, 0, 1, 2)),
        "reading": reading,
    }
    return keys | dict(pinned)


def _threshold(choices: Choices, swarm: Swarm, block: int, length: int) -> int:
    """Tokens above which a prompt is long; 0: a share of the model length."""
    return 0 if choices.chance(0.25) else near(choices, swarm, (block,), length)


def _further(choices: Choices, swarm: VllmV0Swarm, config: VllmV0Config) -> dict[str, Any]:
    """Further fields of a request: sequences, adapter and encoder, if the release supports them."""
    several = choices.chance(swarm.several) and not config.num_lookahead_slots
    adapter = choices.chance(swarm.adapters) and config.max_loras > 0
    encoder = choices.chance(swarm.encoders) and not config.prefix_caching
    return {
        "n": choices.between(1, min(3, config.max_num_seqs)) if several else 1,
        "lora": choices.between(1, 3) if adapter else 0,
        "encoder_len": choices.between(1, 2 * config.block_size) if encoder else 0,
    }


def _servable(config: VllmV0Config, request: Request) -> Request:
    """The request, with its output cut to what can be computed again as a prompt."""
    most = config.prompt_limit + 1 - request.prompt_len
    if most < 1 or request.max_tokens <= most:  # a prompt that is too long is ignored
        return request
    return evolve(
        request,
        max_tokens=most,
        output_len=request.output_len and min(request.output_len, most),
        output=request.output and request.output[:most],
    )


def _blocks(config: VllmV0Config, request: Request) -> int:
    """Blocks that a request may need, including its encoder's and the watermark."""
    size, lookahead = config.block_size, config.num_lookahead_slots
    most = min(request.prompt_len + request.max_tokens + lookahead, config.max_model_len)
    sequences = request.n * int(cdiv(most, size))
    return sequences + int(cdiv(request.encoder_len, size)) + config.watermark_blocks
