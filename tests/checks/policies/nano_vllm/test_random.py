"""Random workloads longer than explored ones: every rule judges every step."""

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

import spec
from reference.nano_vllm.machine import NanoVllmMachine
from spec.core.requests import Prompt, Request
from spec.core.rule import Kind
from spec.nano_vllm.config import NanoVllmConfig, newest, repaired
from spec.nano_vllm.rules import applicable

CHAPTER = Path(spec.__file__).parent / "chapters" / "nano_vllm.md"
SIZES: dict[str, Any] = {
    "block_size": 4,
    "num_blocks": 14,
    "max_num_seqs": 6,
    "max_num_batched_tokens": 40,
    "max_model_len": 32,
}

# Claims of the text that no reading keeps, see the chapter.
NOT_KEPT = {"NANO-PRE-4", "NANO-PFX-6", "NANO-PFX-9"}


def _requests(dice: Random) -> list[Request]:
    """Twelve prompts that share beginnings with each other more often than not."""
    return [
        Request(
            id=str(index),
            prompt=Prompt.of_parts(
                [
                    (f"common {dice.randrange(2)}", dice.randrange(1, 14)),
                    (str(index), dice.randrange(4)),
                ]
            ),
            max_tokens=dice.randrange(1, 14),
        )
        for index in range(12)
    ]


def broken_rules(config: NanoVllmConfig, seed: int) -> tuple[set[str], Counter[str]]:
    """The rules that an episode breaks, and the counts of transitions and steps."""
    dice = Random(seed)
    machine = NanoVllmMachine.of(config, _requests(dice))
    ctx: Any = machine.ctx
    rules = [rule for rule in applicable(config) if rule.kind is not Kind.EVENTUALLY]
    state, to_come = machine.initial(), list(ctx.requests)
    broken: set[str] = set()
    met: Counter[str] = Counter()
    while to_come or not state.is_idle:
        before = state
        if to_come and dice.random() < 0.5:
            state = machine.arrive(state, to_come.pop(0))
        if state.present and dice.random() < 0.03:
            state = machine.abort(state, dice.choice(state.present).id)
        broken |= {rule.id for rule in rules if rule.found_between(ctx, before, state)}
        step = machine.step(state)
        broken |= {rule.id for rule in rules if rule.of_step and rule.found_of_step(ctx, step)}
        state = step.after
        broken |= {rule.id for rule in rules if rule.found_in_state(ctx, state)}
        met.update([step.kind, *(event.transition for event in step.events)])
    return broken, met


def episodes(config: NanoVllmConfig, count: int) -> tuple[set[str], Counter[str]]:
    """The rules that some episode breaks, and the counts of all."""
    ran = [broken_rules(config, seed) for seed in range(count)]
    met = sum((counts for _, counts in ran), Counter[str]())
    for kind in ("prefill", "decode", "prefix_hit", "allocate", "preempt", "finish"):
        assert met[kind] >= count, met
    return set().union(*(broken for broken, _ in ran)), met


def test_repaired_choices_keep_every_other_rule_in_random_workloads() -> None:
    broken, _ = episodes(repaired(**SIZES), 10)

    assert broken <= NOT_KEPT


def test_the_later_commit_keeps_every_other_rule_in_random_workloads() -> None:
    """Prompts are cut: the budget is less than most of them."""
    broken, _ = episodes(newest(**SIZES | {"max_num_batched_tokens": 7}), 10)

    assert broken <= {"NANO-DEC-1", "NANO-PRE-3", "NANO-PRE-4", "NANO-PFX-9"}


@pytest.mark.thorough
def test_random_workloads_break_what_the_chapter_says() -> None:
    broken, met = episodes(repaired(**SIZES), 100)
    released, _ = episodes(NanoVllmConfig(**SIZES), 100)

    assert broken == NOT_KEPT
    assert released >= {"NANO-DEC-1", "NANO-PFX-7", "NANO-PFX-8"}
    steps = met["prefill"] + met["decode"] + met["idle"]
    text = " ".join(CHAPTER.read_text(encoding="utf-8").split())
    assert f"100 random workloads of twelve requests, {steps:,} steps" in text
