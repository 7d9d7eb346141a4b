"""Cases for the schedulers without Spyre's padding: vLLM V1 and nano-vLLM.

Like `checks.fuzz.cases`: each case first draws which kinds of action are frequent, rare or off; the
same seed and episode give the same case on every machine. Lengths lie on the boundaries of blocks,
budgets and thresholds or one off, pools hold just some of the requests together, or just not.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from attrs import evolve, frozen

from checks.fuzz.cases import Case, External
from checks.fuzz.dice import Dice
from checks.fuzz.prompts import Prompts
from spec.core.arithmetic import cdiv
from spec.core.configuration import PolicyConfig
from spec.core.errors import ConfigError
from spec.core.requests import Request
from spec.nano_vllm.config import (
    FullHit,
    HitCheck,
    MemoryGate,
    NanoVllmConfig,
    SequenceLimit,
    TokenGate,
)
from spec.vllm_v1.config import Connector, Scheduling, VllmV1Config, largest_end

Keys = dict[str, Any]

_TRIES = 200  # draws of a configuration until one is allowed


@frozen
class PagedSwarm:
    """How often a case does what; a share of 0 switches the kind of action off.

    `boundaries`: lengths on a boundary, or one off. `shared`, `repeated`, `continued`: prompts that
    begin like another, are another, contain another's output. `right`: drafts that the request
    goes on to sample. `gap`: most steps between two arrivals.
    """

    requests: int
    boundaries: float
    shared: float
    repeated: float
    continued: float
    early_ends: float
    aborts: float
    right: float
    gap: int
    tight_pool: bool


def vllm_v1_case(
    seed: int,
    episode: int,
    pinned: Mapping[str, Any] | None = None,
    can_do: Callable[[VllmV1Config], bool] = lambda _config: True,
) -> Case:
    """The case of an episode for vLLM V1. `pinned`: configuration keys that are not drawn.

    Raises:
        ConfigError: no configuration with the pinned keys is allowed, and can be done.
    """
    dice = Dice(seed, episode)
    swarm = _swarm(dice)
    return _case(dice, swarm, pinned or {}, can_do, lambda keys: _vllm_v1(dice, swarm, keys))


def nano_vllm_case(
    seed: int,
    episode: int,
    pinned: Mapping[str, Any] | None = None,
    can_do: Callable[[NanoVllmConfig], bool] = lambda _config: True,
) -> Case:
    """The case of an episode for nano-vLLM. `pinned`: configuration keys that are not drawn.

    Raises:
        ConfigError: no configuration with the pinned keys is allowed, and can be done.
    """
    dice = Dice(seed, episode)
    swarm = _swarm(dice)
    return _case(dice, swarm, pinned or {}, can_do, lambda keys: _nano_vllm(dice, swarm, keys))


def _case(
    dice: Dice,
    swarm: PagedSwarm,
    pinned: Mapping[str, Any],
    can_do: Callable[[Any], bool],
    drawn: Callable[[Mapping[str, Any]], PolicyConfig],
) -> Case:
    refused = ConfigError("--set", dict(pinned), "keys with which something can be drawn, and done")
    for _ in range(_TRIES):
        try:
            config = drawn(pinned)
            if config.pool_blocks * config.block_size < 2:  # a prompt token and an output token
                continue
            requests = tuple(_requests(dice, swarm, config))
            config = _tightened(dice, swarm, config, requests, pinned)
        except ConfigError as error:
            refused = error
            continue
        if can_do(config):
            right_drafts = _right_drafts(dice, swarm, config, requests)
            return Case(config, requests, swarm, right_drafts, _external(dice, config, requests))
    raise refused


def _swarm(dice: Dice) -> PagedSwarm:
    return PagedSwarm(
        requests=dice.between(1, 12),
        boundaries=dice.one_of((0.0, 0.5, 0.8, 1.0)),
        shared=_share(dice, 0.8),
        repeated=_share(dice, 0.5),
        continued=_share(dice, 0.5),
        early_ends=_share(dice, 0.8),
        aborts=_share(dice, 0.8),
        right=dice.one_of((0.0, 0.5, 0.8, 1.0)),
        gap=dice.one_of((0, 0, 0, 1, 1, 2, 4, 9)),
        tight_pool=dice.chance(0.6),
    )


def _share(dice: Dice, most: float) -> float:
    """0 in two of five cases, else up to `most`."""
    return dice.one_of((0.0, 0.0, 0.25, 0.5, 1.0)) * most


# --- configurations -------------------------------------------------------------------------------


def _vllm_v1(dice: Dice, swarm: PagedSwarm, pinned: Mapping[str, Any]) -> VllmV1Config:
    """Without chunked prefill the budget holds every prompt, or somebody would wait for ever."""
    block = pinned.get("block_size") or dice.one_of((1, 2, 2, 3, 4, 4, 5, 8, 16))
    length = pinned.get("max_model_len") or _model_len(dice, block)
    chunked = pinned.get("chunked_prefill", dice.chance(0.7))
    drafts = pinned.get("num_speculative_tokens", dice.one_of((0, 0, 1, 2, 3)))
    budget = _near(dice, swarm, block, block * dice.between(1, 8))
    keys: Keys = {
        "block_size": block,
        "max_model_len": length,
        "max_num_seqs": dice.one_of((1, 2, 2, 3, 3, 4, 5, 6)),
        "max_num_batched_tokens": budget if chunked else max(budget, length),
        "chunked_prefill": chunked,
        "long_prefill_token_threshold": dice.one_of((0, 0, 0, _near(dice, swarm, block, block))),
        "scheduling": dice.one_of(tuple(Scheduling)),
        "connector": dice.one_of((Connector.NONE, Connector.NONE, *Connector)),
        "prefix_caching": dice.chance(0.7),
        "num_speculative_tokens": drafts,
        "num_lookahead_tokens": dice.one_of((0, drafts)),
        "reserve_full_prompt": dice.chance(0.5),
    }
    return VllmV1Config(**(keys | dict(pinned)))


def _nano_vllm(dice: Dice, swarm: PagedSwarm, pinned: Mapping[str, Any]) -> NanoVllmConfig:
    """Every reading that can serve; blocks at the boundary come too late for some prompts."""
    block = pinned.get("block_size") or dice.one_of((2, 2, 3, 4, 4, 5, 8, 16))
    length = pinned.get("max_model_len") or _model_len(dice, block)
    keys: Keys = {
        "block_size": block,
        "max_model_len": length,
        "max_num_seqs": dice.one_of((1, 2, 2, 3, 3, 4, 5, 6)),
        "max_num_batched_tokens": length + dice.one_of((0, 1, _near(dice, swarm, block, length))),
        "token_gate": dice.one_of(tuple(TokenGate)),
        "memory_gate": dice.one_of(tuple(MemoryGate)),
        "sequence_limit": dice.one_of(tuple(SequenceLimit)),
        "hit_check": dice.one_of(tuple(HitCheck)),
        "full_hit": dice.one_of(tuple(FullHit)),
    }
    return NanoVllmConfig(**(keys | dict(pinned)))


def _model_len(dice: Dice, block: int) -> int:
    return max(block * dice.between(2, 9) + dice.between(0, block - 1) * dice.chance(0.3), 2)


def _near(dice: Dice, swarm: PagedSwarm, unit: int, most: int) -> int:
    """A length from 1 to about `most`, often whole units, or one off."""
    if not dice.chance(swarm.boundaries):
        return dice.between(1, most)
    return max(unit * dice.between(1, max(most // unit, 1)) + dice.one_of((-1, 0, 0, 1)), 1)


def _tightened(
    dice: Dice,
    swarm: PagedSwarm,
    config: PolicyConfig,
    requests: tuple[Request, ...],
    pinned: Mapping[str, Any],
) -> PolicyConfig:
    """With a pool around the blocks of some of the requests, and no request alone over."""
    if not swarm.tight_pool or "num_blocks" in pinned:
        return config
    blocks = [int(cdiv(_slots(config, one), config.block_size)) for one in requests]
    together = sum(dice.one_of(blocks) for _ in range(dice.between(1, config.max_num_seqs)))
    return evolve(config, num_blocks=max(together + dice.one_of((-1, 0, 0, 1)), *blocks))


def _slots(config: PolicyConfig, request: Request) -> int:
    """Positions that a request may ever need a slot for."""
    if not isinstance(config, VllmV1Config):
        return request.prompt_len + request.max_tokens - 1
    drafts, lookahead = config.num_speculative_tokens, config.num_lookahead_tokens
    length, tokens = request.prompt_len, request.max_tokens
    return int(largest_end(length, tokens, drafts, lookahead, config.max_model_len))


# --- requests -------------------------------------------------------------------------------------


def _requests(dice: Dice, swarm: PagedSwarm, config: PolicyConfig) -> Iterator[Request]:
    prompts = Prompts(dice, swarm.shared, swarm.repeated, swarm.continued)
    most, arrival = min(config.max_model_len, config.pool_blocks * config.block_size), 0
    for index in range(swarm.requests):
        arrival += dice.between(0, swarm.gap)
        request = _request(dice, swarm, prompts, config.block_size, most, str(index))
        request = evolve(request, arrival=arrival, priority=dice.between(0, 2))
        prompts.known.append(request)
        yield _aborted(dice, request) if dice.chance(swarm.aborts) else request


def _request(
    dice: Dice, swarm: PagedSwarm, prompts: Prompts, block: int, most: int, id_: str
) -> Request:
    length = min(_near(dice, swarm, block, dice.between(1, most - 1)), most - 1)
    prompt = prompts.draw(id_, length, most - 1)
    total = _near(dice, swarm, block, most)
    max_tokens = min(max(total - prompt.length, dice.between(1, 4)), most - prompt.length)
    ends = dice.between(1, max_tokens) if dice.chance(swarm.early_ends) else None
    output = tuple(dice.between(0, 2) for _ in range(max_tokens)) if dice.chance(0.3) else None
    return Request(id=id_, prompt=prompt, max_tokens=max_tokens, output_len=ends, output=output)


def _aborted(dice: Dice, request: Request) -> Request:
    """The request with a client that goes away soon, in its midst, or about when it ends."""
    steps = dice.one_of((1, 3, request.max_tokens, 2 * request.max_tokens + 4))
    return evolve(request, abort_at=request.arrival + dice.between(0, steps))


def _right_drafts(
    dice: Dice, swarm: PagedSwarm, config: PolicyConfig, requests: tuple[Request, ...]
) -> dict[str, str]:
    """Of each request which of its tokens a drafter foresees, see `Case.right_drafts`."""
    if not isinstance(config, VllmV1Config) or not config.num_speculative_tokens:
        return {}
    return {
        one.id: "".join("01"[dice.chance(swarm.right)] for _ in range(dice.between(1, 6)))
        for one in requests
    }


def _external(
    dice: Dice, config: PolicyConfig, requests: tuple[Request, ...]
) -> dict[str, External]:
    """What a connector has of some requests, mostly whole blocks.

    A prompt of one token has nothing: once all of it is loaded it would be loaded again, for ever.
    """
    if not isinstance(config, VllmV1Config) or config.connector is Connector.NONE:
        return {}
    return {
        one.id: _external_of(dice, config.block_size, one)
        for one in requests
        if one.prompt_len > 1 and dice.chance(0.6)
    }


def _external_of(dice: Dice, block: int, request: Request) -> External:
    tokens = dice.between(1, request.prompt_len + 2)
    whole = max(tokens // block, 1) * block
    return External(
        tokens=whole if dice.chance(0.8) else tokens,
        every=dice.between(1, 4),
        fails=dice.chance(0.25),
    )
