"""Driver of vLLM V1: the released scheduler and KV cache manager, step by step.

It runs in the Python environment of the release and needs nothing else. Scheduler and KV cache
manager are the released ones, unmodified. There is no model: every scheduled token counts as
computed, and the script gives the sampled tokens and the number of accepted drafts. The order of
calls is that of vLLM's engine core (`EngineCore.step` and `post_step`): arrivals and aborts between
two steps, then schedule, the model, aborts during the step, update, new drafts. With steps in
flight it is that of `EngineCore.step_with_batch_queue`.
"""

# mypy: disable-error-code="import-not-found"

import json
import os
from collections import deque
from collections.abc import Callable, Iterable
from math import gcd, lcm
from typing import Any

from lockstep_driver import END_OF_SEQUENCE, Json, ids, serve

os.environ["VLLM_PLUGINS"] = ""

from vllm_driver import (
    HEAD,
    IS_OLD,
    MINOR,
    VERSION,
    SchedulerDriver,
    engine_config,
    kv_cache,
    set_sizes,
)
from vllm_sessions import Sessions, is_awaited

import torch
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1 import SupportsHMA
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.pooling_params import PoolingParams
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec, SlidingWindowSpec
from vllm.v1.metrics.stats import PrefixCacheStats
from vllm.v1.outputs import DraftTokenIds, KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

DESCRIBED = (11, 28, 33)  # minor versions of the releases that the specification describes
UNDESCRIBED = {
    "connector": ["none"],
    "late_lookups": [False],
    "sends": [False],
    "num_speculative_tokens": [0],
    "steps_in_flight": [0],
    "pooling": [False],
}  # they differ in other releases
ENCODER_KEYS = ("max_num_encoder_input_tokens", "encoder_cache_size")
DRAFT = 0  # any token: the script gives the number of accepted drafts
HELLO = {
    **{"policy": "vllm-v1", "name": "vllm-v1", "release": f"vLLM {VERSION}"},
    "config": {
        **{"release": [VERSION], "steps_in_flight": [0, 1, 2, 3, 4]},
        **{"late_lookups": [False, True], "sends": [False, True]},
        "oversized": ["refused", "queued"],
        "pooling": [False, True],
        "drafter_reads_ahead": [False, True],
    },
    "any_value": ["kv_groups"],
    "abilities": [
        *("abort", "abort_gone", "abort_running", "ends"),
        *("fewer_drafts", "grammars", "lookups", "order", "reads_cache"),
        *("encoder_spans", "sessions"),
    ],
    "left_out": [],
}
OLD_HELLO = HELLO | {
    "any_value": [],
    "config": {
        **{"release": [VERSION], "reserve_full_prompt": [False]},
        **UNDESCRIBED,
        "num_lookahead_tokens": [0],
    },
    "abilities": ["abort", "ends"],
    "left_out": ["prefilling"],
}
BETWEEN_HELLO = HELLO | {
    "any_value": [],
    "config": {
        "release": ["0.28.0"],
        **UNDESCRIBED,
        # From 0.31 on a single request ignores the threshold.
        **({"long_prefill_token_threshold": [0]} if MINOR > 30 else {}),
    },
}


def base_config(model: str) -> Any:
    """The engine's configuration for a model directory; episodes change its sizes."""
    sizes = {"max_num_seqs": 4, "max_num_batched_tokens": 128, "max_model_len": 8192}
    return VllmConfig(
        model_config=ModelConfig(model=model, skip_tokenizer_init=True, max_model_len=8192),
        cache_config=CacheConfig(block_size=16),
        scheduler_config=SchedulerConfig(**sizes, is_encoder_decoder=False, async_scheduling=False),
        device_config=DeviceConfig(device="cpu"),
    )


def configure(base: Any, config: Json) -> None:
    """Set the values of an episode in the engine's configuration."""
    tokens, threshold = config["max_num_batched_tokens"], config["long_prefill_token_threshold"]
    set_sizes(base, config, tokens, threshold)
    base.cache_config.block_size = config["block_size"]
    base.scheduler_config.max_num_scheduled_tokens = None
    base.scheduler_config.enable_chunked_prefill = config["chunked_prefill"]
    base.scheduler_config.policy = config["scheduling"]
    base.scheduler_config.async_scheduling = config["steps_in_flight"] > 0
    base.parallel_config.pipeline_parallel_size = max(config["steps_in_flight"], 1)
    base.scheduler_config.scheduler_reserve_full_isl = config["reserve_full_prompt"]
    base.scheduler_config.disable_chunked_mm_input = config.get("disable_chunked_mm_input", False)
    has_states = "mamba" in (config.get("kv_groups") or "")
    base.cache_config.mamba_cache_mode = "align" if has_states else "none"
    base.model_config.runner_type = "pooling" if config.get("pooling", False) else "generate"


