"""An instance as numbers: the constants of the compiled machine, and the widths of its fields."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from checks.explore.instance import Instance
from checks.explore.symmetry import interchangeable
from checks.policies.spyre.compiled.formulas import CONDITIONS
from checks.policies.spyre.compiled.names import (
    AT,
    BLOCKS,
    CONTENT,
    COUNTED,
    FREE,
    GROUP,
    KEYS,
    MAX_TOKENS,
    MAY_ABORT,
    MAY_END,
    MAY_RETURN,
    MEMBERS,
    MOST_REQUESTS,
    N_FREE,
    NO_KEY,
    NO_REQUEST,
    PROMPT_LEN,
    ROWS,
    RULES,
    SINGLE_NUMBERS,
    SLOT,
    WORST_CASE,
)
from checks.policies.spyre.model import request_likeness
from spec.core.blocks import block_count
from spec.core.requests import BlockKey
from spec.spyre.config import SpyreConfig
from spec.spyre.records import Context
from spec.spyre.rules import applicable
from spec.spyre.variants import Queue

Numbers = npt.NDArray[np.int64]
Work = Numbers  # an unpacked state: the rows of `names`


class Setting(Protocol):
    """The configuration and the widths of fields in a packed state, in a record of numbers.

    Truth values are 0 or 1. `rules`: the applicable ones of `RULES`, as bits. The conditions of
    joining are those from `first_condition` to before `last_condition`.
    """

    requests: int
    block_size: int
    chunk_size: int
    max_model_len: int
    max_num_seqs: int
    limit: int
    pool_blocks: int
    interleave: int
    caching: int
    overtaking: int
    reservation: int
    pausing: int
    may_pause: int
    long_output_first: int
    first_condition: int
    last_condition: int
    judged_first: int
    keeps_promises: int
    counts_hits: int
    keeps_last_tkv: int
    is_symmetric: int
    rules: int
    computed_bits: int
    generated_bits: int
    padding_bits: int
    waited_bits: int
    restart_bits: int
    hit_bits: int
    request_bits: int
    tkv_bits: int
    orphan_bits: int
    block_bits: int
    key_bits: int


def compiled_setting(instance: Instance[SpyreConfig], ctx: Context) -> Setting:
    """The constants of the instance for the machine."""
    config, requests = instance.config, instance.requests
    variant = config.variant
    first = next(
        number for number, condition in enumerate(CONDITIONS) if condition is variant.conditions[0]
    )
    longest = max(request.most_tokens for request in requests)
    outputs = max(request.max_tokens for request in requests)
    blocks = longest // config.block_size + 1
    caching, contents = config.prefix_caching, len(block_contents(ctx, instance))
    values = {
        "requests": len(requests),
        "block_size": config.block_size,
        "chunk_size": config.chunk_size,
        "max_model_len": config.max_model_len,
        "max_num_seqs": config.max_num_seqs,
        "limit": config.max_batch_tkv_limit,
        "pool_blocks": config.pool_blocks,
        "interleave": config.interleave,
        "caching": caching,
        "overtaking": config.queue is Queue.OVERTAKING,
        "reservation": config.reservation,
        "pausing": config.pausing,
        "may_pause": config.may_pause,
        "long_output_first": config.long_output_first,
        "first_condition": first,
        "last_condition": first + len(variant.conditions),
        "judged_first": config.is_judged_first,
        "keeps_promises": config.account.keeps_promises,
        "counts_hits": config.account.counts_hits,
        "keeps_last_tkv": variant.uses_last_tkv,
        "rules": sum(1 << RULES.index(rule.id) for rule in applicable(config) if rule.id in RULES),
        "is_symmetric": bool(interchangeable(instance, request_likeness(instance))),
        "computed_bits": longest.bit_length(),
        "generated_bits": outputs.bit_length(),
        "padding_bits": blocks.bit_length(),
        "waited_bits": 8 * config.may_pause,
        "hit_bits": blocks.bit_length() * caching,
        "restart_bits": outputs.bit_length() * (not config.reservation),
        "tkv_bits": (longest + config.block_size).bit_length() * variant.uses_last_tkv,
        "orphan_bits": (blocks * len(requests)).bit_length() * config.account.keeps_promises,
        "block_bits": config.pool_blocks.bit_length(),
        "key_bits": contents.bit_length(),
    }
    of_fields = ("computed", "generated", "padding", "waited", "restart", "hit")
    values["request_bits"] = 6 + sum(values[f"{name}_bits"] for name in of_fields)
    names = Setting.__annotations__
    record = np.recarray(1, dtype=[(name, np.int64) for name in names])
    record[0] = tuple(int(values[name]) for name in names)
    numbers: Any = record[0]
    setting: Setting = numbers
    return setting


def block_contents(ctx: Context, instance: Instance[SpyreConfig]) -> dict[BlockKey, int]:
    """The contents of all possible full blocks of the requests, numbered from 0."""
    if not instance.config.prefix_caching:
        return {}
    keys = [key for request in instance.requests for key in _keys(ctx, request.id)]
    return {key: number for number, key in enumerate(dict.fromkeys(keys))}


def _keys(ctx: Context, request_id: str) -> Sequence[BlockKey]:
    most = ctx.requests[request_id].most_tokens
    return ctx.keys.of(request_id, most // ctx.config.block_size)


def new_work(instance: Instance[SpyreConfig], ctx: Context) -> Work:
    """The initial state: no request has arrived, all blocks are free."""
    config, requests = instance.config, instance.requests
    ids = [request.id for request in requests]
    contents = block_contents(ctx, instance)
    size, longest = config.block_size, max(request.most_tokens for request in requests)
    padded = range(longest + size + 1)  # tokens that a row may have with its padding
    pool = config.pool_blocks + 1 if config.prefix_caching else 0
    w = np.zeros((ROWS, max(SINGLE_NUMBERS, MOST_REQUESTS, len(padded), pool)), np.int64)
    w[BLOCKS, : len(padded)] = [block_count(tokens, size) for tokens in padded]
    w[COUNTED, : len(padded)] = [len(range(0, tokens, size)) for tokens in padded]
    w[AT, SLOT], w[AT, N_FREE] = NO_REQUEST, config.pool_blocks
    w[CONTENT] = NO_KEY
    if config.prefix_caching:
        w[FREE, : config.pool_blocks] = range(1, config.pool_blocks + 1)
    for number, request in enumerate(requests):
        w[PROMPT_LEN, number], w[MAX_TOKENS, number] = request.prompt_len, request.max_tokens
        w[WORST_CASE, number] = w[COUNTED, request.most_tokens]
        w[MAY_ABORT, number] = request.id in instance.aborts
        w[MAY_END, number] = request.id in instance.early_ends
        w[MAY_RETURN, number] = request.id in instance.returning
        if contents:
            keys = [contents[key] for key in _keys(ctx, request.id)]
            w[KEYS + number, : len(keys)] = keys
    groups = interchangeable(instance, request_likeness(instance))
    grouped = {id_ for group in groups for id_ in group}
    groups += [[id_] for id_ in ids if id_ not in grouped]
    for row, group in enumerate(groups):
        places = [ids.index(id_) for id_ in group]
        w[MEMBERS + row, : len(group)] = places
        w[GROUP, places] = row
    return w
