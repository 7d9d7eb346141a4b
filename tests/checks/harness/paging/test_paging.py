"""The paged device agrees with nano-vLLM and vLLM V1, and shows where their rules do not hold."""

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from attrs import evolve

import spec
from checks.harness.paging import Row, WrongToken, paged_input
from checks.policies.nano_vllm.paging import nano_vllm_watch, nano_vllm_work
from checks.policies.vllm_v0.paging import vllm_v0_watch
from checks.policies.vllm_v1.paging import vllm_v1_watch, vllm_v1_work
from engine.core.faults import Constraint
from reference.nano_vllm.machine import NanoVllmMachine
from reference.nano_vllm.model_input import model_input
from reference.nano_vllm.step import schedule
from reference.vllm_v0 import decisions
from reference.vllm_v0.machine import VllmV0Machine
from reference.vllm_v1.machine import VllmV1Machine
from reference.vllm_v1.step import Environment
from spec.core.records import IDLE
from spec.core.requests import Prompt, Request
from spec.nano_vllm.config import HitCheck, NanoVllmConfig, NewBlock, repaired
from spec.nano_vllm.records import Step
from spec.vllm_v0 import records as vllm_v0_records
from spec.vllm_v0.config import VllmV0Config
from spec.vllm_v0.variants import Reading
from spec.vllm_v1.config import Connector, VllmV1Config
from tests.checks.harness.paging.episodes import (
    Episode,
    forking_episode,
    nano_vllm_episode,
    random_nano_vllm_config,
    random_requests,
    serve_in_turn,
    swapping_episode,
    vllm_v0_episode,
    vllm_v1_episode,
)
from tests.refusals import device_refuses

CHAPTERS = Path(spec.__file__).parent / "chapters"
SMALL: dict[str, Any] = {
    "block_size": 2,
    "max_num_batched_tokens": 10,
    "max_model_len": 10,
    "max_num_seqs": 3,
}


def asking(*prompts: str, max_tokens: int = 1) -> list[Request]:
    """Requests 0, 1, …: prompts of tokens that are named by letters."""
    return [
        Request(
            id=str(index),
            prompt=Prompt.of_tokens([ord(letter) for letter in text]),
            max_tokens=max_tokens,
        )
        for index, text in enumerate(prompts)
    ]


# --- every step, the same tokens ------------------------------------------------------------------


def counted_situations(
    episode: Callable[[int], Episode[Any]], seeds: Iterable[int]
) -> Counter[str]:
    return sum((episode(seed).served() for seed in seeds), Counter[str]())


@pytest.mark.parametrize(
    ("episode", "seeds", "least"),
    [
        (nano_vllm_episode, 40, {"preempt": 90, "prefix_hit": 300, "sampled": 2_500}),
        (
            vllm_v1_episode,
            50,
            dict.fromkeys(("preempt", "prefix_hit", "rollback", "loaded", "promote"), 80)
            | {"lose_load": 1, "sampled": 2_500},
        ),
        (
            vllm_v0_episode,
            20,
            {"preempt": 15, "swap_in": 3, "fork": 50, "copy": 20, "sampled": 800},
        ),
        (swapping_episode, 20, {"swap_out": 30, "swap_in": 30, "sampled": 800}),
        (
            forking_episode,
            20,
            {"preempt": 5, "swap_in": 5, "fork": 80, "copy": 30, "sampled": 800},
        ),
    ],
)
def test_device_does_every_step_with_the_tokens_of_each_request_alone(
    episode: Callable[[int], Episode[Any]], seeds: int, least: dict[str, int]
) -> None:
    met = counted_situations(episode, range(seeds))

    assert all(met[situation] > count for situation, count in least.items()), met


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("episode", "chapter", "tokens"),
    [(nano_vllm_episode, "nano_vllm.md", 150_000), (vllm_v1_episode, "vllm_v1.md", 140_000)],
)
def test_device_does_every_step_of_as_many_runs_as_the_chapters_say(
    episode: Callable[[int], Episode[Any]], chapter: str, tokens: int
) -> None:
    met = counted_situations(episode, range(1_000, 3_000))

    assert met["sampled"] > tokens
    text = " ".join((CHAPTERS / chapter).read_text(encoding="utf-8").split())
    assert "2,000 random workloads of twelve requests" in text
    assert f"over {tokens:,} tokens" in text


