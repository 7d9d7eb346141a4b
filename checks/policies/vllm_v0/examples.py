"""An example of vLLM V0: a request is swapped out and comes back."""

from checks.export.examples import Example, happened_events, request
from spec.vllm_v0.config import PreemptionMode, VllmV0Config

SWAPS = Example(
    name="swaps",
    title="Swapped out to the CPU, and back",
    says="In step 3 a block is lacking: request 1 is swapped out and keeps its tokens on the CPU."
    " In step 8 it is swapped in and goes on where it was.",
    config=VllmV0Config(
        block_size=4,
        num_blocks=5,
        num_cpu_blocks=6,
        preemption_mode=PreemptionMode.SWAP,
        max_num_seqs=3,
        max_model_len=16,
    ),
    requests=(request("0", 6, 8), request("1", 6, 8)),
    at=3,
    shows=lambda steps: (
        [event.id for event in happened_events(steps[3:4], "swap_out")] == ["1"]
        and [event.id for event in happened_events(steps[8:9], "swap_in")] == ["1"]
    ),
)

EXAMPLES = (SWAPS,)
