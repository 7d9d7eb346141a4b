"""The holders of each block, and what is in it: known once it is computed, forgotten in time."""

from collections import deque
from collections.abc import Sequence as Seq

from .sequence import Sequence  # type: ignore[import-untyped] # beside the other files

NONE = -1


class Block:
    def __init__(self) -> None:
        self.ref_count = 0
        self.hash = NONE
        self.token_ids: list[int] = []


class BlockManager:
    def __init__(self, count: int, block_size: int) -> None:
        self.block_size = block_size
        self.blocks = [Block() for _ in range(count)]
        self.free_block_ids = deque(range(count))
        self.hash_to_block_id: dict[int, int] = {}

    @staticmethod
    def compute_hash(token_ids: Seq[int], prefix: int = NONE) -> int:
        return hash((prefix, *token_ids))

    def found(self, sequence: Sequence) -> list[int]:
        blocks: list[int] = []
        key = NONE
        for index in range(sequence.num_blocks - 1):
            key = self.compute_hash(sequence.block(index), key)
            if key not in self.hash_to_block_id:
                break
            blocks.append(self.hash_to_block_id[key])
        return blocks

    def can_allocate(self, sequence: Sequence) -> int:
        found = self.found(sequence)
        held = sum(self.blocks[block].ref_count > 0 for block in found)
        fits = len(self.free_block_ids) >= sequence.num_blocks - held
        return len(found) if fits else NONE

    def allocate(self, sequence: Sequence, num_cached_blocks: int) -> None:
        for block in self.found(sequence)[:num_cached_blocks]:
            if not self.blocks[block].ref_count:
                self.free_block_ids.remove(block)
            self.blocks[block].ref_count += 1
            sequence.block_table.append(block)
        while len(sequence.block_table) < sequence.num_blocks:
            sequence.block_table.append(self._next())
        sequence.num_cached_tokens = num_cached_blocks * self.block_size

    def _next(self) -> int:
        block = self.free_block_ids.popleft()
        fresh = self.blocks[block]
        if self.hash_to_block_id.get(fresh.hash) == block:
            del self.hash_to_block_id[fresh.hash]
        fresh.ref_count, fresh.hash, fresh.token_ids = 1, NONE, []
        return block

    def deallocate(self, sequence: Sequence) -> None:
        for block in reversed(sequence.block_table):
            self.blocks[block].ref_count -= 1
            if not self.blocks[block].ref_count:
                self.free_block_ids.append(block)
        sequence.block_table.clear()
        sequence.num_cached_tokens = 0

    def can_append(self, sequence: Sequence) -> bool:
        return bool(len(self.free_block_ids) >= (sequence.num_tokens % self.block_size == 1))

    def may_append(self, sequence: Sequence) -> None:
        if sequence.num_tokens % self.block_size == 1:
            sequence.block_table.append(self._next())

    def write_computed(self, sequence: Sequence, end: int) -> None:
        size = self.block_size
        for index in range(sequence.num_cached_tokens // size, end // size):
            earlier = sequence.block_table[index - 1] if index else None
            prefix = NONE if earlier is None else self.blocks[earlier].hash
            block, tokens = sequence.block_table[index], sequence.block(index)
            key = self.compute_hash(tokens, prefix)
            self.blocks[block].hash, self.blocks[block].token_ids = key, tokens
            self.hash_to_block_id[key] = block