def test_tensors_of_a_step_are_those_that_nano_vllm_hands_to_its_runner() -> None:
    """Worked out from what a step did, and from the schedule before it: both ways the same."""
    dice = Random(1)
    machine = NanoVllmMachine.of(random_nano_vllm_config(dice), random_requests(dice))
    state, to_come, compared = machine.initial(), list(machine.ctx.requests), 0
    while to_come or not state.is_idle:
        state = machine.arrive(state, to_come.pop(0)) if to_come else state
        planned, step = schedule(machine.ctx, state), machine.step(state)
        state = step.after
        if step.kind == IDLE:
            continue
        given, wanted = tensors(machine, step), model_input(machine.ctx, planned)
        assert given.token_ids.tolist() == [*wanted.tokens]
        assert given.positions.tolist() == [*wanted.positions]
        assert given.slot_mapping.tolist() == [*wanted.slots]
        assert given.context_lens.tolist() == [*wanted.context_lens]
        assert given.block_tables.tolist() == [[*row] for row in wanted.block_tables]
        assert given.is_captured[0] == (not wanted.is_prefill)
        compared += 1
    assert compared > 30


def tensors(machine: NanoVllmMachine, step: Step) -> Any:
    work = nano_vllm_work(machine.ctx, step)
    return paged_input([*work.rows.values()], machine.ctx.config.block_size, work.is_captured)


# --- what does not hold shows on the device -------------------------------------------------------


@pytest.mark.parametrize("check", [HitCheck.TOKENS, HitCheck.NOTHING])
def test_false_hit_is_refused(check: HitCheck) -> None:
    """NANO-PFX-3: the second block of `ppaax` is found, and was computed behind `qq`."""
    config = NanoVllmConfig(**SMALL, num_blocks=3, hit_check=check)

    with device_refuses(Constraint.READ_CONTENT, row=0, column=1, block=1, position=2):
        serve_in_turn(config, asking("ppaa", "qqaa", "ppaax"))


def test_hit_that_carries_its_hash_is_served() -> None:
    serve_in_turn(repaired(**SMALL, num_blocks=3), asking("ppaa", "qqaa", "ppaax"))


def test_token_from_nothing_is_refused() -> None:
    """NANO-PFX-8: all of the second prompt is cached, and it should get a token all the same."""
    with device_refuses(Constraint.EMPTY_QUERY, row=0, computed=0, cached=4):
        serve_in_turn(NanoVllmConfig(**SMALL, num_blocks=4), asking("ssss", "ssss"))


def test_decode_batch_above_the_captured_sizes_is_refused() -> None:
    """NANO-DEC-4: 17 sequences, and the release has captured 1, 2, 4, 8 and 16."""
    sizes = SMALL | {"max_num_seqs": 20, "max_num_batched_tokens": 40}
    requests = asking(*"abcdefghijklmnopq", max_tokens=2)
    machine = NanoVllmMachine.of(NanoVllmConfig(**sizes), requests)
    watch, state = nano_vllm_watch(machine.ctx), machine.initial()
    for name in machine.ctx.requests:
        state = machine.arrive(state, name)
    prefill = machine.step(state)
    watch.observe(prefill)

    with device_refuses(Constraint.CAPTURED_SIZE, rows=17, tokens=17, largest=16):
        watch.observe(machine.step(prefill.after))


def test_block_that_is_handed_out_at_the_boundary_comes_too_late() -> None:
    """A prompt of whole blocks: its first answer has no slot, unlike in the figure."""
    config = NanoVllmConfig(**SMALL, num_blocks=4, new_block=NewBlock.AT_BOUNDARY)
    machine = NanoVllmMachine.of(config, asking("ab", max_tokens=3))
    prefill = machine.step(machine.arrive(machine.initial(), "0"))
    device = nano_vllm_watch(machine.ctx).device
    device.compute(tensors(machine, prefill))
    (row,) = schedule(machine.ctx, prefill.after).batch
    decode = paged_input([Row(np.array([1]), row.computed, row.blocks, samples=1, due=1)], 2)

    with device_refuses(Constraint.TABLE_LENGTH, row=0, blocks=1, context=3):
        device.compute(decode)


def test_blocks_of_a_lost_load_are_found_and_hold_nothing() -> None:
    """V1-KV-10: what the first request was to be brought is hashed, and it was never brought."""
    config = VllmV1Config(block_size=2, num_blocks=8, max_model_len=8, connector=Connector.SYNC)
    machine = VllmV1Machine.of(config, asking("ssssa", "ssssb"), {"0": 4})
    watch = vllm_v1_watch(machine.ctx)
    lost = machine.step(
        machine.arrive(machine.initial(), "0"),
        Environment(machine.ends_as_said, loses=lambda _id: True),
    )
    watch.observe(lost)
    found = machine.step(machine.arrive(machine.abort(lost.after, "0"), "1"))

    with device_refuses(Constraint.READ_UNWRITTEN, row=0, column=0, block=1, read=2, written=0):
        watch.observe(found)


def vllm_v0(prompts: Iterable[str], **choices: Any) -> VllmV0Machine:
    """Requests of which a step computes four tokens, in blocks of two."""
    sizes = SMALL | {"num_blocks": 12, "max_num_batched_tokens": 4}
    config = VllmV0Config(**sizes, chunked_prefill=True, **choices)
    return VllmV0Machine.of(config, asking(*prompts))


