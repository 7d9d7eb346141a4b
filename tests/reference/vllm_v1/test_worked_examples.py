"""The numbers that the text on vLLM V1 works out, and those that it gets wrong.

Every rule is judged in every step.
"""

from typing import Any

import pytest

from reference.vllm_v1.machine import VllmV1Machine
from spec.core.blocks import block_bytes, missing_blocks
from spec.core.errors import WorkloadError
from spec.vllm_v1.config import VllmV1Config, profiled_blocks
from spec.vllm_v1.records import Step
from tests.reference import scenes
from tests.reference.scenes import arrived, keeping_the_rules, of_parts
from tests.reference.vllm_v1.scenes import accepting, ids, machine
from tests.requests import request

LARGE: dict[str, Any] = {
    "block_size": 16,
    "max_num_batched_tokens": 8_192,
    "max_model_len": 32_768,
    "max_num_seqs": 2_000,
    "num_blocks": 10_000,
}


def steps_from(scene: VllmV1Machine, *given: Any) -> list[Step]:
    return keeping_the_rules(scene, scenes.steps_from(scene, *given))


FIVE = [request(name, 2_000) for name in "ABCDE"]


def test_four_prompts_of_2000_tokens_fill_a_budget_of_8192_and_the_fifth_is_cut() -> None:
    scene = machine(*FIVE, **LARGE)

    first, second = steps_from(scene, arrived(scene), 2)

    assert first.scheduled == dict.fromkeys("ABCD", 2_000) | {"E": 192}
    assert second.scheduled == dict.fromkeys("ABCD", 1) | {"E": 1_808}


def test_four_prompts_of_2000_tokens_without_chunking_are_all_that_fits() -> None:
    scene = machine(*FIVE, **LARGE, chunked_prefill=False)

    (step,) = steps_from(scene, arrived(scene), 1)

    assert step.scheduled == dict.fromkeys("ABCD", 2_000)
    assert (step.refusal, step.budget_left) == ("V1-CHK-2", 192)
    assert len(step.planned.pool.references) == 500  # blocks, as the text counts them


# Cached tokens of nine prompts of 2,000, as in the text; all are multiples of a block of 100.
CACHED = dict(
    zip("ABCDEFGHI", (1_200, 1_500, 1_800, 1_900, 0, 500, 1_000, 800, 1_700), strict=True)
)


def test_only_new_tokens_count_so_nine_prompts_fit_instead_of_four() -> None:
    seeds = [
        of_parts(f"{name} seed", (name, count), max_tokens=1)
        for name, count in CACHED.items()
        if count
    ]
    prompts = [
        of_parts(name, (name, count), (f"{name} rest", 2_000 - count))
        for name, count in CACHED.items()
    ]
    scene = machine(*seeds, *prompts, **LARGE | {"block_size": 100}, prefix_caching=True)
    state = arrived(scene, *(seed.id for seed in seeds))
    for _ in range(2):  # 10,400 tokens
        state = scene.step(state).after
    assert state.is_idle

    (step,) = steps_from(scene, arrived(scene, *CACHED, after=state), 1)
    uncached = machine(*prompts, **LARGE | {"block_size": 100}, chunked_prefill=False)

    assert step.scheduled == {name: 2_000 - cached for name, cached in CACHED.items()}
    assert sum(step.scheduled.values()) == 7_600
    assert step.budget_left == 592
    assert uncached.step(arrived(uncached)).scheduled == dict.fromkeys("ABCD", 2_000)


def test_prompt_of_10000_tokens_comes_in_chunks_of_the_threshold_and_decodes_run_beside_it() -> (
    None
):
    """The text's last chunk of 1,904 is one of 1,808."""
    requests = request("decodes", 16, 7), request("A", 10_000)
    scene = machine(*requests, **LARGE, long_prefill_token_threshold=2_048)
    state = scene.step(arrived(scene, "decodes")).after

    steps = steps_from(scene, arrived(scene, "A", after=state), 6)

    assert [step.scheduled["A"] for step in steps] == [2_048, 2_048, 2_048, 2_048, 1_808, 1]
    assert {step.scheduled["decodes"] for step in steps} == {1}
    assert ["A" in step.outputs for step in steps] == [False] * 4 + [True, True]


def test_prompt_beyond_the_budget_is_refused_without_chunked_prefill() -> None:
    with pytest.raises(WorkloadError, match="max_num_batched_tokens"):
        machine(request("A", 10_000), **LARGE, chunked_prefill=False)


