"""Driver of sendnn-inference: the released scheduler and model runner, step by step.

It runs in the Python environment of the release and needs nothing else. Scheduler, KV cache manager
and model runner are the released ones, unmodified; only the model is a stand-in: it computes
nothing, samples the scripted tokens, and notes its input tensors. The order of calls is that of
vLLM's engine core (`EngineCore.step`): arrivals and aborts between two steps, then schedule,
execute, sample, aborts during the step, update.
"""

# ruff: noqa: E402 - the environment is set before the release is imported, which reads it then
# mypy: disable-error-code="import-not-found"

import importlib.metadata
import os
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import entry_points, version
from inspect import getsource
from typing import Any

from lockstep_driver import Json, ids, protected_output, serve

os.environ.update(
    VLLM_PLUGINS="sendnn_inference",
    SENDNN_INFERENCE_DYNAMO_BACKEND="eager",
    VLLM_DT_MAX_BATCH_TKV_LIMIT="131072",
)
protected_output()
importlib.metadata.entry_points = cache(entry_points)  # type: ignore[assignment] # for each runner

from vllm_driver import PLATFORM, VERSION, SchedulerDriver, engine_config, kv_cache, set_sizes

assert PLATFORM  # vllm_driver loads the plugin before this file imports it
import torch
from sendnn_inference import envs as plugin_envs
from sendnn_inference.platform import SpyrePlatform
from sendnn_inference.v1.core.scheduler import ChunkedPrefillSpyreScheduler
from sendnn_inference.v1.worker.spyre_model_runner import (
    ChunkedPrefillModelRunner,
    SpyreModelRunnerOutput,
)
from vllm.engine.arg_utils import EngineArgs
from vllm.forward_context import get_forward_context
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import SamplerOutput
from vllm.v1.request import RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

SpyrePlatform.log_server_boot = lambda *_: None  # it prints a banner at each check of its options

BLOCK = 64  # tokens; the only block size of the device
PAUSES = hasattr(ChunkedPrefillSpyreScheduler, "predict_next_decode_tkv")  # from 2.4 on
RESERVES = hasattr(ChunkedPrefillSpyreScheduler, "_get_required_blocks")  # from 2.2 on
# Releases have no QUEUE; a checkout with another queue order names it, and gets `max_overtakes`.
QUEUE = getattr(ChunkedPrefillSpyreScheduler, "QUEUE", "overtaking" if PAUSES else "fcfs")
STATISTICS = "sendnn-stats"  # the key of the scheduler's own statistics, from 2.4 on
ASKED = {  # by condition of the scheduler, the rule that it stands for, in the order of evaluation
    "_has_scheduling_priority": "SPY-PRI-3",
    "_satisfies_first_chunk_constraints": "SPY-ADM-1",
    "check_batch_tkv_limit_cp": "SPY-VOL-3",
    "_satisfies_last_chunk_constraints": "SPY-ADM-3",
}
if hasattr(ChunkedPrefillSpyreScheduler, "_may_begin"):  # of a checkout with its own queue order
    ASKED = {"_may_begin": "SPY-PRI-11", **ASKED}
WAITS_FOR_GRAMMARS = "STRUCTURED_OUTPUT_GRAMMAR" in getsource(ChunkedPrefillSpyreScheduler.schedule)
ENCODES = hasattr(plugin_envs, "SENDNN_INFERENCE_ASYNC_MM_ENCODER")  # images, beside its steps
SAYS_WHY = RESERVES and all(hasattr(ChunkedPrefillSpyreScheduler, name) for name in ASKED)
HELLO = {
    "name": "sendnn",
    "release": f"sendnn-inference {version('sendnn-inference')} on vLLM {VERSION}",
    "config": {
        "policy": ["spyre"],
        "block_size": [BLOCK],
        "admission": ["shipped" if RESERVES else "documented"],
        "queue": [QUEUE],
        "reservation": [RESERVES],
        "pausing": [False, True] if PAUSES else [False],
        "oversized": ["refused", "queued"],
        "reading": ["released"],
    },
    "abilities": [
        *("abort", "abort_gone", "abort_running", "ends", "tensors"),
        *(["refusal"] if SAYS_WHY else []),
        *(["grammars"] if WAITS_FOR_GRAMMARS else []),
        *(["encodings"] if ENCODES else []),
    ],
    "left_out": [],
}


