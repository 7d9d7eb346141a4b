"""The comparison of steps of Spyre: reference, and engine on the simulated device."""

from checks.harness.comparing import Strictness, by_fields, in_lines
from checks.harness.labels import STEPS, Labels, named_actions
from checks.harness.policy import Engine, Evidence, steps_alone
from checks.policies.spyre.adapter import ADAPTER
from checks.policies.spyre.codec import CODEC
from checks.policies.spyre.differences import EXPECTED_VIOLATIONS, KNOWN_DIFFERENCES
from checks.policies.spyre.generator import generate
from checks.policies.spyre.reference import SpyreReference
from checks.policies.spyre.situations import ADVICE, TABLE
from checks.registry import imported_when_called
from spec.spyre.config import SpyreConfig
from spec.spyre.records import Context, Step
from spec.spyre.rules.admission import CONDITIONS
from spec.spyre.variants import Reading

# Decisions come before their consequences.
_DECISIONS = ("kind", "scheduled", "tkv", "outputs", "finished")
_COMPARED = {
    Strictness.DECISIONS: by_fields(*_DECISIONS),
    Strictness.OBSERVABLE: in_lines(
        CODEC.step_as_json,
        # The fields of a trace line without the step's number; `refusal` and `arrived` are reasons.
        *("kind", "scheduled", "tkv", "volume", "outputs", "finished", "aborted", "waiting"),
        *("prefilling", "decoding", "running", "paused", "blocks", "block_tables", "events"),
        "time",
    ),
    Strictness.EXACT: by_fields(
        *("before", "kind", "scheduled", "tkv", "volume", "refusal", "outputs", "finished"),
        *("ended", "aborted", "chunk", "batch", "after", "events", "index", "time"),
    ),
}

_TRANSITIONS = (
    *("admit", "prefix_hit", "reserve", "allocate", "chunk", "join", "jump_tkv", "decode"),
    *("finish", "preempt", "pause", "resume", "encode"),
)
_JUMPS = ("SPY-TKV-3", "SPY-TKV-4", "SPY-TKV-5", "SPY-TKV-7")


def _further(step: Step) -> dict[str, int]:
    """Counts of jumps by rule, and of chunks that begin within a cached block."""
    further = {"boundary chunk": int(step.chunk is not None and step.chunk.inner_padding > 0)}
    for event in step.happened("jump_tkv"):
        name = f"jump by {event.rule}"
        further[name] = further.get(name, 0) + 1
    return further


_LABELS = Labels(
    actions=named_actions(
        *(*STEPS, *_TRANSITIONS, *(f"jump by {rule}" for rule in _JUMPS)),
        refusals=(
            *(
                "SPY-STR-1",
                "SPY-PRI-3",
                "SPY-PRI-11",
                "SPY-PAU-4",
                "SPY-RES-1",
                "BLK-9",
                "SPY-ADM-1",
            ),
            *sorted(CONDITIONS),
        ),
        phases=("waiting", "prefilling", "decoding", "paused"),
        others=("eviction", "boundary chunk"),
    ),
    further=_further,
    situations=TABLE,
    advice=ADVICE,
)

_ENGINE = "policies.spyre.engine"

EVIDENCE: Evidence[SpyreConfig, Context, Step] = Evidence(
    reference=SpyreReference.of,
    engine=Engine(
        start=imported_when_called(_ENGINE, "engine"),
        simulated=imported_when_called(_ENGINE, "simulated"),
        under_test=imported_when_called(_ENGINE, "engine_under_test"),
        new_device=imported_when_called(_ENGINE, "new_device"),
        config={"reading": (Reading.TEXT,)},
    ),
    steps_alone=lambda config, request: steps_alone(request, config.chunk_size),
    device=imported_when_called("policies.spyre.device", "TensorDevice"),
    generate=generate,
    compared=_COMPARED,
    looks=imported_when_called("policies.spyre.looks", "looks"),
    labels=_LABELS,
    adapter=ADAPTER,
    expected_violations=EXPECTED_VIOLATIONS,
    known_differences=KNOWN_DIFFERENCES,
)
