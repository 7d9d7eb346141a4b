"""Cases: a random configuration with random requests, skewed to where schedulers go wrong.

Each case first draws a `Swarm`: whole kinds of action are switched off in it, the others are more
or less frequent. So some cases have nothing but aborts in a tight pool, others only nested
prefixes. The same seed and episode give the same case on every machine.
"""

from collections.abc import Callable, Mapping
from typing import Any

from attrs import asdict, evolve, field, frozen

from checks.export.trace.requests import request_as_json
from checks.fuzz.dice import Dice
from checks.fuzz.prompts import Prompts
from spec.core.blocks import block_count
from spec.core.configuration import PolicyConfig
from spec.core.errors import ConfigError
from spec.core.requests import Request
from spec.spyre.config import Admission, Queue, SpyreConfig
from spec.spyre.padding import chunk_count

_TRIES = 200  # draws of a configuration until one is allowed


@frozen
class Swarm:
    """How often a case does what; a share of 0 switches the kind of action off.

    `boundaries`: lengths on a block or chunk boundary, or one off. `shared`, `repeated`,
    `continued`: prompts that begin like another, are another, contain another's output.
    `prescribed`: outputs given token by token. `gap`: most steps between two arrivals. `crowd`:
    many requests and slots.
    """

    requests: int
    crowd: bool
    boundaries: float
    shared: float
    repeated: float
    continued: float
    prescribed: float
    early_ends: float
    aborts: float
    gap: int
    tight_pool: bool
    tight_limit: bool
    odd_model_len: bool


@frozen
class External:
    """What a connector has of a request: its first `tokens`.

    An asynchronous load ends with a step whose number is a multiple of `every`. `fails`: nothing of
    it comes.
    """

    tokens: int
    every: int = 1
    fails: bool = False


@frozen
class Case:
    """What one episode runs: who asks for what, when, of which scheduler.

    `config`: of the policy's own class. `swarm`: what was drawn. `right_drafts`: of each request
    which of its tokens a drafter foresees, "110" the first two of every three; by default none.
    `external`: of whom a connector has something.
    """

    config: Any
    requests: tuple[Request, ...]
    swarm: Any = field(default=None, eq=False)
    right_drafts: Mapping[str, str] = field(factory=dict)
    external: Mapping[str, External] = field(factory=dict)

    def as_mapping(self) -> dict[str, Any]:
        """Configuration and requests as files write them."""
        return {
            "config": self.config.as_mapping(),
            "requests": [request_as_json(request) for request in self.requests],
            **self.surroundings,
        }

    @property
    def surroundings(self) -> dict[str, Any]:
        """Drafts and external tokens as files write them, where there are any."""
        told: dict[str, Any] = {
            "right_drafts": dict(self.right_drafts),
            "external": {one: asdict(has) for one, has in self.external.items()},
        }
        return {name: value for name, value in told.items() if value}

    @property
    def parameters(self) -> str:
        """What was drawn, in one line: the configuration and the swarm."""
        drawn = {} if self.swarm is None else asdict(self.swarm)
        told = {**_changed_keys(self.config), **drawn}
        return " ".join(f"{name}={_short(value)}" for name, value in told.items())


def _changed_keys(config: PolicyConfig) -> dict[str, Any]:
    default = config.from_mapping({}).as_mapping()
    return {key: value for key, value in config.as_mapping().items() if value != default.get(key)}


