"""Rules that are known not to hold everywhere: where, and why. Counted when they are met."""

from collections.abc import Callable

from attrs import frozen

from spec.config import Admission, Config


@frozen
class Known:
    """A rule that need not hold under some configurations."""

    rule: str
    reason: str
    where: Callable[[Config], bool]


KNOWN = (
    Known(
        "SPY-VOL-1",
        "the text's volume rule admits batches that later exceed the limit",
        lambda config: config.admission is Admission.DOCUMENTED and not config.pausing,
    ),
    Known(
        "SPY-LEN-1",
        "left padding is taken back at block boundaries, the last lies beyond the model length",
        lambda config: config.max_model_len % config.block_size > 0,
    ),
    Known(
        "SPY-PAU-6",
        "without interleaving, 2.6.3 takes the tkv of a prefill step for that of the batch",
        lambda config: config.admission is Admission.SHIPPED and not config.interleave,
    ),
)


def known_reason(rule: str, config: Config) -> str | None:
    """Why the rule need not hold under this configuration, or None if it must."""
    return next((one.reason for one in KNOWN if one.rule == rule and one.where(config)), None)
