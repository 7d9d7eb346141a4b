"""The groups of layers of a hybrid model: what a token reads in each, and in which blocks.

Full attention comes first, with the block size of the configuration. Each further group has a block
table of its own, and all take their blocks from one pool. A block table has a place for each block
of tokens; a place whose block was given back, or was never needed, holds the null block.
Source: vLLM 0.28.0, KV cache coordinator. Every formula takes integers or solver terms.
"""

import re
from enum import StrEnum

from attrs import frozen

from spec.core.arithmetic import Number, cdiv, floor_div, maximum, minimum
from spec.core.errors import ConfigError
from spec.core.requests import BlockKey, BlockKeys

NULL_BLOCK = 0
"""Stands in a block table where there is no block; the pool's blocks are numbered from 1."""


class GroupKind(StrEnum):
    """The attention of a group.

    `full`: a token reads all tokens before it. `sliding`: it reads the last ones, as many as the
    window. `mamba`: it reads the state after the token before it, which stands for all before.
    """

    FULL = "full"
    SLIDING = "sliding"
    MAMBA = "mamba"


@frozen
class KvGroup:
    """A group of layers with one block table; lengths in tokens.

    `number`: place among the groups, 0 for the first. `reach`: tokens that a token reads, itself
    among them; None: all before it.
    """

    number: int
    kind: GroupKind
    block_size: int
    reach: int | None = None

    @property
    def is_mamba(self) -> bool:
        """True if its blocks hold states: of the last token in them, whatever else they cover."""
        return self.kind is GroupKind.MAMBA


_FORM = re.compile(r"(?:(full|mamba)|sliding (\d+))(?:/(\d+))?")
_ALLOWED = 'groups with commas between them, such as "sliding 6, sliding 4/8" or "full, mamba"'
_MAMBA_REACH = 2  # its own token, and the state after the one before it


def parsed_groups(text: str, block_size: int) -> tuple[KvGroup, ...]:
    """The groups that a text names; `block_size`: of the first, and of those that say none.

    Raises:
        ConfigError: it names none, a window without a token before the one that reads, groups that
            all are like the first, or blocks that are not modelled. (Larger blocks of full
            attention also have entries for the last tokens of prompts.)
    """
    groups = []
    for number, part in enumerate(text.split(","), start=1):
        match = _FORM.fullmatch(part.strip())
        if match is None:
            raise ConfigError("kv_groups", text, _ALLOWED)
        name, window, own = match.groups()
        kind = GroupKind(name or GroupKind.SLIDING)
        size = int(own) if own else block_size
        if size < 1 or (window and int(window) < 2):
            raise ConfigError("kv_groups", text, "windows of 2 or more tokens, blocks of 1 or more")
        if size % block_size or (kind is not GroupKind.SLIDING and size > block_size):
            allowed = f'behind "/" a multiple of block_size ({block_size}), of windows alone'
            raise ConfigError("kv_groups", text, allowed)
        reach = int(window) if window else _MAMBA_REACH if kind is GroupKind.MAMBA else None
        groups.append(KvGroup(number, kind, size, reach))
    if all(group.kind is GroupKind.FULL for group in groups):
        raise ConfigError("kv_groups", text, "a group that is not like the first")
    sizes = {group.block_size for group in groups}
    if sizes != {block_size} and any(group.is_mamba for group in groups):
        raise ConfigError("kv_groups", text, f"blocks of {block_size} tokens beside mamba")
    return tuple(groups)


def unread_blocks(position: Number, reach: Number, block_size: Number) -> Number:
    """Leading blocks of which the token at `position` reads nothing, nor does any later one.

    Source: vLLM 0.28.0, `get_num_skipped_tokens`.
    """
    return floor_div(maximum(position - reach + 1, 0), block_size)


def most_blocks(
    reach: Number, uncertain: Number, max_model_len: Number, block_size: Number
) -> Number:
    """Blocks that a request holds at most in a group that gives back what is behind its window.

    Those of the window before the `uncertain` tokens, whose results are not known, and of these
    tokens, and one more where they do not begin with a block. Source: vLLM 0.28.0,
    `max_admission_blocks_per_request`.
    """
    return cdiv(minimum(reach - 1 + uncertain, max_model_len), block_size) + 1


def retired_places(
    table: tuple[int, ...], unread: int, grown_from: int, *, over_gaps: bool
) -> list[int]:
    """Places whose blocks are given back, of the `unread` leading ones of a group's table.

    `over_gaps`: of all of them. Else of the last ones up to a place without a block, and of the
    last one before the table grew: `grown_from` is how many it had then (vLLM 0.28.0).
    """
    held = [place for place in range(min(unread, len(table))) if table[place] != NULL_BLOCK]
    if over_gaps:
        return held
    last = unread
    while last - 1 in held:
        last -= 1
    return [place for place in held if place >= last or place == grown_from - 1]


def aligned(tokens: Number, alignment: Number) -> Number:
    """The longest prefix of these tokens that a later request could find in all groups."""
    return floor_div(tokens, alignment) * alignment


def is_findable(group: KvGroup, place: int, alignment: int) -> bool:
    """True if a hit that ends with the next aligned token reads something of the block there.

    Others are not kept for lookups. Source: vLLM 0.28.0, `reachable_block_mask`.
    """
    if group.reach is None:
        return True
    end = (place + 1) * group.block_size
    return bool(
        place >= unread_blocks(cdiv(end, alignment) * alignment, group.reach, group.block_size)
    )


def group_key(keys: BlockKeys, request_id: str, group: KvGroup, place: int) -> BlockKey:
    """The key of a request's block at this place of the group's table.

    Two blocks have equal keys if and only if they are of one group and everything up to their ends
    is equal. `keys`: those of the first group, whose blocks are a part of the others'.
    """
    blocks = (place + 1) * group.block_size // keys.block_size
    return keys.of(request_id, blocks)[-1] + bytes([group.number])


def last_state(tokens: int, block_size: int, *, for_same_prompt: bool) -> int:
    """The last end of a block of these tokens at which a chunk of them stops.

    `for_same_prompt`: where the tokens end with a block, one block before: a request with the same
    prompt computes its last token, and so finds no state behind it (vLLM 0.33.0).
    """
    return int(aligned(tokens - for_same_prompt, block_size))


def state_aligned_end(
    start: int, end: int, prefill_end: int, block_size: int, most: int, *, last: int, junction: int
) -> int:
    """Where the chunk from `start` to `end` ends so that states lie at the ends of blocks.

    A chunk that ends before `prefill_end` ends with a block; it is empty where less than one is
    left, unless no chunk could hold a block, of `most` tokens at most. No chunk runs past the end
    of a block that it does not begin, past the `last` of them, nor past the `junction`: where other
    groups had a longer prefix. Source: vLLM 0.28.0, `_mamba_block_aligned_split`.
    """
    if start >= prefill_end:
        return end
    if end < prefill_end:
        whole = int(aligned(end, block_size))
        if whole > start or block_size <= most:
            end = whole
    branch = start + int(aligned(junction - start, block_size)) if junction < end else 0
    stops = (int(cdiv(start, block_size)) * block_size, last, branch)
    return max(min((stop for stop in stops if start < stop < end), default=end), start)
