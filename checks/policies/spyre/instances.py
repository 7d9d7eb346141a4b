"""The instances that are explored by default: small in numbers, rich in behaviour."""

from collections.abc import Mapping
from typing import Any

from checks.explore.instance import Instance, ids, sharing, unshared
from spec.core.requests import Prompt, Request
from spec.spyre.config import Admission, Queue, SpyreConfig

_SMALL: Mapping[str, Any] = {
    "block_size": 2,
    "chunk_size": 4,
    "max_model_len": 16,
    "max_num_seqs": 3,
    "max_batch_tkv_limit": 48,
    "prefix_caching": False,
}


def _config(**changes: Any) -> SpyreConfig:
    return SpyreConfig(**{**_SMALL, **changes})


_SHIPPED: Mapping[str, Any] = {"admission": Admission.SHIPPED, "queue": Queue.OVERTAKING}

_FIRST_ANSWER = Request(
    id="0", prompt=Prompt.of_tokens((7, 7, 7)), max_tokens=4, output=(1, 2, 3, 4)
)
_NEXT_QUESTION = Request(id="1", prompt=Prompt.of_tokens((7, 7, 7, 1, 2, 3, 9)), max_tokens=2)
_SAME_AGAIN = Request(id="2", prompt=Prompt.of_tokens((7, 7, 7, 1, 2, 3, 9, 9)), max_tokens=2)

