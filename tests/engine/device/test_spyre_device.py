"""The simulated device: legal batches give each request the tokens that it gets alone."""

import random
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from engine.device.inputs import DecodeInput, Device, PrefillInput
from engine.device.spyre import SpyreDevice
from spec.config import Config
from tests.engine.device.batches import config
from tests.engine.device.serving import Served, Server
from tests.engine.device.slots import SlotBySlotDevice


def random_steps(
    seeds: range, device: Callable[[Config], Device]
) -> Iterator[tuple[Config, Served]]:
    for seed in seeds:
        draw = random.Random(seed)
        size = draw.choice([1, 2, 4])
        shape = config(block_size=size, chunk_size=size * draw.randint(1, 3), num_blocks=300)
        for served in Server(shape, device(shape), draw).steps(12):
            yield shape, served


def shapes_of(shape: Config, given: PrefillInput | DecodeInput) -> Counter[str]:
    is_padded = bool(given.left_padding.any())
    if isinstance(given, DecodeInput):
        return Counter({"decode": 1, "padded row": is_padded, "rows": len(given.tkv)})
    read_only = int((given.slot_mapping < shape.block_size).sum())
    is_padding = int(given.left_padding[0] > given.chunk[0] * shape.chunk_size)
    is_inner = not given.is_last[0]
    return Counter(
        {
            "prefill": 1,
            "padded chunk": is_padding,
            "inner chunk": is_inner,
            "inner chunk with cached blocks": is_inner and not is_padding and read_only > 0,
        }
    )


@pytest.mark.parametrize("device", [SpyreDevice, SlotBySlotDevice])
def test_every_request_gets_the_tokens_that_it_gets_alone(
    device: Callable[[Config], Device],
) -> None:
    """Random prompts, shared prefixes, batches and recycled blocks; nothing is refused.

    Both for sums of blocks and for slots one by one, written with other means.
    """
    met: Counter[str] = Counter()

    for shape, served in random_steps(range(40), device):
        assert served.tokens == served.alone
        met.update(shapes_of(shape, served.given))

    assert len(met) == 7
    assert min(met.values()) > 30, met