def further_groups(text: str | None, block_size: int) -> list[Any]:
    """Specifications of the groups of layers that a configuration names."""
    specs = []
    for part in text.split(",") if text else ():
        name, _, own = part.strip().partition("/")
        kind, _, window = name.partition(" ")
        size = int(own) if own else block_size
        if kind == "mamba":
            specs.append(MambaSpec(size, ((1,),), (torch.float32,), mamba_cache_mode="align"))
        elif kind == "sliding":
            specs.append(SlidingWindowSpec(size, sliding_window=int(window), **HEAD))
        else:
            specs.append(FullAttentionSpec(size, **HEAD))
    return specs


class ScriptedConnector(SupportsHMA):  # type: ignore[misc]
    """Replaces the scheduler's KV connector; the script says which tokens it has and loses.

    `loads`: for each request with a load, the locally cached tokens and the loaded tokens.
    `brought`: tokens that are loaded within the step, by request. `left`: ids of the requests that
    have left, in their order. `unanswered`: ids of those of which it does not know yet what it has.
    `receiving`, `sending`: ids of those whose load or send is under way.
    """

    supports_divergent_local_hybrid_hits = False

    def __init__(self, requests: Iterable[Json], config: Json) -> None:
        self.has = {request["id"]: request.get("external", 0) for request in requests}
        self.came = {request["id"]: request.get("external_if_lost", 0) for request in requests}
        self.is_async = config["connector"] == "async"
        # The state behind all tokens is of no use to the last one.
        has_states = "mamba" in (config.get("kv_groups") or "")
        self.left_to_compute = 0 if self.is_async and not has_states else 1
        further = config.get("kv_groups")
        self.groups = tuple(range(1 + (len(further.split(",")) if further else 0)))
        self.sends = self.requires_kv_delivery = config.get("sends", False)
        self.unanswered = {*self.has} if config.get("late_lookups", False) else set()
        self.lost: set[str] = set()
        self.cached: dict[str, int] = {}
        self.loads: dict[str, tuple[int, int]] = {}
        self.brought: dict[str, int] = {}
        self.left: list[str] = []
        self.receiving: set[str] = set()
        self.sending: set[str] = set()

    def get_num_new_matched_tokens(self, request: Any, cached: int) -> tuple[int | None, bool]:
        """The number of tokens it has beyond the cached ones; a synchronous load leaves one.

        So does any where a group has states.
        """
        request_id = request.request_id
        if request_id in self.unanswered:
            return None, False
        most = request.num_tokens - self.left_to_compute
        has = 0 if request_id in self.lost else min(self.has[request_id], most)
        self.cached[request_id] = cached
        return max(has - cached, 0), self.is_async and has > cached

    def update_state_after_alloc(self, request: Any, _blocks: Any, external: int) -> None:
        """Start the load of a request that got its blocks."""
        if external:
            self.loads[request.request_id] = self.cached[request.request_id], external
            if self.is_async:
                self.receiving.add(request.request_id)
            else:
                self.brought[request.request_id] = external

    def missing_blocks(self, request_id: str, table: list[int], block_size: int) -> list[int]:
        """The blocks of a request that its failed load leaves unfilled: the last one at least."""
        cached, external = self.loads[request_id]
        came = max(cached, min(self.came[request_id], cached + external - 1))
        return table[came // block_size : -(-(cached + external) // block_size)]

    def request_finished_all_groups(
        self, request: Any, blocks: tuple[list[int], ...]
    ) -> tuple[bool, None]:
        """Keep the computed blocks of a request that leaves, if they are to be sent."""
        self.left.append(request.request_id)
        if self.sends and blocks[0]:
            self.sending.add(request.request_id)
        return request.request_id in self.sending, None

    def get_loaded_kv_cache_group_ids(self, _request: Any) -> tuple[int, ...]:
        """The cache groups that its loads fill: all."""
        return self.groups

    def ignore(self, *_: Any) -> None:
        """Ignore all other calls."""

    on_new_request = build_connector_meta = update_connector_output = ignore
    get_kv_connector_stats = take_events = get_external_cache_hit_sources = ignore
    has_pending_push_work = has_pending_block_frees = ignore


class VllmV1(SchedulerDriver):
    """The released scheduler, new in each episode, with a stand-in for the model runner.

    `planned`: the scheduler's state after its last decisions. `ran`: ids of the requests that ran
    in the last step. `failed`: ids of the requests affected by a load that failed in it. `flights`:
    the steps in flight, the oldest first: what the scheduler handed out, and what is noted of it.
    `frees`: blocks that are free later: the number of a step in flight, the request, its table.
    """

    under_test = ("vllm",)
    hello = OLD_HELLO if IS_OLD else HELLO if MINOR in DESCRIBED else BETWEEN_HELLO

    def __init__(self) -> None:
        self.base = engine_config(base_config)

    def start(self, config: Json) -> None:
        """Begin an episode; an error of the release is its refusal of the configuration."""
        configure(self.base, config)
        size, outputs = config["block_size"], StructuredOutputManager(self.base)
        outputs.grammar_bitmask = lambda *_: None
        further = further_groups(config.get("kv_groups"), size)
        sizes = [size, *(spec.block_size for spec in further)]
        cache = kv_cache(config["num_blocks"], size, further)
        self.steps_in_flight = config["steps_in_flight"]
        self.sessions = Sessions(self.requests)
        self.pooling = PoolingParams(task="embed") if config.get("pooling", False) else None
        kind = AsyncScheduler if self.steps_in_flight else Scheduler
        hashed: Json = {"hash_block_size": gcd(*sizes)} if further else {}
        scheduler = kind(self.base, cache, outputs, lcm(*sizes), log_stats=True, **hashed)
        self.begin(scheduler, size)
        self.hash_size, self.has_groups = gcd(*sizes), bool(further)
        # The only model runner that has several steps of a pipeline in flight.
        self.scheduler.use_v2_model_runner = self.steps_in_flight > 1
        if self.steps_in_flight > 1:
            self.limit_admissions(config)
        self.flights: deque[tuple[Any, Json]] = deque()
        self.frees: list[tuple[int, str, list[int]]] = []
        # As the constructor sets them for a model with images or audio.
        tokens = config["max_num_batched_tokens"]  # where images are not asked for
        budget, capacity = (config.get(key, tokens) for key in ENCODER_KEYS)
        self.scheduler.max_num_encoder_input_tokens = budget
        self.encoder_cache = EncoderCacheManager(capacity)
        self.scheduler.encoder_cache_manager = self.encoder_cache
        self.drafts = config["num_speculative_tokens"]
        self.scheduler.num_spec_tokens = self.drafts
        self.scheduler.num_lookahead_tokens = config["num_lookahead_tokens"]
        self.scheduler.num_prefill_lookahead = int(config.get("drafter_reads_ahead", False))
        # The blocks of a next step with drafts, which the constructor counts for its own drafter.
        slots = 1 + self.drafts + config["num_lookahead_tokens"] if self.drafts else 0
        self.scheduler._spec_decode_step_blocks = -(-slots // size)
        if self.sessions.turns:
            self.goes_on = self.scheduler._update_request_as_session
            self.scheduler._update_request_as_session = self.begin_turn
        self.counts_as_computed = self.scheduler._update_after_schedule
        self.scheduler._update_after_schedule = self.note_decisions
        self.order: list[list[Any]] = []
        if "order" in self.hello["abilities"]:
            self.listen()
        self.planned: Json = {}
        self.ran: set[str] = set()
        self.failed: set[str] = set()
        self.connector: ScriptedConnector | None = None
        if config["connector"] != "none":
            self.connector = ScriptedConnector(self.requests.values(), config)
            self.scheduler.connector = self.connector
            # As the constructor sets them where the configuration has a connector.
            self.scheduler.defer_block_free = self.steps_in_flight > 0
            self.scheduler.requires_kv_delivery = self.connector.requires_kv_delivery
            self.scheduler.connector_prefix_cache_stats = PrefixCacheStats()
            self.handles_invalid_blocks = self.scheduler._handle_invalid_blocks
            self.scheduler._handle_invalid_blocks = self.note_failures

    def limit_admissions(self, config: Json) -> None:
        """Count all steps in flight for admissions, as the constructor does for that model runner.

        They are the tokens of which a request holds blocks in a group that gives blocks back.
        """
        most = config["max_num_batched_tokens"] * (1 + self.steps_in_flight)
        name = "max_admission_blocks_per_request"
        for manager in self.scheduler.kv_cache_manager.coordinator.single_type_managers:
            if hasattr(manager.kv_cache_spec, name):
                of_request = getattr(manager.kv_cache_spec, name)(most, config["max_model_len"])
                setattr(manager, name if hasattr(manager, name) else f"_{name}", of_request)

    def change(self) -> bool:
        """Apply arrivals, aborts and what the connector does between two steps; true if any did."""
        is_changed = super().change()
        if self.connector is None or not self.scheduler.has_requests():
            return is_changed  # the engine core, which takes the connector's reports, is not called
        answered = self.action.get("answered", ())
        self.connector.unanswered.difference_update(answered)
        is_changed = is_changed or bool(answered)
        loads = self.connector.is_async and self.end_loads(self.connector)
        return self.end_sends(self.connector) or loads or is_changed

    def arrive(self, request_id: str) -> None:
        """Hand a request to the scheduler; a later turn of a session changes that of the first."""
        if request_id not in self.sessions.session:
            super().arrive(request_id)
            return
        self.arrivals += 1
        request = self.new_request(request_id)
        if request_id in self.sessions.turns:
            self.arrived[request_id] = request
        closes = self.new_request(request_id)
        self.sessions.send(request_id, request, self.scheduler.add_request, closes)

    def abort(self, request_id: str) -> None:
        """Abort a request, or the session of a turn; not by that of one that is not under way."""
        session = self.sessions.session.get(request_id, request_id)
        if self.name(session) == request_id:
            super().abort(session)

    def name(self, request_id: str) -> str:
        """The id of the turn of a session that is under way, or awaited."""
        return self.sessions.now.get(request_id, request_id)

    def owner(self, request_id: str) -> str:
        """The id of the turn of a session that began last: its tokens are in the blocks."""
        return self.sessions.latest(request_id)

    def begin_turn(self, request: Any, update: Any) -> None:
        """Let the next turn of a session begin; the blocks of the one before are known by it."""
        self.learn_hashes()
        self.goes_on(request, update)
        self.sessions.begun[request.request_id] += 1
        self.hashed.pop(request.request_id, None)

    def new_request(self, request_id: str) -> Any:
        """The request; one that reads no cache asks for log-probabilities of its prompt."""
        request = super().new_request(request_id)
        if not self.requests[request_id].get("reads_cache", True):
            request.skip_reading_prefix_cache = True
        return request

    def features(self, request_id: str) -> list[Any]:
        """The images or audio in the prompt of a request."""
        return [
            MultiModalFeatureSpec(
                data=None,
                modality="image",
                identifier=json.dumps([name, tokens]),
                mm_position=PlaceholderRange(offset=offset, length=tokens),
            )
            for offset, tokens, name in self.requests[request_id].get("encoder_spans", ())
        ]

    def run(self) -> Json:
        """One step of the engine core; turns that end in it are named by what they were in it."""
        record = self.step_with_batch_queue() if self.steps_in_flight else self.step_at_once()
        named: Json = self.sessions.named(record)
        return named

    def step_at_once(self) -> Json:
        """Schedule a step and update the scheduler with its results."""
        if not self.scheduler.has_requests():  # the engine core does not call an empty scheduler
            statistics = self.statistics()
            return {"scheduled": {}, "outputs": {}, "finished": [], "statistics": statistics}
        running = ids(self.scheduler.running)
        if self.connector is not None:
            self.connector.brought = {}
        self.order = []
        scheduled = self.scheduler.schedule()
        record = self.decisions(scheduled, running)
        self.own, self.failed = {}, set()
        sampled = {
            request_id: self.sampled(request_id, scheduled) if self.is_caught_up(request_id) else []
            for request_id in record["scheduled"]
        }
        accepted = {  # of a faulty scheduler drafts may be no part of what is scheduled
            request_id: len(tokens) - 1
            for request_id, tokens in sampled.items()
            if request_id in record["drafts"]
        }
        answer = runner_output(sampled, self.lost_in_step())
        record |= self.pooled(scheduled, answer) if self.pooling else self.update(scheduled, answer)
        unseen = self.failed.union(self.action.get("abort_running", ()))
        record["accepted"] = {
            request_id: n for request_id, n in accepted.items() if request_id not in unseen
        }
        record["failed_loads"] = [
            request_id for request_id in record["scheduled"] if request_id in self.failed
        ]
        record["proposed"] = self.propose_drafts(list(sampled))
        self.ran = set(ids(self.scheduler.running))
        return record | {"statistics": self.statistics()}

    def pooled(self, scheduled: Any, answer: Any) -> Json:
        """Update the scheduler with results that are no tokens; each counts as a token sampled."""
        has_result = [bool(tokens) for tokens in answer.sampled_token_ids]
        answer.pooler_output = [torch.zeros(1) if has else None for has in has_result]
        answer.sampled_token_ids = []
        record = self.update(scheduled, answer)
        return record | {"outputs": {id_: self.own[id_] for id_ in record["finished"]}}

    def step_with_batch_queue(self) -> Json:
        """Schedule a step, then update the scheduler with the results of the oldest in flight.

        The results are not waited for where another step may be in flight and may have work.
        """
        record: Json = {"scheduled": {}, "planned": self.state()}
        if self.scheduler.has_requests():
            running, self.order = ids(self.scheduler.running), []
            if self.connector is not None:
                self.connector.brought = {}
            scheduled = self.scheduler.schedule()
            record = self.decisions(scheduled, running)
            requests = self.scheduler.requests
            samples = [
                request_id
                for request_id in record["scheduled"]
                if not requests[request_id].is_prefill_chunk
            ]
            number = getattr(self.scheduler, "sched_step_seq", 0) if record["scheduled"] else None
            self.flights.append((scheduled, flight(record, samples, number)))
        has_work = record["scheduled"] or self.scheduler.has_requests()
        if not self.flights or (len(self.flights) <= self.steps_in_flight and has_work):
            self.abort_running()
            record |= {"outputs": {}, "finished": []}
        else:
            record |= self.land(*self.flights.popleft())
        self.ran = set(ids(self.scheduler.running))
        return record | {"statistics": self.statistics()}

    def land(self, scheduled: Any, results_of: Json) -> Json:
        """Update the scheduler with the results of a step in flight.

        The model runner also samples for requests that have left; the scheduler discards it.
        """
        self.own, self.failed = {}, set()
        sampled: dict[str, list[int]] = {id_: [] for id_ in results_of["scheduled"]}
        awaited = self.awaited(results_of)
        here = [id_ for id_ in awaited if self.is_here(id_)]
        for request_id in results_of["samples"]:
            self.own[request_id] = [DRAFT]
            sampled[request_id] = (
                self.sampled(request_id, scheduled) if request_id in here else [DRAFT]
            )
        running, verified = ids(self.scheduler.running), results_of.get("drafts", {})
        accepted = {id_: len(sampled[id_]) - 1 for id_ in here if id_ in verified}
        record = self.update(scheduled, runner_output(sampled, self.lost_in_step()))
        unseen = self.failed.union(self.action.get("abort_running", ()))
        return record | {
            "results_of": self.shown(results_of) | {"samples": awaited},
            "accepted": {id_: count for id_, count in accepted.items() if id_ not in unseen},
            "failed_loads": [request_id for request_id in running if request_id in self.failed],
        }

    def is_here(self, request_id: str) -> bool:
        """True if the request has not left."""
        request = self.scheduler.requests.get(request_id)
        return request is not None and not request.is_finished()

    def awaited(self, noted: Json) -> list[str]:
        """The requests for which a step in flight samples, without those that will drop it."""
        requests = self.scheduler.requests

        def drops(request: Any) -> bool:
            return bool(request.drop_stale_output and request.num_stale_output_tokens > 0)

        return [id_ for id_ in noted["samples"] if not (id_ in requests and drops(requests[id_]))]

    def shown(self, noted: Json) -> Json:
        """A step in flight as a record has it, with the blocks that are free after it."""
        given = [[id_, table] for number, id_, table in self.frees if number == noted["number"]]
        shown = {key: value for key, value in noted.items() if key != "number"}
        shown["samples"] = self.awaited(noted)
        return shown | ({"frees": given} if given else {})

    def is_caught_up(self, request_id: str) -> bool:
        """True if all tokens of the request are computed."""
        request = self.scheduler.requests[request_id]
        return bool(request.num_computed_tokens >= request.num_tokens)

    def listen(self) -> None:
        """Wrap the scheduler's methods to note preemptions, ended loads and new blocks in order."""
        scheduler, manager = self.scheduler, self.scheduler.kv_cache_manager
        allocate = manager.allocate_slots

        def heard(kind: str, method: Callable[..., Any]) -> Callable[..., Any]:
            def called(request: Any, *args: Any, **kwargs: Any) -> Any:
                self.order.append([kind, request.request_id])
                return method(request, *args, **kwargs)

            return called

        def allocated(request: Any, tokens: int, *args: Any, **kwargs: Any) -> Any:
            blocks = allocate(request, tokens, *args, **kwargs)
            if blocks is not None:
                new = blocks.get_block_ids()[0]
                self.order.append(["allocate", request.request_id, tokens, new])
                for group, more in enumerate(blocks.get_block_ids()[1:], start=1):
                    if handed_out := [block for block in more if block]:
                        entry = ["allocate_in_group", request.request_id, group, handed_out]
                        self.order.append(entry)
            return blocks

        def removed(request_id: str, *args: Any, **kwargs: Any) -> None:
            held = manager.get_block_ids(request_id)
            removes(request_id, *args, **kwargs)
            kept = manager.get_block_ids(request_id)
            for group, tables in enumerate(zip(held, kept, strict=True)):
                given = [was for was, now in zip(*tables, strict=True) if was != now]
                if given:
                    self.order.append(["give_back", request_id, group, given])

        def given_back(request: Any) -> None:
            count = len(scheduler.deferred_frees)
            gives_back(request)
            for number, blocks in [*scheduler.deferred_frees][count:]:
                table = [block.block_id for block in blocks]
                self.frees.append((number, request.request_id, table))

        if self.steps_in_flight:
            gives_back = scheduler._free_request_blocks
            scheduler._free_request_blocks = given_back
        scheduler._preempt_request = heard("preempt", scheduler._preempt_request)
        promote = heard("promote", scheduler._update_waiting_for_remote_kv)
        scheduler._update_waiting_for_remote_kv = promote
        manager.allocate_slots = allocated
        if self.has_groups:
            removes = manager.coordinator.remove_skipped_blocks
            manager.coordinator.remove_skipped_blocks = removed

    def note_decisions(self, scheduled: Any) -> None:
        """Note the state after all decisions, then let the scheduler count tokens as computed."""
        self.planned = self.state()
        self.counts_as_computed(scheduled)
        self.planned["unreported"] = sorted(self.scheduler.finished_req_ids)

    def note_failures(self, invalid: Any, scheduled: Any) -> Any:
        """Note the requests with unfilled blocks; the scheduler calls it with these blocks."""
        self.failed = set(self.handles_invalid_blocks(invalid, scheduled))
        return self.failed

    def end_loads(self, connector: ScriptedConnector) -> bool:
        """End loads between two steps, as `update_from_output` does; true if there were any.

        They end one after the other, because loads that are reported together have no order.
        """
        lost = self.action.get("lost", [])
        done = [*self.action.get("loaded", ()), *lost]
        if lost:
            self.scheduler._handle_invalid_blocks(self.missing_blocks(lost), {})
        for request_id in done:
            connector.receiving.discard(request_id)
            self.scheduler._update_from_kv_xfer_finished(
                KVConnectorOutput(finished_recving={request_id})
            )
        return bool(done)

    def end_sends(self, connector: ScriptedConnector) -> bool:
        """End sends between two steps, as `update_from_output` does; true if there were any."""
        sent = self.action.get("sent", [])
        for request_id in sent:
            connector.sending.discard(request_id)
            self.scheduler._update_from_kv_xfer_finished(
                KVConnectorOutput(finished_sending={request_id})
            )
        return bool(sent)

    def lost_in_step(self) -> Any:
        """The report of the connector's worker about failed loads in the step."""
        if self.connector is None or self.connector.is_async:
            return None
        return KVConnectorOutput(invalid_block_ids=self.missing_blocks(self.action.get("lost", [])))

    def missing_blocks(self, lost: list[str]) -> set[int]:
        """The blocks of these requests that their failed loads leave unfilled."""
        assert self.connector is not None
        self.connector.lost.update(lost)
        tables = ((request_id, self.block_table(request_id)) for request_id in lost)
        missing = (self.connector.missing_blocks(*both, self.block_size) for both in tables)
        return {block for blocks in missing for block in blocks}

    def sampled(self, request_id: str, scheduled: Any) -> list[int]:
        """The sampled tokens: accepted drafts and one more."""
        name = self.name(request_id)
        request, line = self.scheduler.requests[request_id], self.requests[name]
        drafts = len(scheduled.scheduled_spec_decode_tokens.get(request_id, ()))
        accepted = min(self.action.get("accepted", {}).get(request_id, 0), drafts)
        first = request.num_output_tokens
        end = line["output_len"] - 1 if line["output_len"] < line["max_tokens"] else None
        if "ends" in self.action:
            last = min(line["output_len"] - 1, first + accepted)
            end = last if name in self.action["ends"] else None
        # Drafts may be accepted beyond the end of the output, where a scheduler may continue.
        output = [*line["output"], *[DRAFT] * (first + accepted + 1)]
        own = self.own[request_id] = output[first : first + accepted + 1]
        return [
            END_OF_SEQUENCE if index == end else token for index, token in enumerate(own, first)
        ]

    def propose_drafts(self, request_ids: list[str]) -> Json:
        """Pass new drafts for the batch to the scheduler, as `EngineCore.post_step` does.

        Return the number of drafts of those for which the script says it.
        """
        said = self.action.get("proposed", {})
        if self.drafts and request_ids:
            drafts = [[DRAFT] * said.get(id_, self.drafts) for id_ in request_ids]
            self.scheduler.update_draft_token_ids(DraftTokenIds(request_ids, drafts))
        return {id_: said[id_] for id_ in request_ids if id_ in said}

    def decisions(self, scheduled: Any, running: list[str]) -> Json:
        """The scheduler's decisions, with its state after them."""
        tokens = dict(scheduled.num_scheduled_tokens)
        resumed = set(scheduled.scheduled_cached_reqs.resumed_req_ids)
        fresh = {request.req_id for request in scheduled.scheduled_new_reqs} | resumed
        if "order" in self.hello["abilities"]:
            victims = [request_id for kind, request_id, *_ in self.order if kind == "preempt"]
        else:  # those that were preempted and not admitted again
            victims = [
                request_id
                for request_id in reversed(self.planned["waiting"])
                if request_id in running
            ]
        drafts = scheduled.scheduled_spec_decode_tokens
        budget = self.scheduler.max_num_scheduled_tokens
        return {
            "planned": self.planned,
            **({"order": [*self.order]} if self.order else {}),  # what is given back later is not
            "scheduled": tokens,
            "drafts": {request_id: len(those) for request_id, those in drafts.items()},
            "admitted": [request_id for request_id in tokens if request_id in fresh],
            "preempted": victims,
            "budget_left": budget - scheduled.total_num_scheduled_tokens,
            "reported": sorted(map(self.name, scheduled.finished_req_ids)),
            "external": {} if self.connector is None else dict(self.connector.brought),
            **(self.lookups() if "lookups" in self.hello["abilities"] else {}),
            **({"masked": self.masked(scheduled)} if "grammars" in self.hello["abilities"] else {}),
            "encodes": dict(scheduled.scheduled_encoder_inputs),
            "evicted": [json.loads(content) for content in scheduled.free_encoder_mm_hashes],
        }

    def masked(self, scheduled: Any) -> list[str]:
        """The requests for whose tokens the step asks their grammars."""
        asked = self.scheduler.get_grammar_bitmask(scheduled)
        return [] if asked is None else list(asked.structured_output_request_ids)

    def lookups(self) -> Json:
        """What the requests that began in the step asked the caches for, and found."""
        here = self.scheduler.kv_cache_manager.prefix_cache_stats
        there = self.scheduler.connector_prefix_cache_stats or PrefixCacheStats()
        return {
            "lookups": {
                **{"asked": here.queries, "found": here.hits},
                **{"asked_external": there.queries, "found_external": there.hits},
            },
            "resumed_lookups": {
                **{"asked": here.preempted_queries, "found": here.preempted_hits},
                "asked_external": there.preempted_queries,
                "found_external": there.preempted_hits,
            },
        }

    def statistics(self) -> Json:
        """The scheduler's own statistics after the step."""
        stats = self.scheduler.make_stats()
        waiting = stats.num_waiting_reqs + getattr(stats, "num_skipped_waiting_reqs", 0)
        queues = {"waiting": waiting, "running": stats.num_running_reqs}
        return queues | {"usage": stats.kv_cache_usage}

    def state(self) -> Json:
        """Queues, requests and blocks."""
        scheduler = self.scheduler
        self.sessions.look(scheduler.requests)
        queues = {
            "waiting": list(scheduler.waiting),
            "skipped": list(skipped_waiting(scheduler)),
            "running": list(scheduler.running),
        }
        left = [] if self.connector is None else self.connector.left
        queues["draining"] = [scheduler.requests[id_] for id_ in left if id_ in scheduler.requests]
        present = [request for queue in queues.values() for request in queue]
        tables = {request_id: self.block_table(request_id) for request_id in ids(present)}
        flights = [self.shown(noted) for _, noted in self.flights]
        state: Json = {
            **{name: ids(queue) for name, queue in queues.items()},
            "rows": [self.row(request) for request in present],
            "unreported": sorted(scheduler.finished_req_ids),
            **({"flights": flights} if flights else {}),
            **self.encoder(),
            **self.pool({request_id: table for request_id, table in tables.items() if table}),
            **({"cached_in_groups": self.cached_in_groups()} if self.has_groups else {}),
        }
        named: Json = self.sessions.named(state)
        return named

    def encoder(self) -> Json:
        """The encoder cache, if anything is in it: who refers to what, and what may go next."""
        cache = self.encoder_cache
        by_request = getattr(cache, "request_cached_ids", {})
        if not (cache.cached or by_request):
            return {}
        held = [[json.loads(key), sorted(ids)] for key, ids in cache.cached.items() if ids]
        taken = [[id_, sorted(spans)] for id_, spans in by_request.items() if spans]
        evictable = [json.loads(content) for content in cache.freeable]
        return {"encoder": {"held": sorted(held), "evictable": evictable, "taken": sorted(taken)}}

    def cached_in_groups(self) -> list[list[Any]]:
        """The entries of the prefix cache in the groups beside the first, each with its number."""
        pool = self.scheduler.kv_cache_manager.block_pool
        return [[group, *entry] for group, entry in self.entries(pool) if group]

    def row(self, request: Any) -> Json:
        """The row of a request.

        A preempted request keeps the flag of an unfinished prompt, which has no effect until it
        runs again. The result of a model that pools counts as a token.
        """
        is_running = request.status == RequestStatus.RUNNING and request.request_id in self.ran
        awaits = not request.is_finished()
        placeholders = getattr(request, "num_output_placeholders", 0) if awaits else 0
        is_kept = is_awaited(request)  # of a session, for its next turn
        has_result = self.pooling and request.status == RequestStatus.FINISHED_STOPPED
        sends = self.connector is not None and request.request_id in self.connector.sending
        return {
            "id": request.request_id,
            "computed": request.num_computed_tokens,
            "generated": 0 if is_kept else 1 if has_result else request.num_output_tokens,
            "drafts": 0 if request.is_finished() else len(request.spec_token_ids),
            **({"placeholders": placeholders} if placeholders else {}),
            "load": self.load_state(request),
            **({"sending": True} if sends else {}),
            "prefilling": is_running and getattr(request, "is_prefill_chunk", False),
            **(self.in_groups(request) if self.has_groups else {}),
        }

    def in_groups(self, request: Any) -> Json:
        """The request's block tables in the groups beside the first.

        Where a state is to be kept for others matters only while it has blocks.
        """
        tables = self.scheduler.kv_cache_manager.get_block_ids(request.request_id)[1:]
        has_states = self.scheduler.need_mamba_block_aligned_split
        matters = has_states and any(tables)
        junction = request.shared_prefix_boundary if matters else 0
        grown_from = self.grown_from(request.request_id) if matters else 0
        return {
            "tables": list(map(list, tables)),
            **({"junction": junction} if junction else {}),
            **({"grown_from": grown_from} if grown_from else {}),
        }

    def grown_from(self, request_id: str) -> int:
        """Places of the request's tables of states before they grew last, where that matters.

        A release that remembers what it has given back does not go by it.
        """
        managers = self.scheduler.kv_cache_manager.coordinator.single_type_managers
        for manager in managers if self.steps_in_flight else ():
            places = getattr(manager, "last_state_block_idx", None)
            if places is not None and not hasattr(manager, "_num_retired_blocks"):
                return int(places.get(request_id, -1)) + 1
        return 0

    def load_state(self, request: Any) -> str:
        """The state of the request's load; one that has left counts none that has ended."""
        if request.is_finished():
            loads = self.connector is not None and request.request_id in self.connector.receiving
            return "loading" if loads else "none"
        if request.status != RequestStatus.WAITING_FOR_REMOTE_KVS:
            return "none"
        if request.request_id not in self.scheduler.finished_recving_kv_req_ids:
            return "loading"
        failed = self.scheduler.failed_recving_kv_req_ids
        return "failed" if request.request_id in failed else "loaded"


def flight(record: Json, samples: list[str], number: int | None) -> Json:
    """A step in flight: the tokens that it computes, who samples, its drafts and loads.

    `number`: by which the scheduler knows it, if it computes anything.
    """
    noted: Json = {"scheduled": record["scheduled"], "samples": samples, "number": number}
    drafts = record["drafts"]
    if drafts:
        padded = [request_id for request_id in drafts if request_id in record["admitted"]]
        noted |= {"drafts": drafts, "padded": padded}
    return noted | ({"external": record["external"]} if record["external"] else {})


def skipped_waiting(scheduler: Any) -> Iterable[Any]:
    """The requests that are visited before the waiting ones because they load or have loaded."""
    name = "kv_holding_waiting" if hasattr(scheduler, "kv_holding_waiting") else "skipped_waiting"
    return getattr(scheduler, name, ())


def runner_output(sampled: dict[str, list[int]], transfers: Any) -> Any:
    """The result of the model runner: the sampled tokens by request, and the report on loads."""
    places = {request_id: index for index, request_id in enumerate(sampled)}
    tokens: list[Any] = list(sampled.values())
    if IS_OLD:  # it takes arrays
        tokens = [torch.tensor(those, dtype=torch.int64).numpy() for those in tokens]
    others: Json = {"logprobs": None, "prompt_logprobs_dict": {}, "pooler_output": []}
    return ModelRunnerOutput(list(sampled), places, tokens, **others, kv_connector_output=transfers)


if __name__ == "__main__":
    serve(VllmV1)
