"""The holders of each block, and what is in it."""

from collections import deque
from collections.abc import Sequence as Seq

from .sequence import Sequence

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

    def can_allocate(self, sequence: Sequence) -> bool:
        return len(self.free_block_ids) >= sequence.num_blocks

    def allocate(self, sequence: Sequence) -> None:
        key, is_hit = NONE, True
        for index in range(sequence.num_blocks):
            tokens = sequence.block(index)
            is_full = len(tokens) == self.block_size
            key = self.compute_hash(tokens, key) if is_full else NONE
            found = self.hash_to_block_id.get(key, NONE)
            is_hit = is_hit and found != NONE and self.blocks[found].token_ids == tokens
            block = found if is_hit else self.free_block_ids[0]
            self._hold(block)
            if is_hit:
                sequence.num_cached_tokens += self.block_size
            if is_full:
                self._write(block, key, tokens)
            sequence.block_table.append(block)

    def _hold(self, block: int) -> None:
        held = self.blocks[block]
        if not held.ref_count:
            self.free_block_ids.remove(block)
            held.hash, held.token_ids = NONE, []
        held.ref_count += 1

    def _write(self, block: int, key: int, tokens: list[int]) -> None:
        self.blocks[block].hash, self.blocks[block].token_ids = key, tokens
        self.hash_to_block_id[key] = block

    def deallocate(self, sequence: Sequence) -> None:
        for block in reversed(sequence.block_table):
            self.blocks[block].ref_count -= 1
            if not self.blocks[block].ref_count:
                self.free_block_ids.append(block)
        sequence.block_table.clear()
        sequence.num_cached_tokens = 0

    def can_append(self, sequence: Sequence) -> bool:
        return len(self.free_block_ids) >= (sequence.num_tokens % self.block_size == 1)

    def may_append(self, sequence: Sequence) -> None:
        offset = sequence.num_tokens % self.block_size
        if offset == 1:
            block = self.free_block_ids[0]
            self._hold(block)
            sequence.block_table.append(block)
        elif offset == 0:
            *earlier, last = sequence.block_table
            key = self.blocks[earlier[-1]].hash if earlier else NONE
            tokens = sequence.block(len(earlier))
            self._write(last, self.compute_hash(tokens, key), tokens)
