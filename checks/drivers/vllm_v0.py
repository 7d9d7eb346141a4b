"""Driver of vLLM V0: the released engine, scheduler and block manager, step by step.

Run by the Python of an environment that has the release; needs nothing else. The engine
(`LLMEngine.step`, in its synchronous form) is the released one, unmodified, and with it the order
of calls: schedule, execute, count tokens as computed, append what was sampled, stop, free. What
executes is a stand-in: it computes nothing and samples the tokens of the script.
"""

# ruff: noqa: E402 - the environment is set before the release is imported, which reads it then
# mypy: disable-error-code="import-not-found"

import logging
import os
from collections.abc import Iterable
from functools import partial
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

from lockstep_driver import END_OF_SEQUENCE, Driver, Json, ids, protected_output, serve

os.environ.update(
    VLLM_USE_V1="0",
    VLLM_PLUGINS="",
    HF_HUB_OFFLINE="1",
    VLLM_NO_USAGE_STATS="1",
    VLLM_LOGGING_LEVEL="ERROR",
    OMP_NUM_THREADS="1",
)
protected_output()

import torch

torch.set_num_threads(1)
from vllm import SamplingParams
from vllm.config import CacheConfig, ParallelConfig, SchedulerConfig
from vllm.engine.llm_engine import LLMEngine
from vllm.model_executor.layers.sampler import SamplerOutput
from vllm.sequence import CompletionSequenceGroupOutput, Logprob, SequenceOutput
from vllm.utils import Device

logging.disable(logging.WARNING)

HELLO = {
    "policy": "vllm-v0",
    "name": "vllm-v0",
    "release": f"vLLM {version('vllm').removesuffix('+empty')}",
    "config": {},
    "abilities": ["abort", "ends"],
    "left_out": [],
}
DEFAULTS: Json = {
    "block_size": 16,  # tokens
    "num_gpu_blocks": 64,
    "num_cpu_blocks": 0,
    "max_model_len": 256,  # tokens
    "max_num_seqs": 8,
    "max_num_batched_tokens": 256,
    "scheduling": "fcfs",  # or priority; the release calls it policy
    "chunked_prefill": False,
    "prefix_caching": False,
    "preemption_mode": None,  # recompute, swap, or None: the release chooses
    "watermark": 0.01,  # share of the GPU's blocks that admission leaves free
    "num_lookahead_slots": 0,
    "max_num_partial_prefills": 1,
    "max_long_partial_prefills": 1,
    "long_prefill_token_threshold": 0,
}
CACHE_KEYS = ("block_size", "num_gpu_blocks", "num_cpu_blocks", "prefix_caching", "watermark")
NOTHING: Json = {
    **{"kind": "idle", "scheduled": {}, "sampling": [], "cached_blocks": {}, "lookahead_slots": 0},
    **{"admitted": [], "swapped_in": [], "preempted": [], "swapped_out": [], "ignored": []},
    **{"copies": [], "swaps_in": [], "swaps_out": [], "outputs": {}, "finished": []},
}


def completed(config: Json) -> Json:
    """A configuration with the defaults of the keys that it does not name.

    Raises:
        ValueError: it has a key that is none.
    """
    own = {key: value for key, value in config.items() if key != "policy"}
    unknown = sorted(own.keys() - DEFAULTS.keys())
    if unknown:
        raise ValueError(f"no such key: {', '.join(unknown)}; known: {', '.join(DEFAULTS)}")
    return DEFAULTS | own


def engine_config(config: Json) -> Any:
    """The engine's configuration; what it says of the model is a stand-in, as the model is.

    Raises:
        ValueError: the release refuses it.
    """
    renamed = {"chunked_prefill": "enable_chunked_prefill", "scheduling": "policy"}
    scheduler = SchedulerConfig(
        **{renamed.get(key, key): config[key] for key in DEFAULTS if key not in CACHE_KEYS}
    )
    model = SimpleNamespace(
        runner_type="generate",
        max_model_len=config["max_model_len"],
        max_logprobs=0,
        skip_tokenizer_init=True,
        use_async_output_proc=False,
        is_encoder_decoder=False,
        is_multimodal_model=False,
        try_get_generation_config=dict,
    )
    unused = ("device", "load", "lora", "speculative", "decoding", "prompt_adapter")
    return SimpleNamespace(
        model_config=model,
        scheduler_config=scheduler,
        cache_config=CacheConfig(
            block_size=config["block_size"],
            enable_prefix_caching=config["prefix_caching"],
            swap_space=0,
        ),
        parallel_config=ParallelConfig(),
        observability_config=None,
        **{f"{name}_config": None for name in unused},
    )


