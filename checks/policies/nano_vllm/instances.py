"""The instances of nano-vLLM that are explored by default: small in numbers, rich in behaviour."""

from collections.abc import Mapping
from typing import Any

from checks.explore.instance import Instance, ids, lettered
from spec.core.requests import Prompt, Request
from spec.nano_vllm.config import NanoVllmConfig, Oversized, documented, repaired

_SMALL: Mapping[str, Any] = {
    "block_size": 2,
    "max_num_batched_tokens": 10,
    "max_model_len": 10,
    "max_num_seqs": 3,
}


_TIGHT: Mapping[str, Any] = {
    **_SMALL,
    "max_num_batched_tokens": 8,
    "max_model_len": 8,
    "max_num_seqs": 2,
}
_PREEMPTED = lettered(("abc", 4), ("de", 5), ("f", 4))
_SHARED = lettered(("ssssab", 3), ("ssssc", 3), ("ssss", 3))
_SAME_BLOCK_ELSEWHERE = lettered(("ppaa", 1), ("qqaa", 1), ("ppaax", 1))
_SAME_ANSWERS = (
    Request(id="0", prompt=Prompt.of_tokens((7, 7)), max_tokens=5, output=(1, 2, 3, 4, 5)),
    Request(id="1", prompt=Prompt.of_tokens((7, 7)), max_tokens=3, output=(1, 2, 3)),
    Request(id="2", prompt=Prompt.of_tokens((8, 8, 8)), max_tokens=2, output=(1, 2)),
    Request(id="3", prompt=Prompt.of_tokens((7, 7, 1, 2, 9)), max_tokens=1, output=(1,)),
)
_SAME_TOKENS_TWICE = (
    Request(id="0", prompt=Prompt.of_tokens((7,)), max_tokens=4, output=(1, 2, 2, 3)),
    Request(id="1", prompt=Prompt.of_tokens((7, 1, 2, 2, 2, 2)), max_tokens=3, output=(4, 5, 6)),
)
_BUDGET = lettered(("abcdef", 2), ("gh", 3), ("ijk", 2))

DEFAULT: tuple[Instance[NanoVllmConfig], ...] = (
    Instance(
        name="preemption",
        about="as released: the pool runs dry, victims come back",
        config=NanoVllmConfig(**_SMALL, num_blocks=4),
        requests=_PREEMPTED,
        aborts=ids("0"),
        early_ends=ids("0 1"),
    ),
    Instance(
        name="budget",
        about="as released: tokens and sequences of a step are limited",
        config=NanoVllmConfig(**_TIGHT, num_blocks=8),
        requests=_BUDGET,
        aborts=ids("1"),
        early_ends=ids("0 1 2"),
    ),
    Instance(
        name="left behind",
        about="as released: one sequence a step, so that others run without getting a token",
        config=NanoVllmConfig(**{**_SMALL, "max_num_seqs": 1}, num_blocks=3),
        requests=lettered(("ab", 3), ("cd", 2), ("ef", 3)),
        early_ends=ids("0 1"),
    ),
    Instance(
        name="shared prefix",
        about="as released: a common beginning, one prompt is all of it",
        config=NanoVllmConfig(**_SMALL, num_blocks=7),
        requests=_SHARED,
        aborts=ids("0 1"),
        early_ends=ids("1 2"),
    ),
    Instance(
        name="same block elsewhere",
        about="as released: equal tokens behind different ones, blocks handed out anew",
        config=NanoVllmConfig(**_SMALL, num_blocks=3),
        requests=_SAME_BLOCK_ELSEWHERE,
        aborts=ids("0 1"),
    ),
    Instance(
        name="same tokens twice",
        about="as released: a victim's last block becomes another's, and is found in two places",
        config=NanoVllmConfig(**_SMALL, num_blocks=4),
        requests=_SAME_TOKENS_TWICE,
    ),
    Instance(
        name="same answers",
        about="repaired: two blocks of equal tokens, the one that is named is handed out anew",
        config=repaired(**{**_SMALL, "max_num_seqs": 4}, num_blocks=6),
        requests=_SAME_ANSWERS,
    ),
    Instance(
        name="oversized",
        about="as released: a request that the pool can never hold is queued",
        config=NanoVllmConfig(**_SMALL, num_blocks=2, oversized=Oversized.QUEUED),
        requests=lettered(("abc", 4), ("d", 2)),
        early_ends=ids("0"),
    ),
    Instance(
        name="documented",
        about="the text to the letter",
        config=documented(**_SMALL, num_blocks=4),
        requests=_PREEMPTED,
        early_ends=ids("0 1"),
    ),
    Instance(
        name="documented, eviction",
        about="the text's hits, which nothing checks, without its early blocks",
        config=documented(**_SMALL, num_blocks=3, new_block="after_boundary"),
        requests=_SAME_BLOCK_ELSEWHERE,
    ),
    Instance(
        name="repaired, preemption",
        about="the pool runs dry under the choices that keep the promises",
        config=repaired(**_SMALL, num_blocks=4),
        requests=_PREEMPTED,
        aborts=ids("0"),
        early_ends=ids("1"),
    ),
    Instance(
        name="repaired, budget",
        about="tokens and running sequences are limited",
        config=repaired(**_TIGHT, num_blocks=8),
        requests=_BUDGET,
        aborts=ids("1"),
        early_ends=ids("0 1 2"),
    ),
    Instance(
        name="repaired, shared prefix",
        about="a common beginning under those choices",
        config=repaired(**_SMALL, num_blocks=7),
        requests=_SHARED,
        aborts=ids("0 1"),
        early_ends=ids("1 2"),
    ),
    Instance(
        name="repaired, same block elsewhere",
        about="equal tokens behind different ones, the hash is checked",
        config=repaired(**_SMALL, num_blocks=3),
        requests=_SAME_BLOCK_ELSEWHERE,
        aborts=ids("0 1"),
    ),
)
