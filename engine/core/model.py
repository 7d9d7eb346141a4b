"""The simulated model with numpy: what `spec.core.requests` says of one token, for many at once."""

import numpy as np
from numpy.typing import NDArray

from engine.spyre.device.inputs import Tensor
from spec.core.requests import LAST_SHIFT, MIXING_ROUNDS, POSITION_STEP, VOCABULARY

Words = NDArray[np.uint64]  # arithmetic on them wraps around, as the model's does

_STEP = np.uint64(POSITION_STEP)
_ROUNDS = [(np.uint64(shift), np.uint64(factor)) for shift, factor in MIXING_ROUNDS]
_LAST = np.uint64(LAST_SHIFT)


def cached_values(tokens: Tensor, positions: Tensor) -> Words:
    """`spec.core.requests.cached_value` of each token, neither ids nor positions negative."""
    words = tokens.astype(np.uint64) + (positions.astype(np.uint64) + np.uint64(1)) * _STEP
    for shift, factor in _ROUNDS:
        words ^= words >> shift
        words *= factor
    words ^= words >> _LAST
    return words


def sampled_tokens(attended: Words) -> Tensor:
    """`spec.core.requests.sampled_token` of each sum."""
    return (attended % np.uint64(VOCABULARY)).astype(np.int64)
