"""Cases for vLLM V1 and nano-vLLM: the same for the same seed, servable, and of all kinds."""

from collections.abc import Callable

import pytest
from checks.fuzz.cases import Case
from checks.fuzz.paged_cases import nano_vllm_case, vllm_v1_case

from reference.nano_vllm.machine import NanoVllmMachine
from reference.vllm_v1.machine import VllmV1Machine
from spec.core.errors import ConfigError
from spec.vllm_v1.config import Scheduling

EPISODES = range(300)
DRAWS: dict[str, Callable[..., Case]] = {"vllm-v1": vllm_v1_case, "nano-vllm": nano_vllm_case}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_seed_and_episode_give_the_same_case(draw: Callable[..., Case]) -> None:
    assert draw(3, 7) == draw(3, 7)
    assert draw(3, 7) != draw(3, 8)


def test_every_case_can_be_served() -> None:
    """The machines refuse a request that could never be served."""
    for episode in EPISODES:
        case = vllm_v1_case(1, episode)
        VllmV1Machine.of(case.config, case.requests)
        case = nano_vllm_case(1, episode)
        NanoVllmMachine.of(case.config, case.requests)


def test_cases_of_vllm_v1_are_of_all_kinds() -> None:
    cases = [vllm_v1_case(2, episode) for episode in EPISODES]
    configs = [case.config for case in cases]

    assert {config.scheduling for config in configs} == set(Scheduling)
    assert {config.chunked_prefill for config in configs} == {True, False}
    assert {config.num_speculative_tokens for config in configs} == {0, 1, 2, 3}
    assert any(0 < one.long_prefill_token_threshold < one.block_size for one in configs)
    assert any(one.max_num_batched_tokens % one.block_size == 1 for one in configs)
    assert any("1" in right for case in cases for right in case.right_drafts.values())
    assert all(case.right_drafts.keys() <= {one.id for one in case.requests} for case in cases)


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_requests_share_prompts_leave_and_end_early(draw: Callable[..., Case]) -> None:
    requests = [one for episode in EPISODES for one in draw(2, episode).requests]

    assert any(one.abort_at == one.arrival for one in requests)
    assert any(one.abort_at is not None and one.abort_at > one.arrival for one in requests)
    assert any(one.end < one.max_tokens for one in requests)
    assert {one.priority for one in requests} == {0, 1, 2}
    prompts = [one.prompt for one in requests]
    assert len(set(prompts)) < len(prompts)


def test_pinned_keys_are_not_drawn() -> None:
    pinned = {"block_size": 4, "chunked_prefill": False, "num_speculative_tokens": 0}

    for episode in EPISODES:
        config = vllm_v1_case(1, episode, pinned).config
        assert {name: getattr(config, name) for name in pinned} == pinned
        assert config.token_budget >= config.max_model_len


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ConfigError, match="keys with which something can be drawn"):
        nano_vllm_case(0, 0, {"block_size": 4}, can_do=lambda _config: False)
