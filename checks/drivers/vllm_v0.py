"""Driver of vLLM V0: the released engine, scheduler and block manager, step by step.

It runs in the Python environment of the release and needs nothing else. The engine
(`LLMEngine.step`, synchronous) is the released one, unmodified, and so is the order of calls:
schedule, execute, count tokens as computed, append sampled tokens, stop, free. The executor is a
stand-in that computes nothing and samples the scripted tokens. So is the output processor of groups
with several sequences, which these releases can schedule but never create: it forks them when the
first token is sampled.
"""

# ruff: noqa: E402 - the environment is set before the release is imported, which reads it then
# mypy: disable-error-code="import-not-found, misc"

import logging
import os
from collections.abc import Callable
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
import vllm.core.scheduler as released
from vllm import SamplingParams
from vllm.config import CacheConfig, ParallelConfig, SchedulerConfig
from vllm.engine.llm_engine import LLMEngine
from vllm.lora.request import LoRARequest
from vllm.model_executor.layers.sampler import SamplerOutput
from vllm.sequence import (
    VLLM_INVALID_TOKEN_ID,
    CompletionSequenceGroupOutput,
    Logprob,
    Sequence,
    SequenceOutput,
    SequenceStatus,
)
from vllm.utils import Device

logging.disable(logging.WARNING)

HELLO = {
    "policy": "vllm-v0",
    "name": "vllm-v0",
    "release": f"vLLM {version('vllm').removesuffix('+empty')}",
    "config": {
        "reading": ["released"],
        "strategy": ["exclusive"],
        "artificial_preemptions": [0],
        "async_output": [False],
    },
    "abilities": ["abort", "ends"],
    "left_out": [],
}
SCHEDULER_KEYS = {
    **{"scheduling": "policy", "chunked_prefill": "enable_chunked_prefill"},
    **{"max_num_seqs": "", "max_num_batched_tokens": "", "max_model_len": "", "delay_factor": ""},
    **{"num_lookahead_slots": "", "num_scheduler_steps": "", "max_num_partial_prefills": ""},
    **{"max_long_partial_prefills": "", "long_prefill_token_threshold": ""},
}  # our keys of the scheduler's configuration, with the release's names if they differ
QUEUES = ("waiting", "running", "swapped")
NOTHING: Json = {
    **{"scheduled": {}, "prefills": [], "sampling": [], "lookahead_slots": 0},
    **{"admitted": [], "swapped_in": [], "preempted": [], "swapped_out": [], "by_priority": []},
    **{"ignored": [], "copies": [], "swaps_in": [], "swaps_out": []},
    "budget": {"batched": {}, "cached": {}, "seqs": {}},
}


class NotedBudget(released.SchedulingBudget):
    """The released budget, which only has totals, with the contribution of each request."""

    latest: "NotedBudget"

    def __init__(self, **limits: int) -> None:
        super().__init__(**limits)
        self.batched: dict[str, int] = {}
        self.cached: dict[str, int] = {}
        self.seqs: dict[str, int] = {}
        NotedBudget.latest = self

    def add_num_batched_tokens(
        self, req_id: str, num_batched_tokens: int, num_cached_tokens: int = 0
    ) -> None:
        """Add the tokens of a request, unless they are counted already."""
        super().add_num_batched_tokens(req_id, num_batched_tokens, num_cached_tokens)
        self.batched.setdefault(req_id, num_batched_tokens)
        self.cached.setdefault(req_id, num_cached_tokens)

    def subtract_num_batched_tokens(self, req_id: str, num_batched_tokens: int) -> None:
        """Remove the tokens of a request."""
        super().subtract_num_batched_tokens(req_id, num_batched_tokens)
        for tokens in (self.batched, self.cached):
            tokens.pop(req_id, None)

    def add_num_seqs(self, req_id: str, num_curr_seqs: int) -> None:
        """Add the sequences of a request, unless they are counted already."""
        super().add_num_seqs(req_id, num_curr_seqs)
        self.seqs.setdefault(req_id, num_curr_seqs)

    def subtract_num_seqs(self, req_id: str, num_curr_seqs: int) -> None:
        """Remove the sequences of a request."""
        super().subtract_num_seqs(req_id, num_curr_seqs)
        self.seqs.pop(req_id, None)


released.SchedulingBudget = NotedBudget


