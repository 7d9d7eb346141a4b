"""The table of the planted faults of vLLM V1, and instances more to look for them in."""

from checks.explore.instance import Instance
from spec.core.requests import Prompt, Request
from spec.vllm_v1.config import Connector, Scheduling, VllmV1Config
from spec.vllm_v1.releases import Release
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
DRAINING = Instance(
    name="two that drain",
    about="two load at once, and their clients leave",
    config=VllmV1Config(
        block_size=2, max_model_len=16, max_num_seqs=3, num_blocks=8, connector=Connector.ASYNC
    ),
    requests=tuple(
        Request(id=str(n), prompt=Prompt.of_stream(str(n), 4), max_tokens=1) for n in range(3)
    ),
    external={"0": 4, "1": 4},
    aborts=frozenset("01"),
)
TWICE = Instance(
    name="a content twice",
    about="a prompt computes its last block although another block has the same content",
    config=VllmV1Config(block_size=2, max_model_len=16, max_num_seqs=3, num_blocks=8),
    requests=(
        Request(id="0", prompt=Prompt.of_tokens((1, 2)), max_tokens=3),
        Request(id="1", prompt=Prompt.of_tokens((1, 2)), max_tokens=3),
        Request(id="2", prompt=Prompt.of_tokens((1, 2, 3)), max_tokens=2),
    ),
)
NO_TURN = Instance(
    name="no turn",
    about="drafts of a request take the whole budget: another one's prompt has to wait",
    config=VllmV1Config(
        block_size=2,
        max_model_len=16,
        max_num_batched_tokens=3,
        num_blocks=8,
        num_speculative_tokens=2,
    ),
    requests=(
        Request(id="0", prompt=Prompt.of_tokens((1, 2)), max_tokens=4),
        Request(id="1", prompt=Prompt.of_tokens((3, 4, 5)), max_tokens=2),
    ),
)
STEPPED_OVER = Instance(
    name="two stepped over",
    about="0.11.2 steps over two prompts that must not be cut",
    config=VllmV1Config(
        block_size=2,
        max_model_len=16,
        max_num_seqs=3,
        max_num_batched_tokens=6,
        num_blocks=12,
        chunked_prefill=False,
        reserve_full_prompt=False,
        release=Release.V0_11_2,
    ),
    requests=tuple(
        Request(id=str(n), prompt=Prompt.of_stream(str(n), 5), max_tokens=2) for n in range(3)
    ),
)
EQUALS = Instance(
    name="equals",
    about="by priority, but all have the same",
    config=VllmV1Config(
        block_size=2,
        max_model_len=16,
        max_num_seqs=3,
        num_blocks=4,
        scheduling=Scheduling.PRIORITY,
        reserve_full_prompt=False,
    ),
    requests=tuple(
        Request(id=str(n), prompt=Prompt.of_stream(str(n), 2), max_tokens=3) for n in range(3)
    ),
)
SAME_IN_GROUPS = Instance(
    name="groups, the same prompt twice",
    about="two requests with equal tokens, in one step",
    config=VllmV1Config(
        block_size=2, max_model_len=16, max_num_seqs=3, num_blocks=16, kv_groups="sliding 3"
    ),
    requests=tuple(
        Request(id=str(n), prompt=Prompt.of_tokens((1, 2, 3, 4)), max_tokens=2) for n in range(2)
    ),
)

_MORE = (FALSE_PREFIX, AT_THE_END, DRAINING, TWICE, NO_TURN, STEPPED_OVER, EQUALS, SAME_IN_GROUPS)
FAULTS = FaultTable("vllm-v1", _MORE)
fault = FAULTS.fault
