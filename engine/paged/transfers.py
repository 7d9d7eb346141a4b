"""Constraints on transfers of blocks: swaps between GPU and CPU, and copies.

Source: vllm-v0, "Swapping Functions" and "Forking Sequences".
"""

import numpy as np

from engine.core.faults import Constraint, check_form, refuse_where
from engine.core.tensors import Flags, Tensor
from engine.paged.inputs import PagedShape, Transfers

_PAIR, _SIDES = ("pair",), ("pair", "side")


def check_transfers(shape: PagedShape, inputs: Transfers, was_swapped: Flags) -> None:
    """Check the transfers of a step.

    `was_swapped` [CPU block ids]: whether a block was swapped out to this CPU block before.

    Raises:
        ConstraintError: for the first broken constraint.
    """
    names = ("swaps_out", "swaps_in", "copies")
    check_form(inputs, {name: (getattr(inputs, name).size // 2, 2) for name in names})
    gpu, cpu = shape.end_block, shape.end_cpu_block
    _check_blocks(shape, inputs.swaps_out, gpu, cpu)
    _check_blocks(shape, inputs.swaps_in, cpu, gpu)
    _check_blocks(shape, inputs.copies, gpu, gpu)
    for pairs in (inputs.swaps_out, inputs.swaps_in, inputs.copies):
        _check_targets(pairs)
    _check_not_read(inputs.copies)
    _check_order(inputs)
    sources, targets = inputs.swaps_in.T
    is_empty = ~was_swapped[sources]
    refuse_where(is_empty, Constraint.SWAP_SOURCE, _PAIR, source=sources, target=targets)


def _check_blocks(shape: PagedShape, pairs: Tensor, *ends: int) -> None:
    """Sources and targets lie in pools that end before the block ids `ends`."""
    beyond = (pairs < shape.first_block) | (pairs >= ends)
    last = np.array(ends) - 1
    refuse_where(beyond, Constraint.TRANSFER_BLOCK, _SIDES, block=pairs, last_block=last)


def _check_targets(pairs: Tensor) -> None:
    """No target has two sources."""
    sources, targets = pairs.T
    sources_by_target = np.zeros(targets.max(initial=0) + 1, np.int64)
    sources_by_target[targets] = sources
    others, numbers = sources_by_target[targets], {"source": sources, "target": targets}
    refuse_where(others != sources, Constraint.TRANSFER_TARGET, _PAIR, **numbers, other=others)


def _check_not_read(copies: Tensor) -> None:
    """No block of the GPU is source and target of copies."""
    sources, targets = copies.T
    is_read = np.isin(targets, sources)
    refuse_where(is_read, Constraint.TRANSFER_READ, _PAIR, source=sources, target=targets)


def _check_order(inputs: Transfers) -> None:
    """The result of the swaps does not depend on the order of swaps out and swaps in."""
    back = inputs.swaps_in[:, ::-1]  # the GPU's block first, as in swaps out
    sides = [np.isin(inputs.swaps_out[:, side], back[:, side]) for side in (0, 1)]
    refuse_where(np.array(sides).T, Constraint.SWAP_ORDER, _SIDES, block=inputs.swaps_out)
