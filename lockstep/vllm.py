"""Records what the scheduler of a vLLM V1 server decides, as a log for `lockstep check`.

Start a server with a scheduler class of this module, or, where the package `lockstep-schedulers` is
installed beside the server, with the variable alone:

    LOCKSTEP_LOG=log.jsonl vllm serve MODEL --scheduler-cls lockstep.vllm.RecordedScheduler
    LOCKSTEP_LOG=log.jsonl vllm serve MODEL

The classes are `RecordedScheduler`, `RecordedAsyncScheduler` and, of the plugin sendnn-inference,
`RecordedSpyreScheduler`. This file needs the standard library alone and may be copied, under a name
that hides no other module. Without `LOCKSTEP_LOG` nothing is recorded. `LOCKSTEP_LOG_BYTES`: the
bound on the size of the log, by default 256 MiB. A log that exists is not overwritten: the next is
`log.jsonl.1`. `LOCKSTEP_LOG_STATES=1` records all queues and the progress of each request in them,
too, of a synchronous vLLM without drafts: most rules can judge then, and a step takes longer.

The recorder calls the scheduler's own methods and passes on what they return. Prompts are recorded
by their lengths and block hashes, outputs by their lengths: no text of a client is in the log. The
thread of the scheduler only collects references, another one writes. An error of the recorder ends
the log, not the server.
"""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import atexit
import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import cached_property
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

LOG, BYTES, STATES = "LOCKSTEP_LOG", "LOCKSTEP_LOG_BYTES", "LOCKSTEP_LOG_STATES"
FORMAT: dict[str, Any] = {"format": "lockstep-log", "version": 1}

_MOST_BYTES = 256 << 20
_MOST_WAITING = 20_000  # entries that are collected and not written yet
_PAUSE_S = 0.02  # of the writer between two looks
_HASH_DIGITS = 16
_END_BYTES = 200  # of the line that says why the log ends
_CLASSES = {
    "RecordedScheduler": ("vllm.v1.core.sched.scheduler", "Scheduler"),
    "RecordedAsyncScheduler": ("vllm.v1.core.sched.async_scheduler", "AsyncScheduler"),
    "RecordedSpyreScheduler": (
        "sendnn_inference.v1.core.scheduler",
        "ChunkedPrefillSpyreScheduler",
    ),
}
_BY_ALL = ("scheduled", "outputs", "finished", "statistics")
_BY_V1 = ("drafts", "admitted", "preempted", "budget_left", "reported", "unreported")
_BY_STATES = (
    *("waiting", "skipped", "running", "draining", "rows", "planned"),
    *("accepted", "external", "failed_loads"),  # empty without drafts and connectors
)
_BY_SPYRE = ("kind", "tkv")
_PROPOSE_FEWER = ("ngram", "ngram_gpu", "suffix", "custom_class")  # drafts than are configured


def __getattr__(name: str) -> Any:
    """The scheduler class of this name, made when it is asked for."""
    if name not in _CLASSES:
        raise AttributeError(name)
    module, base = _CLASSES[name]
    made = type(name, (getattr(import_module(module), base),), {"__init__": _init_recorded})
    made.__module__ = __name__
    globals()[name] = made
    return made


def _init_recorded(self: Any, *args: Any, **kwargs: Any) -> None:
    """Make the scheduler, then record it."""
    super(globals()[type(self).__name__], self).__init__(*args, **kwargs)
    record(self)


def register() -> None:
    """Record each scheduler of this process if the variable names a log; else do nothing.

    The entry point of `vllm.general_plugins`.
    """
    if not os.environ.get(LOG):
        return
    base = import_module("vllm.v1.core.sched.scheduler").Scheduler
    if getattr(base, "_lockstep_records", False):
        return
    make = base.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        record(self)

    base.__init__ = init
    base._lockstep_records = True


def record(scheduler: Any) -> Recorder | None:
    """Record a scheduler from now on, if the variable names a log; once for each scheduler."""
    path = os.environ.get(LOG)
    if not path or "_lockstep_recorder" in vars(scheduler):
        return None
    recorder = Recorder(scheduler, Path(path), int(os.environ.get(BYTES, _MOST_BYTES)))
    scheduler._lockstep_recorder = recorder
    return recorder


