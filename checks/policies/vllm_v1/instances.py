"""The instances of vLLM V1 that are explored by default: small in numbers, rich in behaviour."""

from collections.abc import Mapping
from typing import Any

from attrs import evolve

from checks.explore.instance import ids, sharing, unshared
from checks.policies.vllm_v1.model import VllmV1Instance
from spec.core.requests import Request
from spec.vllm_v1.config import Connector, Release, Scheduling, VllmV1Config

_SMALL: Mapping[str, Any] = {
    "block_size": 2,
    "max_model_len": 16,
    "max_num_seqs": 3,
    "max_num_batched_tokens": 6,
    "num_blocks": 8,
    "prefix_caching": False,
}


def _config(**changes: Any) -> VllmV1Config:
    return VllmV1Config(**{**_SMALL, **changes})


def _ranked(requests: tuple[Request, ...], *priorities: int) -> tuple[Request, ...]:
    """The requests with these priorities."""
    pairs = zip(requests, priorities, strict=True)
    return tuple(evolve(request, priority=priority) for request, priority in pairs)


DEFAULT: tuple[VllmV1Instance, ...] = (
    VllmV1Instance(
        name="fcfs",
        about="a budget that cuts prompts, blocks that run out, fewer slots than requests",
        config=_config(num_blocks=4, max_num_seqs=2),
        requests=unshared((3, 4), (5, 3), (2, 3)),
        aborts=ids("0"),
        early_ends=ids("0 1"),
        leavers=ids("1"),
    ),
    VllmV1Instance(
        name="fcfs, two victims",
        about="one block is wanted at a time by three that run, one after the other gives way",
        config=_config(num_blocks=3, reserve_full_prompt=False),
        requests=unshared((2, 5), (2, 4), (2, 3)),
        early_ends=ids("0"),
    ),
    VllmV1Instance(
        name="priority",
        about="the worst gives way, also if it was scheduled already or stands in the middle",
        config=_config(num_blocks=4, scheduling=Scheduling.PRIORITY),
        requests=_ranked(unshared((2, 4), (2, 3), (2, 3)), 1, 2, 0),
        aborts=ids("1"),
    ),
    VllmV1Instance(
        name="priority, hashed ahead",
        about="a victim was scheduled already in the step: its block was hashed and is not filled",
        config=_config(
            scheduling=Scheduling.PRIORITY,
            prefix_caching=True,
            long_prefill_token_threshold=3,
            num_blocks=6,
        ),
        requests=_ranked(unshared((9, 1), (2, 2)), 1, 0),
    ),
    VllmV1Instance(
        name="threshold",
        about="prompts in chunks of the threshold, fewer slots than requests",
        config=_config(long_prefill_token_threshold=2, max_num_seqs=2),
        requests=unshared((5, 2), (3, 2), (2, 3)),
        aborts=ids("0"),
        early_ends=ids("2"),
    ),
    VllmV1Instance(
        name="uncut",
        about="no chunked prefill: 0.28.0 stops at a prompt that the budget would cut",
        config=_config(chunked_prefill=False, max_num_batched_tokens=7),
        requests=unshared((5, 2), (4, 3), (1, 3)),
        early_ends=ids("0 1"),
    ),
    VllmV1Instance(
        name="uncut, 0.11.2",
        about="no chunked prefill: 0.11.2 steps over such a prompt",
        config=_config(
            chunked_prefill=False,
            max_num_batched_tokens=7,
            release=Release.V0_11_2,
            reserve_full_prompt=False,
        ),
        requests=unshared((5, 2), (4, 3), (1, 3)),
        early_ends=ids("0 1"),
    ),
    VllmV1Instance(
        name="shared prefix",
        about="three prompts with a common beginning, hits within a step and on freed blocks",
        config=_config(prefix_caching=True, num_blocks=6, max_num_batched_tokens=8),
        requests=sharing(
            ([("system", 4), ("a", 2)], 3), ([("system", 4), ("b", 1)], 2), ([("system", 4)], 2)
        ),
        aborts=ids("0"),
        early_ends=ids("0"),
    ),
    VllmV1Instance(
        name="eviction, 0.11.2",
        about="the same in a pool so small that cached blocks are handed out anew, older order",
        config=_config(
            prefix_caching=True,
            num_blocks=4,
            release=Release.V0_11_2,
            reserve_full_prompt=False,
        ),
        requests=sharing(
            ([("system", 4), ("a", 1)], 3), ([("system", 4), ("b", 1)], 2), ([("c", 4)], 3)
        ),
        aborts=ids("0"),
    ),
    VllmV1Instance(
        name="speculation",
        about="two drafts a step, any number accepted, blocks that run out",
        config=_config(num_speculative_tokens=2, num_blocks=5, prefix_caching=True),
        requests=sharing(([("a", 3)], 5), ([("b", 2)], 5)),
        aborts=ids("0"),
        early_ends=ids("0 1"),
    ),
    VllmV1Instance(
        name="speculation, padding",
        about="a request with one token to compute is filled up with drafts, or has to wait",
        config=_config(num_speculative_tokens=2, max_num_batched_tokens=7, prefix_caching=True),
        requests=sharing(([("a", 3)], 4), ([("a", 3)], 2), ([("b", 1)], 2)),
    ),
    VllmV1Instance(
        name="lookahead",
        about="slots set aside for a drafter with a cache of its own",
        config=_config(num_speculative_tokens=1, num_lookahead_tokens=1, num_blocks=5),
        requests=unshared((3, 4), (2, 4)),
        early_ends=ids("1"),
    ),
    VllmV1Instance(
        name="async load",
        about="external keys and values come between steps, or not at all",
        config=_config(connector=Connector.ASYNC, prefix_caching=True, num_blocks=5),
        requests=sharing(([("s", 4)], 3), ([("s", 2), ("b", 3)], 2), ([("c", 2)], 2)),
        external={"0": 4, "1": 4},
        failing=ids("0"),
        aborts=ids("0"),
        leavers=ids("0"),
    ),
    VllmV1Instance(
        name="async load, priority",
        about="who has loaded waits with its blocks behind one who is more urgent and lacks them",
        config=_config(
            connector=Connector.ASYNC,
            scheduling=Scheduling.PRIORITY,
            num_blocks=3,
        ),
        requests=_ranked(unshared((4, 2), (2, 1)), 0, 1),
        external={"0": 4, "1": 2},
    ),
    VllmV1Instance(
        name="async load, lookahead",
        about="two that have loaded hold all blocks, and each wants one for its lookahead",
        config=_config(connector=Connector.ASYNC, num_lookahead_tokens=1, num_blocks=2),
        requests=unshared((2, 1), (2, 1)),
        external={"0": 1, "1": 2},
    ),
    VllmV1Instance(
        name="sync load",
        about="external keys and values come within a step, always",
        config=_config(connector=Connector.SYNC, prefix_caching=True, num_blocks=5),
        requests=sharing(([("s", 4)], 3), ([("s", 2), ("b", 3)], 3), ([("c", 2)], 3)),
        external={"0": 4, "1": 4},
        aborts=ids("0"),
    ),
    VllmV1Instance(
        name="sync load, lost",
        about="external keys and values should come within a step and may not",
        config=_config(connector=Connector.SYNC, prefix_caching=True, num_blocks=6),
        requests=sharing(([("s", 4), ("a", 1)], 3), ([("s", 4), ("b", 1)], 3)),
        external={"0": 4},
        failing=ids("0"),
        aborts=ids("0"),
    ),
    VllmV1Instance(
        name="sync load, gone",
        about="the same, and clients leave while the step runs",
        config=_config(connector=Connector.SYNC, prefix_caching=True, num_blocks=6),
        requests=sharing(([("s", 4), ("a", 1)], 3), ([("s", 4), ("b", 1)], 3)),
        external={"0": 4},
        failing=ids("0"),
        leavers=ids("0 1"),
    ),
)