def engine_config(config: Json) -> Any:
    """The engine's configuration, with a stand-in for the model's part.

    Raises:
        ValueError: the release refuses the configuration.
    """
    mode = config["preemption_mode"]
    scheduler = SchedulerConfig(
        **{theirs or ours: config[ours] for ours, theirs in SCHEDULER_KEYS.items()},
        preemption_mode=None if mode == "auto" else mode,
        multi_step_stream_outputs=False,
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
    adapters, speculated = config["max_loras"], config["num_lookahead_slots"]
    speculates = speculated and config["num_scheduler_steps"] == 1
    unused = ("device", "load", "decoding", "prompt_adapter")
    return SimpleNamespace(
        model_config=model,
        scheduler_config=scheduler,
        cache_config=CacheConfig(
            block_size=config["block_size"],
            enable_prefix_caching=config["prefix_caching"],
            swap_space=0,
        ),
        lora_config=SimpleNamespace(max_loras=adapters) if adapters else None,
        speculative_config=(
            SimpleNamespace(num_speculative_tokens=speculated) if speculates else None
        ),
        parallel_config=ParallelConfig(),
        observability_config=None,
        **{f"{name}_config": None for name in unused},
    )


class StandInExecutor:
    """Replaces the workers of the engine: samples the scripted tokens."""

    def __init__(self, driver: "VllmV0", vllm_config: Any) -> None:
        self.driver = driver

    def determine_num_available_blocks(self) -> tuple[int, int]:
        """The numbers of GPU and CPU blocks."""
        return self.driver.config["num_blocks"], self.driver.config["num_cpu_blocks"]

    def execute_model(self, execute_model_req: Any) -> list[Any]:
        """The samples of each group; with multi-step scheduling all samples in the last step.

        With speculation, first the samples of each prompt, then step by step those of the decodes.
        The engine reads only groups that sample.
        """
        groups = execute_model_req.seq_group_metadata_list
        if not groups or groups[0].state.remaining_steps > 1:
            return []
        batches = [(groups, step) for step in range(groups[0].state.num_steps)]
        if self.driver.engine.speculative_config:
            decodes = [group for group in groups if not group.is_prompt]
            right = max((self.driver.right(group.request_id) for group in decodes), default=-1)
            batches = [([group], 0) for group in groups if group.is_prompt]
            batches += [(decodes, step) for step in range(1 + right)]
        return [
            SamplerOutput(outputs=[self.sample(group, step) for group in batch])
            for batch, step in batches
        ]

    def sample(self, group: Any, step: int) -> Any:
        """The token of the group's first sequence in a step, with log-probability 0.

        Tokens of the other sequences are sampled in `process_outputs`.
        """
        sequence, data = next(iter(group.seq_data.items()))
        token = 0
        if self.driver.engine.speculative_config and step > self.driver.right(group.request_id):
            token = VLLM_INVALID_TOKEN_ID
        elif group.do_sample:
            name = self.driver.names[sequence]
            token = self.driver.sampled_token(name, data.get_output_len() + step)
        output = SequenceOutput(sequence, token, {token: Logprob(0.0)})
        return CompletionSequenceGroupOutput([output], None)

    def ignore(self, *_: int) -> None:
        """Do nothing: there is no cache and no worker."""

    initialize_cache = stop_remote_worker_execution_loop = shutdown = ignore


class VllmV0(Driver):
    """The released engine, new in each episode.

    `planned`: the scheduler's decisions in this step; `decided`: their order. `names`: by the
    engine's number, the name of a sequence. `delivered`: the number of tokens of each sequence that
    clients have. `contents`: by block hash, the sequence and the block index. `clock`: simulated
    time.
    """

    under_test = ("vllm",)
    hello = HELLO

    def start(self, config: Json) -> None:
        """Begin an episode.

        Raises:
            ValueError: the release refuses the configuration.
        """
        self.config = config
        executor = partial(StandInExecutor, self)
        self.engine = LLMEngine(engine_config(config), executor, log_stats=False)
        (self.scheduler,) = self.engine.scheduler
        self.manager = self.scheduler.block_manager
        self.manager.watermark_blocks = config["watermark_blocks"]  # the release has no option
        self.schedule, self.scheduler.schedule = self.scheduler.schedule, self.note_decisions
        for name, noted in self.decisions().items():
            setattr(self.scheduler, name, partial(noted, getattr(self.scheduler, name)))
        processor = self.engine.output_processor
        self.process, processor.process_outputs = processor.process_outputs, self.process_outputs
        self.planned: Json = {}
        self.decided: dict[str, list[str]] = {}
        self.names: dict[int, str] = {}
        self.delivered: dict[str, int] = {}
        self.contents: dict[int, list[Any]] = {}
        self.clock, self.arrivals, self.schedules, self.is_preempting = 0.0, 0, 0, False
        # Blocks store the time of their last use; here it is the number of the decision.
        released.time = SimpleNamespace(time=lambda: self.schedules, perf_counter=lambda: 0.0)

    # --- requests ---------------------------------------------------------------------------------

    def arrive(self, request_id: str) -> None:
        """Hand a request to the engine, as one sequence."""
        line = self.requests[request_id]
        params = SamplingParams(
            max_tokens=line["max_tokens"],
            temperature=0.0,
            stop_token_ids=[END_OF_SEQUENCE],
            detokenize=False,
        )
        adapter = line.get("lora", 0) if self.config["max_loras"] else 0
        by_priority = self.config["scheduling"] == "priority"  # else the release takes none
        self.arrivals += 1
        self.engine.add_request(
            request_id,
            {"prompt_token_ids": list(line["prompt"])},
            params,
            arrival_time=float(self.arrivals),
            lora_request=LoRARequest(str(adapter), adapter, "none") if adapter else None,
            priority=line.get("priority", 0) if by_priority else 0,
        )
        group = self.scheduler.waiting[-1]
        group.metrics.arrival_time = self.clock
        group.sampling_params.n = line.get("n", 1)
        self.names[group.first_seq.seq_id] = request_id
        if line.get("encoder_len", 0):
            read = {"type": "token", "prompt_token_ids": [0] * line["encoder_len"]}
            group.encoder_seq = Sequence(group.first_seq.seq_id, read, self.config["block_size"])

    def abort(self, request_id: str) -> None:
        """A request's client leaves."""
        self.engine.abort_request(request_id)

    def sampled_token(self, name: str, index: int) -> int:
        """The output token `index` (from 0) that a sequence samples, or END_OF_SEQUENCE."""
        request, output = self.parent_request(name), self.sampled_output(name)
        by_length = index + 1 == request["output_len"] < request["max_tokens"]
        is_end = name in self.action["ends"] if "ends" in self.action else by_length
        if is_end or index >= len(output):  # tokens after the last one are not read
            return END_OF_SEQUENCE
        return int(output[index])

    def sequence_name(self, request_id: str, index: int) -> str:
        """The name of the request's sequence with this index; the first has the request's id."""
        siblings: list[str] = [*self.requests[request_id].get("siblings", ())]
        return siblings[index - 1] if index else request_id

    def parent_request(self, name: str) -> Json:
        """The request of the sequence with this name."""
        if name in self.requests:
            return self.requests[name]
        return next(
            request for request in self.requests.values() if name in request.get("siblings", ())
        )

    def right(self, request_id: str) -> int:
        """The number of accepted draft tokens of a request in this step."""
        return int(self.action.get("accepted", {}).get(request_id, 0))

    def sampled_output(self, name: str) -> list[int]:
        """The scripted tokens of a sequence, without END_OF_SEQUENCE."""
        request = self.parent_request(name)
        return [*request.get("siblings", {}).get(name, request["output"])]

    def process_outputs(self, group: Any, outputs: list[Any], is_async: bool) -> None:
        """Process the samples of a group; the driver itself does so for groups of n > 1 sequences.

        With the first token the other sequences are forked; each gets its own first token.
        """
        if group.sampling_params.n == 1:
            self.process(group, outputs, is_async)
            return
        running = group.get_seqs(status=SequenceStatus.RUNNING)
        if group.first_seq.get_output_len() == 0:
            running += self.forked(group)
        for sequence in running:
            token = self.sampled_token(self.names[sequence.seq_id], sequence.get_output_len())
            sequence.append_token_id(token, {token: Logprob(0.0)})
            stop = self.engine.output_processor.stop_checker
            stop.maybe_stop_sequence(sequence, 0, group.sampling_params)
            if sequence.is_finished():
                self.scheduler.free_seq(sequence)

    def forked(self, group: Any) -> list[Any]:
        """Fork the group's first sequence; returns the new sequences."""
        children = []
        for index in range(1, group.sampling_params.n):
            child = group.first_seq.fork(next(self.engine.seq_counter))
            self.scheduler.fork_seq(group.first_seq, child)
            self.names[child.seq_id] = self.sequence_name(group.request_id, index)
            children.append(child)
        group.seqs = [*group.seqs, *children]
        group.seqs_dict = {sequence.seq_id: sequence for sequence in group.seqs}
        group.is_single_seq = False
        return children

    # --- a step -----------------------------------------------------------------------------------

    def run(self) -> Json:
        """One decision of the engine, and its steps."""
        self.planned, self.decided = {}, {}
        answers: list[Any] = []
        if self.engine.has_unfinished_requests():  # else the engine is not called
            answers = [*self.engine.step()]
            while self.engine._has_remaining_steps(
                self.engine.cached_scheduler_outputs[0].seq_group_metadata_list
            ):
                answers = [*self.engine.step()]
        record = NOTHING | {"planned": self.state()} | self.planned | self.results(answers)
        self.clock += self.config["prefill_time" if record["prefills"] else "decode_time"]
        return record

    def decisions(self) -> dict[str, Callable[..., Any]]:
        """By method of the scheduler, the wrapper that notes its decisions."""

        def of_group(name: str) -> Callable[..., Any]:
            def noted(method: Callable[..., Any], group: Any, *others: Any) -> Any:
                self.note(name, group.request_id)
                return method(group, *others)

            return noted

        def preempted(method: Callable[..., Any], group: Any, swaps: list[Any]) -> Any:
            mode = method(group, swaps)
            self.note("preempted" if mode.name == "RECOMPUTE" else "swapped_out", group.request_id)
            if self.is_preempting:
                self.note("by_priority", group.request_id)
            return mode

        def by_priority(method: Callable[..., Any], budget: Any) -> Any:
            self.is_preempting = True
            count = method(budget)
            self.is_preempting = False
            return count

        return {
            "_allocate_and_set_running": of_group("admitted"),
            "_swap_in": of_group("swapped_in"),
            "_preempt": preempted,
            "_schedule_priority_preemption": by_priority,
            "_passed_delay": lambda method, _now: method(self.clock),
        }

    def note(self, name: str, request_id: str) -> None:
        """Note one of the decisions of this step."""
        self.decided.setdefault(name, []).append(request_id)

    def note_decisions(self) -> Any:
        """Schedule a step and note its decisions; the engine calls it."""
        self.schedules += 1
        decided = self.schedule()
        groups, outputs, _ = decided
        budget = NotedBudget.latest
        self.planned = self.decided | {
            "planned": self.state(),
            "scheduled": {
                group.request_id: group.token_chunk_size if group.is_prompt else len(group.seq_data)
                for group in groups
            },
            "prefills": [group.request_id for group in groups if group.is_prompt],
            "sampling": [group.request_id for group in groups if group.do_sample],
            "budget": {"batched": budget.batched, "cached": budget.cached, "seqs": budget.seqs},
            "ignored": ids(outputs.ignored_seq_groups),
            "lookahead_slots": outputs.num_lookahead_slots if groups else 0,
            "copies": outputs.blocks_to_copy[:],
            "swaps_in": outputs.blocks_to_swap_in[:],
            "swaps_out": outputs.blocks_to_swap_out[:],
        }
        return decided

    def results(self, answers: list[Any]) -> Json:
        """The new tokens of the step, and the requests that finished."""
        sampled: dict[str, list[int]] = {}
        outputs: dict[str, list[int]] = {}
        for answer in answers:
            for output in answer.outputs:
                name = self.sequence_name(answer.request_id, output.index)
                first, self.delivered[name] = self.delivered.get(name, 0), len(output.token_ids)
                if new := self.sampled_output(name)[first : len(output.token_ids)]:
                    sampled[name] = new
                    outputs[answer.request_id] = outputs.get(answer.request_id, []) + new
        ignored = self.planned.get("ignored", ())
        ended = ids(
            answer for answer in answers if answer.finished and answer.request_id not in ignored
        )
        return {"outputs": outputs, "sampled": sampled, "finished": ended}

    # --- the state between steps ------------------------------------------------------------------

    def state(self) -> Json:
        """Queues, groups and blocks of both devices."""
        if self.config["prefix_caching"]:
            self.learn_hashes()
        return {
            **{name: ids(getattr(self.scheduler, name)) for name in QUEUES},
            "rows": [self.row(group) for group in self.groups()],
            "blocks": self.blocks(Device.GPU),
            "cpu_blocks": self.blocks(Device.CPU),
        }

    def groups(self) -> list[Any]:
        """Sequence groups in the three queues."""
        return [group for name in QUEUES for group in getattr(self.scheduler, name)]

    def row(self, group: Any) -> Json:
        """The row of a group, lengths in tokens."""
        going = next(
            (sequence for sequence in group.seqs if not sequence.is_finished()), group.first_seq
        )
        tracker = self.manager._computed_blocks_tracker
        accessed = self.manager._last_access_blocks_tracker._seq_last_access
        cross = self.manager.cross_block_tables.get(group.request_id)
        return {
            "id": group.request_id,
            "computed": going.data.get_num_computed_tokens(),
            "prefilling": going.is_prefill(),
            "swapped": going.status is SequenceStatus.SWAPPED,
            "cached": tracker._seq_id_to_num_tokens_computed.get(going.seq_id),
            "accessed": accessed.get(going.seq_id) or 0,
            "waited": self.clock - group.metrics.arrival_time,
            "sequences": [self.sequence(sequence) for sequence in group.seqs],
            "cross": cross.physical_block_ids if cross else [],
        }

    def sequence(self, sequence: Any) -> Json:
        """A sequence with its block table on the GPU or the CPU."""
        table = self.manager.block_tables.get(sequence.seq_id)
        on_gpu = self.config["num_blocks"]
        blocks = table.physical_block_ids if table else []
        return {
            "id": self.names[sequence.seq_id],
            "generated": sequence.get_output_len(),
            "slots": table.num_full_slots if table else 0,
            "blocks": [block if block < on_gpu else block - on_gpu for block in blocks],
            "finished": sequence.is_finished(),
        }

    def blocks(self, device: Any) -> Json:
        """The blocks of a device: counts, free blocks, references and contents.

        The release numbers CPU blocks after GPU blocks; here the numbers of each device begin at 0.
        `free_list`: free blocks without contents, in order. `evictable`: free blocks with contents,
        in the order of eviction. `references`: the number of holders of each held block. `cached`:
        sequence and block index, then the block. `computed`: cached blocks that count as computed.
        `accessed`: the last use of blocks that a sequence has freed. `outdated`: blocks whose place
        in the order of eviction is that of earlier contents.
        """
        first = self.config["num_blocks"] if device is Device.CPU else 0
        allocator = self.manager.block_allocator._allocators[device]
        blank = getattr(allocator, "_hashless_allocator", allocator)._free_block_indices
        counts = allocator._refcounter._refcounts
        record = {
            "total": allocator.get_num_total_blocks(),
            "free": allocator.get_num_free_blocks(),
            "free_list": [block - first for block in blank],
            "references": {block - first: count for block, count in counts.items() if count},
        }
        if not self.config["prefix_caching"]:
            return record
        contents, free = allocator._cached_blocks.items(), allocator.evictor.free_table
        uses = {**allocator._block_tracker, **free}.items()
        return record | {
            "evictable": [block - first for block in eviction_order(allocator.evictor)],
            "outdated": [block - first for block in outdated_blocks(allocator.evictor)],
            "accessed": {
                block - first: kept.last_accessed for block, kept in uses if kept.last_accessed > 0
            },
            "cached": [[*self.contents[key], block - first] for key, block in contents],
            "computed": [
                block - first for _, block in contents if allocator.block_is_computed(block)
            ],
        }

    def learn_hashes(self) -> None:
        """Note sequence and block index for the hashes of all held blocks."""
        for sequence in (sequence for group in self.groups() for sequence in group.seqs):
            table = self.manager.block_tables.get(sequence.seq_id)
            for index, block in enumerate(() if table is None else table.blocks):
                if block.content_hash is not None:
                    name = self.names[sequence.seq_id]
                    self.contents.setdefault(block.content_hash, [name, index])


def eviction_order(evictor: Any) -> dict[int, int]:
    """Free blocks with contents in the order of eviction, each with the hash that is dropped.

    The least recently used block comes first, among equals the deepest in its sequence. The queue
    keeps stale entries of blocks that were used again; an entry counts if its time equals the
    block's last use.
    """
    order: dict[int, int] = {}
    for accessed, _, block, content in sorted(evictor.priority_queue):
        kept = evictor.free_table.get(block)
        if kept is not None and kept.last_accessed == accessed:
            order.setdefault(block, content)
    return order


def outdated_blocks(evictor: Any) -> list[int]:
    """Free blocks whose place in the order of eviction is that of earlier contents."""
    kept = evictor.free_table
    order = eviction_order(evictor).items()
    return [block for block, content in order if content != kept[block].content_hash]


if __name__ == "__main__":
    serve(VllmV0)
