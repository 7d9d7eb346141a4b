"""Random cases of Spyre, skewed to situations in which schedulers fail."""

from collections.abc import Mapping
from typing import Any

from attrs import asdict, evolve, frozen

from checks.harness.awaited import with_grammars, with_images
from checks.harness.case import Case
from checks.harness.choices import Choices
from checks.harness.generating import (
    BLOCK_SIZES,
    OFF_BY_ONE,
    SLOTS,
    Limits,
    Swarm,
    most_tokens,
    random_requests,
    random_swarm,
    tight_pool,
)
from spec.core.arithmetic import cdiv
from spec.core.errors import ConfigError
from spec.core.requests import Oversized, Request
from spec.spyre.config import SpyreConfig
from spec.spyre.padding import chunk_count
from spec.spyre.variants import Admission, Queue


@frozen
class SpyreSwarm(Swarm):
    """A swarm with Spyre's limits: a tight volume limit, an odd model length.

    `hits_inside`: prefix hits end inside a chunk, and more chunks follow.
    """

    tight_limit: bool
    odd_model_len: bool
    hits_inside: bool


def generate(choices: Choices, pinned: Mapping[str, Any]) -> Case:
    """A random case; `pinned`: configuration keys that are not drawn.

    Raises:
        ConfigError: the configuration is not allowed, or serves no request.
    """
    swarm = SpyreSwarm(
        **asdict(random_swarm(choices)),
        tight_limit=choices.chance(0.75),
        odd_model_len=choices.chance(0.3),
        hits_inside=choices.chance(0.35),
    )
    if swarm.hits_inside:
        swarm = _with_hits_inside(swarm)
    config = SpyreConfig(**_keys(choices, swarm, pinned))
    if _most_tokens(config) < 2:
        sizes = {key: value for key, value in pinned.items() if isinstance(value, int)}
        raise ConfigError("--set", sizes, "room for a prompt token and an output token")
    requests = random_requests(choices, swarm, _limits(config, swarm))
    config = _tightened(choices, swarm, config, requests, pinned)
    config = _with_oversized(choices.part(), config, requests, pinned)
    grammars: dict[str, int] = {}
    encodings: dict[str, int] = {}
    failures: dict[str, int] = {}
    if config.queue is not Queue.ALIGNED:
        requests, grammars = with_grammars(choices.part(), requests)
        requests, encodings, failures = with_images(choices.part(), requests)
    drawn = {"grammars": grammars, "encodings": encodings, "unencodable": failures}
    surroundings = {name: times for name, times in drawn.items() if times}
    return Case(config, requests, surroundings=surroundings, swarm=swarm)


def _with_hits_inside(swarm: SpyreSwarm) -> SpyreSwarm:
    """The swarm with prompts of a common prefix that arrive one by one, some of them aborted."""
    gap, aborts = max(swarm.gap, 4), max(swarm.aborts, 0.5)
    return evolve(swarm, short_answers=True, shared=0.8, repeated=0.0, gap=gap, aborts=aborts)


def _keys(choices: Choices, swarm: SpyreSwarm, pinned: Mapping[str, Any]) -> dict[str, Any]:
    """All keys of the configuration but the limits; drawn sizes fit the pinned ones."""
    block = pinned.get("block_size") or choices.one_of(BLOCK_SIZES)
    chunk = pinned.get("chunk_size") or block * choices.one_of(
        (2, 3, 4) if swarm.hits_inside else (1, 1, 2, 2, 3, 4)
    )
    if "block_size" not in pinned and "chunk_size" in pinned:
        block = choices.one_of([size for size in range(1, 65) if chunk % size == 0])
    length = pinned.get("max_model_len") or _model_len(choices.part(), swarm, block, chunk)
    keys = {
        "block_size": block,
        "chunk_size": chunk,
        "max_model_len": length,
        "max_num_seqs": choices.one_of((8, 12, 16) if swarm.crowd else SLOTS),
        "interleave": not choices.chance(0.35),
        "prefix_caching": choices.chance(1 if swarm.hits_inside else 0.7),
        "admission": choices.one_of((Admission.EXACT, *Admission)),
        "queue": pinned.get("queue") or choices.one_of(tuple(Queue)),
        "reservation": not choices.chance(0.3),
        "pausing": choices.chance(0.3),
        "long_output_first": choices.chance(0.5),
    }
    if Queue(keys["queue"]).is_by_width and choices.chance(0.6):
        keys["max_num_seqs"] = 32  # a small share of the limit, so that few rows are alike
    keys["reservation"] |= pinned.get("oversized") == Oversized.QUEUED
    keys |= pinned
    if keys["queue"] is Queue.ALIGNED and "max_overtakes" not in pinned:
        keys["max_overtakes"] = choices.one_of((1, 1, 2, 3, 8))
    return keys


