"""Rules that are known not to hold everywhere: where, and why. Counted when they are met."""

from collections.abc import Callable
from typing import Any

from attrs import frozen

from spec.core.configuration import PolicyConfig
from spec.nano_vllm.config import FullHit, HitCheck, SequenceLimit, TokenGate
from spec.spyre.config import Admission
from spec.vllm_v1.config import Connector, Scheduling


@frozen
class Known:
    """A rule that need not hold under some configurations of its policy.

    `rule`: or what the simulated device refuses, as "device: empty query", or "endless".
    """

    rule: str
    reason: str
    where: Callable[[Any], bool]


def _everywhere(_config: PolicyConfig) -> bool:
    return True


_SPYRE = (
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
# A block that nobody wrote for its reader is empty, or has what was there before.
_READS_OF_ANOTHER = ("device: read unwritten", "device: read content", "device: read position")
_VLLM_V1 = (
    Known(
        "V1-BUD-4",
        "by priority, a request that preempts itself ends the step for those behind it",
        lambda config: config.scheduling is Scheduling.PRIORITY,
    ),
    *(
        Known(
            rule,
            "blocks whose load is lost within the step have been hashed when it was planned",
            lambda config: config.connector is Connector.SYNC and config.prefix_caching,
        )
        for rule in ("V1-KV-10", "V1-KV-12", *_READS_OF_ANOTHER)
    ),
    *(
        Known(
            rule,
            "by priority, a victim's chunk of this very step has been hashed when it was planned",
            lambda config: config.scheduling is Scheduling.PRIORITY and config.prefix_caching,
        )
        for rule in ("V1-KV-12", *_READS_OF_ANOTHER)
    ),
    *(
        Known(
            rule,
            "who waits in front, by priority or for lookahead, wants the blocks of one who has"
            " loaded and waits, too",
            lambda config: (
                config.connector is Connector.ASYNC
                and (config.scheduling is Scheduling.PRIORITY or config.num_lookahead_tokens > 0)
            ),
        )
        for rule in ("V1-PRG-4", "endless")
    ),
)
_NANO_VLLM = (
    Known(
        "NANO-DEC-1",
        "the limit is on the batch, so running sequences may stand behind it",
        lambda config: config.sequence_limit is SequenceLimit.BATCH,
    ),
    Known(
        "NANO-PRE-3",
        "the limit is on the batch, so those in front of the victim may have generated less",
        lambda config: config.sequence_limit is SequenceLimit.BATCH,
    ),
    Known("NANO-PRE-4", "the last that was admitted may have the longest prompt", _everywhere),
    *(
        Known(
            rule,
            "equal tokens are taken for an equal prefix, even twice in one table",
            lambda config: config.hit_check is not HitCheck.HASH,
        )
        for rule in (
            *("NANO-PFX-2", "NANO-PFX-3", "NANO-PFX-4", "NANO-BLK-4"),
            *("device: read content", "device: read position"),
        )
    ),
    Known("NANO-PFX-6", "blocks are found from when they are handed out", _everywhere),
    Known(
        "NANO-PFX-7",
        "cached tokens count against the budget",
        lambda config: config.token_gate is TokenGate.FULL_LENGTH,
    ),
    *(
        Known(
            rule,
            "a prompt that is cached as a whole computes nothing",
            lambda config: config.full_hit is FullHit.ALL_CACHED,
        )
        for rule in ("NANO-PFX-8", "device: empty query")
    ),
    Known("NANO-PFX-9", "of equal blocks only the last one is found", _everywhere),
)
_BY_POLICY = {"spyre": _SPYRE, "vllm-v1": _VLLM_V1, "nano-vllm": _NANO_VLLM}


def known_reasons(policy: str) -> dict[str, str]:
    """Why rules of this policy need not hold under some of its configurations, by rule."""
    reasons: dict[str, list[str]] = {}
    for one in _BY_POLICY[policy]:
        reasons.setdefault(one.rule, []).append(one.reason)
    return {rule: "; or ".join(why) for rule, why in reasons.items()}


def known_reason(rule: str, config: PolicyConfig) -> str | None:
    """Why the rule need not hold under this configuration, or None if it must."""
    rows = _BY_POLICY[config.policy]
    return next((one.reason for one in rows if one.rule == rule and one.where(config)), None)
