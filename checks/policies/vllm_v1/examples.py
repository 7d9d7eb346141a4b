"""An example of vLLM V1: how prompts and decoding requests share a step."""

from checks.export.examples import Example, request
from spec.vllm_v1.config import VllmV1Config

BUDGET = Example(
    name="budget",
    title="A budget of eight tokens a step",
    says="Decoding requests take a token each, what is left of the budget goes to prompts. No step"
    " has more than eight.",
    config=VllmV1Config(
        block_size=4, max_num_batched_tokens=8, max_num_seqs=3, num_blocks=20, max_model_len=32
    ),
    requests=(request("0", 6, 5), request("1", 14, 4, arrival=1), request("2", 9, 3, arrival=2)),
    at=3,
    shows=lambda steps: (
        [sum(step.scheduled.values()) for step in steps[1:4]] == [8, 8, 8]
        and max(sum(step.scheduled.values()) for step in steps) == 8
        and len(steps[3].scheduled) == 3
    ),
)

EXAMPLES = (BUDGET,)
