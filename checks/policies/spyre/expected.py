"""Rules of Spyre that are known not to hold everywhere: where, and why."""

from checks.harness.difference import ExpectedViolation

EXPECTED_VIOLATIONS = (
    ExpectedViolation(
        "SPY-VOL-1",
        "the text's volume rule admits batches that later exceed the limit",
        lambda config: not config.variant.keeps_limit and not config.may_pause,
    ),
    ExpectedViolation(
        "SPY-LEN-1",
        "left padding is taken back at block boundaries, the last lies beyond the model length",
        lambda config: config.max_model_len % config.block_size > 0,
    ),
    ExpectedViolation(
        "SPY-PAU-6",
        "without interleaving, 2.6.3 takes the tkv of a prefill step for that of the batch",
        lambda config: config.variant.pauses and config.is_judged_first,
    ),
)
