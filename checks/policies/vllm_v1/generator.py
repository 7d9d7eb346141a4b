"""Random cases of vLLM V1, with right drafts and external tokens."""

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import asdict, evolve, frozen

from checks.harness.awaited import with_grammars
from checks.harness.case import Case, External
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
from checks.harness.speculation import foresight
from checks.policies.vllm_v1.encoding import with_encoder_spans
from spec.core.requests import Oversized, Prompt, Request
from spec.vllm_v1.config import Connector, Scheduling, VllmV1Config
from spec.vllm_v1.modelled import Feature, is_modelled_beside
from spec.vllm_v1.releases import Release
from spec.vllm_v1.requests import blocks_alone

_CONTENDED: Mapping[str, Any] = {
    **{"chunked_prefill": True, "scheduling": Scheduling.PRIORITY, "reserve_full_prompt": False},
    **{"connector": Connector.NONE, "num_lookahead_tokens": 0},
}
"""Keys without which blocks would be withheld in contended cases."""
_UNCUT: Mapping[str, Any] = {"chunked_prefill": False, "connector": Connector.NONE}
"""Keys of cases in which prompts do not fit what is left of the budget."""
_BESIDE_SESSIONS: Mapping[str, Any] = {
    **{"scheduling": Scheduling.FCFS, "connector": Connector.NONE},
    **{"num_speculative_tokens": 0, "num_lookahead_tokens": 0, "steps_in_flight": 0},
    **{"sends": False, "late_lookups": False},
}
_MOST_TURNS = 20  # requests of a case with sessions
_SMALL_BLOCKS = (1, 2, 2, 4)
_SMALL_CHUNKS = (0, 2, 2, 3)  # tokens; 0: chunks are cut by the budget alone


@frozen
class VllmV1Swarm(Swarm):
    """A swarm with V1's own choices.

    `right`: the share of right drafts. `contended`: blocks and budget are short and later requests
    are more urgent, so that victims have already got tokens, or drafts, in the step. `uncut`:
    several prompts wait at once, and none is cut.
    """

    right: float
    contended: bool
    uncut: bool


def generate(choices: Choices, pinned: Mapping[str, Any]) -> Case:
    """A random case; `pinned`: configuration keys that are not drawn.

    Raises:
        ConfigError: the configuration is not allowed.
    """
    swarm = _swarm(choices)
    config = VllmV1Config(**_keys(choices, swarm, pinned))
    requests, right_drafts, external = _requests(choices, swarm, config)
    blocks = [blocks_alone(request, config) for request in requests]
    held = 2 if swarm.contended else None
    config = with_tight_pool(choices, swarm, config, blocks, pinned, held)
    # What came later is drawn last, so that the other choices of a case do not depend on it.
    config = _with_later_keys(choices, swarm, config, pinned)
    surroundings: dict[str, Mapping[str, Any]] = {
        "right_drafts": right_drafts,
        "external": external,
        "sends": _every(choices, requests) if config.sends else {},
        "answers": _every(choices, requests) if config.late_lookups else {},
    }
    drawn = {name: entries for name, entries in surroundings.items() if entries}
    config = _with_oversized(choices, config, max(blocks), pinned)
    _let_part_come(choices, external)
    _let_fewer_be_proposed(choices, right_drafts)
    config = _with_pooling(choices, config, pinned)
    grammars: dict[str, int] = {}
    if config.pooling:
        requests = _pooled(choices, config, requests)
    elif is_modelled_beside(Feature.GRAMMARS, config):
        requests, grammars = with_grammars(choices, requests)
    drawn |= {"grammars": grammars} if grammars else {}
    requests = _with_unread_caches(choices, requests)
    config = _with_groups(choices, config, requests, pinned)
    if config.kv_groups is not None:  # lost loads, and what is sent, are not modelled beside them
        for load in external.values():
            load |= {"fails": False}
            load.pop("if_lost", None)
    config, requests = with_encoder_spans(choices, config, requests, pinned)
    if choices.chance(0.22) and (plain := _for_sessions(config, pinned)) is not None:
        requests = _with_sessions(choices, swarm, plain, requests)
        config = _with_room_for_sessions(plain, requests)
        drawn = {"grammars": grammars} if grammars else {}
    return Case(config, requests, surroundings=drawn, swarm=swarm)


