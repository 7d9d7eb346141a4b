"""Driver of vLLM V1: the released scheduler and KV cache manager, step by step.

Run by the Python of an environment that has the release; needs nothing else. Scheduler and KV
cache manager are the released ones, unmodified; there is no model: every scheduled token counts as
computed, and what is sampled, and how many drafts are accepted, the script says. The order of calls
is that of vLLM's engine core (`EngineCore.step` and `post_step`): arrivals and aborts between two
steps, then schedule, the model, aborts that came meanwhile, update, new drafts.

The line protocol is described in the chapter on drivers of the project that this file is from.
"""

# ruff: noqa: E402 - the environment is set before the release is imported, which reads it then
# mypy: disable-error-code="import-not-found"

import gc
import json
import logging
import os
import sys
import tempfile
import traceback
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.update(VLLM_PLUGINS="", HF_HUB_OFFLINE="1", VLLM_LOGGING_LEVEL="ERROR")
os.environ["OMP_NUM_THREADS"] = "1"
ANSWERS = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)  # whatever the libraries print goes to standard error

import torch

torch.set_num_threads(1)
from vllm import SamplingParams
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_block_hash, get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import DraftTokenIds, KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

logging.disable(logging.WARNING)

Json = dict[str, Any]

END_OF_SEQUENCE = 2**31 - 2  # sampled where a script says that a request ends; never told
DRAFT = 0  # a draft; what it is does not matter, the script says how many are accepted
VERSION = version("vllm")
IS_OLD = VERSION.startswith("0.11.")  # prompts are not reserved, aborts wait for the step's end
HELLO = {
    **{"format": "lockstep-driver", "version": 1, "policy": "vllm-v1"},
    **{"name": "vllm-v1", "release": f"vLLM {VERSION}"},
    "config": {"release": [VERSION]},
    "abilities": ["abort", "abort_running", "ends"],
    "left_out": [],
}
OLD_HELLO = {
    "config": {
        **{"release": [VERSION], "reserve_full_prompt": [False]},
        # What it does with these differs in ways that the specification does not describe.
        **{"connector": ["none"], "num_speculative_tokens": [0], "num_lookahead_tokens": [0]},
    },
    "abilities": ["abort", "ends"],
    "left_out": ["prefilling"],
}
MODEL = {
    **{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float32"},
    **{"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1},
    **{"num_attention_heads": 4, "num_key_value_heads": 4},
    **{"vocab_size": 50_000, "max_position_embeddings": 131_072},
}


def base_config() -> Any:
    """The engine's configuration for a small model without weights; episodes change its numbers."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "config.json").write_text(json.dumps(MODEL), encoding="utf-8")
        model = ModelConfig(model=directory, skip_tokenizer_init=True, max_model_len=8192)
    sizes = {"max_num_seqs": 4, "max_num_batched_tokens": 128, "max_model_len": 8192}
    scheduler = SchedulerConfig(**sizes, is_encoder_decoder=False, async_scheduling=False)
    return VllmConfig(
        model_config=model,
        cache_config=CacheConfig(block_size=16),
        scheduler_config=scheduler,
        device_config=DeviceConfig(device="cpu"),
    )


def configure(base: Any, config: Json) -> None:
    """Give the release the values of an episode."""
    scheduler, model, cache = base.scheduler_config, base.model_config, base.cache_config
    scheduler.max_num_seqs = config["max_num_seqs"]
    scheduler.max_num_batched_tokens = config["max_num_batched_tokens"]
    scheduler.max_num_scheduled_tokens = None
    scheduler.long_prefill_token_threshold = config["long_prefill_token_threshold"]
    scheduler.enable_chunked_prefill = config["chunked_prefill"]
    scheduler.policy = config["scheduling"]
    scheduler.scheduler_reserve_full_isl = config["reserve_full_prompt"]
    model.max_model_len = config["max_model_len"]
    cache.block_size = config["block_size"]
    cache.enable_prefix_caching = config["prefix_caching"]
    cache.num_gpu_blocks = config["num_blocks"] + 1  # block 0 is the null block


def kv_cache_of(blocks: int, block_size: int) -> Any:
    """A KV cache of so many blocks for one layer; nothing is allocated."""
    spec = FullAttentionSpec(block_size, num_kv_heads=1, head_size=1, dtype=torch.float32)
    groups = [KVCacheGroupSpec(["layer"], spec)]
    return KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=groups)


class ScriptedConnector:
    """Stands where the scheduler has its KV connector: it has, brings and loses as it is told.

    `loads`: of each request that it brings something for, tokens cached here and tokens brought.
    `brought`: tokens that come within the step, by request.
    """

    requires_kv_delivery = False
    supports_divergent_local_hybrid_hits = False

    def __init__(self, requests: Iterable[Json], is_async: bool) -> None:
        self.has = {one["id"]: one.get("external", 0) for one in requests}
        self.is_async = is_async
        self.lost: set[str] = set()
        self.cached: dict[str, int] = {}
        self.loads: dict[str, tuple[int, int]] = {}
        self.brought: dict[str, int] = {}

    def get_num_new_matched_tokens(self, request: Any, cached: int) -> tuple[int, bool]:
        """How many tokens it has beyond those cached; within a step one is left to compute."""
        one = request.request_id
        most = request.num_tokens - (0 if self.is_async else 1)
        has = 0 if one in self.lost else min(self.has[one], most)
        self.cached[one] = cached
        return max(has - cached, 0), self.is_async and has > cached

    def update_state_after_alloc(self, request: Any, _blocks: Any, external: int) -> None:
        """The request has its blocks: what it lacks is on its way."""
        if external:
            self.loads[request.request_id] = self.cached[request.request_id], external
            if not self.is_async:
                self.brought[request.request_id] = external

    def missing_blocks(self, request_id: str, table: list[int], block_size: int) -> list[int]:
        """The blocks of a request that were to be filled."""
        cached, external = self.loads[request_id]
        return table[cached // block_size : -(-(cached + external) // block_size)]

    def request_finished(self, _request: Any, _blocks: Any) -> tuple[bool, None]:
        """It wants nothing of who leaves."""
        return False, None

    def ignore(self, *_: Any) -> None:
        """What it is told otherwise does not matter."""

    on_new_request = build_connector_meta = update_connector_output = ignore
    get_kv_connector_stats = take_events = has_pending_push_work = ignore


class Released:
    """One episode: a fresh released scheduler, and what stands for the model runner.

    `planned`: the scheduler when its last decisions were made. `own`: what the batch samples,
    without ends of sequence. `contents`: of each block's hash the request and the index there.
    `hashed`: blocks of each request that `contents` knows. `ran`: who ran in the last step.
    `failed`: who was affected by a load that was lost within the step. `gone`: whose client left.
    """

    def __init__(self, base: Any, config: Json, requests: list[Json]) -> None:
        configure(base, config)
        self.requests = {request["id"]: request for request in requests}
        self.block_size = config["block_size"]
        self.drafts = config["num_speculative_tokens"]
        cache = kv_cache_of(config["num_blocks"] + 1, self.block_size)
        outputs = StructuredOutputManager(base)
        self.scheduler = Scheduler(base, cache, outputs, self.block_size, log_stats=True)
        self.scheduler.num_spec_tokens = self.drafts
        self.scheduler.num_lookahead_tokens = config["num_lookahead_tokens"]
        self.planned: Json = {}
        self.counts_as_computed = self.scheduler._update_after_schedule
        self.scheduler._update_after_schedule = self.note_decisions
        self.arrivals = 0
        self.own: dict[str, list[int]] = {}
        self.contents: dict[bytes, list[Any]] = {}
        self.hashed: dict[str, int] = {}
        self.ran: set[str] = set()
        self.failed: set[str] = set()
        self.gone: list[str] = []
        self.connector: ScriptedConnector | None = None
        if config["connector"] != "none":
            is_async = config["connector"] == "async"
            self.connector = ScriptedConnector(requests, is_async)
            self.scheduler.connector = self.connector
            self.handles_invalid_blocks = self.scheduler._handle_invalid_blocks
            self.scheduler._handle_invalid_blocks = self.note_failures

    # --- what the environment does -------------------------------------------------------------

    def arrive(self, request_id: str) -> None:
        """Hand a request to the scheduler, as `EngineCore.add_request` does."""
        asked = self.requests[request_id]
        params = SamplingParams(max_tokens=asked["max_tokens"], temperature=0.0)
        end: Json = {"eos_token_id": END_OF_SEQUENCE} if IS_OLD else {}
        if not IS_OLD:
            params._eos_token_id = END_OF_SEQUENCE
        self.arrivals += 1
        request = Request(
            request_id,
            asked["prompt"],
            params,
            None,
            arrival_time=float(self.arrivals),
            priority=asked.get("priority", 0),
            block_hasher=get_request_block_hasher(self.block_size, sha256),
            **end,
        )
        self.scheduler.add_request(request)

    def abort(self, request_id: str) -> None:
        """The client has gone, as `EngineCore.abort_requests` tells the scheduler."""
        self.gone.append(request_id)
        self.scheduler.finish_requests([request_id], RequestStatus.FINISHED_ABORTED)

    # --- one step ------------------------------------------------------------------------------

    def step(self, action: Json) -> Json:
        """Arrivals and aborts, then one step of the engine core."""
        for request_id in action.get("arrive", ()):
            self.arrive(request_id)
        for request_id in action.get("abort", ()):
            self.abort(request_id)
        loads = self.connector is not None and self.connector.is_async and self.end_loads(action)
        between = action.get("arrive") or action.get("abort") or loads
        told: Json = {"before": self.at_rest()} if between else {}
        if not self.scheduler.has_requests():  # then the engine core does not call the scheduler
            return told | {"scheduled": {}, "outputs": {}, "finished": []} | self.after_step()
        running = [one.request_id for one in self.scheduler.running]
        if self.connector is not None:
            self.connector.brought = {}
        scheduled = self.scheduler.schedule()
        told |= self.decisions(scheduled, running)
        self.own, self.failed = {}, set()
        sampled = {one: self.sampled(one, scheduled, action) for one in told["scheduled"]}
        accepted = {one: len(sampled[one]) - 1 for one in told["drafts"]}
        answer = runner_output(sampled, self.lost_in_step(action))
        leavers = action.get("abort_running", [])
        for request_id in leavers:
            self.abort(request_id)
        results = self.scheduler.update_from_output(scheduled, answer)
        unseen = self.failed.union(leavers)
        told["accepted"] = {one: n for one, n in accepted.items() if one not in unseen}
        told["failed_loads"] = [one for one in told["scheduled"] if one in self.failed]
        self.propose_drafts(list(sampled))
        self.ran = {one.request_id for one in self.scheduler.running}
        return told | self.results(results) | self.after_step()

    def note_decisions(self, scheduled: Any) -> None:
        """Called by the scheduler once all is decided: it then counts the tokens as computed."""
        self.planned = self.at_rest()
        self.counts_as_computed(scheduled)
        self.planned["unreported"] = sorted(self.scheduler.finished_req_ids)

    def note_failures(self, invalid: Any, scheduled: Any) -> Any:
        """Called by the scheduler with the blocks that were not filled."""
        self.failed = set(self.handles_invalid_blocks(invalid, scheduled))
        return self.failed

    def end_loads(self, action: Json) -> bool:
        """Whether loads end between the steps: as `update_from_output` works them in at its end.

        One after the other, for what is reported together comes in no order.
        """
        lost = action.get("lost", [])
        done = [*action.get("loaded", ()), *lost]
        if lost:
            self.scheduler._handle_invalid_blocks(self.missing_blocks(lost), {})
        for one in done:
            self.scheduler._update_from_kv_xfer_finished(KVConnectorOutput(finished_recving={one}))
        return bool(done)

    def lost_in_step(self, action: Json) -> Any:
        """What the worker's side of the connector reports of the step."""
        if self.connector is None or self.connector.is_async:
            return None
        return KVConnectorOutput(invalid_block_ids=self.missing_blocks(action.get("lost", [])))

    def missing_blocks(self, lost: list[str]) -> set[int]:
        """The blocks of these requests that were to be filled and are not."""
        assert self.connector is not None
        self.connector.lost.update(lost)
        tables = ((one, self.blocks_of(one)) for one in lost)
        missing = (self.connector.missing_blocks(*both, self.block_size) for both in tables)
        return {block for blocks in missing for block in blocks}

    def sampled(self, request_id: str, scheduled: Any, action: Json) -> list[int]:
        """What the model runner samples: accepted drafts and one more, nothing within a prompt."""
        request, asked = self.scheduler.requests[request_id], self.requests[request_id]
        if request.num_computed_tokens < request.num_tokens:
            return []
        drafts = len(scheduled.scheduled_spec_decode_tokens.get(request_id, ()))
        accepted = min(action.get("accepted", {}).get(request_id, 0), drafts)
        first = request.num_output_tokens
        indices = range(first, first + accepted + 1)
        if "ends" in action:
            end = indices[-1] if request_id in action["ends"] else None
        else:
            end = asked["output_len"] - 1 if asked["output_len"] < asked["max_tokens"] else None
        output = [*asked["output"], *[DRAFT] * drafts]  # drafts may be accepted beyond its end
        self.own[request_id] = [output[index] for index in indices]
        pairs = zip(indices, self.own[request_id], strict=True)
        return [END_OF_SEQUENCE if index == end else token for index, token in pairs]

    def propose_drafts(self, request_ids: list[str]) -> None:
        """New drafts for all who were in the batch, as `EngineCore.post_step` hands them over."""
        if self.drafts and request_ids:
            drafts = [[DRAFT] * self.drafts for _ in request_ids]
            self.scheduler.update_draft_token_ids(DraftTokenIds(request_ids, drafts))

    # --- what can be told of it ----------------------------------------------------------------

    def decisions(self, scheduled: Any, running: list[str]) -> Json:
        """What the scheduler handed out, and itself when it had decided."""
        tokens = dict(scheduled.num_scheduled_tokens)
        resumed = set(scheduled.scheduled_cached_reqs.resumed_req_ids)
        fresh = {one.req_id for one in scheduled.scheduled_new_reqs} | resumed
        victims = [one for one in reversed(self.planned["waiting"]) if one in running]
        drafts = scheduled.scheduled_spec_decode_tokens
        budget = self.scheduler.max_num_scheduled_tokens
        return {
            "planned": self.planned,
            "scheduled": tokens,
            "drafts": {one: len(those) for one, those in drafts.items()},
            "admitted": [one for one in tokens if one in fresh],
            "preempted": victims,
            "budget_left": budget - scheduled.total_num_scheduled_tokens,
            "reported": sorted(scheduled.finished_req_ids),
            "external": {} if self.connector is None else dict(self.connector.brought),
        }

    def results(self, results: Any) -> Json:
        """What clients get of the step; in the place of an end of sequence the request's token."""
        outputs = [output for group in results.values() for output in group.outputs]
        return {
            "outputs": {one.request_id: self.as_scripted(one) for one in outputs},
            "finished": [one.request_id for one in outputs if one.finish_reason is not None],
        }

    def as_scripted(self, output: Any) -> list[int]:
        """A request's new tokens, its own in the place of the end of sequence."""
        pairs = zip(output.new_token_ids, self.own[output.request_id], strict=False)
        return [own if token == END_OF_SEQUENCE else token for token, own in pairs]

    def after_step(self) -> Json:
        """The scheduler at rest, and what it tells of itself."""
        stats = self.scheduler.make_stats()
        waiting = stats.num_waiting_reqs + getattr(stats, "num_skipped_waiting_reqs", 0)
        told = {"waiting": waiting, "running": stats.num_running_reqs}
        return self.at_rest() | {"statistics": told | {"usage": stats.kv_cache_usage}}

    def at_rest(self) -> Json:
        """Queues, requests and blocks."""
        scheduler, pool = self.scheduler, self.scheduler.kv_cache_manager.block_pool
        queues = {
            "waiting": list(scheduler.waiting),
            "skipped": list(getattr(scheduler, "skipped_waiting", ())),
            "running": list(scheduler.running),
        }
        queued = {one.request_id for queue in queues.values() for one in queue}
        others = [one for one in self.gone if one in scheduler.requests and one not in queued]
        queues["draining"] = [scheduler.requests[one] for one in others]  # gone while they load
        present = [request for queue in queues.values() for request in queue]
        tables = {one.request_id: self.blocks_of(one.request_id) for one in present}
        return {
            **{name: [one.request_id for one in queue] for name, queue in queues.items()},
            "rows": [self.row(one) for one in present],
            "block_tables": {one: table for one, table in tables.items() if table},
            "unreported": sorted(scheduler.finished_req_ids),
            "blocks": {
                "used": len({block for table in tables.values() for block in table}),
                "free": pool.get_num_free_blocks(),
            },
            "free_list": [one.block_id for one in pool.free_block_queue.get_all_free_blocks()],
            "references": {one.block_id: one.ref_cnt for one in pool.blocks[1:] if one.ref_cnt},
            "cached": self.cached(pool),
        }

    def row(self, request: Any) -> Json:
        """A request as the scheduler knows it.

        A victim keeps its mark of an unfinished prompt, at which nobody looks until it has run.
        """
        is_running = request.status == RequestStatus.RUNNING and request.request_id in self.ran
        return {
            "id": request.request_id,
            "computed": request.num_computed_tokens,
            "generated": request.num_output_tokens,
            "drafts": len(request.spec_token_ids),
            "load": self.load_of(request),
            "prefilling": is_running and getattr(request, "is_prefill_chunk", False),
        }

    def load_of(self, request: Any) -> str:
        """Where its load stands; that of a request which has left is still under way."""
        if request.is_finished():
            return "loading"
        if request.status != RequestStatus.WAITING_FOR_REMOTE_KVS:
            return "none"
        if request.request_id not in self.scheduler.finished_recving_kv_req_ids:
            return "loading"
        failed = self.scheduler.failed_recving_kv_req_ids
        return "failed" if request.request_id in failed else "loaded"

    def blocks_of(self, request_id: str) -> list[int]:
        """The request's block table."""
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


def runner_output(sampled: dict[str, list[int]], transfers: Any) -> Any:
    """What the model runner hands back: the sampled tokens by request, and about loads."""
    places = {one: index for index, one in enumerate(sampled)}
    tokens: list[Any] = list(sampled.values())
    if IS_OLD:  # it takes arrays
        tokens = [torch.tensor(those, dtype=torch.int64).numpy() for those in tokens]
    others: Json = {"logprobs": None, "prompt_logprobs_dict": {}, "pooler_output": []}
    return ModelRunnerOutput(list(sampled), places, tokens, **others, kv_connector_output=transfers)


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
    where = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{Path(where.filename).name}:{where.lineno} {where.name}"
    return {"type": type(error).__name__, "message": str(error), "at": place}


def answers(lines: Iterable[str], base: Any) -> Iterator[Json]:
    """One answer to each line, until `stop` or the end."""
    live: Released | None = None
    for line in lines:
        message = json.loads(line)
        try:
            match message["do"]:
                case "start":
                    live = Released(base, message["config"], message["requests"])
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
    gc.freeze()  # what is loaded stays: the collector need not look through it again and again
    print(json.dumps(HELLO | OLD_HELLO if IS_OLD else HELLO), file=ANSWERS)
    for answer in answers(iter(sys.stdin.readline, ""), base):
        print(json.dumps(answer, separators=(",", ":")), file=ANSWERS)


if __name__ == "__main__":
    main()
