"""Plan the admissions of a step, with prefix lookups and new blocks.

Source: nano-vllm, "Admission Checks: Two Gates, Both Must Pass", and chapter 7; the formulas are
those of `spec/nano_vllm/formulas.py`.
"""

from engine.core.blocks import PrefixHit
from engine.core.decoding import RequestState
from engine.nano_vllm.blocks import PoolDraft
from engine.nano_vllm.plan import Admission
from engine.nano_vllm.state import SchedulerState
from spec.core.blocks import block_count
from spec.nano_vllm.block_hashes import passes
from spec.nano_vllm.config import MemoryGate, SequenceLimit, TokenGate
from spec.nano_vllm.formulas import can_allocate, counted_tokens, lookup_blocks, within_budget


def plan_admissions(state: SchedulerState) -> tuple[list[Admission], str | None]:
    """Requests from the front of the queue that pass all gates; and the rule that refused one."""
    admissions: list[Admission] = []
    draft, batched = PoolDraft(state.blocks), 0
    for request in state.queue:
        refusal = _refusal(state, draft, request, len(admissions), batched)
        if refusal is not None:
            return admissions, refusal
        admission = _admission(state, draft, request)
        admissions.append(admission)
        batched += request.prefill_len - len(admission.hits) * state.config.block_size
    return admissions, None


def _refusal(
    state: SchedulerState, draft: PoolDraft, request: RequestState, count: int, batched: int
) -> str | None:
    """The rule that refuses the request in a step with `count` requests and `batched` tokens."""
    config, length = state.config, request.prefill_len
    by_batch = config.sequence_limit is SequenceLimit.BATCH
    if (count if by_batch else count + len(state.running.rows)) >= config.max_num_seqs:
        return "NANO-ADM-3"
    cached = shared = 0  # not looked up unless a gate needs them
    if config.token_gate is TokenGate.NEW_TOKENS:
        cached = len(_hit(state, draft, request).blocks) * config.block_size
    counted = counted_tokens(length, cached, config.token_gate)
    if not within_budget(batched, counted, config.max_num_batched_tokens):
        return "NANO-ADM-1"
    if config.memory_gate is MemoryGate.NEW_BLOCKS:
        shared = _hit(state, draft, request).held
    blocks = block_count(length, config.block_size)
    return None if can_allocate(draft.free, blocks, shared, config.memory_gate) else "NANO-ADM-2"


def _admission(state: SchedulerState, draft: PoolDraft, request: RequestState) -> Admission:
    """The request with its cached blocks and its new blocks from the draft."""
    size, length = state.config.block_size, request.prefill_len
    hits = _hit(state, draft, request).blocks
    state.hash_blocks(request, length // size)
    count = int(block_count(length, size)) - len(hits)
    fresh = draft.admit(hits, count, request.hashes)
    return Admission(request, hits, fresh)


def _hit(state: SchedulerState, draft: PoolDraft, request: RequestState) -> PrefixHit:
    """The blocks of the longest leading run of hits ("With Prefix Cache: Reuse the Work").

    The hit of the queue's head is kept until one of its blocks changes.
    """
    blocks, hit = state.blocks, request.hit  # only the head's hit is watched
    if hit is not None and hit is blocks.watched and not hit.is_stale:
        return hit
    config, hits, asked, others = state.config, [], [], []
    for key in state.leading_keys(
        request, lookup_blocks(request.prefill_len, config.block_size, config.full_hit)
    ):
        asked.append(key)
        block = draft.lookup(key)
        if block is None:
            break
        if not passes(draft.content_key(block), key, config.hit_check):
            others.append(block)
            break
        hits.append(block)
    if not draft.is_untouched:
        return PrefixHit(tuple(hits), sum(map(draft.is_held, hits)))
    request.hit = blocks.watch(tuple(hits), asked, others)
    return request.hit
