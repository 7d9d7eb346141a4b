"""Driver of vLLM V0: the released engine, scheduler and block manager, step by step.

Run by the Python of an environment that has the release; needs nothing else. The engine
(`LLMEngine.step`, in its synchronous form) is the released one, unmodified, and with it the order
of calls: schedule, execute, count tokens as computed, append what was sampled, stop, free. What
executes is a stand-in: it computes nothing and samples the tokens that the script says.

The line protocol and the fields of a record are described in the chapter on drivers of the project
that this file is from.
"""

# ruff: noqa: E402 - the environment is set before the release is imported, which reads it then
# mypy: disable-error-code="import-not-found"

import gc
import json
import logging
import os
import sys
import traceback
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.update(
    VLLM_USE_V1="0",
    VLLM_PLUGINS="",
    HF_HUB_OFFLINE="1",
    VLLM_NO_USAGE_STATS="1",
    VLLM_LOGGING_LEVEL="ERROR",
    OMP_NUM_THREADS="1",
)
ANSWERS = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)  # whatever the libraries print goes to standard error

import torch

torch.set_num_threads(1)
from vllm import SamplingParams
from vllm.config import CacheConfig, ParallelConfig, SchedulerConfig
from vllm.engine.llm_engine import LLMEngine
from vllm.model_executor.layers.sampler import SamplerOutput
from vllm.sequence import CompletionSequenceGroupOutput, Logprob, SequenceOutput
from vllm.utils import Device

logging.disable(logging.WARNING)

Json = dict[str, Any]