DEFAULT: tuple[Instance[SpyreConfig], ...] = (
    Instance(
        name="layout",
        about="three chunk and block layouts side by side, no limit binds: every tkv jump",
        config=_config(chunk_size=6, max_model_len=14),
        requests=unshared((3, 5), (9, 3), (2, 4)),
        aborts=ids("0 1 2"),
        early_ends=ids("0 1"),
    ),
    Instance(
        name="exact",
        about="exact admission, a limit that binds, fewer slots than requests",
        config=_config(max_batch_tkv_limit=18, max_num_seqs=2),
        requests=unshared((3, 5), (7, 4), (2, 6)),
        aborts=ids("1"),
        early_ends=ids("0 1 2"),
    ),
    Instance(
        name="exact, four requests",
        about="exact admission, a limit that binds, four different requests",
        config=_config(max_batch_tkv_limit=26, max_num_seqs=4),
        requests=unshared((3, 5), (6, 4), (2, 5), (1, 6)),
        early_ends=ids("0 1 2"),
    ),
    Instance(
        name="exact, longer blocks",
        about="exact admission, blocks of four tokens, one block a chunk",
        config=_config(block_size=4, chunk_size=4, max_batch_tkv_limit=30),
        requests=unshared((3, 7), (9, 4), (2, 9)),
        early_ends=ids("0 1 2"),
    ),
    Instance(
        name="exact, not interleaved",
        about="exact admission, prefill steps back to back",
        config=_config(interleave=False, max_batch_tkv_limit=24),
        requests=unshared((7, 6), (2, 4), (3, 6)),
        early_ends=ids("0 1"),
    ),
    Instance(
        name="documented",
        about="the text's volumetric rule, as written",
        config=_config(max_batch_tkv_limit=6, admission=Admission.DOCUMENTED),
        requests=unshared((1, 4), (1, 2)),
        early_ends=ids("0 1"),
    ),
    Instance(
        name="documented, length",
        about="the text's maximum-length constraint makes a request wait",
        config=_config(max_batch_tkv_limit=30, max_model_len=8, admission=Admission.DOCUMENTED),
        requests=unshared((1, 6), (5, 3), (2, 3)),
        aborts=ids("0"),
        early_ends=ids("0 1"),
    ),
    Instance(
        name="shipped",
        about="2.6.3 with pausing off, a limit that binds",
        config=_config(max_batch_tkv_limit=24, **_SHIPPED),
        requests=unshared((3, 5), (7, 4), (2, 3)),
        aborts=ids("1"),
        early_ends=ids("0 1 2"),
    ),
    Instance(
        name="shipped, three slots full",
        about="2.6.3 with pausing off, requests alike in length",
        config=_config(block_size=4, chunk_size=4, max_batch_tkv_limit=40, **_SHIPPED),
        requests=unshared((3, 6), (6, 5), (5, 5)),
        aborts=ids("0"),
        early_ends=ids("0 1 2"),
    ),
    Instance(
        name="shipped, not interleaved",
        about="2.6.3 with pausing and interleaving off",
        config=_config(max_batch_tkv_limit=24, interleave=False, **_SHIPPED),
        requests=unshared((7, 6), (2, 4), (3, 6)),
        early_ends=ids("0 1"),
    ),
    Instance(
        name="pausing",
        about="2.6.3 with pausing on: admission by slots alone",
        config=_config(max_batch_tkv_limit=18, pausing=True, **_SHIPPED),
        requests=unshared((3, 5), (7, 4), (2, 6)),
        aborts=ids("0"),
        early_ends=ids("0 1"),
    ),
    Instance(
        name="odd length, shipped",
        about="2.6.3 with a model length that is no multiple of the block",
        config=_config(block_size=4, chunk_size=4, max_model_len=10, **_SHIPPED),
        requests=unshared((3, 5), (6, 4)),
        early_ends=ids("0 1"),
    ),
    Instance(
        name="odd length, documented",
        about="the maximum-length constraint with such a model length",
        config=_config(block_size=4, chunk_size=4, max_model_len=7, admission=Admission.DOCUMENTED),
        requests=unshared((1, 4), (3, 3), (4, 2)),
        early_ends=ids("0 1"),
    ),
    Instance(
        name="odd length, exact",
        about="exact admission, which looks at volume only, with such a model length",
        config=_config(block_size=4, chunk_size=4, max_model_len=10),
        requests=unshared((3, 5), (6, 4)),
        early_ends=ids("0 1"),
    ),
    Instance(
        name="shared prefix",
        about="three prompts with a common beginning, hits across chunk boundaries",
        config=_config(prefix_caching=True, num_blocks=12),
        requests=sharing(
            ([("system", 6), ("a", 2)], 3), ([("system", 6), ("b", 3)], 2), ([("system", 7)], 3)
        ),
        aborts=ids("0 1"),
        early_ends=ids("1 2"),
    ),
    Instance(
        name="eviction",
        about="a pool so small that cached blocks are handed out anew",
        config=_config(prefix_caching=True, num_blocks=7, chunk_size=2),
        requests=sharing(
            ([("system", 4), ("a", 2)], 3), ([("system", 4), ("b", 1)], 2), ([("c", 7)], 3)
        ),
        aborts=ids("0 1 2"),
    ),
    Instance(
        name="dialogue",
        about="a prompt that continues an earlier answer, and one that repeats a prompt",
        config=_config(prefix_caching=True, num_blocks=12),
        requests=(_FIRST_ANSWER, _NEXT_QUESTION, _SAME_AGAIN),
        aborts=ids("0 1"),
    ),
    Instance(
        name="dry pool",
        about="reservation makes requests wait for blocks",
        config=_config(num_blocks=7),
        requests=unshared((3, 5), (7, 3), (2, 4)),
        aborts=ids("0 1"),
        early_ends=ids("0 1"),
    ),
    Instance(
        name="preemption",
        about="no reservation: the pool runs dry and requests start again",
        config=_config(num_blocks=6, reservation=False),
        requests=unshared((3, 5), (5, 3), (2, 4)),
        aborts=ids("0"),
        early_ends=ids("0 1"),
    ),
    Instance(
        name="preemption, shared prefix",
        about="a preempted request finds its own cached blocks again, if they are still there",
        config=_config(num_blocks=6, reservation=False, prefix_caching=True),
        requests=sharing(([("system", 3)], 5), ([("system", 4), ("b", 1)], 3), ([("c", 2)], 4)),
        aborts=ids("0"),
        early_ends=ids("1"),
    ),
    Instance(
        name="alike",
        about="four equal requests, told apart only by their place",
        config=_config(num_blocks=9, max_num_seqs=2),
        requests=unshared((3, 4), (3, 4), (3, 4), (3, 4)),
        aborts=ids("0 1 2 3"),
        early_ends=ids("0 1 2 3"),
    ),
)