class Recorder:
    """Wraps the methods of one scheduler and writes its log.

    `stopped`: why nothing is recorded any more, or empty.
    """

    def __init__(self, scheduler: Any, path: Path, most_bytes: int) -> None:
        """Wrap the scheduler's methods; the log is opened with the first entry."""
        self.scheduler = scheduler
        self.stopped = ""
        self._path, self._most_bytes = path, most_bytes
        self._entries: deque[tuple[Any, ...]] = deque()
        self._scheduled: deque[tuple[Any, ...]] = deque()
        self._victims: list[str] = []
        self._gone: list[str] = []  # clients that left while the model ran
        listeners: dict[str, Callable[..., None]] = {
            "add_request": self._on_add_request,
            "finish_requests": self._on_finish_requests,
            "_preempt_request": self._on_preempt_request,
            "schedule": self._on_schedule,
            "update_from_output": self._on_update_from_output,
            "shutdown": self._on_shutdown,
        }
        for name, note in listeners.items():
            method = getattr(scheduler, name, None)
            if method is not None:
                setattr(scheduler, name, self._listening(method, note))
        atexit.register(self.close)

    @cached_property
    def _writer(self) -> _Writer:
        """Made with the first entry: a class of the plugin goes on after vLLM's own is made."""
        return _Writer(self.scheduler, self._path, self._most_bytes, self._entries)

    def close(self) -> None:
        """Write what was collected, and end the log."""
        if "_writer" in vars(self):
            self._writer.close()

    def _listening(self, method: Callable[..., Any], note: Callable[..., None]) -> Any:
        """The method; after each call `note` gets its result and its arguments."""

        def called(*args: Any, **kwargs: Any) -> Any:
            result = method(*args, **kwargs)
            if not self.stopped:
                try:
                    note(result, *args, **kwargs)
                    if self._writer.stopped or len(self._entries) > _MOST_WAITING:
                        self._stop("the writer fell behind")
                except Exception as error:  # the server goes on without a log
                    self._stop(f"{type(error).__name__}: {error}")
            return result

        return called

    def _stop(self, why: str) -> None:
        self.stopped = why
        if "_writer" in vars(self):
            self.stopped = self._writer.stopped or why
            self._writer.stop(self.stopped)

    # --- what the scheduler is asked for ----------------------------------------------------------

    def _on_add_request(self, _result: Any, request: Any) -> None:
        self._entries.append(("arrive", request))

    def _on_finish_requests(self, result: Any, request_ids: Any, status: Any) -> None:
        if status.name != "FINISHED_ABORTED":
            return
        if result is not None:  # the requests that were there, in the order of their ends
            ids = [getattr(entry, "request_id", entry) for entry in result]
            ids = [entry[0] if isinstance(entry, tuple) else entry for entry in ids]
        else:
            ids = [request_ids] if isinstance(request_ids, str) else list(request_ids or ())
        if self._scheduled and not self._writer.asynchronous:
            self._gone += ids
        else:
            self._entries.extend(("abort", request_id) for request_id in ids)

    def _on_preempt_request(self, _result: Any, request: Any, *_: Any, **__: Any) -> None:
        self._victims.append(request.request_id)

    def _on_schedule(self, result: Any, *_: Any, **__: Any) -> None:
        victims: tuple[str, ...] = ()
        if self._victims:
            victims, self._victims = tuple(self._victims), []
        kind = getattr(self.scheduler, "step_is_prefill", None)
        planned = self._state(result.num_scheduled_tokens) if self._writer.has_states else {}
        self._scheduled.append((result, time.perf_counter(), victims, kind, planned))

    def _state(self, to_compute: dict[str, int]) -> dict[str, Any]:
        """The queues, and the progress of each request without the tokens that it is to compute."""
        scheduler = self.scheduler
        queues = {
            "waiting": list(scheduler.waiting),
            "skipped": list(getattr(scheduler, "skipped_waiting", ())),
            "running": list(scheduler.running),
        }
        rows = [
            {
                "id": request.request_id,
                "computed": request.num_computed_tokens - to_compute.get(request.request_id, 0),
                "generated": request.num_output_tokens,
                "drafts": len(request.spec_token_ids),
            }
            for queue in queues.values()
            for request in queue
        ]
        ids = {name: [request.request_id for request in queue] for name, queue in queues.items()}
        return {**ids, "rows": rows, "unreported": sorted(scheduler.finished_req_ids)}

    def _on_update_from_output(self, result: Any, scheduled: Any, output: Any) -> None:
        decided, began, victims, kind, planned = self._scheduled.popleft()
        if decided is not scheduled:
            raise ValueError("a step ended that did not begin first")
        scheduler = self.scheduler
        gone: tuple[str, ...] = ()
        if self._gone:
            gone, self._gone = tuple(self._gone), []
        left = tuple(scheduler.finished_req_ids) if scheduler.finished_req_ids else ()
        waiting = len(scheduler.waiting) + len(getattr(scheduler, "skipped_waiting", ()))
        numbers = waiting, len(scheduler.running), scheduler.kv_cache_manager.usage
        seconds = time.perf_counter() - began
        tkv = getattr(output, "tkv", None)
        states = self._state({}) | {"planned": planned} if planned else {}
        taken = numbers, seconds, time.time(), kind, tkv, states
        step = _Step(scheduled, result, victims, gone, left, *taken)
        self._entries.append(("step", step))

    def _on_shutdown(self, _result: Any) -> None:
        self.close()


