"""May a request join the decode batch? The last-chunk conditions on the arrays of the batch.

Source: spyre, "Last-chunk constraints"; the formulas are those of `spec/spyre/admission.py`.
"""

from engine.core.tensors import Tensor
from engine.spyre.scheduler.core import Core
from engine.spyre.scheduler.projection import Projection
from engine.spyre.scheduler.tracked import Shape, Tracked
from engine.spyre.scheduler.volume import exact_volume_holds, surely_exceed
from spec.spyre.admission import (
    Member,
    documented_volume_holds,
    model_length_holds,
)
from spec.spyre.config import Admission


def last_chunk_refusal(core: Core, request: Tracked) -> str | None:
    """The last-chunk constraint that keeps the request from the decode batch, or None."""
    if len(core.decoding) >= core.config.max_num_seqs:
        return "SPY-ADM-3"
    if core.config.pausing:
        return None
    match core.config.admission:
        case Admission.EXACT:
            return _exact_refusal(core, request)
        case Admission.DOCUMENTED:
            return _documented_refusal(core, request)
        case Admission.SHIPPED:
            return _shipped_refusal(core, request)


def _exact_refusal(core: Core, request: Tracked) -> str | None:
    holds = exact_volume_holds(
        core.decoding.computed,
        core.decoding.full_at - core.decoding.computed,
        (request.prefill_len, request.remaining),
        core.config.max_batch_tkv_limit,
        core.config.block_size,
    )
    return None if holds else "SPY-VOL-4"


def surely_refused(core: Core, shapes: Tensor) -> set[Shape]:
    """Of these shapes, [shapes, 2], those that the last-chunk constraints refuse for certain."""
    if core.config.admission is not Admission.EXACT or core.config.pausing:
        return set()
    remaining = core.decoding.full_at - core.decoding.computed
    limit = core.config.max_batch_tkv_limit
    exceeding = surely_exceed(core.decoding.computed, remaining, shapes, limit)
    return {(length, still) for length, still in shapes[exceeding].tolist()}


def _documented_refusal(core: Core, request: Tracked) -> str | None:
    config, decoding = core.config, core.decoding.as_members()
    candidate = Member(request.prefill_len, request.remaining)
    if not model_length_holds(decoding, candidate, config.max_model_len, config.block_size):
        return "SPY-LEN-2"
    limit = config.max_batch_tkv_limit
    holds = documented_volume_holds(decoding, candidate, limit, config.block_size)
    return None if holds else "SPY-VOL-2"


def _shipped_refusal(core: Core, request: Tracked) -> str | None:
    projection = core.projection
    if projection is None or not projection.is_of(core.decoding, core.last_tkv):
        config = core.config
        projection = core.projection = Projection(
            core.decoding, core.last_tkv, config.block_size, config.max_batch_tkv_limit
        )
    holds = projection.holds(Member(request.prefill_len, request.remaining))
    return None if holds else "SPY-VOL-3"