def _swarm(choices: Choices) -> VllmV1Swarm:
    right = choices.one_of((0.0, 0.5, 0.8, 1.0))
    contended, uncut = choices.chance(0.2), choices.chance(0.1)
    swarm = VllmV1Swarm(
        **asdict(random_swarm(choices)),
        right=right,
        contended=contended,
        uncut=uncut and not contended,
    )
    if swarm.contended:
        return evolve(swarm, tight_pool=True, gap=1, short_answers=True, aborts=0.0, early_ends=0.0)
    return evolve(swarm, gap=0) if swarm.uncut else swarm


def _requests(
    choices: Choices, swarm: VllmV1Swarm, config: VllmV1Config
) -> tuple[tuple[Request, ...], dict[str, str], dict[str, dict[str, Any]]]:
    """The requests, and by request its right drafts and its external tokens."""
    right_drafts: dict[str, str] = {}
    external: dict[str, dict[str, Any]] = {}

    def surround(drawn: Choices, request: Request) -> None:
        if config.num_speculative_tokens:
            right_drafts[request.id] = foresight(drawn, swarm.right)
        # A prompt of one token has no external tokens: a complete load would be repeated.
        has_connector = config.connector is not Connector.NONE
        if has_connector and request.prompt_len > 1 and drawn.chance(0.6):
            external[request.id] = _external(drawn, config.block_size, request).as_surroundings()

    limits = Limits((config.block_size,), most_tokens(config), config.max_num_seqs, priorities=True)
    requests = random_requests(choices, swarm, limits, surround)
    if swarm.contended and config.scheduling is Scheduling.PRIORITY:
        requests = tuple(
            evolve(request, priority=-number) for number, request in enumerate(requests)
        )
    return requests, right_drafts, external


def _with_later_keys(
    choices: Choices, swarm: VllmV1Swarm, config: VllmV1Config, pinned: Mapping[str, Any]
) -> VllmV1Config:
    """The configuration with its release, steps in flight, sends and late lookups."""
    often = Release.V0_11_2 if swarm.uncut else Release.V0_28_0
    release = choices.one_of((often, Release.V0_33_0, *Release))
    # The behaviour of 0.11.2 with a connector is not compared with a release, and that with a step
    # in flight is not modelled.
    has_connector = config.connector is not Connector.NONE
    if release is Release.V0_11_2 and (has_connector or config.steps_in_flight):
        release = Release.V0_28_0
    if "release" not in pinned:
        config = evolve(config, release=release)
    in_flight = choices.one_of((0, 0, 1))
    if (
        in_flight
        and "steps_in_flight" not in pinned
        and is_modelled_beside(Feature.STEPS_IN_FLIGHT, config)
    ):
        config = evolve(config, steps_in_flight=1)
    stages = choices.one_of((1, 1, 1, 1, 2, 3))
    if config.steps_in_flight and not has_connector and "steps_in_flight" not in pinned:
        config = evolve(config, steps_in_flight=stages)
    if choices.chance(0.5) and has_connector and "sends" not in pinned:
        config = evolve(config, sends=True)
    if choices.chance(0.3) and has_connector and "late_lookups" not in pinned:
        config = evolve(config, late_lookups=True)
    return config


def _every(choices: Choices, requests: Sequence[Request]) -> dict[str, int]:
    """By request, of which number the steps are multiples before which something happens to it."""
    return {request.id: choices.between(1, 4) for request in requests}


def _with_oversized(
    choices: Choices, config: VllmV1Config, most_blocks: int, pinned: Mapping[str, Any]
) -> VllmV1Config:
    """The configuration that lets in what the pool can never hold, or does not, as before.

    `most_blocks`: that a request needs.
    """
    few = choices.between(1, most_blocks)
    if choices.chance(0.04) and "oversized" not in pinned:
        config = evolve(config, oversized=Oversized.QUEUED)
    if config.oversized is Oversized.QUEUED and "num_blocks" not in pinned:
        config = evolve(config, num_blocks=few)
    return config


def _let_part_come(choices: Choices, external: Mapping[str, dict[str, Any]]) -> None:
    """Of some loads that fail, the first tokens come."""
    for load in external.values():
        if load["fails"] and choices.chance(0.5):
            load["if_lost"] = choices.between(0, load["tokens"])


def _let_fewer_be_proposed(choices: Choices, right_drafts: dict[str, str]) -> None:
    """Of some requests the drafter does not foresee every token."""
    for request_id, foreseen in right_drafts.items():
        if choices.chance(0.3):
            share = choices.one_of((0.2, 0.5, 1.0))
            signs = ("-" if choices.chance(share) else sign for sign in foreseen)
            right_drafts[request_id] = "".join(signs)


