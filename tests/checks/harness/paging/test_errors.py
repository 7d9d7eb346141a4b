"""Errors in the tensors are noticed: refused where hardware would go on, or the tokens change."""

from collections import Counter
from functools import cache
from random import Random
from typing import Any

import pytest
from attrs import define, evolve

from checks.harness.paging import PagedWatch, PagedWork
from engine.core.faults import ConstraintError
from engine.core.tensors import Tensor
from engine.paged.device import PagedDevice
from engine.paged.inputs import PagedInput, PagedShape
from tests.checks.harness.paging.episodes import Episode, nano_vllm_episode, vllm_v1_episode
from tests.checks.harness.paging.errors import NOTHING, ROW_ERRORS, TENSOR_ERRORS
from tests.engine.device.errors import TOKENS, Planted, Sign
from tests.engine.device.slots import PagedSlotBySlotDevice

FAST, MANY = range(10), range(10, 110)


@define
class Misleading:
    """Plants an error once, in the first step from the `skip`-th on to which it applies."""

    error: Any
    shape: PagedShape
    draw: Random
    skip: int
    is_done: bool = False

    def misled(self, right: Any) -> Any:
        self.skip -= 1
        wrong = None if self.is_done or self.skip >= 0 else self.error(self.shape, right, self.draw)
        if wrong is None:
            return right
        self.is_done = True
        return wrong


@define
class MisledDevice:
    """Another device, which is given wrong tensors once."""

    device: PagedDevice
    misleading: Misleading

    def compute(self, given: PagedInput) -> Tensor:
        return self.device.compute(self.misleading.misled(given))

    def load(self, blocks: Tensor, other: PagedDevice, theirs: Tensor) -> None:
        self.device.load(blocks, other, theirs)


def misled_rows(watch: PagedWatch[Any], misleading: Misleading) -> Any:
    """The work of a step, with wrong rows once."""
    work_of = watch.work_of

    def wrong_work(step: Any) -> PagedWork:
        work = work_of(step)
        rows = misleading.misled([*work.rows.values()]) if work.rows else []
        return evolve(work, rows=dict(zip(work.rows, rows, strict=True)))

    return wrong_work


@cache
def episode(kind: Any, seed: int) -> tuple[Episode[Any], list[Any]]:
    """An episode, and its steps, which are the same whatever the device makes of them."""
    made = kind(seed)
    return made, list(made.steps)


def how_noticed(kind: Any, device: Any, error: Any, in_rows: bool, seed: int) -> Sign:
    """What the first sign of the error was: a constraint or other tokens."""
    made, steps = episode(kind, seed)
    shape = made.watch.shape
    watch = PagedWatch(shape, made.watch.requests, made.watch.work_of)
    draw = Random(seed)
    misleading = Misleading(error, shape, draw, draw.randrange(20))
    watch.device = device(shape)
    if in_rows:
        watch.work_of = misled_rows(watch, misleading)
    else:
        watch.device = MisledDevice(watch.device, misleading)  # type: ignore[assignment]
    try:
        for step in steps:
            watch.observe(step)
            if watch.wrong:
                return TOKENS
    except ConstraintError as refused:
        return refused.constraint
    return NOTHING if misleading.is_done else "not planted"


def all_ways(kind: Any, device: Any, error: Any, in_rows: bool, seeds: range) -> Counter[Sign]:
    ways = Counter(how_noticed(kind, device, error, in_rows, seed) for seed in seeds)
    missed = ways.pop("not planted", 0)
    assert missed <= len(seeds) // 5, "an error that is seldom planted shows little"
    return ways


ERRORS = [
    *(pytest.param(one, False, id=name) for name, one in TENSOR_ERRORS.items()),
    *(pytest.param(one, True, id=name) for name, one in ROW_ERRORS.items()),
]


@pytest.mark.parametrize("kind", [nano_vllm_episode, vllm_v1_episode])
@pytest.mark.parametrize(("planted", "in_rows"), ERRORS)
def test_error_is_noticed(kind: Any, planted: Planted, in_rows: bool) -> None:
    """Whenever it is planted in a random step of a random run, in one of the ways listed."""
    assert set(all_ways(kind, PagedDevice, planted.error, in_rows, FAST)) <= planted.noticed


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [nano_vllm_episode, vllm_v1_episode])
@pytest.mark.parametrize(("planted", "in_rows"), ERRORS)
def test_error_is_noticed_in_hundreds_of_runs(kind: Any, planted: Planted, in_rows: bool) -> None:
    ways = all_ways(kind, PagedDevice, planted.error, in_rows, MANY)

    assert set(ways) <= planted.noticed
    assert ways[NOTHING] <= len(MANY) // 20


CHANGE_TOKENS = (
    *("slot off by one", "slot of another block", "position off by one", "context one too short"),
    *("other token", "stale block", "one block for two", "tables of two rows swapped"),
    "two rows with the same last block",
)


@pytest.mark.parametrize("name", CHANGE_TOKENS)
def test_error_would_change_the_tokens_if_nothing_were_refused(name: str) -> None:
    """Shown with slots one by one, where an error has the effect that it has on hardware."""
    in_rows = name in ROW_ERRORS
    error = (ROW_ERRORS if in_rows else TENSOR_ERRORS)[name].error

    ways = all_ways(nano_vllm_episode, PagedSlotBySlotDevice, error, in_rows, FAST)

    assert set(ways) == {TOKENS}


@pytest.mark.parametrize("seed", FAST)
def test_tokens_are_those_of_attention_slot_by_slot(seed: int) -> None:
    made, steps = episode(nano_vllm_episode, seed)
    watch = PagedWatch(made.watch.shape, made.watch.requests, made.watch.work_of)
    watch.device = PagedSlotBySlotDevice(watch.shape)  # type: ignore[assignment]

    for step in steps:
        watch.observe(step)

    assert not watch.wrong
