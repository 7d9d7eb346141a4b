"""The gates of an admission, asked about a sequence that stood in front of waiting.

Source: nano-vllm, "Admission Checks: Two Gates, Both Must Pass"; the sequence limit is the
release's.
"""

from spec.core.blocks import block_count
from spec.nano_vllm.config import SequenceLimit
from spec.nano_vllm.formulas import can_allocate, counted_tokens, within_budget
from spec.nano_vllm.records import Context
from spec.nano_vllm.rules.replay import Candidate

TOKENS, MEMORY, SEQUENCES = "NANO-ADM-1", "NANO-ADM-2", "NANO-ADM-3"


def passes(ctx: Context, gate: str, one: Candidate) -> bool:
    """Whether the candidate passes a gate, by what was there when it was looked at."""
    config, length = ctx.config, one.sequence.prefill_len
    if gate == TOKENS:
        cached = len(one.hits) * config.block_size
        counted = counted_tokens(length, cached, config.token_gate)
        return bool(within_budget(one.batched, counted, config.max_num_batched_tokens))
    if gate == MEMORY:
        blocks = block_count(length, config.block_size)
        return bool(can_allocate(one.free, blocks, one.shared, config.memory_gate))
    by_batch = config.sequence_limit is SequenceLimit.BATCH
    return (one.count if by_batch else one.running) < config.max_num_seqs


def refusing_gates(ctx: Context, one: Candidate) -> list[str]:
    """The gates that do not let the candidate through, in the order in which they are asked."""
    return [gate for gate in (SEQUENCES, TOKENS, MEMORY) if not passes(ctx, gate, one)]