def vllm_v0_step(machine: VllmV0Machine, state: vllm_v0_records.State) -> vllm_v0_records.Step:
    """The next step, in which sequences end as their requests say."""
    ends = decisions.Environment(machine.sequence_ends, lambda *_: 0, lambda _: False)
    return machine.step(state, ends)


def test_block_that_counts_as_computed_when_it_is_allocated_is_read_unwritten() -> None:
    """vLLM 0.9.2: the first request leaves in its prompt, the second finds all of it cached."""
    prompts = ["aabbccdde"] * 2
    machine = vllm_v0(prompts, prefix_caching=True, reading=Reading.RELEASED)
    watch = vllm_v0_watch(machine.ctx)
    half = vllm_v0_step(machine, machine.arrive(machine.initial(), "0"))
    watch.observe(half)
    found = vllm_v0_step(machine, machine.arrive(machine.abort(half.after, "0"), "1"))

    with device_refuses(Constraint.READ_UNWRITTEN, row=0, column=2, block=3, read=2, written=0):
        watch.observe(found)


def test_first_chunk_of_a_prompt_samples_another_token_than_the_prompt() -> None:
    """The text has sampling enabled in the first chunk, whether it is the last one or not."""
    machine = vllm_v0(["aabbccdde"], reading=Reading.DOCUMENTED)
    watch = vllm_v0_watch(machine.ctx)

    watch.observe(vllm_v0_step(machine, machine.arrive(machine.initial(), "0")))

    (wrong,) = watch.wrong
    assert (wrong.id, wrong.index, wrong.by) == ("0", 0, "device")


# --- what the watch itself would notice -----------------------------------------------------------


def first_step(*prompts: str) -> tuple[VllmV1Machine, Any]:
    config = VllmV1Config(block_size=2, num_blocks=8, max_model_len=8)
    machine = VllmV1Machine.of(config, asking(*prompts, max_tokens=2))
    state = machine.initial()
    for name in machine.ctx.requests:
        state = machine.arrive(state, name)
    return machine, machine.step(state)


def test_watch_counts_what_it_did() -> None:
    machine, step = first_step("abc", "de")
    watch = vllm_v1_watch(machine.ctx)

    watch.observe(step)

    assert (watch.steps, watch.computed, watch.sampled, watch.wrong) == (1, 5, 2, [])


ALONE = [first_step("abc", "de")[0].ctx.requests[request_id].output_token(0) for request_id in "01"]
SECOND = first_step("abc")[0].ctx.requests["0"].output_token(1)


@pytest.mark.parametrize(
    ("prompts", "outputs", "wrong", "text"),
    [
        pytest.param(
            ("abc", "de"),
            {"0": (ALONE[0],), "1": (ALONE[1] + 1,)},
            WrongToken(0, "1", 0, "scheduler", ALONE[1] + 1, ALONE[1]),
            f"request 1, output 0: token {ALONE[1] + 1} by the scheduler, {ALONE[1]} served alone",
            id="another token by the scheduler",
        ),
        pytest.param(
            ("abc",),
            {"0": (ALONE[0], SECOND)},
            WrongToken(0, "0", 1, "device", None, SECOND),
            f"request 0, output 1: no token by the device, {SECOND} served alone",
            id="two tokens by the scheduler where one was computed",
        ),
        pytest.param(
            ("abc", "de"),
            {"0": (ALONE[0],)},
            WrongToken(0, "1", 0, "scheduler", None, ALONE[1]),
            f"request 1, output 0: no token by the scheduler, {ALONE[1]} served alone",
            id="no token by the scheduler",
        ),
    ],
)
def test_wrong_token_is_named(
    prompts: tuple[str, ...], outputs: dict[str, Any], wrong: WrongToken, text: str
) -> None:
    machine, step = first_step(*prompts)
    watch = vllm_v1_watch(machine.ctx)

    watch.observe(evolve(step, outputs=outputs))

    assert watch.wrong == [wrong]
    assert str(wrong) == f"step 0: {text}"


def test_rejected_drafts_are_other_tokens_than_the_request_has() -> None:
    config = VllmV1Config(block_size=4, num_blocks=8, max_model_len=16, num_speculative_tokens=3)
    machine = VllmV1Machine.of(config, asking("abc", max_tokens=9))
    first = machine.step(machine.arrive(machine.initial(), "0"))
    environment = Environment(machine.ends_as_said, accepted=lambda _row, _drafts: 1)
    row = vllm_v1_work(machine.ctx, machine.step(first.after, environment)).rows["0"]
    alone = [machine.ctx.requests["0"].output_token(index) for index in range(4)]

    assert row.samples == 4
    assert row.tokens[:2].tolist() == alone[:2]
    assert all(row.tokens[2:] != alone[2:])