class _Step(NamedTuple):
    """A step, as the thread of the scheduler collects it.

    `scheduled` and `results`: of `schedule` and `update_from_output`. `victims`: ids of preempted
    requests. `gone`: ids of those whose clients left while the model ran. `left`: ids that the next
    step reports. `numbers`: waiting, running, and the share of the blocks in use. `at`: the Unix
    time of its end. `is_prefill`, `tkv`: of the plugin. `states`: the queues before and after the
    model ran, or nothing.
    """

    scheduled: Any
    results: Any
    victims: tuple[str, ...]
    gone: tuple[str, ...]
    left: tuple[str, ...]
    numbers: tuple[int, int, float]
    seconds: float
    at: float
    is_prefill: bool | None
    tkv: int | None
    states: dict[str, Any]


class _Writer:
    """Writes the collected entries in a thread of its own."""

    def __init__(
        self, scheduler: Any, path: Path, most_bytes: int, entries: deque[tuple[Any, ...]]
    ) -> None:
        self.entries = entries
        self.stopped = ""
        self.asynchronous = bool(
            getattr(scheduler.scheduler_config, "async_scheduling", False)
            and "Async" in "".join(base.__name__ for base in type(scheduler).__mro__)
        )
        self._is_spyre = hasattr(scheduler, "max_batch_tkv_limit")
        self._header = header_line(
            scheduler, asynchronous=self.asynchronous, is_spyre=self._is_spyre
        )
        self.has_states = bool(os.environ.get(STATES)) and not (
            self.asynchronous
            or self._is_spyre
            or self._header["undescribed"]
            or self._header["config"]["num_speculative_tokens"]
        )
        if self.has_states:
            self._header["recorded"] += _BY_STATES
            self._header["left_out"] = ["prefilling"]
        self._block_size = self._header["config"]["block_size"]
        self._budget = scheduler.max_num_scheduled_tokens
        self._path, self._left = path, most_bytes - _END_BYTES
        self._rows: dict[str, list[Any]] = {}  # by request: it, its tokens, its known hashes
        self._chunks: dict[str, int] = {}  # of the plugin: the next one of a prefill under way
        self._file: Any = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lockstep-log", daemon=True)
        self._thread.start()

    def stop(self, why: str) -> None:
        """Write nothing after the entries that were collected, but why."""
        self.entries.append(("stopped", why))

    def close(self) -> None:
        """Write what was collected, and end."""
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._closing.set()
            self._thread.join(timeout=10)

    def _run(self) -> None:
        try:
            while not self.stopped:
                is_last = self._closing.wait(_PAUSE_S)
                self._write_all()
                if is_last and not self.entries:
                    break
        except Exception as error:  # a full disk, or a release that this file does not know
            self.stopped = f"{type(error).__name__}: {error}"
        finally:
            self.entries.clear()
            if self._file is not None:
                self._file.close()

    def _write_all(self) -> None:
        while self.entries and not self.stopped:
            kind, *values = self.entries.popleft()
            if kind == "stopped":
                self.stopped = values[0]
                self._write_end()
                break
            line = getattr(self, f"_{kind}")(*values)
            self._write({kind: line})
        if self._file is not None:
            self._file.flush()

    def _write(self, line: Any) -> None:
        if self._file is None:
            self._file = _new_file(self._path)
            self._write(self._header)
        text = json.dumps(line, separators=(",", ":")) + "\n"
        self._left -= len(text)
        if self._left < 0:
            self.stopped = "the log has the size that it may have"
            self._write_end()
            return
        self._file.write(text)

    def _write_end(self) -> None:
        if self._file is not None:
            self._file.write(json.dumps({"stopped": self.stopped[:100]}) + "\n")
            self._file.flush()

    # --- lines ------------------------------------------------------------------------------------

    def _arrive(self, request: Any) -> dict[str, Any]:
        length = request.num_prompt_tokens
        hashes = self._hashes(request, 0, length // self._block_size)
        self._rows[request.request_id] = [request, length, len(hashes)]
        line = {"id": request.request_id, "prompt_len": length, "max_tokens": request.max_tokens}
        if request.priority:
            line["priority"] = request.priority
        return line | ({"block_hashes": hashes} if hashes else {})

    def _abort(self, request_id: str) -> str:
        self._drop(request_id)
        return request_id

    def _drop(self, request_id: str) -> None:
        """Know no more of a request that has left."""
        self._rows.pop(request_id, None)
        self._chunks.pop(request_id, None)

    def _step(self, step: _Step) -> dict[str, Any]:
        scheduled, results, victims, gone, left, numbers, seconds, at, is_prefill, tkv, states = (
            step
        )
        waiting, running, usage = numbers
        outputs = [output for group in results.values() for output in group.outputs]
        finished = [output for output in outputs if output.finish_reason is not None]
        line: dict[str, Any] = {
            "scheduled": scheduled.num_scheduled_tokens,
            "outputs": {output.request_id: len(output.new_token_ids) for output in outputs},
        }
        if self._is_spyre:
            kind = "prefill" if is_prefill else "decode"
            line["kind"] = kind if scheduled.num_scheduled_tokens else "idle"
            if line["kind"] == "prefill":
                line["scheduled"] = self._chunk(scheduled)
            line["tkv"] = tkv or 0
            line["statistics"] = {"usage": usage}
        else:
            line["budget_left"] = self._budget - scheduled.total_num_scheduled_tokens
            line["statistics"] = {"waiting": waiting, "running": running, "usage": usage}
            fresh = {request.req_id for request in scheduled.scheduled_new_reqs}
            fresh |= set(scheduled.scheduled_cached_reqs.resumed_req_ids)
            admitted = [name for name in scheduled.num_scheduled_tokens if name in fresh]
            drafts = scheduled.scheduled_spec_decode_tokens
            further: dict[str, Any] = {
                "admitted": admitted,
                "preempted": victims,
                "drafts": {name: len(tokens) for name, tokens in drafts.items()},
                "reported": sorted(scheduled.finished_req_ids),
                "unreported": sorted(left),
            }
            line |= {name: value for name, value in further.items() if value} | states
        if finished:
            line["finished"] = [output.request_id for output in finished]
        line["ended"] = [
            output.request_id for output in finished if output.finish_reason.name == "STOP"
        ]
        if gone:
            line["abort_running"] = gone
        hashes = dict(self._full_blocks(outputs))
        if hashes:
            line["block_hashes"] = hashes
        for name in (*gone, *(output.request_id for output in finished)):
            self._drop(name)
        return line | {"seconds": round(seconds, 6), "at": round(at, 3)}

    def _chunk(self, scheduled: Any) -> dict[str, int]:
        """The tokens of the chunk that the plugin's device computes in a prefill step.

        Its chunks lie on a grid that begins with the left padding, and it computes a chunk of which
        only a part is cached as a whole; the scheduler counts only the tokens that are not cached.
        """
        (name,) = scheduled.num_scheduled_tokens
        length, size = self._rows[name][0].num_prompt_tokens, self._header["config"]["chunk_size"]
        blocks = -(-length // self._block_size) * self._block_size
        padding = -(-length // size) * size - blocks
        if scheduled.scheduled_new_reqs:
            most = max(length // size * size - padding, 0)
            hit = min(scheduled.scheduled_new_reqs[0].num_computed_tokens, most)
            self._chunks[name] = (padding + hit) // size if hit else 0
        index = self._chunks[name]
        self._chunks[name] = index + 1
        end = min((index + 1) * size - padding, length)
        return {name: end - max(index * size - padding, 0)}

    def _full_blocks(self, outputs: list[Any]) -> Iterator[tuple[str, list[str]]]:
        """The hashes of blocks that the new tokens of a step filled, by request."""
        for output in outputs:
            row = self._rows.get(output.request_id)
            if row is None:
                continue
            request, tokens, known = row
            row[1] = tokens + len(output.new_token_ids)
            full = row[1] // self._block_size
            if full > known:
                hashes = self._hashes(request, known, full)
                row[2] = known + len(hashes)
                if hashes:
                    yield output.request_id, hashes

    @staticmethod
    def _hashes(request: Any, first: int, end: int) -> list[str]:
        return [key.hex()[:_HASH_DIGITS] for key in request.block_hashes[first:end]]


def _new_file(path: Path) -> Any:
    """A file of this name that did not exist; else of the name with a number."""
    for number in range(10_000):
        name = path.with_name(f"{path.name}.{number}") if number else path
        try:
            return name.open("x", encoding="utf-8")
        except FileExistsError:
            continue
    raise FileExistsError(str(path))


# --- the header -----------------------------------------------------------------------------------


def header_line(scheduler: Any, *, asynchronous: bool, is_spyre: bool) -> dict[str, Any]:
    """The first line of the log: the configuration, and what is recorded."""
    base = scheduler.vllm_config
    config = {
        "block_size": scheduler.block_size,
        "num_blocks": scheduler.kv_cache_config.num_blocks - 1,  # without the null block
        "max_num_seqs": scheduler.max_num_running_reqs,
        "max_model_len": scheduler.max_model_len,
        "prefix_caching": bool(base.cache_config.enable_prefix_caching),
    }
    config = (_spyre_config if is_spyre else _v1_config)(scheduler) | config
    return FORMAT | {
        "policy": config["policy"],
        "release": _release(is_spyre),
        "asynchronous": asynchronous,
        "undescribed": _undescribed(scheduler),
        "recorded": [*_BY_ALL, *(_BY_SPYRE if is_spyre else _BY_V1)],
        "config": config,
    }


def _v1_config(scheduler: Any) -> dict[str, Any]:
    options = scheduler.scheduler_config
    minor = int(version("vllm").split(".")[1])
    return {
        "policy": "vllm-v1",
        "max_num_batched_tokens": scheduler.max_num_scheduled_tokens,
        "chunked_prefill": bool(options.enable_chunked_prefill),
        "long_prefill_token_threshold": options.long_prefill_token_threshold,
        "scheduling": options.policy,
        "num_speculative_tokens": getattr(scheduler, "num_spec_tokens", 0),
        "num_lookahead_tokens": getattr(scheduler, "num_lookahead_tokens", 0),
        "reserve_full_prompt": bool(getattr(options, "scheduler_reserve_full_isl", False)),
        "release": "0.33.0" if minor > 32 else "0.28.0" if minor > 27 else "0.11.2",
    }


def _spyre_config(scheduler: Any) -> dict[str, Any]:
    pauses = os.environ.get("SENDNN_INFERENCE_PAUSING_ENABLED", "1")
    return {
        "policy": "spyre",
        "chunk_size": scheduler.chunk_size,
        "max_batch_tkv_limit": int(scheduler.max_batch_tkv_limit),
        "interleave": bool(scheduler.do_interleaving),
        "pausing": bool(int(pauses)) and hasattr(scheduler, "predict_next_decode_tkv"),
        "long_output_first": bool(getattr(scheduler, "long_output_prio", False)),
        "admission": "shipped",
        "queue": "overtaking",
        "reservation": hasattr(scheduler, "reserved_blocks"),
        "reading": "released",
    }


def _release(is_spyre: bool) -> str:
    names = {"vllm": "vLLM"}
    if is_spyre:
        names = {"sendnn_inference": "sendnn-inference", **names}
    found = []
    for package, name in names.items():
        try:
            found.append(f"{name} {version(package)}")
        except PackageNotFoundError:
            continue
    return " on ".join(found)


def _undescribed(scheduler: Any) -> list[str]:
    """Parts of the server that take part in decisions and are not recorded."""
    drafter = getattr(scheduler.vllm_config, "speculative_config", None)
    parts = {
        "a drafter that may propose fewer": getattr(drafter, "method", None) in _PROPOSE_FEWER,
        "a KV connector": getattr(scheduler, "connector", None) is not None,
        "adapters": getattr(scheduler, "lora_config", None) is not None,
        "an encoder": getattr(scheduler, "max_num_encoder_input_tokens", 0),
        "several groups of KV caches": len(scheduler.kv_cache_config.kv_cache_groups) > 1,
    }
    return [name for name, is_there in parts.items() if is_there]
