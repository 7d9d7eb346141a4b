"""The table of the planted faults of vLLM V0; of the rules that catch a fault any may be first."""

from checks.explore.instance import Instance
from spec.core.requests import Prompt, Request
from spec.vllm_v0.config import PreemptionMode, VllmV0Config
from tests.checks.faults.planting import FaultTable

PASSED = "swapped out, of two sizes"


def _requests(*lengths: tuple[int, int]) -> tuple[Request, ...]:
    return tuple(
        Request(id=str(index), prompt=Prompt.of_stream(f"own {index}", length), max_tokens=most)
        for index, (length, most) in enumerate(lengths)
    )


MORE = (
    Instance(
        name=PASSED,
        about="a long one and a short one are swapped out; the short one finds room first",
        config=VllmV0Config(
            block_size=2,
            max_model_len=12,
            max_num_seqs=3,
            max_num_batched_tokens=8,
            num_blocks=5,
            num_cpu_blocks=6,
            preemption_mode=PreemptionMode.SWAP,
            artificial_preemptions=2,
        ),
        requests=_requests((5, 3), (1, 3), (2, 4)),
    ),
)

FAULTS = FaultTable("vllm-v0", MORE)
fault = FAULTS.fault