def _with_pooling(
    choices: Choices, config: VllmV1Config, pinned: Mapping[str, Any]
) -> VllmV1Config:
    """The configuration, maybe with a model that pools."""
    is_drawn = choices.chance(0.24) and "pooling" not in pinned
    may_pool = not (config.num_speculative_tokens or config.steps_in_flight)
    if is_drawn and may_pool and config.release is not Release.V0_11_2:
        return evolve(config, pooling=True)
    return config


def _pooled(
    choices: Choices, config: VllmV1Config, requests: tuple[Request, ...]
) -> tuple[Request, ...]:
    """The requests to a model that pools, whose prompts may be as long as it."""
    room = min(config.max_model_len, config.pool_blocks * config.block_size)
    longest = room if config.chunked_prefill else min(room, config.token_budget)
    return tuple(_pooled_once(choices, request, longest) for request in requests)


def _with_unread_caches(choices: Choices, requests: tuple[Request, ...]) -> tuple[Request, ...]:
    """The requests, some of which read no cache."""
    share = choices.one_of((0.0, 0.0, 0.0, 0.0, 0.3))
    return tuple(
        evolve(request, reads_cache=False) if share and choices.chance(share) else request
        for request in requests
    )


def _for_sessions(config: VllmV1Config, pinned: Mapping[str, Any]) -> VllmV1Config | None:
    """The configuration without what is not modelled beside sessions; None if that is pinned."""
    if "num_blocks" in pinned:
        return None
    free = {name: value for name, value in _BESIDE_SESSIONS.items() if name not in pinned}
    plain = evolve(config, **free)
    return plain if is_modelled_beside(Feature.SESSIONS, plain) else None


def _with_sessions(
    choices: Choices, swarm: Swarm, config: VllmV1Config, requests: tuple[Request, ...]
) -> tuple[Request, ...]:
    """The requests, many of which are turns of sessions, with the turns that follow them."""
    most, everyone = most_tokens(config), [evolve(row, right_drafts=None) for row in requests]
    for place, request in enumerate(everyone):
        room = most - request.kept_len - request.max_tokens
        is_usual = not (request.grammar or request.encoder_spans) and request.reads_cache
        # A client that leaves while its turn is early would never send the turn behind that.
        may_leave_early = place >= len(requests) and request.abort_at is not None
        may_go_on = room > 0 and is_usual and not may_leave_early
        if not choices.chance(0.5) or not may_go_on or len(everyone) > _MOST_TURNS:
            continue
        turn = _next_turn(choices, swarm, request, str(len(everyone)), room, config.block_size)
        everyone[place] = evolve(request, continued_by=turn.id)
        everyone.append(turn)
    return tuple(everyone)


def _with_room_for_sessions(config: VllmV1Config, requests: tuple[Request, ...]) -> VllmV1Config:
    """The configuration with blocks for all sessions and another request.

    With fewer of them all could wait for each other for ever, which worlds and exploring show.
    """
    if config.oversized is Oversized.QUEUED:
        return config
    turns = {row.continued_by for row in requests}
    needed = {row.id: blocks_alone(row, config) for row in requests}
    last = sum(needed[row.id] for row in requests if row.id in turns and row.continued_by is None)
    others = max((needed[row.id] for row in requests if row.id not in turns), default=0)
    least = last + others
    return config if config.pool_blocks >= least else evolve(config, num_blocks=least)


def _next_turn(
    choices: Choices, swarm: Swarm, request: Request, id_: str, room: int, block: int
) -> Request:
    """The turn that follows the request, some time after its end; `room`: for its new tokens.

    `block`: the size of one, in tokens.
    """
    new = choices.between(1, min(room, 2 * block))
    kept = request.first_tokens(request.kept_len)
    # 0.28.0 goes by the max_tokens of the first turn.
    is_shorter = choices.chance(0.05)
    max_tokens = choices.between(1, request.max_tokens) if is_shorter else request.max_tokens
    wait = choices.one_of((0, 0, 0, 1, 3, 10, 30))
    # Some are sent by a clock of their own, also before the turn before has ended.
    is_timed = choices.chance(0.4) and request.after is None
    when: dict[str, Any] = {"arrival_time": float(wait), "after": request.id}
    if is_timed:
        arrival = request.arrival + choices.between(0, 2 * swarm.gap)
        when = {"arrival": arrival}
        # A client that left before would never send the turn, and its session would wait for ever.
        if choices.chance(swarm.aborts / 4):
            when |= {"abort_at": arrival + choices.between(5, 40)}
    ends = choices.between(1, max_tokens) if choices.chance(swarm.early_ends) else None
    return Request(
        id=id_,
        prompt=Prompt.of_tokens([*kept, *(choices.between(0, 2) for _ in range(new))]),
        max_tokens=max_tokens,
        output_len=ends,
        **when,
    )


