"""The simulated device: legal batches give each request the tokens that it gets alone."""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy

import numpy as np
import pytest
from attrs import fields

from engine.core.faults import Constraint
from engine.core.tensors import Tensor
from engine.spyre.device import DecodeInput, Device, PrefillInput, SpyreDevice
from spec.core.requests import attended_sum, sampled_token
from spec.spyre.config import SpyreConfig
from tests.engine.device.batches import Row, config, decode_input, prefill_input
from tests.engine.device.serving import Served, Server
from tests.engine.device.slots import SlotBySlotDevice
from tests.refusals import device_refuses


def alone(tokens: list[int]) -> int:
    return sampled_token(attended_sum(tokens))


def random_steps(
    seeds: range, device: Callable[[SpyreConfig], Device]
) -> Iterator[tuple[SpyreConfig, Served]]:
    for seed in seeds:
        draw = random.Random(seed)
        size = draw.choice([1, 2, 4])
        shape = config(block_size=size, chunk_size=size * draw.randint(1, 3), num_blocks=300)
        for served in Server(shape, device(shape), draw).steps(12):
            yield shape, served


def shapes_of(shape: SpyreConfig, given: PrefillInput | DecodeInput) -> Counter[str]:
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
    device: Callable[[SpyreConfig], Device],
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


@pytest.mark.thorough
def test_every_request_gets_the_tokens_that_it_gets_alone_in_thousands_of_runs() -> None:
    steps = 0

    for _, served in random_steps(range(1_000, 5_000), SpyreDevice):
        assert served.tokens == served.alone
        steps += 1

    assert steps > 100_000


def test_step_at_every_limit_is_done() -> None:
    """As many rows, as much volume, as long a row and as many blocks as there may be."""
    rows = [Row(3, [20, 21, 22, 23], [3]), Row(6, [10, 11, 12, 13, 14, 15, 16], [1, 2])]
    shape = config(max_num_seqs=2, max_batch_tkv_limit=16, max_model_len=7, num_blocks=3)
    device = SpyreDevice(shape)
    for row in rows:
        device.prefill(prefill_input(shape, row, 0))

    tokens = device.decode(decode_input(shape, rows)).tolist()

    assert tokens == [alone(row.tokens) for row in rows]


def prefilled(row: Row) -> Tensor:
    """What the first chunk of a row yields on a new device."""
    return SpyreDevice(config()).prefill(prefill_input(config(), row, 0))


def test_block_that_is_begun_again_has_lost_its_old_content() -> None:
    """Its second slot counts as never written, whatever wrote it before."""
    device = SpyreDevice(config())
    device.prefill(prefill_input(config(), Row.of([1, 2, 3], [1]), 0))
    device.prefill(prefill_input(config(), Row.of([4], [1]), 0))

    with device_refuses(Constraint.READ_UNWRITTEN, row=0, block=1, read=3, written=1):
        device.decode(decode_input(config(), [Row(3, [1, 2, 3, 9], [1])]))


def test_slots_after_one_that_is_written_again_are_lost() -> None:
    """A row that goes back inside a block computes what followed anew, as after a lost result."""
    device = SpyreDevice(config())
    device.prefill(prefill_input(config(), Row.of([1, 2], [1]), 0))
    for tokens in ([1, 2, 3], [1, 2, 3, 4], [1, 2, 3]):
        device.decode(decode_input(config(), [Row(2, tokens, [1])]))

    again = device.decode(decode_input(config(), [Row(2, [1, 2, 3, 5], [1])])).tolist()

    assert again == [alone([1, 2, 3, 5])]


def test_inner_chunk_yields_no_token() -> None:
    tokens = prefilled(Row.of(range(10), [1, 2, 3]))

    assert tokens.tolist() == []
    assert tokens.dtype == np.int64


def test_steps_do_not_change_what_they_are_given() -> None:
    """Nor what they gave before: kept tensors stay as they were."""
    device = SpyreDevice(config())
    given = prefill_input(config(), Row.of([1, 2, 3], [1]), 0)
    kept = deepcopy(given)

    first = device.prefill(given)
    before = first.tolist()
    device.decode(decode_input(config(), [Row(3, [1, 2, 3, 9], [1])]))

    assert first.tolist() == before
    for each in fields(PrefillInput):
        assert np.array_equal(getattr(given, each.name), getattr(kept, each.name))