class StandInExecutor:
    """Stands where the released engine has its workers: samples the tokens of the script."""

    def __init__(self, driver: "VllmV0", vllm_config: Any) -> None:
        self.driver = driver

    def determine_num_available_blocks(self) -> tuple[int, int]:
        """Blocks of the GPU and of the CPU."""
        return self.driver.config["num_gpu_blocks"], self.driver.config["num_cpu_blocks"]

    def execute_model(self, execute_model_req: Any) -> list[Any]:
        """One sample for each group; the engine looks at those only that are to sample."""
        groups = execute_model_req.seq_group_metadata_list
        return [SamplerOutput(outputs=[self.sample(group) for group in groups])] if groups else []

    def sample(self, group: Any) -> Any:
        """The group's next token, with a certain probability."""
        ((sequence, data),) = group.seq_data.items()
        index = data.get_output_len()
        token = self.driver.token(group.request_id, index) if group.do_sample else 0
        output = SequenceOutput(sequence, token, {token: Logprob(0.0)})
        return CompletionSequenceGroupOutput([output], None)

    def ignore(self, *_: int) -> None:
        """There is no cache to initialize and nothing to end."""

    initialize_cache = stop_remote_worker_execution_loop = shutdown = ignore


class VllmV0(Driver):
    """The released engine, fresh in each episode.

    `planned`: what its scheduler decided in this step. `victims`: ids of the requests that it
    preempted in this step, by how; `aborted`: of those whose clients left before it. `delivered`:
    tokens of each request that clients have. `contents`: of each block's hash the request and the
    index there.
    """

    hello = HELLO

    def start(self, config: Json) -> None:
        """Begin an episode.

        Raises:
            ValueError: the configuration has a key that is none, or the release refuses it.
        """
        self.config = completed(config)
        executor = partial(StandInExecutor, self)
        self.engine = LLMEngine(engine_config(self.config), executor, log_stats=False)
        (self.scheduler,) = self.engine.scheduler
        self.manager = self.scheduler.block_manager
        self.manager.watermark_blocks = int(
            self.config["watermark"] * self.config["num_gpu_blocks"]
        )  # the release has no option for it
        self.schedule, self.scheduler.schedule = self.scheduler.schedule, self.note_decisions
        self.preempt, self.scheduler._preempt = self.scheduler._preempt, self.note_victim
        self.planned: Json = {}
        self.victims: dict[str, list[str]] = {}
        self.aborted: list[str] = []
        self.delivered: dict[str, int] = {}
        self.contents: dict[int, list[Any]] = {}
        self.arrivals = 0

    def arrive(self, request_id: str) -> None:
        """Hand a request to the engine."""
        given = self.requests[request_id]
        params = SamplingParams(
            max_tokens=given["max_tokens"],
            temperature=0.0,
            stop_token_ids=[END_OF_SEQUENCE],
            detokenize=False,
        )
        self.arrivals += 1
        self.engine.add_request(
            request_id,
            {"prompt_token_ids": list(given["prompt"])},
            params,
            arrival_time=float(self.arrivals),
            priority=given.get("priority", 0),
        )

    def abort(self, request_id: str) -> None:
        """A request's client leaves."""
        if request_id in ids(self.groups()):
            self.aborted.append(request_id)
        self.engine.abort_request(request_id)

    def run(self) -> Json:
        """One step of the engine."""
        record = NOTHING | {"aborted": self.aborted}
        self.planned, self.aborted = {}, []
        self.victims = {"preempted": [], "swapped_out": []}
        if not self.engine.has_unfinished_requests():  # then the engine is not called
            return record
        return record | self.results(self.engine.step()) | self.planned

    def note_victim(self, group: Any, swaps: list[Any]) -> Any:
        """Called by the scheduler where it preempts a request."""
        mode = self.preempt(group, swaps)
        how = "preempted" if mode.name == "RECOMPUTE" else "swapped_out"
        self.victims[how].append(group.request_id)
        return mode

    def note_decisions(self) -> Any:
        """Called by the engine for the decisions of a step."""
        waiting, swapped = ids(self.scheduler.waiting), ids(self.scheduler.swapped)
        decided = self.schedule()
        groups, outputs, _ = decided
        if self.config["prefix_caching"]:
            self.learn_hashes()  # a request that ends in this step is gone after it
        tokens = {one.request_id: one.token_chunk_size for one in groups}
        self.planned = self.victims | {
            "kind": kind_of(outputs.num_prefill_groups, len(groups)),
            "scheduled": tokens,
            "sampling": [one.request_id for one in groups if one.do_sample],
            "cached_blocks": {
                one.request_id: len(one.computed_block_nums or ())
                for one in groups
                if one.is_prompt
            },
            "admitted": [one for one in tokens if one in waiting],
            "swapped_in": [one for one in tokens if one in swapped],
            "ignored": ids(outputs.ignored_seq_groups),
            "lookahead_slots": outputs.num_lookahead_slots,
            "copies": [list(pair) for pair in outputs.blocks_to_copy],
            "swaps_in": [list(pair) for pair in outputs.blocks_to_swap_in],
            "swaps_out": [list(pair) for pair in outputs.blocks_to_swap_out],
        }
        return decided

    def results(self, answers: list[Any]) -> Json:
        """What clients get of the step: new tokens, and the requests that ended with one."""
        lengths = {one.request_id: len(one.outputs[0].token_ids) for one in answers}
        outputs = {
            one: self.requests[one]["output"][self.delivered.get(one, 0) : length]
            for one, length in lengths.items()
            if length > self.delivered.get(one, 0)
        }
        self.delivered |= lengths
        finished = [one for one in ids(one for one in answers if one.finished) if one in outputs]
        return {"outputs": outputs, "finished": finished}

    def groups(self) -> list[Any]:
        """Sequence groups in the three queues; each is one request with one sequence."""
        scheduler = self.scheduler
        return [*scheduler.waiting, *scheduler.running, *scheduler.swapped]

    def state(self) -> Json:
        """Queues, requests and blocks; on the GPU of those that run, on the CPU of swapped ones."""
        queues = ("waiting", "running", "swapped")
        tables, blocks = self.device(Device.GPU, self.scheduler.running)
        cpu_tables, cpu_blocks = self.device(Device.CPU, self.scheduler.swapped)
        return {
            **{name: ids(getattr(self.scheduler, name)) for name in queues},
            "rows": [row(group) for group in self.groups()],
            "block_tables": tables,
            "cpu_block_tables": cpu_tables,
            "blocks": blocks,
            "cpu_blocks": cpu_blocks,
            "cached": self.cached(),
        }

    def device(self, device: Any, groups: Iterable[Any]) -> tuple[Json, Json]:
        """Block tables of these groups, and the device's blocks: how many, free ones, holders.

        The release numbers the CPU's blocks behind the GPU's, here each device's begin at 0.
        `free_list`: free blocks without contents, in their order. `evictable`: free blocks with
        contents, the next to be evicted first. `references`: holders of each held block.
        """
        first = self.config["num_gpu_blocks"] if device is Device.CPU else 0
        allocator = self.manager.block_allocator._allocators[device]
        blank = getattr(allocator, "_hashless_allocator", allocator)._free_block_indices
        evictable = evictable_blocks(allocator.evictor) if hasattr(allocator, "evictor") else []
        counts = allocator._refcounter._refcounts
        tables = {one.request_id: self.manager.get_block_table(one.first_seq) for one in groups}
        return {one: [block - first for block in table] for one, table in tables.items()}, {
            "total": allocator.get_num_total_blocks(),
            "free": allocator.get_num_free_blocks(),
            "free_list": [block - first for block in blank],
            "evictable": [block - first for block in evictable],
            "references": {block - first: count for block, count in counts.items() if count},
        }

    def cached(self) -> list[list[Any]]:
        """What a lookup finds on the GPU: request and index of a block, then the block."""
        if not self.config["prefix_caching"]:
            return []
        allocator = self.manager.block_allocator._allocators[Device.GPU]
        found = allocator._cached_blocks.items()
        computed = ((key, block) for key, block in found if allocator.block_is_computed(block))
        return [[*self.contents[key], block] for key, block in computed]

    def learn_hashes(self) -> None:
        """Note what the hashes of all held blocks stand for."""
        for group in self.groups():
            table = self.manager.block_tables.get(group.first_seq.seq_id)
            for index, block in enumerate(() if table is None else table.blocks):
                if block.content_hash is not None:
                    self.contents.setdefault(block.content_hash, [group.request_id, index])


def kind_of(prefills: int, scheduled: int) -> str:
    """What ran: prefills, decodes, both, or nothing."""
    if not scheduled:
        return "idle"
    if prefills in (0, scheduled):
        return "prefill" if prefills else "decode"
    return "mixed"


def row(group: Any) -> Json:
    """A request as the scheduler knows it, lengths in tokens."""
    data = group.first_seq.data
    return {
        "id": group.request_id,
        "computed": data.get_num_computed_tokens(),
        "generated": data.get_output_len(),
        "prefilling": group.is_prefill(),
    }


def evictable_blocks(evictor: Any) -> list[int]:
    """Free blocks with contents: used longest ago first, of those the deepest in its prompt."""
    known = evictor.free_table.items()
    order = [(kept.last_accessed, -kept.num_hashed_tokens, block) for block, kept in known]
    return [block for _, _, block in sorted(order)]


if __name__ == "__main__":
    serve(VllmV0)
