"""Driver of sendnn-inference: the released scheduler and model runner, step by step.

Run by the Python of an environment that has the release; needs nothing else. Scheduler, KV cache
manager and model runner are the released ones, unmodified; only the model is a stand-in: it
computes nothing, samples the tokens that the script says, and notes the tensors it was given. The
order of calls is that of vLLM's engine core (`EngineCore.step`): arrivals and aborts between two
steps, then schedule, execute, sample, aborts that came meanwhile, update.

The line protocol is described in the chapter on drivers of the project that this file is from.
"""

# ruff: noqa: E402 - the environment is set before the release is imported, which reads it then
# mypy: disable-error-code="import-not-found"

import gc
import importlib.metadata
import json
import logging
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Any

os.environ.update(
    VLLM_PLUGINS="sendnn_inference",
    SENDNN_INFERENCE_DYNAMO_BACKEND="eager",
    HF_HUB_OFFLINE="1",
    VLLM_LOGGING_LEVEL="ERROR",
    OMP_NUM_THREADS="1",
    VLLM_DT_MAX_BATCH_TKV_LIMIT="131072",
)
ANSWERS = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)  # whatever the libraries print goes to standard error
importlib.metadata.entry_points = cache(entry_points)  # type: ignore[assignment] # for each runner

import torch

torch.set_num_threads(1)
from vllm.platforms import current_platform

assert current_platform.device_type  # vLLM loads its plugins, before anybody else imports this one
from sendnn_inference import envs as plugin_envs
from sendnn_inference.platform import SpyrePlatform
from sendnn_inference.v1.core.scheduler import (
    ChunkedPrefillSpyreScheduler,
)
from sendnn_inference.v1.worker.spyre_model_runner import (
    ChunkedPrefillModelRunner,
)
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.forward_context import get_forward_context
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import (
    get_block_hash,
    get_request_block_hasher,
    init_none_hash,
)
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
)
from vllm.v1.outputs import SamplerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import (
    StructuredOutputManager,
)

logging.disable(logging.WARNING)

Json = dict[str, Any]