def test_decoding_requests_count_one_token_each_and_41_prompts_join_them() -> None:
    """The text says 40 of the 46; the 41st is cut to what is left of the budget."""
    long = [request(f"long {index}", 2_000, 200) for index in range(4)]
    short = [request(f"short {index}", 200) for index in range(46)]
    scene = machine(*long, *short, **LARGE)
    state = arrived(scene, *(request.id for request in long))
    for _ in range(101):  # the prompts, then 100 tokens each
        state = scene.step(state).after
    assert len(state.pool.references) == 4 * 132  # the text: 131 for 2,100 tokens, 2,096 slots

    (step,) = steps_from(scene, arrived(scene, *(request.id for request in short), after=state), 1)

    assert [step.scheduled[request.id] for request in long] == [1, 1, 1, 1]
    assert [step.scheduled.get(request.id) for request in short] == [200] * 40 + [188] + [None] * 5
    assert (step.budget_left, step.preempted) == (0, ())
    assert len(step.after.pool.free) > 8_000


@pytest.mark.parametrize(
    ("requests", "blocks", "budget", "admitted"),
    [
        pytest.param(50, 500, 10_000, 38, id="a twentieth, at once"),  # 13 blocks each
        pytest.param(1_000, 10_000, 8_192, 738, id="the text's", marks=pytest.mark.thorough),
    ],
)
def test_memory_not_the_budget_makes_1000_decoding_requests_give_way(
    requests: int, blocks: int, budget: int, admitted: int
) -> None:
    """1,000 requests of 250 tokens need 16,000 blocks, 10,000 exist."""
    asked = [request(f"{index}", 200, 50) for index in range(requests)]
    sizes = {"num_blocks": blocks, "max_num_batched_tokens": budget}
    scene = machine(*asked, **LARGE | sizes)

    steps = keeping_the_rules(scene, scenes.steps_to_the_end(scene, arrived(scene)))

    preempting = [step for step in steps if step.preempted]
    before = steps[: steps.index(preempting[0])]
    assert sum(len(step.admitted) for step in before) == admitted
    assert preempting[0].preempted[0] == str(admitted - 1)  # the last admitted
    assert all(step.budget_left > 0.85 * budget for step in preempting)
    assert len(steps[-1].after.pool.free) == blocks


def test_1000_requests_of_250_tokens_need_16000_blocks_not_15625() -> None:
    """Each has a last block of its own, so that 375 must go, not about 300."""
    each = missing_blocks(250, 0, 16)

    assert 1_000 * each == 16_000
    assert 1_000 - 10_000 // each == 375


def test_rollback_of_two_rejected_drafts_out_of_five() -> None:
    """Drafts A to E, of which three are accepted, and a token of the model's own."""
    scene = machine(request("0", 10, 20), num_speculative_tokens=5)
    first, second, third = scenes.steps_from(scene, arrived(scene), 3, accepting(3))

    assert len(first.outputs["0"]) == 1
    assert first.drafts == {}
    assert (second.scheduled, second.drafts) == ({"0": 6}, {"0": 5})
    assert second.accepted == {"0": 3}
    assert len(second.outputs["0"]) == 4
    (before,), (after,) = first.after.running, second.after.running
    assert after.computed == before.computed + 6 - 2
    assert after.computed == after.tokens - 1
    assert third.scheduled == {"0": 6}


def test_default_budget_is_the_model_length_but_at_least_2048() -> None:
    assert VllmV1Config(max_model_len=4_096).token_budget == 4_096
    assert VllmV1Config(max_model_len=512).token_budget == 2_048


def test_pool_size_from_a_memory_profile() -> None:
    """Llama 70B in halves of 16 bits: 80 layers, 8 heads of 128 for keys and values."""
    per_block = block_bytes(layers=80, heads=8, head_dim=128, block_size=16, element_bytes=2)

    assert per_block == 5_242_880
    assert profiled_blocks(free_bytes=200 * 10**9, bytes_per_block=per_block) == 34_332


def test_activations_of_a_token_take_1_3_mb_and_those_of_16384_tokens_21_gb() -> None:
    hidden_dim, layers, element_bytes = 8_192, 80, 2

    per_token = hidden_dim * layers * element_bytes

    assert per_token == 1_310_720
    assert 16_384 * per_token == 21_474_836_480


def test_victims_go_from_the_back_until_the_first_fits_and_return_in_front() -> None:
    """A, B, C and D fill the pool; A's next token needs a block, so D gives way."""
    scene = machine(*(request(name, 4, 6) for name in "ABCD"), num_blocks=4)

    first, second, third = steps_from(scene, arrived(scene), 3)

    assert ids(first.after) == {"running": ["A", "B", "C", "D"]}
    # A takes D's block, B takes C's; C and D are where they were in the order of arrival.
    assert second.preempted == ("D", "C")
    assert second.scheduled == {"A": 1, "B": 1}
    assert ids(second.after) == {"waiting": ["C", "D"], "running": ["A", "B"]}
    assert second.refusal == "V1-PRE-4"
    assert [
        (request.computed, request.generated, request.blocks) for request in second.after.waiting
    ] == [
        (0, 1, ()),
        (0, 1, ()),
    ]
    assert third.admitted == ()
    assert third.refusal == "V1-KV-1"
