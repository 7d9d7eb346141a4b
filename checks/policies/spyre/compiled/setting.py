"""An instance as numbers: what the compiled machine looks up, and how wide its fields are."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from checks.explore.instance import Instance
from checks.explore.symmetry import interchangeable
from checks.policies.spyre.compiled.formulas import CONDITIONS, MOST_MEMBERS, MOST_ROWS
from checks.policies.spyre.model import alike_in
from spec.spyre.config import SpyreConfig
from spec.spyre.records import Context
from spec.spyre.variants import Queue

Numbers = npt.NDArray[np.int64]
WORD_BITS = 62  # of the 64 in a word: neither sign nor overflow matters to shifts


class Setting(NamedTuple):
    """The instance; lengths in tokens, truth values 0 or 1.

    One number for each request: `prompt_len`, `max_tokens`; `may_abort`, `may_end`, `may_return`.
    `members`: in each row interchangeable requests, `group` the row that a request stands in.
    `keys`: the content of each block of each request, by number. `conditions`: of joining, from
    the first to the one behind the last. `..._bits`: width of a field in a packed state.
    """

    requests: int
    prompt_len: Numbers
    max_tokens: Numbers
    may_abort: Numbers
    may_end: Numbers
    may_return: Numbers
    is_symmetric: int
    group: Numbers
    members: Numbers
    keys: Numbers
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
    keeps_last_tkv: int
    computed_bits: int
    generated_bits: int
    padding_bits: int
    waited_bits: int
    hit_bits: int
    restart_bits: int
    tkv_bits: int
    block_bits: int
    key_bits: int


def unsupported(instance: Instance[SpyreConfig]) -> str | None:
    """Why the compiled machine cannot have an instance, None if it can."""
    requests, slots = len(instance.requests), instance.config.max_num_seqs
    if requests > MOST_ROWS:
        return f"{requests} requests, it has up to {MOST_ROWS}"
    if min(requests, slots) > MOST_MEMBERS + 1:
        return f"{min(requests, slots)} requests at a time, it has up to {MOST_MEMBERS + 1}"
    return None


def setting_of(instance: Instance[SpyreConfig], ctx: Context) -> Setting:
    """The instance as numbers; requests are numbered in its order."""
    config, requests = instance.config, instance.requests
    ids = [one.id for one in requests]

    def numbers(values: Sequence[int]) -> Numbers:
        return np.array(values, np.int64)

    def flags(some: frozenset[str]) -> Numbers:
        return numbers([one in some for one in ids])

    groups = interchangeable(instance, alike_in(instance))
    rows = [[ids.index(one) for one in group] for group in groups]
    rows += [[place] for place, one in enumerate(ids) if not any(one in group for group in groups)]
    members = np.zeros((len(rows), len(ids)), np.int64)
    group = np.zeros(len(ids), np.int64)
    for row, places in enumerate(rows):
        members[row, : len(places)] = places
        group[places] = row
    keys = _keys(ctx, ids)
    variant, conditions = config.variant, [id(one) for one in CONDITIONS]
    first = conditions.index(id(variant.conditions[0]))
    longest = max(one.prompt_len + one.max_tokens for one in requests)
    return Setting(
        requests=len(requests),
        prompt_len=numbers([one.prompt_len for one in requests]),
        max_tokens=numbers([one.max_tokens for one in requests]),
        may_abort=flags(instance.aborts),
        may_end=flags(instance.early_ends),
        may_return=flags(instance.returning),
        is_symmetric=int(bool(groups)),
        group=group,
        members=members,
        keys=keys,
        block_size=config.block_size,
        chunk_size=config.chunk_size,
        max_model_len=config.max_model_len,
        max_num_seqs=config.max_num_seqs,
        limit=config.max_batch_tkv_limit,
        pool_blocks=config.pool_blocks,
        interleave=int(config.interleave),
        caching=int(config.prefix_caching),
        overtaking=int(config.queue is Queue.OVERTAKING),
        reservation=int(config.reservation),
        pausing=int(config.pausing),
        may_pause=int(config.may_pause),
        long_output_first=int(config.long_output_first),
        first_condition=first,
        last_condition=first + len(variant.conditions),
        judged_first=int(config.is_judged_first),
        keeps_last_tkv=int(variant.uses_last_tkv),
        computed_bits=longest.bit_length(),
        generated_bits=max(one.max_tokens for one in requests).bit_length(),
        padding_bits=(longest // config.block_size + 1).bit_length(),
        waited_bits=8 if config.may_pause else 0,
        hit_bits=(longest // config.block_size).bit_length() if config.prefix_caching else 0,
        restart_bits=0 if config.reservation else longest.bit_length(),
        tkv_bits=(longest + config.block_size).bit_length() if variant.uses_last_tkv else 0,
        block_bits=config.pool_blocks.bit_length(),
        key_bits=(int(keys.max(initial=0)) + 1).bit_length(),
    )


def _keys(ctx: Context, ids: Sequence[str]) -> Numbers:
    """The content of each full block that each request may ever have, numbered from 0."""
    size = ctx.config.block_size
    blocks = [(ctx.requests[one].prompt_len + ctx.requests[one].max_tokens) // size for one in ids]
    keys = np.zeros((len(ids), max(blocks) + 1), np.int64)
    if not ctx.config.prefix_caching:
        return keys
    known: dict[bytes, int] = {}
    for row, (one, count) in enumerate(zip(ids, blocks, strict=True)):
        for place, key in enumerate(ctx.keys.of(one, count)):
            keys[row, place] = known.setdefault(key, len(known))
    return keys
