"""The gates of an admission, evaluated for a sequence at the front of the waiting queue.

Source: nano-vllm, "Admission Checks: Two Gates, Both Must Pass"; the sequence limit is the
release's.
"""

from spec.nano_vllm.config import MemoryGate, Prefill, SequenceLimit, TokenGate
from spec.nano_vllm.records import Context
from spec.nano_vllm.rules.counting import needed_blocks
from spec.nano_vllm.rules.replay import Candidate

TOKENS, MEMORY, SEQUENCES = "NANO-ADM-1", "NANO-ADM-2", "NANO-ADM-3"


def passes(ctx: Context, gate: str, candidate: Candidate) -> bool:
    """True if the candidate passes a gate, with what was there when the step looked at it."""
    config, length = ctx.config, candidate.sequence.prefill_len
    if gate == TOKENS:
        if config.prefill is Prefill.FIRST_CHUNKED and candidate.count == 0:
            return True  # cut, if need be
        found = len(candidate.hits) * config.block_size
        uncounted = found if config.token_gate is TokenGate.NEW_TOKENS else 0
        return candidate.batched + length - uncounted <= config.max_num_batched_tokens
    if gate == MEMORY:
        there = candidate.shared if config.memory_gate is MemoryGate.NEW_BLOCKS else 0
        return needed_blocks(length, config.block_size) - there <= candidate.free
    by_batch = config.sequence_limit is SequenceLimit.BATCH
    return (candidate.count if by_batch else candidate.running) < config.max_num_seqs


def refusing_gates(ctx: Context, candidate: Candidate) -> list[str]:
    """The gates that do not let the candidate through, in the order in which they are asked."""
    return [gate for gate in (SEQUENCES, TOKENS, MEMORY) if not passes(ctx, gate, candidate)]
