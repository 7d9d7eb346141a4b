"""The blocks of one device: handed out, shared, found by content, given back and evicted.

Source: vllm-v0, "Memory Management & Preemption"; all orders are those of vLLM 0.9.2. Free blocks
without contents are handed out first, the last one freed before the others; then those with
contents, which lose them: the longest unused first, of these the deepest in its sequence.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile

from attrs import define, evolve, field, frozen

from reference.core.block_pool import allocate, lookup, register, release, touch
from reference.core.frozen_map import FrozenMap, updated, without
from spec.core.blocks import BlockPool
from spec.core.requests import BlockKey
from spec.vllm_v0.block_keys import depth

_NEVER_MARKED = -1


@define(slots=False)
class EngineEnds(Exception):  # noqa: N818 - what happens; in the machine it is no error
    """Here the engine dies; `reason` says of what."""

    reason: str

    def __str__(self) -> str:
        return f"the engine ends: {self.reason}"


@frozen
class Memory:
    """The blocks of the GPU or of the CPU.

    `computed`: blocks with contents whose tokens are computed; `marks`: how recently a block was
    used that some sequence gave back: the smaller, the longer ago. On the CPU both are empty.
    """

    pool: BlockPool
    computed: frozenset[int] = frozenset()
    marks: Mapping[int, int] = field(factory=FrozenMap)


def hand_out(memory: Memory, count: int) -> tuple[Memory, tuple[int, ...]]:
    """The next `count` free blocks, without contents.

    Raises:
        EngineEnds: there are fewer free blocks.
    """
    # guard
    if count > len(memory.pool.free):
        raise EngineEnds("no free blocks")
    # effect
    pool, blocks = allocate(memory.pool, count)
    computed = memory.computed.difference(blocks)
    return Memory(pool, computed, _without(memory.marks, blocks)), blocks


def hit(memory: Memory, blocks: Sequence[int]) -> Memory:
    """One more holder for blocks that were found by their contents, free ones among them."""
    revived = [block for block in blocks if block not in memory.pool.references]
    return evolve(memory, pool=touch(memory.pool, blocks), marks=_without(memory.marks, revived))


def hold(memory: Memory, blocks: Sequence[int], holders: int) -> Memory:
    """Add holders to blocks that are held."""
    references = memory.pool.references
    held = {block: references[block] + holders for block in blocks}
    return evolve(memory, pool=evolve(memory.pool, references=updated(references, held)))


def give_back(memory: Memory, table: Sequence[int], mark: int | None = None) -> Memory:
    """One holder less for the blocks of a table; `mark`: how recently they were used, if known.

    Those without contents and holders are the next to be handed out, the table's tail first.
    """
    marks = memory.marks if mark is None else updated(memory.marks, dict.fromkeys(table, mark))
    pool = release(memory.pool, table)
    marks = _without(marks, [block for block in table if block not in pool.keys])
    return evolve(memory, pool=_in_eviction_order(pool, marks), marks=marks)


def fill(memory: Memory, keys: Sequence[BlockKey], others: int) -> tuple[Memory, tuple[int, ...]]:
    """A table: full blocks with these contents, shared where they are known, and `others` more."""
    table: list[int] = []
    while len(table) < len(keys):
        hits = lookup(memory.pool, keys[len(table) :])
        memory = hit(memory, hits)
        table += hits
        missing = _unknown(memory.pool, keys[len(table) :])
        memory, fresh = hand_out(memory, len(missing))
        memory = evolve(memory, pool=register(memory.pool, fresh, missing))
        table += fresh
    memory, rest = hand_out(memory, others)
    return memory, (*table, *rest)


def copy_on_write(memory: Memory, block: int) -> tuple[Memory, int]:
    """A block to write to in the place of one that others hold, too."""
    memory, (own,) = hand_out(give_back(memory, (block,)), 1)
    return memory, own


def become_full(memory: Memory, block: int, key: BlockKey) -> tuple[Memory, int]:
    """A held block has its content: lookups find it, or it gives way to one that has the same."""
    if key in memory.pool.cached:
        (known,) = memory.pool.cached[key]
        return hit(give_back(memory, (block,)), (known,)), known
    return evolve(memory, pool=register(memory.pool, (block,), (key,))), block


def compute(memory: Memory, blocks: Sequence[int], keys: Sequence[BlockKey]) -> Memory:
    """Blocks are full of computed tokens: known for it, unless another is known for the same."""
    unknown = {
        block: key
        for block, key in zip(blocks, keys, strict=True)
        if block not in memory.pool.keys and key not in memory.pool.cached
    }
    pool = register(memory.pool, [*unknown], [*unknown.values()])
    known = {block for block in blocks if block in pool.keys}
    return evolve(memory, pool=pool, computed=memory.computed | known)


def is_computed(memory: Memory, key: BlockKey) -> bool:
    """True if a block has this content and its tokens are computed."""
    return any(block in memory.computed for block in memory.pool.cached.get(key, ()))


def forget(memory: Memory, key: BlockKey) -> Memory:
    """No block is found by this content any more; a free one that had it is handed out next."""
    if key not in memory.pool.cached:
        return memory
    pool, (block,) = memory.pool, memory.pool.cached[key]
    free = tuple(pool.free)
    if block in free:
        free = (block, *(other for other in free if other != block))
    keys, cached = without(pool.keys, block), without(pool.cached, key)
    pool = evolve(pool, free=free, keys=keys, cached=cached)
    return Memory(pool, memory.computed - {block}, _without(memory.marks, [block]))


def _unknown(pool: BlockPool, keys: Iterable[BlockKey]) -> list[BlockKey]:
    """The leading run of contents that no block has."""
    return list(takewhile(lambda key: key not in pool.cached, keys))


def _without(marks: Mapping[int, int], blocks: Iterable[int]) -> Mapping[int, int]:
    marked = [block for block in blocks if block in marks]
    return without(marks, *marked) if marked else marks


def _in_eviction_order(pool: BlockPool, marks: Mapping[int, int]) -> BlockPool:
    if not pool.keys:
        return pool

    def age(block: int) -> tuple[int, int, int]:
        return marks.get(block, _NEVER_MARKED), -depth(pool.keys[block]), block

    evictable = sorted((block for block in pool.free if block in pool.keys), key=age)
    blank = (block for block in pool.free if block not in pool.keys)
    return evolve(pool, free=(*blank, *evictable))