def _short(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def case_of(
    seed: int,
    episode: int,
    pinned: Mapping[str, Any] | None = None,
    can_do: Callable[[SpyreConfig], bool] = lambda _config: True,
) -> Case:
    """The case of an episode. `pinned`: configuration keys that are not drawn.

    Raises:
        ConfigError: no configuration with the pinned keys is allowed, can be served, and can be
            done.
    """
    dice = Dice(seed, episode)
    swarm = _swarm(dice)
    fixed = dict(pinned or {})
    refused: ConfigError | None = None
    allowed = "keys with which something can be drawn, and done by the target"
    for _ in range(_TRIES):
        try:
            config = SpyreConfig(**_keys(dice, swarm, fixed))
        except ConfigError as error:
            refused = refused or error
            continue
        refused = ConfigError("--set", fixed, allowed)  # it is not the configuration as such
        if _most_tokens(config) < 2:  # a prompt token and an output token
            continue
        requests = _requests(dice, swarm, config)
        config = _tightened(dice, swarm, config, requests, fixed)
        if can_do(config):
            return Case(config, requests, swarm)
    raise refused or ConfigError("--set", fixed, allowed)


def _swarm(dice: Dice) -> Swarm:
    crowd = dice.chance(0.04)
    return Swarm(
        requests=dice.between(15, 40) if crowd else dice.between(1, 12),
        crowd=crowd,
        boundaries=dice.one_of((0.0, 0.5, 0.8, 1.0)),
        shared=_share(dice, 0.8),
        repeated=_share(dice, 0.5),
        continued=_share(dice, 0.5),
        prescribed=_share(dice, 0.7),
        early_ends=_share(dice, 0.8),
        aborts=_share(dice, 0.8),
        gap=dice.one_of((0, 0, 0, 1, 1, 2, 4, 9)),
        tight_pool=dice.chance(0.5),
        tight_limit=dice.chance(0.6),
        odd_model_len=dice.chance(0.3),
    )


def _share(dice: Dice, most: float) -> float:
    """0 in two of five cases, else up to `most`."""
    return dice.one_of((0.0, 0.0, 0.25, 0.5, 1.0)) * most


# --- the configuration ------------------------------------------------------------------------


def _keys(dice: Dice, swarm: Swarm, pinned: Mapping[str, Any]) -> dict[str, Any]:
    """Every key that matters; the sizes go with those that are pinned."""
    block = pinned.get("block_size") or dice.one_of((1, 2, 2, 3, 4, 4, 5, 8, 16))
    chunk = pinned.get("chunk_size") or block * dice.one_of((1, 1, 2, 2, 3, 4))
    if "block_size" not in pinned and "chunk_size" in pinned:
        block = dice.one_of([size for size in range(1, 65) if chunk % size == 0])
    length = pinned.get("max_model_len") or _model_len(dice, swarm, block, chunk)
    seqs = dice.one_of((8, 12, 16) if swarm.crowd else (1, 2, 2, 3, 3, 4, 4, 5, 6))
    keys = {
        "block_size": block,
        "chunk_size": chunk,
        "max_model_len": length,
        "max_num_seqs": seqs,
        "interleave": dice.chance(0.65),
        "prefix_caching": dice.chance(0.7),
        "admission": dice.one_of((*Admission, Admission.EXACT)),
        "queue": dice.one_of((Queue.FCFS, Queue.FCFS, Queue.OVERTAKING)),
        "reservation": dice.chance(0.7),
        "pausing": dice.chance(0.3),
        "long_output_first": dice.chance(0.5),
    }
    return keys | dict(pinned)


def _model_len(dice: Dice, swarm: Swarm, block: int, chunk: int) -> int:
    whole = block * dice.between(2, 9) if dice.chance(0.6) else chunk * dice.between(1, 5)
    return whole + (dice.between(1, block) - 1 if swarm.odd_model_len else 0)


def _tightened(
    dice: Dice,
    swarm: Swarm,
    config: SpyreConfig,
    requests: tuple[Request, ...],
    pinned: Mapping[str, Any],
) -> SpyreConfig:
    """With a limit, and a pool, that some of the requests together just reach, or just not.

    With pausing the limit is always tight, so that somebody is paused; without reservation the
    pool, so that somebody is preempted.
    """
    limit, blocks = _limit(dice, config, requests), _pool(dice, config, requests)
    changes: dict[str, Any] = {}
    if swarm.tight_limit or config.pausing:
        changes["max_batch_tkv_limit"] = limit
    if swarm.tight_pool or not config.reservation:
        changes["num_blocks"] = blocks
    return evolve(config, **(changes | dict(pinned)))


def _limit(dice: Dice, config: SpyreConfig, requests: tuple[Request, ...]) -> int:
    """Around the volume of some rows as long as one of the requests, and no request alone over.

    With pausing of few rows: the batch fills all slots, and many are paused.
    """
    rows = config.max_num_seqs // 2 if config.pausing else config.max_num_seqs
    totals = [one.prompt_len + one.max_tokens for one in requests]
    tkv = dice.one_of(totals) - 1
    if dice.chance(0.5):
        tkv = config.block_size * int(block_count(tkv, config.block_size))
    volume = tkv * dice.between(1, max(rows, 1)) + dice.one_of((-1, 0, 0, 1))
    return max(volume, max(totals) - 1)


def _pool(dice: Dice, config: SpyreConfig, requests: tuple[Request, ...]) -> int:
    """Around the blocks of some of the requests, and no request alone over."""
    size = config.block_size
    blocks = [int(block_count(one.prompt_len + one.max_tokens, size)) for one in requests]
    together = sum(dice.one_of(blocks) for _ in range(dice.between(1, config.max_num_seqs)))
    return max(together + dice.one_of((-1, 0, 0, 1)), *blocks)


def _most_tokens(config: SpyreConfig) -> int:
    """Most tokens, prompt and output, of a request that can be served."""
    return min(
        config.max_model_len,
        config.max_batch_tkv_limit + 1,
        config.pool_blocks * config.block_size,
    )


# --- the requests -----------------------------------------------------------------------------


def _requests(dice: Dice, swarm: Swarm, config: SpyreConfig) -> tuple[Request, ...]:
    prompts = Prompts(dice, swarm.shared, swarm.repeated, swarm.continued)
    slots = [0] * config.max_num_seqs  # about when each of them is free again
    requests: list[Request] = []
    arrival = 0
    for index in range(swarm.requests):
        arrival += dice.between(0, swarm.gap)
        request = _request(dice, swarm, config, prompts, str(index), arrival)
        prompts.known.append(request)
        slot = slots.index(min(slots))
        admitted = max(arrival, slots[slot])
        slots[slot] = admitted + _steps_alone(config, request)
        if dice.chance(swarm.aborts):
            request = _aborted(dice, config, request, admitted)
        requests.append(request)
    return tuple(requests)


def _request(
    dice: Dice, swarm: Swarm, config: SpyreConfig, prompts: Prompts, id_: str, arrival: int
) -> Request:
    most = _most_tokens(config)
    prompt = prompts.draw(id_, _length(dice, swarm, config, most - 1), most - 1)
    max_tokens = _output_len(dice, swarm, config, prompt.length, most - prompt.length)
    ends = dice.between(1, max_tokens) if dice.chance(swarm.early_ends) else None
    output = None
    if dice.chance(swarm.prescribed):
        output = tuple(dice.between(0, 2) for _ in range(ends or max_tokens))
    return Request(
        id=id_,
        prompt=prompt,
        max_tokens=max_tokens,
        arrival=arrival,
        output_len=None if output else ends,
        output=output,
    )


def _steps_alone(config: SpyreConfig, request: Request) -> int:
    """Steps in the batch, chunks interleaved with decode steps."""
    return 2 * int(chunk_count(request.prompt_len, config.chunk_size)) + request.end


def _aborted(dice: Dice, config: SpyreConfig, request: Request, admitted: int) -> Request:
    """The request with a client that goes away while it waits, is prefilled, decodes, or later.

    `admitted`: about the step of its admission; tight limits make it later.
    """
    joins = admitted + 2 * int(chunk_count(request.prompt_len, config.chunk_size))
    leaves = admitted + _steps_alone(config, request)
    first, last = dice.one_of(
        ((request.arrival, admitted), (admitted, joins), (joins, leaves), (joins, leaves + 5))
    )
    return evolve(request, abort_at=dice.between(first, last))


def _length(dice: Dice, swarm: Swarm, config: SpyreConfig, most: int) -> int:
    """A prompt length, often on a boundary or one off, sometimes the longest there can be."""
    if dice.chance(swarm.boundaries):
        unit = dice.one_of((config.block_size, config.chunk_size))
        units = dice.between(1, dice.between(1, max(1, most // unit)))
        near = unit * units + dice.one_of((-1, 0, 0, 1))
    else:
        near = most if dice.chance(0.05) else dice.between(1, dice.between(1, most))
    return min(max(near, 1), most)


def _output_len(dice: Dice, swarm: Swarm, config: SpyreConfig, prompt_len: int, most: int) -> int:
    """A maximum output; with the prompt often on a block boundary or one off, or all there is."""
    if dice.chance(0.2):
        return most
    if dice.chance(swarm.boundaries):
        size = config.block_size
        end = size * (int(block_count(prompt_len, size)) + dice.between(0, 5))
        return min(max(end + dice.one_of((-1, 0, 1)) - prompt_len, 1), most)
    return dice.between(1, most)