def _model_len(choices: Choices, swarm: SpyreSwarm, block: int, chunk: int) -> int:
    in_chunks = choices.chance(1 if swarm.hits_inside else 0.4)
    least = 4 if swarm.hits_inside else 1
    whole = (
        chunk * choices.between(least, least + 4) if in_chunks else block * choices.between(2, 9)
    )
    return whole + (choices.between(1, block) - 1 if swarm.odd_model_len else 0)


def _most_tokens(config: SpyreConfig) -> int:
    """The largest number of tokens, prompt and output, of a request that can be served."""
    return min(most_tokens(config), config.max_batch_tkv_limit + 1)


def _limits(config: SpyreConfig, swarm: SpyreSwarm) -> Limits:
    return Limits(
        units=(config.block_size, config.chunk_size),
        most=_most_tokens(config),
        slots=config.max_num_seqs,
        # Chunks are interleaved with decode steps.
        prefill_steps=lambda prompt_len: 2 * int(chunk_count(prompt_len, config.chunk_size)),
        tail=config.chunk_size + 1 if swarm.hits_inside else 0,
    )


def _tightened(
    choices: Choices,
    swarm: SpyreSwarm,
    config: SpyreConfig,
    requests: tuple[Request, ...],
    pinned: Mapping[str, Any],
) -> SpyreConfig:
    """The configuration with a limit and a pool that a few requests together just reach, or miss.

    With pausing the limit is always tight, so that requests are paused. Without reservation the
    pool is always tight: it holds some of the prompts, and their outputs exhaust it.
    """
    changes: dict[str, Any] = {}
    if swarm.tight_limit or config.pausing:
        changes["max_batch_tkv_limit"] = _limit(choices.part(), config, requests)
    if swarm.tight_pool or not config.reservation:
        size = config.block_size
        blocks = [int(cdiv(request.most_tokens, size)) for request in requests]
        begun = [int(cdiv(request.prompt_len + 1, size)) for request in requests]
        wanted = blocks if config.reservation else begun
        pool = tight_pool(choices.part(), wanted, config.max_num_seqs)
        changes["num_blocks"] = max(pool, *blocks)
    return evolve(config, **(changes | dict(pinned)))


def _with_oversized(
    choices: Choices,
    config: SpyreConfig,
    requests: tuple[Request, ...],
    pinned: Mapping[str, Any],
) -> SpyreConfig:
    """The configuration that lets in what limit or pool can never serve, or does not, as before."""
    longest = max(request.most_tokens for request in requests)
    few: dict[str, Any] = {
        "max_batch_tkv_limit": choices.between(1, longest),
        "num_blocks": choices.between(1, int(cdiv(longest, config.block_size))),
    }
    tight = choices.one_of(tuple(few))
    if choices.chance(0.04) and config.reservation and "oversized" not in pinned:
        config = evolve(config, oversized=Oversized.QUEUED)
    if config.oversized is Oversized.QUEUED and tight not in pinned:
        config = evolve(config, **{tight: few[tight]})
    return config


def _limit(choices: Choices, config: SpyreConfig, requests: tuple[Request, ...]) -> int:
    """A limit near the volume of a few requests together, not below that of any single request.

    With pausing fewer requests count: the batch fills all slots, and many rows are paused.
    """
    rows = max(min(config.max_num_seqs, len(requests)) // (2 if config.pausing else 1), 1)
    totals = [request.most_tokens for request in requests]
    together = choices.between(min(2, rows), rows)
    tkv = max(choices.one_of(totals) for _ in range(together)) - 1
    if choices.chance(0.5):
        tkv = config.block_size * int(cdiv(tkv, config.block_size))
    volume = tkv * together + choices.one_of(OFF_BY_ONE)
    return max(volume, max(totals) - 1)
