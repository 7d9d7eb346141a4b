"""Random workloads of each policy whose steps the paged device computes too."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from random import Random
from typing import Any, Generic, TypeVar

from attrs import evolve, frozen

from checks.harness.paging import PagedWatch
from checks.policies.nano_vllm.paging import nano_vllm_watch
from checks.policies.vllm_v0.paging import vllm_v0_watch
from checks.policies.vllm_v1.paging import vllm_v1_watch
from reference.nano_vllm.machine import NanoVllmMachine
from reference.vllm_v0 import decisions
from reference.vllm_v0.machine import VllmV0Machine
from reference.vllm_v1.machine import VllmV1Machine
from reference.vllm_v1.step import Environment
from spec.core.requests import Prompt, Request
from spec.nano_vllm.config import (
    FullHit,
    HitCheck,
    MemoryGate,
    NanoVllmConfig,
    SequenceLimit,
    TokenGate,
)
from spec.nano_vllm.records import Step
from spec.vllm_v0 import config as v0_config
from spec.vllm_v0 import records as v0
from spec.vllm_v0.variants import Strategy
from spec.vllm_v1 import records as v1
from spec.vllm_v1.config import Connector, Scheduling, VllmV1Config
from spec.vllm_v1.releases import Release

REQUESTS = 12
SIZES: dict[str, Any] = {"max_num_seqs": 6, "max_model_len": 32}
StepT = TypeVar("StepT", Step, v0.Step, v1.Step)


@frozen
class Episode(Generic[StepT]):
    """The steps of a scheduler, taken on demand, and a new device."""

    watch: PagedWatch[StepT]
    steps: Iterator[StepT]

    def served(self) -> Counter[str]:
        """Serve the episode; return its situations. Tokens must be those of each request alone."""
        met: Counter[str] = Counter()
        for step in self.steps:
            self.watch.observe(step)
            met.update(event.transition for event in step.events)
        assert not self.watch.wrong, self.watch.wrong[0]
        watch = self.watch
        done = {"computed": watch.computed, "loaded": watch.loaded, "sampled": watch.sampled}
        return met + Counter(done)


def _steps(
    machine: Any,
    dice: Random,
    environment: Any = None,
    between: Callable[[Any], Any] = lambda state: state,
) -> Iterator[Any]:
    """The steps of a machine; requests arrive and are aborted at random.

    `between`: further changes of a state before a step.
    """
    state, to_come = machine.initial(), list(machine.ctx.requests)
    while to_come or not state.is_idle:
        if to_come and dice.random() < 0.5:
            state = machine.arrive(state, to_come.pop(0))
        state = between(state)
        if state.present and dice.random() < 0.03:
            state = machine.abort(state, dice.choice(state.present).id)
        step = machine.step(state) if environment is None else machine.step(state, environment)
        yield step
        state = step.after


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


def nano_vllm_episode(seed: int) -> Episode[Step]:
    """Random requests that arrive, are served or aborted, and a new device."""
    dice = Random(seed)
    machine = NanoVllmMachine.of(random_nano_vllm_config(dice), random_requests(dice))
    return Episode(nano_vllm_watch(machine.ctx), _steps(machine, dice))


def serve_in_turn(config: NanoVllmConfig, requests: Iterable[Request]) -> None:
    """One request after the other on machine and device, each until it has left."""
    machine = NanoVllmMachine.of(config, requests)
    watch, state = nano_vllm_watch(machine.ctx), machine.initial()
    for name in machine.ctx.requests:
        state = machine.arrive(state, name)
        while not state.is_idle:
            step = machine.step(state)
            watch.observe(step)
            state = step.after
    assert not watch.wrong


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


def vllm_v1_episode(seed: int) -> Episode[v1.Step]:
    """As above, with drafts, loads that may fail, and early ends."""
    dice = Random(seed)
    config, requests = random_vllm_v1_config(dice), random_requests(dice)
    external = {request.id: dice.randrange(request.prompt_len + 1) for request in requests}
    machine = VllmV1Machine.of(config, requests, external)
    environment = Environment(
        ends=lambda row: machine.ends_as_said(row) or dice.random() < 0.02,
        accepted=lambda _row, drafts: dice.randrange(drafts + 1),
        # With caching the blocks of a lost load can be found (V1-KV-10), see `test_paging`.
        loses=lambda _id: not config.prefix_caching and dice.random() < 0.2,
    )
    steps = _steps(machine, dice, environment, lambda state: _after_loads(machine, state, dice))
    return Episode(vllm_v1_watch(machine.ctx), steps)


def _after_loads(machine: VllmV1Machine, state: v1.State, dice: Random) -> v1.State:
    """Some loads end, and some of these fail."""
    for row in (*state.skipped, *state.draining):
        if row.load is v1.Load.LOADING and dice.random() < 0.3:
            state = machine.end_load(state, row.id, failed=dice.random() < 0.3)
    return state


# --- vLLM V0 --------------------------------------------------------------------------------------


def random_vllm_v0_config(dice: Random, **fixed: Any) -> v0_config.VllmV0Config:
    """Any choices of the repaired reading; `fixed`: those that are not drawn."""
    size, steps, chunked = dice.choice([2, 4, 5]), dice.choice([1, 1, 1, 3]), dice.random() < 0.5
    cuts = chunked and steps == 1  # else every request must fit into one step
    choices = {
        "block_size": size,
        "num_blocks": -(-SIZES["max_model_len"] // size) + dice.randrange(10),
        "num_cpu_blocks": dice.choice([0, 8, 20]),
        "max_num_batched_tokens": dice.choice([8, 16, 40] if cuts else [32, 40]),
        "scheduling": dice.choice([*v0_config.Scheduling]),
        "strategy": dice.choice([*Strategy]),
        "chunked_prefill": chunked,
        "prefix_caching": dice.random() < 0.5,
        "preemption_mode": dice.choice([*v0_config.PreemptionMode]),
        "watermark_blocks": dice.choice([0, 0, 1]),
        "num_scheduler_steps": steps,
        "num_lookahead_slots": steps - 1 if steps > 1 else dice.choice([0, 0, 2]),
        "max_num_partial_prefills": dice.choice([1, 2]) if chunked else 1,
        "artificial_preemptions": dice.choice([0, 3]),
    }
    return v0_config.VllmV0Config(**SIZES, **(choices | fixed))


def vllm_v0_episode(seed: int, siblings: int = 3, **fixed: Any) -> Episode[v0.Step]:
    """As above; requests have up to `siblings` sequences if no lookahead is configured."""
    dice = Random(seed)
    config = random_vllm_v0_config(dice, **fixed)
    most = 1 if config.num_lookahead_slots else siblings
    requests = [evolve(request, n=dice.randint(1, most)) for request in random_requests(dice)]
    machine = VllmV0Machine.of(config, requests)
    return Episode(vllm_v0_watch(machine.ctx), _vllm_v0_steps(machine, dice))


def _vllm_v0_steps(machine: VllmV0Machine, dice: Random) -> Iterator[v0.Step]:
    early = {
        (name, index)
        for name in machine.ctx.sequences
        for index in range(SIZES["max_model_len"])
        if dice.random() < 0.02
    }
    environment = decisions.Environment(
        ends=lambda sequence: (
            machine.sequence_ends(sequence) or (sequence.id, sequence.generated) in early
        ),
        accepted=lambda _group, slots: dice.randrange(slots + 1),
        preempts=lambda _group: dice.random() < 0.2,
    )
    return _steps(machine, dice, environment)


_ONE_STEP: dict[str, Any] = {"num_scheduler_steps": 1, "num_lookahead_slots": 0}


def swapping_episode(seed: int) -> Episode[v0.Step]:
    """As above, where victims are swapped out and their blocks are soon used by others."""
    memory = {"block_size": 4, "num_blocks": 10, "num_cpu_blocks": 40, "prefix_caching": False}
    mode = v0_config.PreemptionMode.SWAP
    return vllm_v0_episode(seed, siblings=1, preemption_mode=mode, **memory, **_ONE_STEP)


def forking_episode(seed: int) -> Episode[v0.Step]:
    """As above, where requests have several sequences."""
    return vllm_v0_episode(seed, **_ONE_STEP)
