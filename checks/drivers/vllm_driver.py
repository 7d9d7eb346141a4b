"""What drivers of schedulers under vLLM's V1 engine core share: requests, blocks, hashes, results.

To import it loads vLLM, with the plugins that `VLLM_PLUGINS` names, and leaves standard output to
the answers. Needs a vLLM with the V1 scheduler and `lockstep_driver.py`, nothing else.
"""

# ruff: noqa: E402 - the environment is set before the release is imported, which reads it then
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lockstep_driver import END_OF_SEQUENCE, Driver, Json, ids, protected_output

os.environ.update(HF_HUB_OFFLINE="1", VLLM_LOGGING_LEVEL="ERROR", OMP_NUM_THREADS="1")
protected_output()

import torch

torch.set_num_threads(1)
from vllm.platforms import current_platform

PLATFORM = current_platform.device_type  # vLLM loads its plugins, before they import this and that
from vllm import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_block_hash, get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request, RequestStatus

logging.disable(logging.WARNING)
init_none_hash(sha256)

VERSION = version("vllm")
MINOR = int(VERSION.split(".")[1])
IS_OLD = MINOR == 11  # prompts are not reserved, aborts wait for the step's end
MODEL = {
    **{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float32"},
    **{"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1},
    **{"num_attention_heads": 4, "num_key_value_heads": 4, "rms_norm_eps": 1e-5},
    **{"vocab_size": 50_000, "max_position_embeddings": 131_072},
    **{"bos_token_id": 1, "eos_token_id": 2},
}


def engine_config(make: Callable[[str], Any]) -> Any:
    """What `make` configures for the directory of a small model without weights."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "config.json").write_text(json.dumps(MODEL), encoding="utf-8")
        return make(directory)


def set_sizes(base: Any, config: Json, step_tokens: int, prefill_threshold: int) -> None:
    """Give an engine's configuration the sizes of an episode; lengths in tokens."""
    base.scheduler_config.max_num_seqs = config["max_num_seqs"]
    base.scheduler_config.max_num_batched_tokens = step_tokens
    base.scheduler_config.long_prefill_token_threshold = prefill_threshold
    base.model_config.max_model_len = config["max_model_len"]
    base.cache_config.enable_prefix_caching = config["prefix_caching"]
    base.cache_config.num_gpu_blocks = config["num_blocks"] + 1  # block 0 is the null block


def kv_cache(blocks: int, block_size: int) -> Any:
    """A KV cache for one layer, of so many blocks and the null block; nothing is allocated."""
    spec = FullAttentionSpec(block_size, num_kv_heads=1, head_size=1, dtype=torch.float32)
    groups = [KVCacheGroupSpec(["layer"], spec)]
    return KVCacheConfig(num_blocks=blocks + 1, kv_cache_tensors=[], kv_cache_groups=groups)


class SchedulerDriver(Driver):
    """A scheduler of the V1 engine core, without the engine.

    `own`: what each request of the batch samples, without ends of sequence. `contents`: of each
    block's hash the request and the index there; `hashed`: blocks of each request in `contents`.
    """

    def begin(self, scheduler: Any, block_size: int) -> None:
        """Begin an episode with this scheduler."""
        self.scheduler, self.block_size = scheduler, block_size
        self.arrivals = 0
        self.own: dict[str, list[int]] = {}
        self.contents: dict[bytes, list[Any]] = {}
        self.hashed: dict[str, int] = {}

    def arrive(self, request_id: str) -> None:
        """Hand a request to the scheduler, as `EngineCore.add_request` does."""
        given = self.requests[request_id]
        params = SamplingParams(max_tokens=given["max_tokens"], temperature=0.0)
        end: Json = {"eos_token_id": END_OF_SEQUENCE} if IS_OLD else {}
        if not IS_OLD:
            params._eos_token_id = END_OF_SEQUENCE
        self.arrivals += 1
        request = Request(
            request_id,
            given["prompt"],
            params,
            None,
            arrival_time=float(self.arrivals),
            priority=given.get("priority", 0),
            block_hasher=get_request_block_hasher(self.block_size, sha256),
            **end,
        )
        self.scheduler.add_request(request)

    def abort(self, request_id: str) -> None:
        """The client has left, as `EngineCore.abort_requests` reports it to the scheduler."""
        self.scheduler.finish_requests([request_id], RequestStatus.FINISHED_ABORTED)

    def update(self, scheduled: Any, answer: Any) -> Json:
        """Aborts that came while the model ran, then the update; what clients get of the step."""
        for request_id in self.action.get("abort_running", ()):
            self.abort(request_id)
        results = self.scheduler.update_from_output(scheduled, answer)
        outputs = [output for group in results.values() for output in group.outputs]
        return {
            "outputs": {
                output.request_id: self.own[output.request_id][: len(output.new_token_ids)]
                for output in outputs
            },
            "finished": ids(output for output in outputs if output.finish_reason is not None),
        }

    def blocks_of(self, request_id: str) -> list[int]:
        """The request's block table, without padding."""
        return list(self.scheduler.kv_cache_manager.get_block_ids(request_id)[0])

    def pool(self, tables: dict[str, list[int]]) -> Json:
        """These block tables, and the pool that they are of."""
        pool = self.scheduler.kv_cache_manager.block_pool
        return {
            "block_tables": tables,
            "blocks": {
                "used": len({block for table in tables.values() for block in table}),
                "free": pool.get_num_free_blocks(),
            },
            "free_list": [block.block_id for block in pool.free_block_queue.get_all_free_blocks()],
            "references": {
                block.block_id: block.ref_cnt for block in pool.blocks[1:] if block.ref_cnt
            },
            "cached": self.cached(pool),
        }

    def cached(self, pool: Any) -> list[list[Any]]:
        """What lookups can find: request and index of a block, then the blocks that hold it."""
        self.learn_hashes()
        found = []
        for key, held in pool.cached_block_hash_to_block._cache.items():
            blocks = list(held) if isinstance(held, dict) else [held.block_id]
            found.append([*self.contents[get_block_hash(key)], *blocks])
        return found

    def learn_hashes(self) -> None:
        """Note what the hashes of all present requests' blocks stand for."""
        for request_id, request in self.scheduler.requests.items():
            known = self.hashed.get(request_id, 0)
            for index, key in enumerate(request.block_hashes[known:], start=known):
                self.contents.setdefault(key, [request_id, index])
            self.hashed[request_id] = len(request.block_hashes)
