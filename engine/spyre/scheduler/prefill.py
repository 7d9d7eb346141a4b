"""Who gets the next prefill step, and which chunk it is.

Source: spyre, "Priority rules", "Admission constraints", "Chunked Prefill" and "Prefix caching";
reservation, overtaking and the rule `shipped` are those of sendnn-inference 2.6.3.
"""

from collections.abc import Collection

from engine.spyre.scheduler.chunks import first_chunk, next_chunk
from engine.spyre.scheduler.core import Core
from engine.spyre.scheduler.joining import last_chunk_refusal, surely_refused
from engine.spyre.scheduler.keys import prefix_hit
from engine.spyre.scheduler.plan import PrefillPlan
from engine.spyre.scheduler.tracked import Shape, Tracked
from spec.core.blocks import block_count
from spec.core.records import PREFILL
from spec.spyre.config import Admission, Queue, SpyreConfig
from spec.spyre.records import Chunk
from spec.spyre.reservation import may_reserve, promised_blocks


def plan_prefill(core: Core) -> tuple[PrefillPlan | None, str | None]:
    """The next prefill step, or nothing; and the first rule that refused somebody."""
    chosen, refusal = _chosen(core)
    if chosen is None:
        return None, refusal
    if chosen is core.prefilling:
        chunk = next_chunk(core.config, chosen, chosen.hit_blocks, chosen.computed)
        needed = _blocks_needed(core.config, chunk, len(chosen.blocks))
        new_blocks = core.blocks.next_free(needed)
        return PrefillPlan(chosen, chunk, chosen.blocks, new_blocks, chosen.hit_blocks), None
    return _plan_admission(core, chosen, refusal), refusal


def _plan_admission(core: Core, chosen: Tracked, refusal: str | None) -> PrefillPlan:
    """The first chunk of a request, with the cached blocks that it takes and its reservation."""
    hits = prefix_hit(core, chosen).blocks
    chunk = first_chunk(core.config, chosen, len(hits))
    needed = _blocks_needed(core.config, chunk, len(hits))
    promised = 0
    if core.config.reservation:
        promised = promised_blocks(chosen.worst_case_blocks(core.config.block_size), held=len(hits))
    return PrefillPlan(
        chosen,
        chunk,
        hits,
        core.blocks.next_free(needed, without=set(hits)),
        len(hits),
        is_new=True,
        promised=promised,
        refusal=refusal,
    )


def _blocks_needed(config: SpyreConfig, chunk: Chunk, held: int) -> int:
    """New blocks that the chunk takes."""
    return int(block_count(chunk.end, config.block_size)) - held


# --- who is chosen ------------------------------------------------------------------------------


def _chosen(core: Core) -> tuple[Tracked | None, str | None]:
    """The request whose chunk is next, or nobody; and the first rule that refused somebody."""
    ongoing = core.prefilling
    if ongoing is None and not core.queue:
        return None, None
    refusal = _priority_refusal(core)
    if refusal is not None:
        return None, refusal
    if ongoing is not None:
        refusal = _ongoing_refusal(core, ongoing)
        return (ongoing, None) if refusal is None else (None, refusal)
    return _first_admissible(core)


def _first_admissible(core: Core) -> tuple[Tracked | None, str | None]:
    """The first in the queue whom no rule refuses; and the first rule that refused somebody.

    First come, first served looks at the head only. Overtaking goes on unless blocks are lacking;
    where all slots are taken it need not, for everybody is refused.
    """
    head = next(iter(core.queue))
    refusal = _admission_refusal(core, head)
    if refusal is None:
        return head, None
    if core.config.queue is Queue.FCFS or not _has_free_slot(core) or refusal == "SPY-RES-1":
        return None, refusal
    return _first_to_overtake(core), refusal


def _first_to_overtake(core: Core) -> Tracked | None:
    """The first in the queue whom no rule refuses, up to the first for whom blocks are lacking.

    Requests of the same shape are refused alike, so one of them answers for all wherever the cache
    has no say; there the cost follows from the number of shapes and not of requests.
    """
    refused = surely_refused(core, core.queue.shapes())
    for request in core.queue.leaving_out(lambda one: _is_refused_by_shape(core, one, refused)):
        refusal = _admission_refusal(core, request)
        if refusal is None:
            return request
        if refusal == "SPY-RES-1":
            return None
    return None


