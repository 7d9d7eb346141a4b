"""Prefill first, the first prompt cut to the budget, else decode; the back is preempted."""

from collections import deque
from collections.abc import Sequence as Seq

from nanovllm.config import Config  # type: ignore[import-not-found]

from .block_manager import BlockManager
from .sequence import Sequence  # type: ignore[import-untyped] # beside the other files


class Scheduler:
    def __init__(self, config: Config) -> None:
        self.most_sequences = config.max_num_seqs
        self.budget = config.max_num_batched_tokens
        self.eos = config.eos
        self.block_manager = BlockManager(config.num_kvcache_blocks, config.kvcache_block_size)
        self.waiting: deque[Sequence] = deque()
        self.running: deque[Sequence] = deque()

    def is_finished(self) -> bool:
        return not self.waiting and not self.running

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def schedule(self) -> tuple[list[Sequence], bool]:
        batch: list[Sequence] = []
        room = self.budget
        while self.waiting and room and len(batch) < self.most_sequences:
            first, hits = self.waiting[0], 0
            cached = first.num_cached_tokens
            if not first.block_table:
                hits = self.block_manager.can_allocate(first)
                cached = hits * self.block_manager.block_size
            missing = first.num_tokens - cached
            if hits < 0 or (batch and missing > room):
                break
            if not first.block_table:
                self.block_manager.allocate(first, hits)
            first.num_scheduled_tokens = min(missing, room)
            room -= first.num_scheduled_tokens
            batch.append(first)
            if first.num_scheduled_tokens == missing:
                self.running.append(self.waiting.popleft())
        return (batch, True) if batch else (self._decode(), False)

    def _decode(self) -> list[Sequence]:
        batch: list[Sequence] = []
        while self.running and len(batch) < self.most_sequences:
            seq = self.running.popleft()
            while not self.block_manager.can_append(seq):
                if not self.running:
                    self.preempt(seq)
                    break
                self.preempt(self.running.pop())
            else:
                self.block_manager.may_append(seq)
                seq.num_scheduled_tokens = 1
                batch.append(seq)
        assert batch
        self.running.extendleft(reversed(batch))
        return batch

    def preempt(self, sequence: Sequence) -> None:
        self.block_manager.deallocate(sequence)
        self.waiting.appendleft(sequence)

    def postprocess(self, batch: Seq[Sequence], token_ids: Seq[int], is_prefill: bool) -> None:
        for seq, token in zip(batch, token_ids, strict=True):
            end = seq.num_cached_tokens + seq.num_scheduled_tokens
            self.block_manager.write_computed(seq, end)
            seq.num_cached_tokens = end
            if is_prefill and end < seq.num_tokens:
                continue
            seq.token_ids.append(token)
            is_end = not seq.params.ignore_eos and token == self.eos
            if is_end or seq.num_completion_tokens == seq.params.max_tokens:
                seq.is_finished = True
                self.block_manager.deallocate(seq)
                self.running.remove(seq)
