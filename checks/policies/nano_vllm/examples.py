"""An example of nano-vLLM: its two queues, and a request that goes back."""

from checks.export.examples import Example, request
from spec.nano_vllm.config import NanoVllmConfig

QUEUES = Example(
    name="queues",
    title="Two queues of nano-vLLM",
    says="All prompts are computed in step 0. In step 3 a block is lacking: the last of the running"
    " queue goes back to the head of the waiting queue, and computes everything again.",
    config=NanoVllmConfig(block_size=4, num_blocks=6, max_num_seqs=3, max_model_len=16),
    requests=(request("0", 6, 8), request("1", 5, 8), request("2", 6, 4)),
    at=3,
    shows=lambda steps: (
        len(steps[0].scheduled) == 3
        and [event.id for event in steps[3].happened("preempt")] == ["2"]
        and steps[3].after.waiting[0].id == "2"
    ),
)

EXAMPLES = (QUEUES,)
