"""Random workloads of nano-vLLM and vLLM V1, every step of which the paged device does as well."""

from collections import Counter
from random import Random
from typing import Any

from checks.paging import nano_vllm_watch, vllm_v1_watch
from reference.nano_vllm.machine import NanoVllmMachine
from reference.vllm_v1.machine import VllmV1Machine
from reference.vllm_v1.step import Environment
from spec.policies.nano_vllm import (
    FullHit,
    HitCheck,
    MemoryGate,
    NanoVllmConfig,
    SequenceLimit,
    TokenGate,
)
from spec.policies.vllm_v1 import Connector, Release, Scheduling, VllmV1Config
from spec.policies.vllm_v1_records import Load, State
from spec.requests import Prompt, Request

REQUESTS = 12
SIZES: dict[str, Any] = {"max_num_seqs": 6, "max_model_len": 32}


def random_requests(dice: Random) -> list[Request]:
    """Prompts that share beginnings more often than not; some answers are prescribed."""
    return [_request(dice, str(index)) for index in range(REQUESTS)]


def _request(dice: Random, name: str) -> Request:
    shared, own, most = dice.randrange(1, 14), dice.randrange(4), dice.randrange(1, 14)
    output = tuple(dice.randrange(3) for _ in range(most)) if dice.random() < 0.2 else None
    return Request(
        id=name,
        prompt=Prompt.of_parts([(f"common {dice.randrange(2)}", shared), (name, own)]),
        max_tokens=most,
        output=output,
        priority=dice.randrange(3),
    )


# --- nano-vLLM ------------------------------------------------------------------------------------


def random_nano_vllm_config(dice: Random) -> NanoVllmConfig:
    """Any choices but those whose hits cannot be computed, see `test_paging`."""
    choices = {
        "block_size": dice.choice([3, 4, 5]),
        "num_blocks": 14,
        "max_num_batched_tokens": dice.choice([32, 60]),
        "token_gate": dice.choice([*TokenGate]),
        "memory_gate": dice.choice([*MemoryGate]),
        "sequence_limit": dice.choice([*SequenceLimit]),
        "hit_check": HitCheck.HASH,
        "full_hit": FullHit.LAST_COMPUTED,
    }
    return NanoVllmConfig(**SIZES, **choices)


def serve_on_nano_vllm(seed: int) -> Counter[str]:
    """What an episode met; every token was that of the request served alone."""
    dice = Random(seed)
    machine = NanoVllmMachine.of(random_nano_vllm_config(dice), random_requests(dice))
    watch = nano_vllm_watch(machine.ctx)
    state, to_come = machine.initial(), list(machine.ctx.requests)
    met: Counter[str] = Counter()
    while to_come or not state.is_idle:
        if to_come and dice.random() < 0.5:
            state = machine.arrive(state, to_come.pop(0))
        if state.present and dice.random() < 0.03:
            state = machine.abort(state, dice.choice(state.present).id)
            met["abort"] += 1
        step = machine.step(state)
        watch.observe(step)
        state = step.after
        met.update(event.transition for event in step.events)
    assert not watch.wrong, watch.wrong[0]
    return met + Counter(steps=watch.steps, tokens=watch.tokens, sampled=watch.sampled)


# --- vLLM V1 --------------------------------------------------------------------------------------


def random_vllm_v1_config(dice: Random) -> VllmV1Config:
    size = dice.choice([2, 4, 5])
    choices = {
        "block_size": size,
        "num_blocks": -(-SIZES["max_model_len"] // size) + dice.randrange(6),
        "max_num_batched_tokens": dice.choice([8, 40]),
        "long_prefill_token_threshold": dice.choice([0, 0, 6]),
        "scheduling": dice.choice([*Scheduling]),
        "prefix_caching": dice.random() < 0.7,
        "num_speculative_tokens": dice.choice([0, 0, 1, 3]),
        "num_lookahead_tokens": dice.choice([0, 0, 2]),
        "connector": dice.choice([*Connector]),
        "reserve_full_prompt": dice.random() < 0.5,
        "release": dice.choice([*Release]),
    }
    return VllmV1Config(**SIZES, **choices)


def serve_on_vllm_v1(seed: int) -> Counter[str]:
    """As above, with drafts, loads that may fail, and early ends."""
    dice = Random(seed)
    config, requests = random_vllm_v1_config(dice), random_requests(dice)
    external = {one.id: dice.randrange(one.prompt_len + 1) for one in requests}
    machine = VllmV1Machine.of(config, requests, external)
    watch = vllm_v1_watch(machine.ctx)
    environment = Environment(
        ends=lambda row: machine.ends_as_said(row) or dice.random() < 0.02,
        accepted=lambda _row, drafts: dice.randrange(drafts + 1),
        # With caching the blocks of a lost load can be found (V1-KV-10), see `test_paging`.
        loses=lambda _id: not config.prefix_caching and dice.random() < 0.2,
    )
    state, to_come = machine.initial(), list(machine.ctx.requests)
    met: Counter[str] = Counter()
    while to_come or not state.is_idle:
        if to_come and dice.random() < 0.5:
            state = machine.arrive(state, to_come.pop(0))
        state = _disturbed(machine, state, dice)
        step = machine.step(state, environment)
        watch.observe(step)
        state = step.after
        met.update(event.transition for event in step.events)
        met["sync load"] += len(step.external)
    assert not watch.wrong, watch.wrong[0]
    return met + Counter(steps=watch.steps, tokens=watch.tokens, sampled=watch.sampled)


def _disturbed(machine: VllmV1Machine, state: State, dice: Random) -> State:
    """Loads end, well or badly; clients go away."""
    for one in (*state.skipped, *state.draining):
        if one.load is Load.LOADING and dice.random() < 0.3:
            state = machine.end_load(state, one.id, failed=dice.random() < 0.3)
    if state.present and dice.random() < 0.03:
        state = machine.abort(state, dice.choice(state.present).id)
    return state
