"""May a request join the decode batch? The last-chunk conditions on the arrays of the batch.

Source: spyre, "Last-chunk constraints"; the formulas are those of `spec/admission.py`.
"""

from engine.scheduler.core import Core
from engine.scheduler.tracked import Tracked
from engine.scheduler.volume import exact_volume_holds
from spec.admission import (
    Member,
    documented_volume_holds,
    model_length_holds,
    shipped_volume_holds,
)
from spec.config import Admission


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


def _documented_refusal(core: Core, request: Tracked) -> str | None:
    config, decoding = core.config, _decoding_members(core)
    candidate = Member(request.prefill_len, request.remaining)
    if not model_length_holds(decoding, candidate, config.max_model_len, config.block_size):
        return "SPY-LEN-2"
    limit = config.max_batch_tkv_limit
    holds = documented_volume_holds(decoding, candidate, limit, config.block_size)
    return None if holds else "SPY-VOL-2"


def _shipped_refusal(core: Core, request: Tracked) -> str | None:
    holds = shipped_volume_holds(
        _decoding_members(core),
        Member(request.prefill_len, request.remaining),
        core.config.max_batch_tkv_limit,
        core.config.block_size,
        core.last_tkv,
    )
    return None if holds else "SPY-VOL-3"


def _decoding_members(core: Core) -> list[Member]:
    """The batch as the formulas of the specification take it."""
    computed = core.decoding.computed
    remaining = (core.decoding.full_at - computed).tolist()
    return [Member(*pair) for pair in zip(computed.tolist(), remaining, strict=True)]