def base_config(model: str) -> Any:
    """The engine's configuration for a model directory; episodes change its sizes."""
    return EngineArgs(
        model=model,
        skip_tokenizer_init=True,
        max_model_len=8192,
        max_num_seqs=4,
        max_num_batched_tokens=128,
        num_gpu_blocks_override=512,
        enable_prefix_caching=True,
    ).create_engine_config()


def configure(base: Any, config: Json, not_configured: list[str]) -> None:
    """Set the values of an episode in the release's variables and options, and let it check them.

    The release chooses the values of keys in `not_configured`.
    """
    os.environ["VLLM_DT_MAX_BATCH_TKV_LIMIT"] = str(config["max_batch_tkv_limit"])
    SpyrePlatform._max_batch_tkv_limit = 0  # makes the platform read the variable again
    flags = {
        "SENDNN_INFERENCE_CP_INTERLEAVE_STEPS": config["interleave"],
        "SENDNN_INFERENCE_PAUSING_ENABLED": config["pausing"],
        "SENDNN_INFERENCE_LONG_OUT_PRIO": config["long_output_first"],
    }
    os.environ.update({name: str(int(value)) for name, value in flags.items()})
    plugin_envs.clear_env_cache()
    ChunkedPrefillSpyreScheduler.MAX_OVERTAKES = config["max_overtakes"]
    set_sizes(base, config, step_tokens=config["chunk_size"], prefill_threshold=0)
    is_given = "num_blocks" not in not_configured
    # The option counts the null block, which is used as padding.
    base.cache_config.num_gpu_blocks_override = config["num_blocks"] + 1 if is_given else None
    SpyrePlatform.check_and_update_config(base)


def device_blocks(base: Any) -> int | None:
    """The blocks of the model's cache, which the model runner counts, without that of padding.

    None if a server would refuse to start with so few, or the release counts them nowhere.
    """
    try:
        return int(SpyrePlatform.get_total_spyre_blocks(base)) - 1
    except (AttributeError, ValueError):
        return None


class StandInModel:
    """Replaces the runner's model: notes its input tensors and samples the scripted tokens.

    `sampled`: returns the tokens of the sampling rows in order. `given`: the tensors of the step as
    lists, None before the model has run. `tkv`: the tkv mask of the step, a number per row.
    """

    is_multimodal = False

    def __init__(self, sampled: Callable[[], list[int]]) -> None:
        self.sampled = sampled
        self.given: dict[str, list[Any]] | None = None
        self.tkv: list[int] = []
        self.is_prefill = False
        self.n_pads_right = 0  # set by the runner: right padding of the chunk's last block

    def get_maybe_mm_embeddings(self, *_: Any, **__: Any) -> None:
        """No embeddings, so that the runner passes token ids."""

    def __call__(self, input_ids_or_embeds: Any, positions: Any, **_: Any) -> Any:
        """Note the tensors; the returned logits are not used."""
        metadata = get_forward_context().attn_metadata
        self.is_prefill = metadata.is_prefill
        self.tkv = metadata.current_tkv_mask.tolist()
        tensors = {
            "token_ids": input_ids_or_embeds.flatten(),
            "positions": positions.flatten(),
            "slot_mapping": metadata.slot_mapping,
            "block_table": metadata.block_table,
            "left_padding": metadata.left_padded_prompt_mask,
        }
        self.given = {name: tensor.tolist() for name, tensor in tensors.items()}
        return torch.zeros(1)

    def sample(self, **_: Any) -> Any:
        """The scripted tokens, one per row."""
        tokens = torch.tensor([[token] for token in self.sampled()], dtype=torch.int64)
        return SamplerOutput(sampled_token_ids=tokens, logprobs_tensors=None)


def waits_for_grammar(request: Any) -> bool:
    """True if the request's grammar is not ready, or the scheduler has not seen yet that it is."""
    return bool(request.status == RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR)


