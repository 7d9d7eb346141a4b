"""Rules of vLLM V1 that are known not to hold everywhere: where, and why."""

from checks.harness.difference import ExpectedViolation
from spec.vllm_v1.config import Connector, Scheduling

# A block that was not written for its reader is empty, or has what was there before.
_READS_OF_ANOTHER = ("device: read unwritten", "device: read content", "device: read position")
EXPECTED_VIOLATIONS = (
    ExpectedViolation(
        "V1-BUD-4",
        "by priority, a request that preempts itself ends the step for those behind it",
        lambda config: config.scheduling is Scheduling.PRIORITY,
    ),
    *(
        ExpectedViolation(
            rule,
            "blocks whose load is lost within the step have been hashed when it was planned",
            lambda config: config.connector is Connector.SYNC and config.prefix_caching,
        )
        for rule in ("V1-KV-10", "V1-KV-12", *_READS_OF_ANOTHER)
    ),
    *(
        ExpectedViolation(
            rule,
            "by priority, a victim's chunk of this very step has been hashed when it was planned",
            lambda config: config.scheduling is Scheduling.PRIORITY and config.prefix_caching,
        )
        for rule in ("V1-KV-12", *_READS_OF_ANOTHER)
    ),
    *(
        ExpectedViolation(
            rule,
            "a request that waits in front, by priority or for lookahead, wants the blocks of one"
            " that has loaded and waits, too",
            lambda config: (
                config.connector is Connector.ASYNC
                and (config.scheduling is Scheduling.PRIORITY or config.num_lookahead_tokens > 0)
            ),
        )
        for rule in ("V1-PRG-4", "endless")
    ),
)
