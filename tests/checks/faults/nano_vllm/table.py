"""The table of the planted faults of nano-vLLM, and an instance more to look for them in."""

from checks.explore.instance import Instance
from spec.core.requests import Prompt, Request
from spec.nano_vllm.config import repaired
from tests.checks.faults.planting import FaultTable

SHARED, BUDGET = "repaired, shared prefix", "repaired, budget"
DECODED = "decoded first"
CUT, CUT_SHARED, FORGOTTEN = (
    f"newest, {name}" for name in ("budget", "shared prefix", "same block elsewhere")
)
DRY, ELSEWHERE = "repaired, preemption", "repaired, same block elsewhere"
FALSE_PREFIX = Instance(
    name="a false prefix",
    about="the second block of a prompt has the tokens of another prompt's first",
    config=repaired(block_size=2, max_num_batched_tokens=10, max_model_len=10, num_blocks=8),
    requests=(
        Request(id="0", prompt=Prompt.of_tokens((7, 7, 1, 1, 8)), max_tokens=3),
        Request(id="1", prompt=Prompt.of_tokens((1, 1, 9)), max_tokens=3),
    ),
)
ALIKE = Instance(
    name="almost alike",
    about="blocks that differ in one token, and answers that do",
    config=repaired(block_size=2, max_num_batched_tokens=12, max_model_len=10, num_blocks=12),
    requests=(
        Request(id="0", prompt=Prompt.of_tokens((7, 7, 7)), max_tokens=3, output=(1, 1, 1)),
        Request(id="1", prompt=Prompt.of_tokens((7, 2, 7)), max_tokens=3, output=(2, 1, 1)),
    ),
)
PREFIX = FALSE_PREFIX.name

FAULTS = FaultTable("nano-vllm", [FALSE_PREFIX, ALIKE])
fault = FAULTS.fault
