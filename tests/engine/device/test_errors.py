"""Errors in the tensors are noticed: the device refuses the step, or the tokens change."""

import random
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import pytest
from attrs import define, fields

from engine.core.faults import Constraint, ConstraintError
from engine.core.tensors import Tensor
from engine.spyre.device import DecodeInput, Device, PrefillInput, SpyreDevice
from spec.spyre.config import SpyreConfig
from tests.engine.device.batches import config
from tests.engine.device.errors import (
    DECODE_ERRORS,
    PREFILL_ERRORS,
    READS,
    TOKENS,
    Error,
    Planted,
    Sign,
)
from tests.engine.device.serving import Server
from tests.engine.device.slots import SlotBySlotDevice

Given = TypeVar("Given", PrefillInput, DecodeInput)


def are_equal(given: Given, other: Given) -> bool:
    names = [each.name for each in fields(type(given))]
    return all(np.array_equal(getattr(given, name), getattr(other, name)) for name in names)


@define
class Misled:
    """A device that is given one wrong step: the first from the `skip`-th of its kind on."""

    device: Device
    config: SpyreConfig
    kind: type[PrefillInput] | type[DecodeInput]
    error: Error
    draw: random.Random
    skip: int
    is_misled: bool = False

    def prefill(self, given: PrefillInput) -> Tensor:
        return self.device.prefill(self._wrong(given))

    def decode(self, given: DecodeInput) -> Tensor:
        return self.device.decode(self._wrong(given))

    def _wrong(self, given: Given) -> Given:
        if self.is_misled or not isinstance(given, self.kind):
            return given
        self.skip -= 1
        wrong = self.error(self.config, given, self.draw) if self.skip < 0 else None
        if wrong is None or are_equal(wrong, given):
            return given
        self.is_misled = True
        return wrong  # type: ignore[no-any-return]


def how_noticed(
    device: Callable[[SpyreConfig], Device], kind: type, error: Error, seed: int
) -> Sign:
    """The first sign of the error: a constraint or other tokens."""
    draw = random.Random(seed)
    size = draw.choice([2, 4])
    shape = config(block_size=size, chunk_size=size * draw.randint(1, 3), num_blocks=200)
    misled = Misled(device(shape), shape, kind, error, random.Random(seed), draw.randrange(15))
    try:
        for served in Server(shape, misled, draw).steps(10):
            if served.tokens != served.alone:
                return TOKENS
    except ConstraintError as refused:
        return refused.constraint
    return "not noticed" if misled.is_misled else "not planted"


def all_ways(device: Callable[[SpyreConfig], Device], kind: type, error: Error) -> Counter[Sign]:
    ways = Counter(how_noticed(device, kind, error, seed) for seed in range(10))
    planted = ways.total() - ways.pop("not planted", 0)
    assert planted >= 5, "an error that is seldom planted shows little"
    return ways


def refusal_ways(server: type[Server]) -> Counter[Sign]:
    """The first sign of each error of a server that errs by itself."""

    def way(seed: int) -> Sign:
        shape = config(num_blocks=60)
        try:
            for served in server(shape, SpyreDevice(shape), random.Random(seed)).steps(16):
                if served.tokens != served.alone:
                    return TOKENS
        except ConstraintError as refused:
            return refused.constraint
        return "not noticed"

    return Counter(way(seed) for seed in range(60))


ERRORS = [
    *(
        pytest.param(DecodeInput, error, id=f"decode, {name}")
        for name, error in DECODE_ERRORS.items()
    ),
    *(pytest.param(PrefillInput, error, id=f"prefill, {n}") for n, error in PREFILL_ERRORS.items()),
]


@pytest.mark.parametrize(("kind", "planted"), ERRORS)
def test_error_is_noticed(kind: type, planted: Planted) -> None:
    """Whenever it is planted in a random step of a random run, in one of the ways listed."""
    ways = all_ways(SpyreDevice, kind, planted.error)

    assert set(ways) <= planted.noticed


CHANGE_TOKENS = (
    *("slot off by one", "slot of another block", "slots of two rows swapped"),
    *("position off by one", "mask one too short", "a position computed again"),
    *("padding mask off by one", "padding one block too long", "padding one block too short"),
    *("padding of two rows swapped", "tables of two rows swapped", "other token"),
    *("tokens of two rows swapped", "stale block", "one block for two", "a block of another row"),
)


@pytest.mark.parametrize("name", CHANGE_TOKENS)
def test_error_would_change_the_tokens_if_nothing_were_refused(name: str) -> None:
    """Shown with slots one by one, where an error has the effect that it has on hardware."""
    ways = all_ways(SlotBySlotDevice, DecodeInput, DECODE_ERRORS[name].error)

    assert set(ways) == {TOKENS}


class HandsOutHeldBlocks(Server):
    def _new_block(self) -> int:
        held = [block for row in self.rows for block in row.blocks]
        return self.draw.choice(held) if held and self.draw.random() < 0.3 else super()._new_block()


class KeepsOldContents(Server):
    """A cached block that is allocated again is still found by its old content."""

    def _new_block(self) -> int:
        contents = dict(self._contents)
        block = super()._new_block()
        self._contents = contents
        return block


@pytest.mark.parametrize("server", [HandsOutHeldBlocks, KeepsOldContents])
def test_block_with_two_owners_is_refused(server: type[Server]) -> None:
    """Only the owners know that a block is stale; the device sees what stands in it.

    In the runs where nothing is noticed, no request has met such a block.
    """
    ways = refusal_ways(server)
    unnoticed = ways.pop("not noticed", 0)

    assert set(ways) <= {*READS, Constraint.WRITE_SHARED, Constraint.OVERWRITE, TOKENS}
    assert set(READS) <= set(ways)
    assert unnoticed <= (40 if server is KeepsOldContents else 0)