def _with_groups(
    choices: Choices,
    config: VllmV1Config,
    requests: Sequence[Request],
    pinned: Mapping[str, Any],
) -> VllmV1Config:
    """The configuration with further groups of layers, where they are modelled beside it."""
    is_drawn = choices.chance(0.35) and "kv_groups" not in pinned
    features = [Feature.GROUPS]
    if config.connector is not Connector.NONE:
        features.append(Feature.GROUPS_WITH_CONNECTOR)
    if not (is_drawn and all(is_modelled_beside(feature, config) for feature in features)):
        return config
    has_states = choices.chance(0.9) and is_modelled_beside(Feature.GROUPS_OF_STATES, config)
    windows = [
        f"sliding {choices.between(2, 3 * config.block_size + 1)}"
        for _ in range(choices.one_of((1, 1, 2) if not has_states else (0, 0, 1)))
    ]
    if not has_states and choices.chance(0.3):
        windows[-1] += f"/{2 * config.block_size}"
    names = [*windows, *(["mamba"] if has_states else []), *choices.one_of(((), (), ("full",)))]
    grouped = evolve(config, kv_groups=", ".join(names))
    if config.num_blocks is None or "num_blocks" in pinned:
        return grouped if config.num_blocks is None else config
    # As tight as it was: as many blocks more as the largest request needs more.
    needed = [max(blocks_alone(row, each) for row in requests) for each in (config, grouped)]
    return evolve(grouped, num_blocks=config.num_blocks + needed[1] - needed[0])


def _pooled_once(choices: Choices, request: Request, longest: int) -> Request:
    """The request to a model that pools: one result, maybe of the longest prompt."""
    is_longest = choices.chance(0.3) and longest > 1  # one token of a connector is loaded for ever
    prompt = Prompt.of_stream(request.id, longest) if is_longest else request.prompt
    return evolve(request, prompt=prompt, max_tokens=1, output_len=None, output=None)


def _keys(choices: Choices, swarm: VllmV1Swarm, pinned: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration's keys; without chunked prefill the budget holds every prompt."""
    together = _CONTENDED if swarm.contended else _UNCUT if swarm.uncut else {}
    pinned = {**together, **pinned}
    slots = SLOTS[-4:] if together else SLOTS
    block_sizes = _SMALL_BLOCKS if swarm.contended else BLOCK_SIZES
    block = pinned.get("block_size") or choices.one_of(block_sizes)
    length = pinned.get("max_model_len") or model_len(choices.part(), block)
    chunked = pinned.get("chunked_prefill", not choices.chance(0.3))
    drafts = pinned.get("num_speculative_tokens", choices.one_of((0, 0, 1, 2, 3)))
    budget = near(choices.part(), swarm, (block,), block * choices.between(1, 8))
    running = choices.one_of(slots)
    threshold = choices.one_of((0, 0, 0, near(choices.part(), swarm, (block,), block)))
    if swarm.contended:
        threshold = choices.one_of(_SMALL_CHUNKS)
        # Without a threshold little is left after the decoding rows: the last chunk is cut.
        most = max(drafts, threshold)
        budget = running * (1 + choices.one_of((most, most // 2))) + choices.between(0, block)
    if swarm.uncut:
        budget = 0  # that is, the model length
    keys = {
        "block_size": block,
        "max_model_len": length,
        "max_num_seqs": running,
        "max_num_batched_tokens": budget if chunked else max(budget, length),
        "chunked_prefill": chunked,
        "long_prefill_token_threshold": threshold,
        "scheduling": choices.one_of(tuple(Scheduling)),
        "connector": choices.one_of((Connector.NONE, Connector.NONE, *Connector)),
        "prefix_caching": choices.chance(0.7),
        "num_speculative_tokens": drafts,
        "num_lookahead_tokens": choices.one_of((0, drafts)),
        "reserve_full_prompt": choices.chance(0.5),
    }
    return keys | dict(pinned)


def _external(choices: Choices, block: int, request: Request) -> External:
    """The external tokens of a request, mostly whole blocks."""
    tokens = choices.between(1, request.prompt_len + 2)
    whole = max(tokens // block, 1) * block
    return External(
        tokens=tokens if choices.chance(0.2) else whole,
        every=choices.between(1, 4),
        fails=choices.chance(0.25),
    )