BLOCK = 64  # tokens; the only block size of the device
END_OF_SEQUENCE = 2**31 - 2  # sampled where a script says that a request ends; never told
PAUSES = hasattr(ChunkedPrefillSpyreScheduler, "predict_next_decode_tkv")  # from 2.4 on
RESERVES = hasattr(ChunkedPrefillSpyreScheduler, "_get_required_blocks")  # from 2.2 on
RELEASE = f"sendnn-inference {version('sendnn-inference')} on vLLM {version('vllm')}"
HELLO = {
    "format": "lockstep-driver",
    "version": 1,
    "name": "sendnn",
    "release": RELEASE,
    "config": {
        "policy": ["spyre"],
        "block_size": [BLOCK],
        "admission": ["shipped" if RESERVES else "documented"],
        "queue": ["overtaking" if PAUSES else "fcfs"],
        "reservation": [RESERVES],
        "pausing": [False, True] if PAUSES else [False],
    },
    "abilities": ["abort", "abort_running", "ends", "tensors"],
    "left_out": [],
}
IDLE: Json = {"kind": "idle", "scheduled": {}, "tkv": 0, "outputs": {}, "finished": []}
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": 1,
    "vocab_size": 50_000,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def base_config() -> Any:
    """The engine's configuration for a small model without weights; episodes change its numbers."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "config.json").write_text(json.dumps(MODEL), encoding="utf-8")
        return EngineArgs(
            model=directory,
            skip_tokenizer_init=True,
            max_model_len=8192,
            max_num_seqs=4,
            max_num_batched_tokens=128,
            num_gpu_blocks_override=512,
            enable_prefix_caching=True,
        ).create_engine_config()


def configure(base: Any, config: Json) -> None:
    """Give the release the values of an episode, in its own variables and configuration."""
    os.environ["VLLM_DT_MAX_BATCH_TKV_LIMIT"] = str(config["max_batch_tkv_limit"])
    SpyrePlatform._max_batch_tkv_limit = 0  # so that it is read again from the environment
    flags = {
        "SENDNN_INFERENCE_CP_INTERLEAVE_STEPS": config["interleave"],
        "SENDNN_INFERENCE_PAUSING_ENABLED": config["pausing"],
        "SENDNN_INFERENCE_LONG_OUT_PRIO": config["long_output_first"],
    }
    os.environ.update({name: str(int(value)) for name, value in flags.items()})
    plugin_envs.clear_env_cache()
    base.scheduler_config.max_num_seqs = config["max_num_seqs"]
    base.scheduler_config.max_num_batched_tokens = config["chunk_size"]
    base.scheduler_config.long_prefill_token_threshold = 0
    base.model_config.max_model_len = config["max_model_len"]
    base.cache_config.enable_prefix_caching = config["prefix_caching"]
    base.cache_config.num_gpu_blocks = config["num_blocks"] + 1  # block 0 is the null block


def kv_cache_of(blocks: int) -> Any:
    """A KV cache of so many blocks for one layer; nothing is allocated."""
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
    groups = [KVCacheGroupSpec(["layer"], spec)]
    return KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=groups)


class StandInModel:
    """Stands where the released runner has its model: notes its inputs, samples as scripted."""

    is_multimodal = False

    def __init__(self, scripted: Callable[[], list[int]]) -> None:
        self.scripted = scripted  # the tokens of the rows that sample, in their order
        self.metadata: Any = None
        self.token_ids: Any = None
        self.positions: Any = None
        self.n_pads_right = 0  # set by the runner: right padding of the chunk's last block

    def get_maybe_mm_embeddings(self, *_: Any, **__: Any) -> None:
        """No embeddings: the runner then hands over the token ids."""

    def __call__(self, input_ids_or_embeds: Any, positions: Any, **_: Any) -> Any:
        """Note the tensors; the logits are not looked at."""
        self.token_ids, self.positions = input_ids_or_embeds, positions
        self.metadata = get_forward_context().attn_metadata
        return torch.zeros(1)

    def sample(self, **_: Any) -> Any:
        """The tokens that the script says, one a row."""
        tokens = torch.tensor([[token] for token in self.scripted()], dtype=torch.int64)
        return SamplerOutput(sampled_token_ids=tokens, logprobs_tensors=None)


class Released:
    """One episode: a fresh released scheduler with its model runner."""

    def __init__(
        self, base: Any, config: Json, requests: list[Json], tell_tensors: bool = False
    ) -> None:
        configure(base, config)
        self.tell_tensors = tell_tensors
        self.requests = {request["id"]: request for request in requests}
        self.scheduler = ChunkedPrefillSpyreScheduler(
            vllm_config=base,
            kv_cache_config=kv_cache_of(config["num_blocks"] + 1),
            structured_output_manager=StructuredOutputManager(base),
            block_size=BLOCK,
            log_stats=False,
        )
        assert self.scheduler.max_batch_tkv_limit == config["max_batch_tkv_limit"]
        assert self.scheduler.do_interleaving == config["interleave"]
        self.model = StandInModel(self.tokens)
        self.runner = ChunkedPrefillModelRunner(base, is_driver_worker=True, rank=0)
        self.runner._model = self.model
        self.runner.warmup_mode = False
        self.chunk: Json | None = None  # what ran last
        self.ends: list[str] | None = None  # who samples the end of sequence in this step
        self.sampled: dict[str, int] = {}  # the last token of each request
        self.left_padding: dict[str, int] = {}  # of each request's last decode step
        self.steps = 0
        self.contents: dict[bytes, list[Any]] = {}  # hash of a block: request, index
        self.hashed: dict[str, int] = {}  # blocks of a request that `contents` knows

    # --- what the environment does -------------------------------------------------------------

    def arrive(self, request_id: str) -> None:
        """Hand a request to the scheduler, as `EngineCore.add_request` does."""
        asked = self.requests[request_id]
        params = SamplingParams(max_tokens=asked["max_tokens"], temperature=0.0)
        params._eos_token_id = END_OF_SEQUENCE
        request = Request(
            request_id,
            asked["prompt"],
            params,
            None,
            arrival_time=float(self.steps),
            block_hasher=get_request_block_hasher(BLOCK, sha256),
        )
        self.scheduler.add_request(request)

    def abort(self, request_id: str) -> None:
        """The client has gone, as `EngineCore.abort_requests` tells the scheduler."""
        self.scheduler.finish_requests([request_id], RequestStatus.FINISHED_ABORTED)

    # --- one step ------------------------------------------------------------------------------

    def step(self, action: Json) -> Json:
        """Arrivals and aborts, then one step of the engine core."""
        for request_id in action.get("arrive", ()):
            self.arrive(request_id)
        for request_id in action.get("abort", ()):
            self.abort(request_id)
        between = action.get("arrive") or action.get("abort")
        told: Json = {"before": self.between_steps()} if between else {}
        self.steps += 1
        if not self.scheduler.has_requests():  # then the engine core does not call the scheduler
            return IDLE | self.between_steps() | told
        scheduled = self.scheduler.schedule()
        answer = self.execute(scheduled, action)
        told |= self.of_step(scheduled, answer)
        for request_id in action.get("abort_running", ()):
            self.abort(request_id)
        results = self.scheduler.update_from_output(scheduled, answer)
        return self.between_steps() | told | self.of_results(results)

    def execute(self, scheduled: Any, action: Json) -> Any:
        """The released model runner's part: prepare the tensors, run, sample.

        Up to 2.4 the runner samples while it executes, later in a call of its own.
        """
        self.model.metadata, self.ends = None, action.get("ends")
        answer = self.runner.execute_model(scheduled)
        return self.runner.sample_tokens(None) if answer is None else answer

    def tokens(self) -> list[int]:
        """What the rows of the runner's batch sample next."""
        is_prefill = self.model.metadata.is_prefill
        batch = self.runner.prefill_batch if is_prefill else self.runner.input_batch
        return [self.token(request_id) for request_id in batch.sorted_requests_ids]

    def token(self, request_id: str) -> int:
        """What the request samples next: its own output, or the end of sequence."""
        asked = self.requests[request_id]
        index = self.scheduler.requests[request_id].num_output_tokens
        self.sampled[request_id] = asked["output"][index]
        natural = index + 1 == asked["output_len"] < asked["max_tokens"]
        is_end = natural if self.ends is None else request_id in self.ends
        return END_OF_SEQUENCE if is_end else self.sampled[request_id]

    # --- what can be told of it ----------------------------------------------------------------

    def of_step(self, scheduled: Any, answer: Any) -> Json:
        """What the device was given, read off the tensors that the released runner made."""
        tokens, tkv = dict(scheduled.num_scheduled_tokens), answer.tkv
        if self.model.metadata is None:
            return {"kind": "idle", "scheduled": tokens, "tkv": tkv}
        if self.model.metadata.is_prefill:
            self.chunk = self.chunk_of(next(iter(tokens)))
            tokens = {self.chunk["id"]: self.chunk["end"] - self.chunk["start"]}
            told: Json = {"kind": "prefill", "prefilling": self.chunk}
            if not PAUSES:  # then the runner returns that of the batch after a prefill step, too
                tkv = len(self.requests[self.chunk["id"]]["prompt"])
        else:
            told = {"kind": "decode", "batch": list(self.rows(list(answer.req_ids), list(tokens)))}
        if self.tell_tensors:
            told["tensors"] = self.tensors(list(answer.req_ids))
        return told | {"scheduled": tokens, "tkv": tkv}

    def tensors(self, rows: list[str]) -> Json:
        """All that the device was given; `rows` is whose they are."""
        given = self.model.metadata
        told = {
            "rows": rows,
            "token_ids": self.model.token_ids.flatten().tolist(),
            "positions": self.model.positions.flatten().tolist(),
            "slot_mapping": given.slot_mapping.flatten().tolist(),
            "block_table": given.block_table.tolist(),
            "left_padding": given.left_padded_prompt_mask.tolist(),
        }
        tkv = given.current_tkv_mask.tolist()
        if not given.is_prefill or self.chunk is None:
            return told | {"tkv": tkv}
        is_last = int(self.chunk["chunk"] == self.chunk["chunks"] - 1)
        return told | {"length": [tkv[0] - self.model.n_pads_right], "is_last": [is_last]}

    def chunk_of(self, request_id: str) -> Json:
        """The chunk that the runner prepared: its place in the prompt, its blocks."""
        state, size = self.runner.requests[request_id], self.runner.chunk_size
        table = self.model.metadata.block_table[0].tolist()
        slots = self.model.metadata.slot_mapping[0].tolist()
        padding = int(self.model.metadata.left_padded_prompt_mask[0])
        length = len(state.prompt_token_ids)
        index = len(table) * BLOCK // size - 1
        return {
            "id": request_id,
            "chunk": index,
            "chunks": state.chunk_count,
            "start": max(index * size - padding, 0),
            "end": min((index + 1) * size - padding, length),
            "left_padding": padding,
            "right_padding": -length % BLOCK,
            "cached_tokens": state.usable_blocks * BLOCK,
            "inner_padding": (state.total_hit_blocks - state.usable_blocks) * BLOCK,
            "block_table": table,
            "writes": [slot // BLOCK for slot in slots[::BLOCK]],
        }

    def rows(self, request_ids: list[str], batch: list[str]) -> Iterator[Json]:
        """The rows of a decode step in the order of `batch`; the tensors have them in another."""
        given = self.model.metadata
        paddings = given.left_padded_prompt_mask.tolist()
        tkvs = given.current_tkv_mask.tolist()
        slots = given.slot_mapping.tolist()
        for request_id in batch:
            index = request_ids.index(request_id)
            self.left_padding[request_id] = paddings[index]
            row = self.row(self.scheduler.requests[request_id])
            yield row | {
                "tkv": tkvs[index],
                "generated": row["generated"] + 1,  # the scheduler counts it in its update
                "blocks": self.blocks_of(request_id),
                "slot": [slots[index][0] // BLOCK, slots[index][0] % BLOCK],
            }

    def of_results(self, results: Any) -> Json:
        """What clients get of the step."""
        outputs = [output for group in results.values() for output in group.outputs]
        return {
            "outputs": {
                output.request_id: [self.sampled[output.request_id]]
                for output in outputs
                if output.new_token_ids
            },
            "finished": [one.request_id for one in outputs if one.finish_reason is not None],
        }

    def between_steps(self) -> Json:
        """The scheduler at rest: queues, requests, blocks."""
        scheduler = self.scheduler
        prefilling = scheduler.ongoing_prefills
        decoding = [one for one in scheduler.running if one not in prefilling]
        paused = scheduler.paused_decoding_requests if PAUSES else []
        held = [*prefilling, *decoding, *paused]
        tables = {one.request_id: self.blocks_of(one.request_id) for one in held}
        pool = scheduler.kv_cache_manager.block_pool
        return {
            "waiting": [one.request_id for one in scheduler.waiting],
            "prefilling": self.chunk if prefilling else None,
            "decoding": [self.row(one) for one in decoding],
            "running": [one.request_id for one in scheduler.running],
            "paused": [one.request_id for one in paused],
            "others": [self.row(one) for one in (*prefilling, *paused)]
            + [
                self.row(one) | {"hit_blocks": 0, "prefill_len": one.num_tokens}
                for one in scheduler.waiting
                if one.num_output_tokens  # preempted
            ],
            "block_tables": tables,
            "blocks": {
                "used": len({block for table in tables.values() for block in table}),
                "reserved": scheduler.total_reserved_blocks if RESERVES else 0,
                "free": pool.get_num_free_blocks(),
            },
            "free_list": [one.block_id for one in pool.free_block_queue.get_all_free_blocks()],
            "references": {one.block_id: one.ref_cnt for one in pool.blocks[1:] if one.ref_cnt},
            "cached": self.cached(pool),
        }

    def row(self, request: Any) -> Json:
        """A request that was admitted, as the scheduler and its model runner know it."""
        request_id = request.request_id
        padding = self.left_padding.get(request_id, 0)
        state = self.runner.requests.get(request_id)
        waited = self.scheduler.request_last_decode_step if PAUSES else {}
        return {
            "id": request_id,
            "tkv": padding + request.num_computed_tokens,
            "left_padding": padding,
            "computed": request.num_computed_tokens,
            "generated": request.num_output_tokens,
            "reserved": self.scheduler.reserved_blocks.get(request_id, 0) if RESERVES else 0,
            "hit_blocks": 0 if state is None else state.total_hit_blocks,
            "waited_steps": waited.get(request_id, 0),
        }

    def blocks_of(self, request_id: str) -> list[int]:
        """The request's block table, without padding."""
        return list(self.scheduler.kv_cache_manager.get_block_ids(request_id)[0])

    def cached(self, pool: Any) -> list[list[Any]]:
        """What lookups can find: request and index of a block, then the blocks that hold it."""
        self.learn_hashes()
        found = []
        for key, held in pool.cached_block_hash_to_block._cache.items():
            blocks = list(held) if isinstance(held, dict) else [held.block_id]
            found.append([*self.contents[get_block_hash(key)], *blocks])
        return found

    def learn_hashes(self) -> None:
        """Which request's which block a hash stands for, of all that are there."""
        for request_id, request in self.scheduler.requests.items():
            known = self.hashed.get(request_id, 0)
            for index, key in enumerate(request.block_hashes[known:], start=known):
                self.contents.setdefault(key, [request_id, index])
            self.hashed[request_id] = len(request.block_hashes)


# --- the line protocol ---------------------------------------------------------------------------


def play(live: Released, actions: list[Json]) -> Json:
    """The steps of a script, each with its record, up to the first that raises."""
    told: list[Json] = []
    try:
        for action in actions:
            told.append(live.step(action))
    except Exception as error:  # what the engine would die of is an observation
        return {"steps": told, "error": as_json(error)}
    return {"steps": told}


def as_json(error: Exception) -> Json:
    """Type, text and place (file, line, function) of an error."""
    place = ""
    if error.__traceback__ is not None:
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(where.filename).name}:{where.lineno} {where.name}"
    return {"type": type(error).__name__, "message": str(error), "at": place}


def answers(lines: Iterator[str], base: Any) -> Iterator[Json]:
    """One answer to each line, until `stop` or the end."""
    live: Released | None = None
    for line in lines:
        message = json.loads(line)
        try:
            match message["do"]:
                case "start":
                    gc.collect()  # what the episode before left
                    told = message.get("tensors", False)
                    live = Released(base, message["config"], message["requests"], told)
                    yield {"started": True}
                case "play" if live is not None:
                    yield play(live, message["steps"])
                case "stop":
                    return
                case other:
                    yield {"error": as_json(ValueError(f"{other!r} is not due"))}
        except Exception as error:
            yield {"error": as_json(error)}


def main() -> None:
    """Say hello, then answer line by line."""
    init_none_hash(sha256)
    base = base_config()
    gc.freeze()  # what is loaded stays
    gc.disable()  # an episode leaves little: it is collected between two of them
    print(json.dumps(HELLO), file=ANSWERS)
    for answer in answers(iter(sys.stdin.readline, ""), base):
        print(json.dumps(answer, separators=(",", ":")), file=ANSWERS)


if __name__ == "__main__":
    main()
