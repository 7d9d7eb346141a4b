"""The released block manager of vLLM V0, driven directly with groups of sequences built by hand.

Run by the Python of an environment that has the release. A line of standard input is an episode: a
configuration and operations, each a list of name and arguments. A line of standard output is what
they came to: for each operation its answer and the blocks afterwards, numbered from 1 on either
device; after an error none.
"""

# ruff: noqa: E402 - the environment is set before the release is imported, which reads it then
# mypy: disable-error-code="import-not-found"

import json
import logging
import os
import sys
import traceback
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

os.environ.update(VLLM_USE_V1="0", VLLM_PLUGINS="", VLLM_LOGGING_LEVEL="ERROR", HF_HUB_OFFLINE="1")
answers, sys.stdout = sys.stdout, sys.stderr

from vllm.core.block_manager import SelfAttnBlockSpaceManager
from vllm.core.interfaces import AllocStatus
from vllm.sequence import Logprob, Sequence, SequenceGroup, SequenceStatus
from vllm.utils import Device

logging.disable(logging.WARNING)

Json = dict[str, Any]
FITS = {AllocStatus.OK: "now", AllocStatus.LATER: "later", AllocStatus.NEVER: "never"}


class Episode:
    """A block manager, groups by request id, and sequences by their own."""

    def __init__(self, config: Json) -> None:
        self.config = config
        sizes = {key: config[key] for key in ("block_size", "num_gpu_blocks", "num_cpu_blocks")}
        self.manager = SelfAttnBlockSpaceManager(**sizes, enable_caching=config["caching"])
        self.manager.watermark_blocks = config["watermark_blocks"]
        self.groups: dict[str, Any] = {}
        self.sequences: dict[str, Any] = {}

    # --- what a client and the model do ---

    def arrive(self, request: str, prompt: list[int], encoder: int, lora: int) -> None:
        encoder_seq = self.sequence(-len(self.groups) - 1, [7] * encoder) if encoder else None
        self.sequences[request] = self.sequence(len(self.sequences), prompt, lora)
        group = SequenceGroup(request, [self.sequences[request]], 0.0, encoder_seq=encoder_seq)
        self.groups[request] = group

    def sequence(self, number: int, prompt: list[int], lora: int = 0) -> Any:
        inputs = {"type": "token", "prompt_token_ids": prompt}
        adapter = SimpleNamespace(lora_int_id=lora) if lora else None
        return Sequence(number, inputs, self.config["block_size"], lora_request=adapter)

    def sample(self, sequence: str, tokens: list[int]) -> None:
        for token in tokens:
            self.sequences[sequence].append_token_id(token, {token: Logprob(0.0)})

    def fork(self, request: str, children: list[str]) -> None:
        parent, group = self.sequences[request], self.groups[request]
        for child in children:
            self.sequences[child] = parent.fork(len(self.sequences))
            self.manager.fork(parent, self.sequences[child])
        group.seqs += [self.sequences[child] for child in children]
        group.is_single_seq = len(group.seqs) == 1

    # --- the block manager's operations ---

    def can_allocate(self, request: str, lookahead: int) -> str:
        return FITS[self.manager.can_allocate(self.groups[request], lookahead)]

    def allocate(self, request: str) -> None:
        self.manager.allocate(self.groups[request])
        self.become(request, SequenceStatus.WAITING, SequenceStatus.RUNNING)

    def cached_tokens(self, request: str) -> int:
        sequence = self.unfinished(request)[0]
        tracker = self.manager._computed_blocks_tracker
        tracker._seq_id_to_num_tokens_computed.pop(sequence.seq_id, None)
        return int(self.manager.get_num_cached_tokens(sequence))

    def can_append_slots(self, request: str, lookahead: int) -> bool:
        return bool(self.manager.can_append_slots(self.groups[request], lookahead))

    def append_slots(self, request: str, lookahead: int) -> list[Any]:
        running = self.groups[request].get_seqs(SequenceStatus.RUNNING)
        copies = [self.manager.append_slots(request, lookahead) for request in running]
        return [[source + 1, target + 1] for pairs in copies for source, target in pairs]

    def access(self, request: str, now: int) -> None:
        for sequence in self.groups[request].get_seqs(SequenceStatus.RUNNING):
            self.manager.access_all_blocks_in_seq(sequence, float(now))
            self.manager.get_num_cached_tokens(sequence)  # as the scheduler asks in each step

    def mark_computed(self, requests: list[str]) -> None:
        for request in requests:
            self.manager.mark_blocks_as_computed(self.groups[request], 0)

    def can_swap_in(self, request: str, lookahead: int) -> str:
        return FITS[self.manager.can_swap_in(self.groups[request], lookahead)]

    def can_swap_out(self, request: str) -> bool:
        return bool(self.manager.can_swap_out(self.groups[request]))

    def swap_in(self, request: str) -> list[Any]:
        pairs = self.manager.swap_in(self.groups[request])
        self.become(request, SequenceStatus.SWAPPED, SequenceStatus.RUNNING)
        return [[source + 1, target + 1] for source, target in pairs]

    def swap_out(self, request: str) -> list[Any]:
        pairs = self.manager.swap_out(self.groups[request])
        self.become(request, SequenceStatus.RUNNING, SequenceStatus.SWAPPED)
        return [[source + 1, target + 1] for source, target in pairs]

    def finish(self, request: str, sequences: list[str]) -> None:
        """As the scheduler does it: the encoder's blocks go first if it was the last sequence."""
        group = self.groups[request]
        for name in sequences:
            self.sequences[name].status = SequenceStatus.FINISHED_STOPPED
        if group.is_finished() and group.is_encoder_decoder():
            self.manager.free_cross(group)
        for name in sequences:
            self.manager.free(self.sequences[name])

    def abort(self, request: str) -> None:
        for sequence in self.unfinished(request):
            sequence.status = SequenceStatus.FINISHED_ABORTED
            self.manager.free(sequence)
        self.manager.free_cross(self.groups[request])

    def recompute(self, request: str) -> None:
        (sequence,) = self.groups[request].get_seqs(SequenceStatus.RUNNING)
        sequence.status = SequenceStatus.WAITING
        self.manager.free(sequence)
        sequence.reset_state_for_recompute()
        self.manager.free_cross(self.groups[request])

    def unfinished(self, request: str) -> list[Any]:
        return [sequence for sequence in self.groups[request].seqs if not sequence.is_finished()]

    def become(self, request: str, before: Any, after: Any) -> None:
        for sequence in self.groups[request].get_seqs(before):
            sequence.status = after

    # --- the blocks ---

    def blocks(self) -> Json:
        tables, cross = self.manager.block_tables, self.manager.cross_block_tables
        first = self.config["num_gpu_blocks"]
        numbers = {sequence.seq_id: name for name, sequence in self.sequences.items()}

        def numbered(table: Any) -> list[int]:
            ids = table.physical_block_ids
            return [block - first + 1 if block >= first else block + 1 for block in ids]

        return {
            "tables": {numbers[number]: numbered(table) for number, table in tables.items()},
            "slots": {numbers[number]: table.num_full_slots for number, table in tables.items()},
            "cross": {name: numbered(table) for name, table in cross.items()},
            "computed": self.computed(),
            "gpu": self.device(Device.GPU, 1),
            "cpu": self.device(Device.CPU, 1 - first),
        }

    def device(self, device: Any, shift: int) -> Json:
        allocator = self.manager.block_allocator._allocators[device]
        blank = getattr(allocator, "_hashless_allocator", allocator)._free_block_indices
        evictable = in_eviction_order(allocator.evictor) if hasattr(allocator, "evictor") else []
        counts = allocator._refcounter._refcounts
        known = getattr(allocator, "_cached_blocks", {}).values()
        return {
            "free": [block + shift for block in (*blank, *evictable)],
            "references": {block + shift: count for block, count in counts.items() if count},
            "known": sorted(block + shift for block in known),
        }

    def computed(self) -> list[int]:
        allocator = self.manager.block_allocator._allocators[Device.GPU]
        known = getattr(allocator, "_cached_blocks", {}).values()
        return sorted(block + 1 for block in known if allocator.block_is_computed(block))


def in_eviction_order(evictor: Any) -> list[int]:
    """Free blocks with contents, the next to be evicted first."""

    def age(block: int) -> tuple[float, int, int]:
        meta = evictor.free_table[block]
        return meta.last_accessed, -meta.num_hashed_tokens, block

    return sorted(evictor.free_table, key=age)


def play(config: Json, operations: list[Any]) -> Iterator[Any]:
    """Answer and blocks after each operation; an error is the last."""
    episode = Episode(config)
    for name, *arguments in operations:
        try:
            answer = getattr(episode, name)(*arguments)
        except Exception as error:  # whatever the release dies of is compared
            frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
            yield {"error": type(error).__name__, "in": frames[-1]}
            return
        yield {"answer": answer, **episode.blocks()}


for line in sys.stdin:
    print(json.dumps([*play(*json.loads(line))]), file=answers, flush=True)
