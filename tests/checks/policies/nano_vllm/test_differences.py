"""Known differences of nano-vLLM's commits: each is recognised, and excuses nothing else."""

from typing import Any

import pytest
from attrs import evolve

from checks.harness.case import Case
from checks.harness.comparing import Strictness, differences
from checks.harness.difference import Divergence
from checks.harness.script import Script
from checks.harness.system import Failure
from checks.policies.nano_vllm.differences import KNOWN_DIFFERENCES
from checks.policies.nano_vllm.evidence import EVIDENCE
from reference.nano_vllm import transitions
from spec.core.requests import Prompt, Request
from spec.nano_vllm.config import NanoVllmConfig, Prefill, TokenGate
from spec.nano_vllm.records import Step

KNOWN = {row.id: row for row in KNOWN_DIFFERENCES}
SIZES: dict[str, Any] = {
    **{"block_size": 2, "num_blocks": 4, "max_num_seqs": 3, "max_model_len": 10},
    **{"max_num_batched_tokens": 4, "prefill": Prefill.FIRST_CHUNKED},
    **{"token_gate": TokenGate.NEW_TOKENS},
}


def script(*requests: Request, **config: Any) -> Script:
    """All steps of the requests under the choices of 77dd709."""
    played = Script(Case(NanoVllmConfig(**SIZES | config), requests))
    assert [*played]
    return played


def is_known(name: str, played: Script, index: int, found: Step | Failure) -> bool:
    """True if the difference explains what was found in this step."""
    failure = found if isinstance(found, Failure) else None
    step = None if isinstance(found, Failure) else found
    expected = played.steps[index]
    look = EVIDENCE.compared[Strictness.EXACT]
    divergence = Divergence(
        config=played.case.config,
        actions=tuple(played.actions),
        expected=tuple(played.steps),
        found=(*played.steps[:index], *([step] if step else [])),
        records=(),
        index=index,
        failure=failure,
        differing=differences(look, expected, step) if step else (),
    )
    return KNOWN[name].occurs(divergence)


def asks(name: str, prompt: str, max_tokens: int, arrival: int = 0) -> Request:
    """A request whose prompt has a token for each letter."""
    tokens = tuple(map(ord, prompt))
    return Request(id=name, prompt=Prompt.of_tokens(tokens), max_tokens=max_tokens, arrival=arrival)


def test_a_prompt_that_is_counted_as_if_it_found_nothing() -> None:
    played = script(asks("a", "ssx", 1), asks("b", "ssy", 1, 1))
    (index,) = (step.index for step in played.steps if step.happened("prefix_hit"))
    counted = evolve(played.steps[index], scheduled={"b": 3})
    ended = Failure("ValueError", "is not in deque", "scheduler.py:84 postprocess")

    assert is_known("NAN-1", played, index, counted)
    assert is_known("NAN-1", played, index, ended)
    assert not is_known("NAN-1", played, index, evolve(counted, scheduled={"b": 2}))
    assert not is_known("NAN-1", played, index - 1, ended)
    assert KNOWN["NAN-1"].due(played.case.config, (*played.actions,), (*played.steps,)) == index


def test_a_prompt_cached_as_a_whole_that_computes_its_last_token() -> None:
    played = script(asks("a", "ss", 1), asks("b", "ss", 1, 1))
    (index,) = (step.index for step in played.steps if step.happened("prefix_hit"))

    assert is_known("NAN-2", played, index, evolve(played.steps[index], scheduled={"b": 1}))
    assert not is_known("NAN-2", played, index, evolve(played.steps[index], scheduled={"b": 2}))


def test_a_preempted_sequence_that_gets_no_token() -> None:
    played = script(asks("a", "abc", 5), asks("b", "def", 5), num_blocks=4)
    returns = [
        step
        for step in played.steps
        if step.kind == "prefill" and step.outputs and step.batch[0].generated > 1
    ]
    step = returns[0]

    assert is_known("NAN-3", played, step.index, evolve(step, outputs={}))
    assert not is_known("NAN-3", played, step.index, evolve(step, outputs={}, scheduled={"b": 9}))
    assert not is_known("NAN-3", played, 0, evolve(played.steps[0], outputs={}))


def test_a_refused_sequence_that_waits_with_its_blocks() -> None:
    played = script(asks("a", "abc", 2), asks("b", "de", 2), num_blocks=6)
    first = played.steps[0]
    begun, _ = transitions.begin(played.ctx, first.after)
    turned = evolve(begun, pool=evolve(begun.pool, free=begun.pool.free[::-1]))

    assert first.refusal == "NANO-ADM-1"
    assert is_known("NAN-4", played, 0, evolve(first, after=begun))
    assert not is_known("NAN-4", played, 0, evolve(first, after=turned))
    assert not is_known("NAN-4", played, 0, evolve(first, after=begun, finished=("a",)))


@pytest.mark.parametrize("name", KNOWN)
def test_no_difference_is_known_of_another_commit(name: str) -> None:
    assert KNOWN[name].covers("nano-vllm", "nano-vLLM 77dd709") == (name != "NAN-1")
    assert not KNOWN[name].covers("nano-vllm", "nano-vLLM bb823b3")
