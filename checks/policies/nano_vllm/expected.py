"""Expected violations: rules of nano-vLLM that do not hold under some configurations."""

from checks.harness.difference import ExpectedViolation
from spec.core.requests import Oversized
from spec.nano_vllm.config import (
    FullHit,
    Hashing,
    HitCheck,
    NanoVllmConfig,
    NewBlock,
    Prefill,
    SequenceLimit,
    TokenGate,
)


def _hashes_ahead(config: NanoVllmConfig) -> bool:
    return config.hashing is Hashing.ALLOCATED


EXPECTED_VIOLATIONS = (
    ExpectedViolation(
        ("NANO-DEC-1",),
        "the limit is on the batch, so running sequences may stand behind it",
        lambda config: config.sequence_limit is SequenceLimit.BATCH,
    ),
    ExpectedViolation(
        ("NANO-PRE-3",),
        "the limit is on the batch, so those in front of the victim may have generated less",
        lambda config: config.sequence_limit is SequenceLimit.BATCH,
    ),
    ExpectedViolation(
        ("NANO-PRE-3",),
        "a prompt cached as a whole gets no token in a prefill step, those admitted behind it do",
        lambda config: config.full_hit is FullHit.LAST_DECODED,
    ),
    ExpectedViolation(("NANO-PRE-4",), "the last that was admitted may have the longest prompt"),
    ExpectedViolation(
        (
            *("NANO-PFX-2", "NANO-PFX-3", "NANO-PFX-4", "NANO-BLK-4"),
            *("device: read content", "device: read position"),
        ),
        "equal tokens are taken for an equal prefix, even twice in one table",
        lambda config: config.hit_check is not HitCheck.HASH and _hashes_ahead(config),
    ),
    ExpectedViolation(
        ("NANO-PFX-1",),
        "the table names a block for what it held before; the hit hashes it for the new prompt,"
        " though another that holds it has not filled it",
        lambda config: config.hit_check is HitCheck.NOTHING and _hashes_ahead(config),
    ),
    ExpectedViolation(
        ("NANO-PFX-1",),
        "a prefill that is cut has its full blocks hashed before they are computed",
        lambda config: config.prefill is Prefill.FIRST_CHUNKED and _hashes_ahead(config),
    ),
    ExpectedViolation(
        ("NANO-DEC-3", "NANO-BLK-4"),
        "the token that fills a block is handed the next one, too",
        lambda config: config.new_block is NewBlock.AT_BOUNDARY,
    ),
    ExpectedViolation(
        ("NANO-PFX-6",), "blocks are found from when they are handed out", _hashes_ahead
    ),
    ExpectedViolation(
        ("NANO-PFX-7",),
        "cached tokens count against the budget",
        lambda config: config.token_gate is TokenGate.FULL_LENGTH,
    ),
    ExpectedViolation(
        ("NANO-PFX-8", "device: empty query"),
        "a prompt that is cached as a whole computes nothing",
        lambda config: config.full_hit is FullHit.ALL_CACHED,
    ),
    ExpectedViolation(
        ("NANO-SLT-1", "device: write held"),
        "a prompt cached as a whole writes its last token again, where others read or write",
        lambda config: config.full_hit is FullHit.LAST_DECODED,
    ),
    ExpectedViolation(("NANO-PFX-9",), "of equal blocks only the last one is found"),
    ExpectedViolation(
        ("NANO-LIF-7", "endless"),
        "a request that the pool can never hold waits for ever, and all behind it",
        lambda config: config.oversized is Oversized.QUEUED,
    ),
)