END_OF_SEQUENCE = 2**31 - 2  # sampled where a script says that a request ends; never told
RELEASE = version("vllm").removesuffix("+empty")
HELLO = {
    "format": "lockstep-driver",
    "version": 1,
    "policy": "vllm-v0",
    "name": "vllm-v0",
    "release": f"vLLM {RELEASE}",
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
    scheduler = SchedulerConfig(
        max_num_seqs=config["max_num_seqs"],
        max_num_batched_tokens=config["max_num_batched_tokens"],
        max_model_len=config["max_model_len"],
        enable_chunked_prefill=config["chunked_prefill"],
        policy=config["scheduling"],
        preemption_mode=config["preemption_mode"],
        num_lookahead_slots=config["num_lookahead_slots"],
        max_num_partial_prefills=config["max_num_partial_prefills"],
        max_long_partial_prefills=config["max_long_partial_prefills"],
        long_prefill_token_threshold=config["long_prefill_token_threshold"],
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

    def __init__(self, episode: "Released") -> None:
        self.episode = episode

    def determine_num_available_blocks(self) -> tuple[int, int]:
        """Blocks of the GPU and of the CPU."""
        return self.episode.config["num_gpu_blocks"], self.episode.config["num_cpu_blocks"]

    def initialize_cache(self, *_: int) -> None:
        """There is none."""

    def execute_model(self, execute_model_req: Any) -> list[Any]:
        """One sample for each group; the engine looks at those only that are to sample."""
        groups = execute_model_req.seq_group_metadata_list
        return [SamplerOutput(outputs=[self.sample(group) for group in groups])] if groups else []

    def sample(self, group: Any) -> Any:
        """The group's next token, with a certain probability."""
        token = self.episode.token(group.request_id) if group.do_sample else 0
        sequence = next(iter(group.seq_data))
        output = SequenceOutput(sequence, token, {token: Logprob(0.0)})
        return CompletionSequenceGroupOutput([output], None)

    def stop_remote_worker_execution_loop(self) -> None:
        """There is none."""

    def shutdown(self) -> None:
        """There is nothing to end."""


class Released:
    """One episode: a fresh released engine.

    `planned`: what its scheduler decided in this step. `victims`: whom it preempted in this step,
    and how. `ends`: who samples the end of sequence in this step; None: as the request says.
    `told`: tokens of each request that clients have. `contents`: of each block's hash the request
    and the index there.
    """

    def __init__(self, config: Json, requests: list[Json]) -> None:
        self.config = completed(config)
        self.requests = {request["id"]: request for request in requests}
        self.engine = LLMEngine(engine_config(self.config), self.executor, log_stats=False)
        (self.scheduler,) = self.engine.scheduler
        self.manager = self.scheduler.block_manager
        self.manager.watermark_blocks = int(
            self.config["watermark"] * self.config["num_gpu_blocks"]
        )  # the release has no option for it
        self.schedule, self.scheduler.schedule = self.scheduler.schedule, self.note_decisions
        self.preempt, self.scheduler._preempt = self.scheduler._preempt, self.note_victim
        self.planned: Json = {}
        self.victims: dict[str, list[str]] = {}
        self.ends: list[str] | None = None
        self.told: dict[str, int] = {}
        self.contents: dict[int, list[Any]] = {}
        self.arrivals = 0

    def executor(self, vllm_config: Any) -> StandInExecutor:
        """Called by the engine for its workers."""
        return StandInExecutor(self)

    # --- what the environment does -------------------------------------------------------------

    def arrive(self, request_id: str) -> None:
        """Hand a request to the engine."""
        asked = self.requests[request_id]
        params = SamplingParams(
            max_tokens=asked["max_tokens"],
            temperature=0.0,
            stop_token_ids=[END_OF_SEQUENCE],
            detokenize=False,
        )
        self.arrivals += 1
        self.engine.add_request(
            request_id,
            {"prompt_token_ids": list(asked["prompt"])},
            params,
            arrival_time=float(self.arrivals),
            priority=asked.get("priority", 0),
        )

    def token(self, request_id: str) -> int:
        """What the request samples next: its own output, or the end of sequence."""
        asked, generated = self.requests[request_id], self.group(request_id).first_seq
        index = generated.get_output_len()
        natural = index + 1 == asked["output_len"] < asked["max_tokens"]
        is_end = natural if self.ends is None else request_id in self.ends
        return END_OF_SEQUENCE if is_end else int(asked["output"][index])

    # --- one step ------------------------------------------------------------------------------

    def step(self, action: Json) -> Json:
        """Arrivals and aborts, then one step of the engine."""
        for request_id in action.get("arrive", ()):
            self.arrive(request_id)
        present = [group.request_id for group in self.groups()]
        self.engine.abort_request(action.get("abort", ()))
        aborted = [one for one in action.get("abort", ()) if one in present]
        between = action.get("arrive") or action.get("abort")
        told: Json = {"before": self.at_rest()} if between else {}
        told |= NOTHING | {"aborted": aborted}
        self.planned, self.ends = {}, action.get("ends")
        self.victims = {"preempted": [], "swapped_out": []}
        if self.engine.has_unfinished_requests():  # else nobody calls the engine
            told |= self.results(self.engine.step()) | self.planned
        return told | self.at_rest()

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
            self.learn_hashes()  # who ends in this step is gone after it
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
        """What clients get of the step: new tokens, and who has ended with one."""
        outputs, finished = {}, []
        for answer in answers:
            completion, before = answer.outputs[0], self.told.get(answer.request_id, 0)
            self.told[answer.request_id] = len(completion.token_ids)
            if len(completion.token_ids) > before:
                own = self.requests[answer.request_id]["output"]
                outputs[answer.request_id] = own[before : len(completion.token_ids)]
                if answer.finished:
                    finished.append(answer.request_id)
        return {"outputs": outputs, "finished": finished}

    # --- what can be told of it ----------------------------------------------------------------

    def groups(self) -> list[Any]:
        """Sequence groups in the three queues; each is one request with one sequence."""
        scheduler = self.scheduler
        return [*scheduler.waiting, *scheduler.running, *scheduler.swapped]

    def group(self, request_id: str) -> Any:
        """The sequence group of a request."""
        return next(one for one in self.groups() if one.request_id == request_id)

    def at_rest(self) -> Json:
        """Queues, requests and blocks."""
        queues = ("waiting", "running", "swapped")
        return {
            **{name: ids(getattr(self.scheduler, name)) for name in queues},
            "rows": [row(group) for group in self.groups()],
            "block_tables": dict(self.tables(self.scheduler.running, Device.GPU)),
            "cpu_block_tables": dict(self.tables(self.scheduler.swapped, Device.CPU)),
            "blocks": self.pool(Device.GPU),
            "cpu_blocks": self.pool(Device.CPU),
            "cached": self.cached(),
        }

    def tables(self, groups: list[Any], device: Any) -> Iterator[tuple[str, list[int]]]:
        """Blocks of each request, numbered from 0 on the device."""
        for group in groups:
            blocks = self.manager.get_block_table(group.first_seq)
            yield group.request_id, [self.on_device(device, block) for block in blocks]

    def on_device(self, device: Any, block: int) -> int:
        """A block's number on its device; the release numbers those of the CPU behind the GPU's."""
        return block - self.config["num_gpu_blocks"] if device is Device.CPU else block

    def allocator(self, device: Any) -> Any:
        """The released allocator of a device's blocks."""
        return self.manager.block_allocator._allocators[device]

    def pool(self, device: Any) -> Json:
        """Blocks of a device: how many are free, who holds the others, who is next.

        `free_list`: free blocks without contents, in their order. `evictable`: free blocks with
        contents, the next to be evicted first.
        """
        allocator = self.allocator(device)
        counts = allocator._refcounter._refcounts.items()
        naive = getattr(allocator, "_hashless_allocator", allocator)
        evictor = getattr(allocator, "evictor", None)
        blank = list(naive._free_block_indices)
        evictable = [] if evictor is None else evictable_blocks(evictor)
        return {
            "total": allocator.get_num_total_blocks(),
            "free": allocator.get_num_free_blocks(),
            "free_list": [self.on_device(device, block) for block in blank],
            "evictable": [self.on_device(device, block) for block in evictable],
            "references": {self.on_device(device, block): n for block, n in counts if n},
        }

    def cached(self) -> list[list[Any]]:
        """What a lookup finds on the GPU: request and index of a block, then the block."""
        if not self.config["prefix_caching"]:
            return []
        allocator = self.allocator(Device.GPU)
        found = allocator._cached_blocks.items()
        return [
            [*self.contents[key], block]
            for key, block in found
            if allocator.block_is_computed(block)
        ]

    def learn_hashes(self) -> None:
        """Which request's which block a hash stands for, of all that hold blocks."""
        for group in self.groups():
            table = self.manager.block_tables.get(group.first_seq.seq_id)
            for index, block in enumerate(() if table is None else table.blocks):
                if block.content_hash is not None:
                    self.contents.setdefault(block.content_hash, [group.request_id, index])


def ids(groups: Any) -> list[str]:
    """Of each sequence group its request."""
    return [group.request_id for group in groups]


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


def answers(lines: Iterator[str]) -> Iterator[Json]:
    """One answer to each line, until `stop` or the end."""
    live: Released | None = None
    for line in lines:
        message = json.loads(line)
        try:
            match message["do"]:
                case "start":
                    live = Released(message["config"], message["requests"])
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
    gc.freeze()  # what is loaded stays: the collector need not look through it again and again
    print(json.dumps(HELLO), file=ANSWERS)
    for answer in answers(iter(sys.stdin.readline, "")):
        print(json.dumps(answer, separators=(",", ":")), file=ANSWERS)


if __name__ == "__main__":
    main()
