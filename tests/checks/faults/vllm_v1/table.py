"""The table of the planted faults of vLLM V1, and instances more to look for them in."""

from checks.explore.instance import Instance
from checks.policies import POLICIES
from spec.core.requests import Prompt, Request
from spec.vllm_v1.config import VllmV1Config
from tests.checks.faults.planting import FaultTable

FALSE_PREFIX = Instance(
    name="a false prefix",
    about="the second block of a prompt has the tokens of another's first; nothing configured",
    config=VllmV1Config(block_size=2, max_model_len=16, max_num_seqs=3, num_blocks=8),
    requests=(
        Request(id="0", prompt=Prompt.of_tokens((7, 7, 1, 1, 8)), max_tokens=3),
        Request(id="1", prompt=Prompt.of_tokens((1, 1, 9)), max_tokens=3),
    ),
)
AT_THE_END = Instance(
    name="up to the model length",
    about="drafts and lookahead would go beyond the model length",
    config=VllmV1Config(
        block_size=2,
        max_model_len=7,
        max_num_batched_tokens=8,
        num_blocks=6,
        num_speculative_tokens=3,
        num_lookahead_tokens=3,
    ),
    requests=(Request(id="0", prompt=Prompt.of_tokens((1, 2, 3)), max_tokens=3),),
)

FAULTS = FaultTable(POLICIES["vllm-v1"], [FALSE_PREFIX, AT_THE_END])
fault = FAULTS.fault
