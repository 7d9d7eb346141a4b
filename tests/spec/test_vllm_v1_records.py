"""The kinds of vLLM V1's steps: prefill, decode, idle."""

import re
from typing import Any

import pytest
from attrs import evolve

from reference.core.block_pool import empty_pool
from spec.core.errors import ConfigError, WorkloadError
from spec.core.records import DECODE, IDLE, PREFILL
from spec.vllm_v1.config import Connector, VllmV1Config
from spec.vllm_v1.records import Sequence, State, context_of
from spec.vllm_v1.requests import refuse_unservable
from tests.reference.scenes import arrived
from tests.reference.vllm_v1.scenes import accepting, machine
from tests.requests import request


@pytest.mark.parametrize(
    ("generated", "computed", "decodes"),
    [
        pytest.param(0, 0, False, id="nothing is computed"),
        pytest.param(0, 2, False, id="the last token of its prompt is left"),
        pytest.param(1, 3, True, id="its first token is left"),
        pytest.param(3, 5, True, id="its newest token is left"),
        pytest.param(1, 4, False, id="all is computed"),
        pytest.param(3, 4, False, id="two tokens are left"),
        pytest.param(1, 0, False, id="it was preempted"),
    ],
)
def test_a_request_decodes_if_only_its_newest_token_is_left(
    generated: int, computed: int, decodes: bool
) -> None:
    row = Sequence("0", prompt_len=3, generated=generated, computed=computed)

    assert row.decodes is decodes


def test_a_step_decodes_if_all_that_it_computes_are_newest_tokens() -> None:
    scene = machine(request("0", 2, 8), request("1", 5, 2), max_num_batched_tokens=4)
    state, kinds = scene.initial(), []
    for newcomers in ("", "0", "", "1", "", ""):
        for request_id in newcomers:
            state = scene.arrive(state, request_id)
        step = scene.step(state)
        kinds.append(step.kind)
        state = step.after

    assert kinds == [IDLE, PREFILL, DECODE, PREFILL, PREFILL, DECODE]


def test_a_step_decodes_beside_a_prompt_that_it_has_no_tokens_for() -> None:
    scene = machine(
        request("0", 2, 8), request("1", 5, 2), max_num_batched_tokens=3, num_speculative_tokens=2
    )
    state = scene.step(arrived(scene)).after

    step = scene.step(state, accepting(0))

    assert [row.id for row in step.planned.running] == ["0", "1"]
    assert step.scheduled == {"0": 3}
    assert step.kind == DECODE


def test_a_scheduler_is_not_idle_while_a_load_of_one_that_left_is_under_way() -> None:
    scene = machine(request("0", 4, 2), external={"0": 4}, connector=Connector.ASYNC)
    loading = scene.step(arrived(scene)).after

    left = scene.abort(loading, "0")

    assert not left.present
    assert not left.is_idle
    assert scene.end_load(left, "0").is_idle


def test_those_that_may_hold_blocks_are_named_before_those_whose_load_goes_on_unasked() -> None:
    passed, running, gone = (Sequence(name, prompt_len=3) for name in "prg")
    waiting = Sequence("w", prompt_len=3)
    state = State(
        empty_pool([]),
        waiting=(waiting,),
        skipped=(passed,),
        running=(running,),
        draining=(gone,),
    )

    assert state.admitted == (passed, running, gone)


def test_what_a_connector_brings_is_known_of_those_for_which_it_brings_anything() -> None:
    requests = (request("0", 4, external=2), request("1", 4))

    assert context_of(VllmV1Config(connector=Connector.SYNC), requests).external == {"0": 2}


@pytest.mark.parametrize(
    ("drafts", "right", "is_refused"),
    [(0, None, False), (0, "10", True), (2, None, False), (2, "10", False)],
)
def test_what_a_drafter_foresees_is_refused_only_where_nothing_drafts(
    drafts: int, right: str | None, *, is_refused: bool
) -> None:
    try:
        asked = request("0", 4, right_drafts=right)
        refuse_unservable(asked, VllmV1Config(num_speculative_tokens=drafts))
        field = None
    except WorkloadError as error:
        field = error.field

    assert field == ("right_drafts" if is_refused else None)


@pytest.mark.parametrize(
    ("length", "keys", "allowed"),
    [
        (9, {}, "at most max_model_len (8)"),
        (8, {"max_tokens": 2}, "at most a result of a model that pools (1)"),
        (8, {"lora": 1}, "0 under policy vllm-v1"),
        (8, {"grammar": True}, "no such key where pooling is True"),
    ],
)
def test_a_model_that_pools_serves_prompts_of_its_length_and_nothing_else_more(
    length: int, keys: dict[str, Any], allowed: str
) -> None:
    config = VllmV1Config(max_model_len=8, block_size=4, pooling=True)
    refuse_unservable(request("0", 8, 1), config)

    with pytest.raises(WorkloadError, match=re.escape(allowed)):
        refuse_unservable(evolve(request("0", length, 1), **keys), config)


@pytest.mark.parametrize(
    ("keys", "key", "allowed"),
    [
        ({"prefix_caching": True}, "prefix_caching", "false beside drafter_reads_ahead"),
        ({"kv_groups": "sliding 6", "num_speculative_tokens": 0}, "kv_groups", "none"),
        ({"release": "0.11.2"}, "release", "0.33.0, 0.28.0 beside drafter_reads_ahead"),
        ({"num_speculative_tokens": 0}, "drafter_reads_ahead", "false where there are no drafts"),
    ],
)
def test_a_drafter_that_reads_ahead_is_refused_beside_what_is_not_modelled(
    keys: dict[str, Any], key: str, allowed: str
) -> None:
    modelled = {"num_speculative_tokens": 1, "prefix_caching": False, "drafter_reads_ahead": True}

    with pytest.raises(ConfigError, match=allowed) as raised:
        VllmV1Config(**{**modelled, **keys})

    assert raised.value.field == key
