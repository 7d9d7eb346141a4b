"""The comparison of steps of nano-vLLM: reference, paged device and engine."""

from checks.harness.comparing import compared_fields
from checks.harness.labels import STEPS, Labels, named_actions
from checks.harness.policy import Engine, Evidence, plain_reference, steps_alone
from checks.policies.nano_vllm.adapter import ADAPTER
from checks.policies.nano_vllm.differences import KNOWN_DIFFERENCES
from checks.policies.nano_vllm.expected import EXPECTED_VIOLATIONS
from checks.policies.nano_vllm.generator import generate
from checks.policies.nano_vllm.situations import ADVICE, TABLE
from checks.registry import imported_when_called
from reference.nano_vllm.machine import NanoVllmMachine
from spec.nano_vllm.config import FullHit, Hashing, NanoVllmConfig, Prefill
from spec.nano_vllm.records import Context, Step

_LABELS = Labels(
    actions=named_actions(
        *STEPS,
        *("admit", "prefix_hit", "allocate", "prefill", "decode", "preempt", "finish"),
        refusals=("NANO-ADM-1", "NANO-ADM-2", "NANO-ADM-3"),
        phases=("waiting", "running"),
    ),
    situations=TABLE,
    advice=ADVICE,
)

_ENGINE = "policies.nano_vllm.engine"

EVIDENCE: Evidence[NanoVllmConfig, Context, Step] = Evidence(
    reference=plain_reference(NanoVllmMachine.of),
    engine=Engine(
        start=imported_when_called(_ENGINE, "engine"),
        simulated=imported_when_called(_ENGINE, "simulated"),
        under_test=imported_when_called(_ENGINE, "engine_under_test"),
        new_device=imported_when_called(_ENGINE, "new_device"),
        config={
            "full_hit": (FullHit.ALL_CACHED, FullHit.LAST_COMPUTED),
            "prefill": (Prefill.WHOLE,),
            "hashing": (Hashing.ALLOCATED,),
        },
    ),
    steps_alone=lambda config, request: steps_alone(
        request, min(config.max_model_len, config.max_num_batched_tokens)
    ),
    watch=imported_when_called("policies.nano_vllm.paging", "nano_vllm_watch"),
    generate=generate,
    compared=compared_fields(Step),
    looks=imported_when_called("policies.nano_vllm.looks", "looks"),
    labels=_LABELS,
    adapter=ADAPTER,
    known_differences=KNOWN_DIFFERENCES,
    expected_violations=EXPECTED_VIOLATIONS,
)