def image() -> Any:
    """An image without tokens of its own: the prompt has those that stand for it.

    So neither block hashes nor the encoder budget of vLLM's scheduler depend on it.
    """
    return MultiModalFeatureSpec(None, "image", "image", PlaceholderRange(offset=0, length=0))


class Refusals:
    """Notes the results of a scheduler's admission conditions before a prefill.

    Results are noted for the request whose prefill is under way, else for the first request that
    the scheduler considers and that does not wait for its images. The scheduler's own methods run
    unchanged.
    """

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        self.request: Any = None
        self.answers: dict[str, Any] = {}
        for name in (*ASKED, "can_schedule_prefill", "_get_required_blocks"):
            setattr(scheduler, name, self.listening(name, getattr(scheduler, name)))

    def listening(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """The method, wrapped to note its result for the request."""

        def asked(*args: Any, **kwargs: Any) -> Any:
            answer = method(*args, **kwargs)
            request = args[0] if args else kwargs["request"]
            self.request = self.request or request
            if request is self.request:
                self.answers[name] = answer
                if name == "can_schedule_prefill" and self.lacks_images(request):
                    self.request, self.answers = None, {}
            return answer

        return asked

    def lacks_images(self, request: Any) -> bool:
        """True if the request's images are not encoded."""
        ready = getattr(self.scheduler, "_mm_encoding_ready", ())
        return bool(request.mm_features) and request.request_id not in ready

    def begin(self) -> None:
        """Begin a step: forget the results of the last one."""
        self.request = next(iter(self.scheduler.ongoing_prefills), None)
        self.answers = {}

    def rule(self) -> str | None:
        """The rule by which the scheduler refused the prefill in this step, or None."""
        if not self.answers:
            return None
        if self.answers.get("can_schedule_prefill"):
            return "SPY-STR-1" if waits_for_grammar(self.request) else None
        failed = [rule for name, rule in ASKED.items() if self.answers.get(name) is False]
        if not failed and "can_schedule_prefill" not in self.answers:
            return "SPY-RES-1"  # the blocks were lacking before any condition
        return next(iter(failed), "SPY-PAU-4")  # no condition was evaluated: paused requests first


class Sendnn(SchedulerDriver):
    """The released scheduler with its model runner, both new in each episode.

    `chunk`: the last prefilled chunk. `left_padding`: tokens, in each request's last decode step.
    """

    under_test = ("vllm", "sendnn_inference")
    hello = HELLO

    def __init__(self) -> None:
        self.base = engine_config(base_config)

    def start(self, config: Json) -> None:
        """Begin an episode; an error of the release is its refusal of the configuration."""
        configure(self.base, config, self.not_configured)
        blocks = self.base.cache_config.num_gpu_blocks_override  # None in old releases
        scheduler = ChunkedPrefillSpyreScheduler(
            vllm_config=self.base,
            kv_cache_config=kv_cache((blocks or config["num_blocks"] + 1) - 1, BLOCK),
            structured_output_manager=StructuredOutputManager(self.base),
            block_size=BLOCK,
            log_stats=PAUSES,
        )
        self.begin(scheduler, BLOCK)
        self.listen()
        self.refusals = Refusals(scheduler) if SAYS_WHY else None
        self.model = StandInModel(self.tokens)
        self.runner = ChunkedPrefillModelRunner(self.base, is_driver_worker=True, rank=0)
        self.runner._model = self.model
        self.runner.warmup_mode = False
        self.device_blocks = device_blocks(self.base)
        self.chunk: Json | None = None
        self.untold: set[str] = set()  # whose images failed, and no output said so
        self.left_padding: dict[str, int] = {}
        self.idle_steps: Counter[str] = Counter()  # that a paused request counted and none decoded

    def listen(self) -> None:
        """Wrap the scheduler to note its statistics at the end of each step."""
        make = self.scheduler.make_stats
        self.made: Any = None

        def made(*args: Any, **kwargs: Any) -> Any:
            self.made = make(*args, **kwargs)
            return self.made

        self.scheduler.make_stats = made

    def statistics(self) -> Json:
        """The scheduler's statistics of the step, if it has any."""
        if self.made is None:
            return {}
        own, cache = self.made.kv_connector_stats[STATISTICS], self.made.prefix_cache_stats
        return {
            "statistics": {
                "waiting": self.made.num_waiting_reqs,
                "decoding": own.decode_batch_size,
                "paused": own.num_paused_reqs,
                "pauses": own.pause_events,
                "resumes": own.resume_events,
                "usage": self.made.kv_cache_usage,
                "asked_tokens": cache.queries,
                "cached_tokens": cache.hits,
            }
        }

    def new_request(self, request_id: str) -> Any:
        """The request; its images are encoded when the script says so."""
        request = super().new_request(request_id)
        if self.requests[request_id].get("has_images", False):
            request.mm_features = [image()]
        return request

    def change(self) -> bool:
        """Report results of the encoder, then apply arrivals and aborts; true if there were any."""
        encoded, failed = (self.action.get(name, ()) for name in ("encoded", "unencodable"))
        if encoded or failed:
            self.report(encoded, failed)
        return super().change() or bool(encoded or failed)

    def report(self, encoded: list[str], failed: list[str]) -> None:
        """Report images that are encoded, and that cannot be, as the executor does with a step.

        These are known here after the step, so that they come with one that computes nothing.
        """
        scheduled = SchedulerOutput.make_empty()
        scheduled._spyre_newly_encoded_req_ids = encoded
        scheduled._spyre_failed_encode_req_ids = failed
        answer = SpyreModelRunnerOutput([], {}, tkv=self.scheduler.tkv)
        results = self.scheduler.update_from_output(scheduled, answer)
        outputs = [output for group in results.values() for output in group.outputs]
        self.untold |= {*failed} - {*ids(output for output in outputs if output.finish_reason)}

    def run(self) -> Json:
        """One step of the engine core."""
        if not self.scheduler.has_requests():  # the engine core does not call an empty scheduler
            return {"kind": "idle", "scheduled": {}, "tkv": 0, "outputs": {}, "finished": []}
        if self.refusals:
            self.refusals.begin()
        paused = ids(self.paused())
        scheduled = self.scheduler.schedule()
        if not scheduled.total_num_scheduled_tokens and ids(self.paused()) == paused:
            self.idle_steps.update(paused)  # the engine core calls the scheduler in some of these
        why = {"refusal": self.refusals.rule()} if self.refusals else {}
        answer = self.execute(scheduled)
        done = self.computed(scheduled, answer) | why | self.update(scheduled, answer)
        return done | self.statistics()

    def execute(self, scheduled: Any) -> Any:
        """Let the model runner prepare the tensors, run the model and sample.

        Up to 2.4 the runner samples in `execute_model`, later in `sample_tokens`.
        """
        self.model.given = None
        for new in scheduled.scheduled_new_reqs:
            new.mm_features = []  # the stand-in for the model is given tokens
        answer = self.runner.execute_model(scheduled)
        return self.runner.sample_tokens(None) if answer is None else answer

    def tokens(self) -> list[int]:
        """The next token of each row in the runner's batch, including requests that have left."""
        runner, requests = self.runner, self.scheduler.requests
        batch = runner.prefill_batch if self.model.is_prefill else runner.input_batch
        rows = batch.sorted_requests_ids
        indices = {row: requests[row].num_output_tokens if row in requests else 0 for row in rows}
        self.own = {
            request_id: [self.scripted_token(request_id, index)]
            for request_id, index in indices.items()
        }
        return [self.token(request_id, index) for request_id, index in indices.items()]

    def computed(self, scheduled: Any, answer: Any) -> Json:
        """The step's record, read from the tensors that the model runner made."""
        tokens, tkv, tensors = dict(scheduled.num_scheduled_tokens), answer.tkv, self.model.given
        if tensors is None:
            return {"kind": "idle", "scheduled": tokens, "tkv": tkv}
        rows = list(answer.req_ids)
        if self.model.is_prefill:
            self.chunk = self.prepared_chunk(next(iter(tokens)), tensors)
            tokens = {self.chunk["id"]: self.chunk["end"] - self.chunk["start"]}
            record: Json = {"kind": "prefill", "prefilling": self.chunk}
            if not PAUSES:  # old runners return the batch's tkv after a prefill step
                tkv = len(self.requests[self.chunk["id"]]["prompt"])
            is_last = self.chunk["chunk"] == self.chunk["chunks"] - 1
            length = self.model.tkv[0] - self.model.n_pads_right
            masks = {"length": [length], "is_last": [int(is_last)]}
        else:
            record = {"kind": "decode", "batch": list(self.batch(rows, list(tokens), tensors))}
            masks = {"tkv": self.model.tkv}
        if self.tensors:
            slots = [slot for row in tensors["slot_mapping"] for slot in row]
            record["tensors"] = tensors | {"rows": rows, "slot_mapping": slots} | masks
        return record | {"scheduled": tokens, "tkv": tkv}

    def prepared_chunk(self, request_id: str, tensors: dict[str, list[Any]]) -> Json:
        """The chunk that the runner prepared: its position in the prompt and its blocks."""
        state, size = self.runner.requests[request_id], self.runner.chunk_size
        table, padding = tensors["block_table"][0], int(tensors["left_padding"][0])
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
            "writes": [slot // BLOCK for slot in tensors["slot_mapping"][0][::BLOCK]],
        }

    def batch(
        self, rows: list[str], scheduled: list[str], tensors: dict[str, list[Any]]
    ) -> Iterator[Json]:
        """The rows of a decode step in the order of `scheduled`; tensors are in that of `rows`."""
        for request_id in scheduled:
            index = rows.index(request_id)
            slot = tensors["slot_mapping"][index][0]
            self.left_padding[request_id] = tensors["left_padding"][index]
            row = self.row(self.scheduler.requests[request_id])
            yield row | {
                "tkv": self.model.tkv[index],
                "generated": row["generated"] + 1,  # the scheduler's update counts this token
                "blocks": self.block_table(request_id),
                "slot": [slot // BLOCK, slot % BLOCK],
            }

    def state(self) -> Json:
        """Queues, requests and blocks."""
        scheduler = self.scheduler
        prefilling = scheduler.ongoing_prefills
        decoding = [request for request in scheduler.running if request not in prefilling]
        paused = self.paused()
        preempted = [request for request in scheduler.waiting if request.num_output_tokens]
        held = ids((*prefilling, *decoding, *paused))
        pool = self.pool({request_id: self.block_table(request_id) for request_id in held})
        pool["blocks"]["reserved"] = scheduler.total_reserved_blocks if RESERVES else 0
        if self.device_blocks is not None:
            pool["blocks"]["device"] = self.device_blocks
        waiting = [*scheduler.waiting, *getattr(scheduler, "skipped_waiting", ())]
        return {
            "waiting": ids(waiting),
            **(self.images(waiting) if ENCODES else {}),
            "prefilling": self.chunk if prefilling else None,
            "decoding": [self.row(request) for request in decoding],
            "running": ids(scheduler.running),
            "paused": ids(paused),
            "others": [
                *(self.row(request) for request in (*prefilling, *paused)),
                *(
                    self.row(request) | {"hit_blocks": 0, "prefill_len": request.num_tokens}
                    for request in preempted
                ),
            ],
            **pool,
        }

    def images(self, waiting: list[Any]) -> Json:
        """The requests whose images the encoder has not been given, and those that it encodes."""
        encoding, ready = self.scheduler._mm_encoding_submitted, self.scheduler._mm_encoding_ready
        lacking = [request for request in waiting if request.mm_features]
        unencoded = [id_ for id_ in ids(lacking) if id_ not in encoding | ready]
        untold = {"untold": sorted(self.untold)} if self.untold else {}
        return {"unencoded": unencoded, "encoding": sorted(encoding), **untold}

    def paused(self) -> list[Any]:
        """The paused requests, in the order of their queue."""
        return self.scheduler.paused_decoding_requests if PAUSES else []

    def row(self, request: Any) -> Json:
        """The row of an admitted request, from the scheduler and its model runner."""
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
            "waited_steps": waited.get(request_id, 0) - self.idle_steps[request_id],
        }


if __name__ == "__main__":
    serve(Sendnn)
