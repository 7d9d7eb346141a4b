"""Spyre: the reference, and the engine on the simulated device."""

from collections.abc import Mapping
from pathlib import Path

from checks.explore.instance import read_instances
from checks.harness.comparing import Strictness, by_fields, in_lines
from checks.policies.labels import STEPS, Labels, named_actions
from checks.policies.later import imported_when_called
from checks.policies.policy import Policy
from checks.policies.spyre.adapter import ADAPTER
from checks.policies.spyre.codec import CODEC
from checks.policies.spyre.differences import EXPECTED_VIOLATIONS, KNOWN_DIFFERENCES
from checks.policies.spyre.examples import EXAMPLES
from checks.policies.spyre.generator import generate
from checks.policies.spyre.model import spyre_model
from checks.policies.spyre.picture import PICTURE
from checks.policies.spyre.plot import plot_lines
from checks.policies.spyre.published import FIGURES
from checks.policies.spyre.work import spyre_work, volume_figures
from reference.spyre.machine import SpyreMachine
from spec.spyre.config import SpyreConfig, refuse_unservable
from spec.spyre.records import Context, Step
from spec.spyre.rules import SPYRE as RULES
from spec.spyre.state import State
from spec.spyre.variants import Reading

# What a step decided comes before what follows from it.
_DECISIONS = ("kind", "scheduled", "tkv", "outputs", "finished")
_COMPARED = {
    Strictness.DECISIONS: by_fields(*_DECISIONS),
    Strictness.OBSERVABLE: in_lines(
        CODEC.step_as_json,
        # What a trace shows but for the number of the step; `refusal` and `arrived` say why.
        *("kind", "scheduled", "tkv", "volume", "outputs", "finished", "aborted", "waiting"),
        *("prefilling", "decoding", "running", "paused", "blocks", "block_tables", "events"),
        "time",
    ),
    Strictness.EXACT: by_fields(
        *("before", "kind", "scheduled", "tkv", "volume", "refusal", "outputs", "finished"),
        *("ended", "aborted", "chunk", "batch", "after", "events", "index", "time"),
    ),
}

# Environment variables of the production plugin, sendnn-inference, and the keys that they set; a
# switch is 0 or not 0.
_VARIABLES = {
    "SENDNN_INFERENCE_CP_INTERLEAVE_STEPS": "interleave",
    "SENDNN_INFERENCE_PAUSING_ENABLED": "pausing",
    "SENDNN_INFERENCE_LONG_OUT_PRIO": "long_output_first",
    "VLLM_DT_MAX_BATCH_TKV_LIMIT": "max_batch_tkv_limit",
}


def _other_size(given: Mapping[str, str]) -> dict[str, str]:
    """A value for the one of block and chunk size that is not given, so that they go together."""
    if "block_size" in given and "chunk_size" not in given:
        return {"chunk_size": given["block_size"]}
    if "chunk_size" in given and "block_size" not in given:
        return {"block_size": "1"}
    return {}


_TRANSITIONS = (
    *("admit", "prefix_hit", "reserve", "allocate", "chunk", "join", "jump_tkv", "decode"),
    *("finish", "preempt", "pause", "resume"),
)
_JUMPS = ("SPY-TKV-3", "SPY-TKV-4", "SPY-TKV-5", "SPY-TKV-7")


def _further(step: Step) -> dict[str, int]:
    """Jumps by their rules, and chunks that begin within a cached block."""
    further = {"boundary chunk": int(step.chunk is not None and step.chunk.inner_padding > 0)}
    for event in step.happened("jump_tkv"):
        name = f"jump by {event.rule}"
        further[name] = further.get(name, 0) + 1
    return further


_LABELS = Labels(
    actions=named_actions(
        *(*STEPS, *_TRANSITIONS, *(f"jump by {rule}" for rule in _JUMPS)),
        refusals=(
            *("SPY-PRI-3", "SPY-PRI-11", "SPY-PAU-4", "SPY-RES-1", "BLK-9", "SPY-ADM-1"),
            *("SPY-LEN-2", "SPY-VOL-2", "SPY-VOL-3", "SPY-VOL-4"),
        ),
        phases=("waiting", "prefilling", "decoding", "paused"),
        others=("eviction", "boundary chunk"),
    ),
    further=_further,
)

_ENGINE = "policies.spyre.engine"

POLICY: Policy[SpyreConfig, Context, State, Step] = Policy(
    config=SpyreConfig,
    registry=RULES,
    step=Step,
    machine=SpyreMachine.of,
    refuse_unservable=refuse_unservable,
    codec=CODEC,
    picture=PICTURE,
    variables=_VARIABLES,
    implied=_other_size,
    engine=imported_when_called(_ENGINE, "engine"),
    engine_under_test=imported_when_called(_ENGINE, "engine_under_test"),
    new_device=imported_when_called(_ENGINE, "new_device"),
    engine_config={"reading": (Reading.TEXT,)},
    tokens_at_once=lambda config: config.chunk_size,
    model=spyre_model,
    compiled=imported_when_called("policies.spyre.compiled.model", "compiled_of"),
    examples=EXAMPLES,
    published=FIGURES,
    instances=read_instances(Path(__file__).with_name("instances.toml"), plain=SpyreConfig),
    large=read_instances(Path(__file__).with_name("large.toml"), plain=SpyreConfig),
    thorough=read_instances(Path(__file__).with_name("thorough.toml"), plain=SpyreConfig),
    generate=generate,
    compared=_COMPARED,
    looks=imported_when_called("policies.spyre.looks", "looks"),
    labels=_LABELS,
    adapter=ADAPTER,
    device=imported_when_called("policies.spyre.device", "TensorDevice"),
    expected_violations=EXPECTED_VIOLATIONS,
    known_differences=KNOWN_DIFFERENCES,
    work=spyre_work,
    plot=plot_lines,
    figures=volume_figures,
    volume_limit=lambda config: config.max_batch_tkv_limit,
)
