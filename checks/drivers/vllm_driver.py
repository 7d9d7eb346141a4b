"""Base of the drivers for vLLM's V1 engine core: requests, blocks, hashes and results.

Importing it loads vLLM with the plugins in `VLLM_PLUGINS` and reserves standard output for the
answers. It needs a vLLM with the V1 scheduler and `lockstep_driver.py`, nothing else.
"""

# ruff: noqa: E402 - the environment is set before the release is imported, which reads it then
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lockstep_driver import END_OF_SEQUENCE, Driver, Json, ids, protected_output

os.environ.update(HF_HUB_OFFLINE="1", VLLM_LOGGING_LEVEL="ERROR", OMP_NUM_THREADS="1")
protected_output()

import torch

torch.set_num_threads(1)
from vllm.platforms import current_platform

PLATFORM = current_platform.device_type  # makes vLLM load its plugins before the imports below
from vllm import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import (
    get_block_hash,
    get_group_id,
    get_request_block_hasher,
    init_none_hash,
)
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output.backend_types import StructuredOutputGrammar
from vllm.v1.structured_output.request import StructuredOutputRequest

logging.disable(logging.WARNING)
init_none_hash(sha256)

VERSION = version("vllm")
MINOR = int(VERSION.split(".")[1])
IS_OLD = MINOR == 11  # it reserves no prompts, and aborts wait for the end of the step
MODEL = {
    **{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float32"},
    **{"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1},
    **{"num_attention_heads": 4, "num_key_value_heads": 4, "rms_norm_eps": 1e-5},
    **{"vocab_size": 50_000, "max_position_embeddings": 131_072},
    **{"bos_token_id": 1, "eos_token_id": 2},
}


def engine_config(make: Callable[[str], Any]) -> Any:
    """The configuration that `make` returns for the directory of a small model without weights."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "config.json").write_text(json.dumps(MODEL), encoding="utf-8")
        return make(directory)


def set_sizes(base: Any, config: Json, step_tokens: int, prefill_threshold: int) -> None:
    """Set the sizes of an episode in an engine's configuration; lengths in tokens."""
    base.scheduler_config.max_num_seqs = config["max_num_seqs"]
    base.scheduler_config.max_num_batched_tokens = step_tokens
    base.scheduler_config.long_prefill_token_threshold = prefill_threshold
    base.model_config.max_model_len = config["max_model_len"]
    base.cache_config.enable_prefix_caching = config["prefix_caching"]
    base.cache_config.num_gpu_blocks = config["num_blocks"] + 1  # block 0 is the null block


HEAD: Json = {"num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}


def kv_cache(blocks: int, block_size: int, further: Sequence[Any] = ()) -> Any:
    """The configuration of a KV cache for one layer: `blocks` blocks and the null block.

    `further`: specifications of layers that have block tables of their own.
    """
    specs = [FullAttentionSpec(block_size, **HEAD), *further]
    groups = [KVCacheGroupSpec([f"layer{place}"], spec) for place, spec in enumerate(specs)]
    return KVCacheConfig(num_blocks=blocks + 1, kv_cache_tensors=[], kv_cache_groups=groups)


@StructuredOutputGrammar.register
class AnyGrammar:
    """A grammar that allows every token: the script says which tokens are sampled."""

    def accept_tokens(self, _request_id: str, _tokens: list[int]) -> bool:
        """Take the tokens."""
        return True

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        """The tokens, of which none is forbidden."""
        return tokens

    def ignore(self, *_: Any) -> None:
        """Ignore all other calls."""

    rollback = fill_bitmask = is_terminated = reset = ignore


class SchedulerDriver(Driver):
    """A scheduler of the V1 engine core, without the engine.

    `own`: the sampled tokens of each request of the batch, without END_OF_SEQUENCE. `contents`: by
    block hash, the request and the block index. `hashed`: the number of blocks of each request in
    `contents`, until it has left. `pooling`: what is asked of a model that pools, else None.
    `hash_size`: tokens of the blocks that are hashed.
    """

    pooling: Any = None
    hash_size = 0

    def begin(self, scheduler: Any, block_size: int) -> None:
        """Begin an episode with this scheduler."""
        self.scheduler, self.block_size = scheduler, block_size
        self.hash_size = block_size
        self.arrivals = 0
        self.own: dict[str, list[int]] = {}
        self.contents: dict[bytes, list[Any]] = {}
        self.hashed: dict[str, int] = {}
        self.arrived: dict[str, Request] = {}

    def arrive(self, request_id: str) -> None:
        """Hand a request to the scheduler, as `EngineCore.add_request` does."""
        self.arrivals += 1
        request = self.arrived[request_id] = self.new_request(request_id)
        self.scheduler.add_request(request)

    def change(self) -> bool:
        """Apply arrivals and aborts between two steps, and grammars that are ready; true if any."""
        is_changed = super().change()
        compiled = self.action.get("compiled", ())
        for request_id in compiled:
            self.arrived[request_id].structured_output_request.grammar = AnyGrammar()
        return is_changed or bool(compiled)

    def new_request(self, request_id: str) -> Any:
        """A request as the engine makes it; its grammar is ready when the script says so."""
        line = self.requests[request_id]
        params = SamplingParams(max_tokens=line["max_tokens"], temperature=0.0)
        end: Json = {"eos_token_id": END_OF_SEQUENCE} if IS_OLD else {}
        if not IS_OLD:
            params._eos_token_id = END_OF_SEQUENCE
        request = Request(
            request_id,
            line["prompt"],
            None if self.pooling else params,
            self.pooling,
            arrival_time=float(self.arrivals),
            priority=line.get("priority", 0),
            mm_features=self.features(request_id),
            block_hasher=get_request_block_hasher(self.hash_size, sha256),
            **end,
        )
        if line.get("grammar", False):
            request.structured_output_request = StructuredOutputRequest(params=None)
            request.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
        return request

    def features(self, _request_id: str) -> list[Any]:
        """The images or audio in the prompt of a request."""
        return []

    def abort(self, request_id: str) -> None:
        """Abort a request, as `EngineCore.abort_requests` does."""
        self.scheduler.finish_requests([request_id], RequestStatus.FINISHED_ABORTED)

    def abort_running(self) -> None:
        """Apply the aborts during the step."""
        for request_id in self.action.get("abort_running", ()):
            self.abort(request_id)

    def update(self, scheduled: Any, answer: Any) -> Json:
        """Apply aborts during the step, update the scheduler, return outputs and finished ids."""
        self.abort_running()
        results = self.scheduler.update_from_output(scheduled, answer)
        outputs = [output for group in results.values() for output in group.outputs]
        return {
            "outputs": {
                output.request_id: self.own[output.request_id][: len(output.new_token_ids)]
                for output in outputs
            },
            "finished": ids(output for output in outputs if output.finish_reason is not None),
        }

    def block_table(self, request_id: str) -> list[int]:
        """The request's block table, without padding."""
        return list(self.scheduler.kv_cache_manager.get_block_ids(request_id)[0])

    def pool(self, tables: dict[str, list[int]]) -> Json:
        """The block tables, and the state of their pool."""
        pool = self.scheduler.kv_cache_manager.block_pool
        return {
            "block_tables": tables,
            "blocks": {
                "used": sum(block.ref_cnt > 0 for block in pool.blocks[1:]),
                "free": pool.get_num_free_blocks(),
            },
            "free_list": [block.block_id for block in pool.free_block_queue.get_all_free_blocks()],
            "references": {
                block.block_id: block.ref_cnt for block in pool.blocks[1:] if block.ref_cnt
            },
            "cached": self.cached(pool),
        }

    def cached(self, pool: Any) -> list[list[Any]]:
        """The entries of the prefix cache: request and block index, then the caching blocks."""
        return [entry for group, entry in self.entries(pool) if not group]

    def entries(self, pool: Any) -> Iterator[tuple[int, list[Any]]]:
        """The entries of the prefix cache, each with the number of its group of layers."""
        self.learn_hashes()
        groups = self.scheduler.kv_cache_config.kv_cache_groups
        for key, held in pool.cached_block_hash_to_block._cache.items():
            blocks = list(held) if isinstance(held, dict) else [held.block_id]
            request_id, index = self.contents[get_block_hash(key)]
            size = groups[get_group_id(key)].kv_cache_spec.block_size
            place = (index + 1) * self.hash_size // size - 1
            yield get_group_id(key), [request_id, place, *blocks]

    def owner(self, request_id: str) -> str:
        """The id by which the script knows the request whose tokens are hashed."""
        return request_id

    def learn_hashes(self) -> None:
        """Note request and block index for the block hashes of requests, also those just left."""
        for request_id, request in [*self.arrived.items()]:
            first = self.hashed.get(request_id, 0)
            for index, key in enumerate(request.block_hashes[first:], start=first):
                self.contents.setdefault(key, [self.owner(request_id), index])
            self.hashed[request_id] = len(request.block_hashes)
            if request_id not in self.scheduler.requests:
                del self.arrived[request_id], self.hashed[request_id]
