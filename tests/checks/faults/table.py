"""The table of the planted faults of Spyre, and small instances to look in.

Of the rules that catch a fault the first names it.
"""

from typing import Any

from attrs import evolve

from checks.explore.instance import Instance
from checks.policies.spyre.instances import DEFAULT
from spec.core.requests import Prompt, Request
from spec.spyre.config import Admission, SpyreConfig
from spec.spyre.records import Context
from tests.checks.planting import FaultTable

FAULTS = FaultTable()
fault = FAULTS.fault


def with_config(ctx: Context, **changes: Any) -> Context:
    """The context with other values in its configuration."""
    return evolve(ctx, config=evolve(ctx.config, **changes))


# --- instances: the default ones, and some that lead to one situation quickly --------------------


def _instance(
    name: str, about: str, *requests: tuple[list[tuple[str, int]], int], **changes: Any
) -> Instance[SpyreConfig]:
    """Blocks of two tokens, chunks of four; requests are named streams and a maximum output."""
    small = {"block_size": 2, "chunk_size": 4, "max_model_len": 16, "max_num_seqs": 3}
    return Instance(
        name=name,
        about=about,
        config=SpyreConfig(**{**small, "max_batch_tkv_limit": 48, **changes}),
        requests=tuple(
            Request(id=str(index), prompt=Prompt.of_parts(parts), max_tokens=tokens)
            for index, (parts, tokens) in enumerate(requests)
        ),
    )


INSTANCES = {
    instance.name: instance
    for instance in (
        *DEFAULT,
        _instance(
            "short and long",
            "two rows of different width that decode together for a while",
            ([("a", 4)], 6),
            ([("b", 1)], 6),
            prefix_caching=False,
        ),
        _instance(
            "same prompt",
            "two equal prompts of whole blocks, computed while both are there",
            ([("a", 4)], 4),
            ([("a", 4)], 4),
        ),
        _instance(
            "hit up to the last chunk",
            "a prefix hit leaves one chunk of a request that must wait for the limit",
            ([("a", 4)], 4),
            ([("a", 4), ("b", 2)], 3),
            max_batch_tkv_limit=13,
        ),
        _instance(
            "peak before the end",
            "two rows whose volume is largest before the last step that they share",
            ([("a", 2)], 5),
            ([("b", 4)], 3),
            block_size=4,
            max_batch_tkv_limit=13,
            prefix_caching=False,
        ),
        _instance(
            "half a block of length",
            "the maximum-length constraint is all that keeps the model length",
            ([("a", 3)], 5),
            ([("b", 6)], 4),
            block_size=4,
            max_model_len=10,
            admission=Admission.DOCUMENTED,
            prefix_caching=False,
        ),
        _instance(
            "a false prefix",
            "two prompts of which a third has a block each, at its place",
            ([("a", 2), ("b", 2), ("x", 2)], 3),
            ([("c", 2), ("d", 2), ("y", 2)], 3),
            ([("a", 2), ("d", 2), ("z", 2)], 3),
        ),
        _instance(
            "a block of slack",
            "2.6.3 keeps a limit only because of the slack in its projection",
            ([("a", 4)], 4),
            ([("b", 4)], 3),
            max_batch_tkv_limit=14,
            admission=Admission.SHIPPED,
            prefix_caching=False,
        ),
    )
}
