"""Errors in the tensors are noticed: the device refuses the step, or the tokens change."""

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
from engine.paged.inputs import PagedInput, PagedShape, Transfers
from tests.checks.harness.paging.episodes import (
    Episode,
    forking_episode,
    nano_vllm_episode,
    swapping_episode,
    vllm_v0_episode,
    vllm_v1_episode,
)
from tests.checks.harness.paging.errors import (
    COPY_ERRORS,
    NOTHING,
    ROW_ERRORS,
    SWAP_ERRORS,
    TENSOR_ERRORS,
    WRITES,
)
from tests.engine.device.errors import READS, TOKENS, Planted, Sign
from tests.engine.device.slots import PagedSlotBySlotDevice

FAST, MANY = range(6), range(6, 106)


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
    """A device that is given wrong tensors once."""

    device: PagedDevice
    misleading: Misleading

    def compute(self, given: PagedInput) -> Tensor:
        return self.device.compute(self.misleading.misled(given))

    def load(self, blocks: Tensor, other: PagedDevice, theirs: Tensor) -> None:
        self.device.load(blocks, other, theirs)

    def transfer(self, given: Transfers) -> None:
        self.device.transfer(given)


def misled_work(watch: PagedWatch[Any], misleading: Misleading, part: str) -> Any:
    """The work of a step, wrong in its rows or transfers once."""
    device_work = watch.device_work

    def wrong_work(step: Any) -> PagedWork:
        work = device_work(step)
        if part == "transfers":
            return evolve(work, transfers=misleading.misled(work.transfers))
        rows = misleading.misled([*work.rows.values()]) if work.rows else []
        return evolve(work, rows=dict(zip(work.rows, rows, strict=True)))

    return wrong_work


@cache
def episode(kind: Any, seed: int) -> tuple[Episode[Any], list[Any]]:
    """An episode and its steps, which do not depend on the device."""
    made = kind(seed)
    return made, list(made.steps)


def paged_watch(made: Episode[Any], device: Any = PagedDevice) -> PagedWatch[Any]:
    """The watch of an episode on a new device."""
    right = made.watch
    watch = PagedWatch(right.shape, right.requests, right.device_work, right.read_outputs)
    watch.device = device(right.shape)
    return watch


def how_noticed(kind: Any, device: Any, error: Any, part: str, seed: int) -> Sign:
    """The first sign of the error: a constraint or other tokens."""
    made, steps = episode(kind, seed)
    watch = paged_watch(made, device)
    draw = Random(seed)
    misleading = Misleading(error, watch.shape, draw, draw.randrange(20))
    if part == "tensors":
        watch.device = MisledDevice(watch.device, misleading)  # type: ignore[assignment]
    else:
        watch.device_work = misled_work(watch, misleading, part)
    try:
        for step in steps:
            watch.observe(step)
            if watch.wrong:
                return TOKENS
    except ConstraintError as refused:
        return refused.constraint
    return NOTHING if misleading.is_done else "not planted"


def all_ways(kind: Any, device: Any, error: Any, part: str, seeds: range) -> Counter[Sign]:
    ways = Counter(how_noticed(kind, device, error, part, seed) for seed in seeds)
    missed = ways.pop("not planted", 0)
    assert missed <= len(seeds) // 4, "an error that is seldom planted shows little"
    return ways


OF_EACH_POLICY = (nano_vllm_episode, vllm_v0_episode, vllm_v1_episode)
ERRORS = [
    pytest.param(kind, error, part, id=f"{name}-{kind.__name__}")
    for part, errors, kinds in (
        ("tensors", TENSOR_ERRORS, OF_EACH_POLICY),
        ("rows", ROW_ERRORS, OF_EACH_POLICY),
        ("transfers", SWAP_ERRORS, (swapping_episode,)),
        ("transfers", COPY_ERRORS, (forking_episode,)),
    )
    for name, error in errors.items()
    for kind in kinds
]


def noticed_signs(planted: Planted, kind: Any) -> frozenset[Sign]:
    """All of them; where rows may share what they write, it may show later that they should not."""
    is_shared = kind is vllm_v0_episode and planted.noticed & {*WRITES}
    return planted.noticed | {*READS, *WRITES, TOKENS} if is_shared else planted.noticed


@pytest.mark.parametrize("seeds", [FAST, pytest.param(MANY, id="many", marks=pytest.mark.thorough)])
@pytest.mark.parametrize(("kind", "planted", "part"), ERRORS)
def test_error_is_noticed(kind: Any, planted: Planted, part: str, seeds: range) -> None:
    """An error in a random step of a random run is noticed in one of the listed ways."""
    ways = all_ways(kind, PagedDevice, planted.error, part, seeds)

    assert set(ways) <= noticed_signs(planted, kind)
    if seeds is MANY:
        assert ways[NOTHING] <= len(MANY) // (5 if part == "transfers" else 15)


CHANGE_TOKENS = {
    nano_vllm_episode: (
        *("slot off by one", "slot of another block", "position off by one", "other token"),
        *("context one too short", "stale block", "one block for two"),
        *("tables of two rows swapped", "two rows with the same last block"),
    ),
    swapping_episode: ("a block not swapped out", "a block not swapped in"),
    forking_episode: ("a shared block not copied", "blocks copied the wrong way"),
}
BY_ID = {error.id: error for error in ERRORS}


@pytest.mark.parametrize(
    ("kind", "planted", "part"),
    [BY_ID[f"{name}-{kind.__name__}"] for kind, names in CHANGE_TOKENS.items() for name in names],
)
def test_error_would_change_the_tokens_if_nothing_were_refused(
    kind: Any, planted: Planted, part: str
) -> None:
    """Shown with slots one by one, where an error has the effect that it has on hardware.

    It has none if a block that is not swapped has come back unchanged to where it was.
    """
    ways = all_ways(kind, PagedSlotBySlotDevice, planted.error, part, FAST)

    assert set(ways) - ({NOTHING} if kind is swapping_episode else set()) == {TOKENS}
    assert ways[TOKENS] > len(FAST) // 2


@pytest.mark.parametrize("kind", [nano_vllm_episode, swapping_episode, forking_episode])
@pytest.mark.parametrize("seed", FAST)
def test_tokens_are_those_of_attention_slot_by_slot(kind: Any, seed: int) -> None:
    made, steps = episode(kind, seed)
    watch = paged_watch(made, PagedSlotBySlotDevice)

    for step in steps:
        watch.observe(step)

    assert not watch.wrong
