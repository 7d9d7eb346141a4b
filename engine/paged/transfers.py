"""What transfers of blocks are refused for.

Source: vllm-v0, "Swapping Functions" and "Forking Sequences".
"""

import numpy as np

from engine.core.faults import Constraint, check_form, refuse_where
from engine.core.tensors import Flags, Tensor
from engine.paged.inputs import PagedShape, Transfers

_PAIR, _SIDES = ("pair",), ("pair", "side")


def check_transfers(shape: PagedShape, given: Transfers, was_swapped: Flags) -> None:
    """`was_swapped` [CPU blocks, by number]: the blocks that were swapped out to before.

    Raises:
        ConstraintError: the first constraint that is broken.
    """
    names = ("swaps_out", "swaps_in", "copies")
    check_form(given, {name: (getattr(given, name).size // 2, 2) for name in names})
    gpu, cpu = shape.end_block, shape.end_cpu_block
    _check_blocks(shape, given.swaps_out, gpu, cpu)
    _check_blocks(shape, given.swaps_in, cpu, gpu)
    _check_blocks(shape, given.copies, gpu, gpu)
    for pairs in (given.swaps_out, given.swaps_in, given.copies):
        _check_targets(pairs)
    _check_not_read(given.copies)
    _check_order(given)
    sources, targets = given.swaps_in.T
    unknown = ~was_swapped[sources]
    refuse_where(unknown, Constraint.SWAP_SOURCE, _PAIR, source=sources, target=targets)


def _check_blocks(shape: PagedShape, pairs: Tensor, *ends: int) -> None:
    """Sources and targets lie in pools that end before these numbers."""
    beyond = (pairs < shape.first_block) | (pairs >= ends)
    last = np.array(ends) - 1
    refuse_where(beyond, Constraint.TRANSFER_BLOCK, _SIDES, block=pairs, last_block=last)


def _check_targets(pairs: Tensor) -> None:
    """No two blocks are copied to one."""
    sources, targets = pairs.T
    source_of = np.zeros(targets.max(initial=0) + 1, np.int64)
    source_of[targets] = sources
    others, numbers = source_of[targets], {"source": sources, "target": targets}
    refuse_where(others != sources, Constraint.TRANSFER_TARGET, _PAIR, **numbers, other=others)


def _check_not_read(copies: Tensor) -> None:
    """On one device, no block is copied over while it is copied."""
    sources, targets = copies.T
    is_read = np.isin(targets, sources)
    refuse_where(is_read, Constraint.TRANSFER_READ, _PAIR, source=sources, target=targets)


def _check_order(given: Transfers) -> None:
    """What swaps do is the same in either order."""
    back = given.swaps_in[:, ::-1]  # of each pair the GPU's block first, as in those that go out
    sides = [np.isin(given.swaps_out[:, side], back[:, side]) for side in (0, 1)]
    refuse_where(np.array(sides).T, Constraint.SWAP_ORDER, _SIDES, block=given.swaps_out)