def _is_refused_by_shape(core: Core, request: Tracked, refused: Collection[Shape]) -> bool:
    """True if everybody of this shape is refused now, whatever is cached of the prompt.

    `refused`: shapes that are refused once they are judged by the last-chunk constraints.
    """
    if _is_judged_alike(core, request):
        if request.shape in refused:
            return True
    elif core.config.prefix_caching:
        return False
    return _admission_refusal(core, request) not in (None, "SPY-RES-1")


def _is_judged_alike(core: Core, request: Tracked) -> bool:
    """True if everybody of this shape is judged by the last-chunk constraints and these alone."""
    config, free = core.config, core.blocks.free.count
    if not _is_judged_once(config) and request.prefill_len > config.chunk_size:
        return False
    if config.reservation:
        worst_case = request.worst_case_blocks(config.block_size)
        return bool(may_reserve(worst_case, 0, free, core.reserved))
    return bool(block_count(request.prefill_len, config.block_size) <= free)


def _priority_refusal(core: Core) -> str | None:
    """Interleaving, and paused requests before new ones."""
    if core.config.interleave and core.last_kind == PREFILL and len(core.decoding):
        return "SPY-PRI-3"
    if len(core.paused) and (len(core.decoding) or core.prefilling is not None):
        return "SPY-PAU-4"
    return None


def _has_free_slot(core: Core) -> bool:
    """True if the batch takes one more request, when nobody is being prefilled."""
    return len(core.decoding) < core.config.max_num_seqs


# --- why somebody is not chosen -----------------------------------------------------------------


def _ongoing_refusal(core: Core, ongoing: Tracked) -> str | None:
    """The rule that keeps the ongoing prefill from its next chunk, or None."""
    config = core.config
    chunk = next_chunk(config, ongoing, ongoing.hit_blocks, ongoing.computed)
    if not config.reservation:
        needed = _blocks_needed(config, chunk, len(ongoing.blocks))
        if needed > core.blocks.free.count:
            return "BLK-9"
    if _is_judged_once(config) or not chunk.is_last:
        return None
    return last_chunk_refusal(core, ongoing)


def _admission_refusal(core: Core, request: Tracked) -> str | None:
    """The rule that keeps a waiting request from its first chunk, or None."""
    refusal = _block_refusal(core, request)
    if refusal is not None:
        return refusal
    if not _has_free_slot(core):
        return "SPY-ADM-1"
    if _is_judged_once(core.config) or _starts_with_last_chunk(core, request):
        return last_chunk_refusal(core, request)
    return None


def _is_judged_once(config: SpyreConfig) -> bool:
    """True if a prompt is judged before its first chunk only: its chunks run back to back."""
    return config.admission is Admission.SHIPPED and not config.interleave


def _starts_with_last_chunk(core: Core, request: Tracked) -> bool:
    """True if what is left of the prompt after the prefix hit fits one chunk."""
    if request.prefill_len <= core.config.chunk_size:
        return True  # whatever is cached
    return first_chunk(core.config, request, len(prefix_hit(core, request).blocks)).is_last


def _block_refusal(core: Core, request: Tracked) -> str | None:
    """Blocks: the worst case with reservation, else those of the first chunk."""
    free = core.blocks.free.count
    if core.config.reservation:
        worst_case = request.worst_case_blocks(core.config.block_size)
        if may_reserve(worst_case, 0, free, core.reserved):
            return None  # whatever is cached
        shared = prefix_hit(core, request).held
        return None if may_reserve(worst_case, shared, free, core.reserved) else "SPY-RES-1"
    hit = prefix_hit(core, request)
    found = len(hit.blocks)
    needed = _blocks_needed(core.config, first_chunk(core.config, request, found), found)
    return None if found - hit.held + needed <= free else "BLK-9"
