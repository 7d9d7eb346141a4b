"""A server of a release that records its log: `server.py MODULE STEPS CLIENTS DEFECT=LOG ...`.

It is run by the Python of the release's environment. The release's own engine core serves random
requests; its executor is a stand-in that samples tokens and computes nothing. MODULE is that of the
driver, `sendnn` or `vllm_v1`, or `async` for vLLM's asynchronous scheduler. With 0 CLIENTS requests
come and go in the main thread, in the same steps each time; else in that many threads. DEFECT is
one of the table beside the drivers, or `none`. A line is printed for each log: steps and requests.
"""

# mypy: disable-error-code="import-not-found"

import os
import queue
import random
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[4]
PUT_BACK = ROOT / "tests" / "checks" / "drivers" / "put_back"
sys.path[:0] = [str(ROOT / "checks" / "drivers"), str(PUT_BACK)]
RECORDER = "lockstep_recorder"  # `vllm` would hide vLLM

SIZES: dict[str, dict[str, Any]] = {
    "vllm_v1": {
        **{"policy": "vllm-v1", "block_size": 16, "num_blocks": 44, "max_num_seqs": 8},
        **{"max_num_batched_tokens": 128, "max_model_len": 512, "chunked_prefill": True},
        **{"long_prefill_token_threshold": 48, "scheduling": "fcfs", "prefix_caching": True},
        **{"reserve_full_prompt": True, "steps_in_flight": 0},
    },
    "sendnn": {
        **{"policy": "spyre", "block_size": 64, "chunk_size": 128, "num_blocks": 40},
        **{"prefix_caching": True, "max_num_seqs": 4, "max_model_len": 1024},
        **{"max_batch_tkv_limit": 1536, "interleave": True, "pausing": True},
        **{"long_output_first": False, "max_overtakes": 0},
    },
}
END = 2  # the token that ends a sequence
MOST_PRESENT = 14  # requests; a client waits while there are as many


def load_recorder() -> None:
    """Import the recorder under a name of its own."""
    spec = spec_from_file_location(RECORDER, ROOT / "lockstep" / "vllm.py")
    assert spec is not None
    assert spec.loader is not None
    sys.modules[RECORDER] = module = module_from_spec(spec)
    spec.loader.exec_module(module)


class Load:
    """Random requests with shared prefixes; `take` has the next one."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        stems = random.Random(0)
        self.stems = [[stems.randrange(10, 50_000) for _ in range(400)] for _ in range(6)]

    def take(self, request_id: str) -> tuple[str, list[int], int]:
        """Id, prompt and most tokens of a request."""
        draw = self.random
        stem = draw.choice(self.stems)[: draw.randrange(300)]
        own = [draw.randrange(10, 50_000) for _ in range(draw.randrange(1, 80))]
        return request_id, stem + own, draw.choice([1, 2, 5, 20, 60, 100])


def token(request_id: str, index: int) -> int:
    """The token that a request samples, the same in every run; one in 150 ends it."""
    draw = random.Random(f"{request_id} {index}")
    return END if draw.random() < 1 / 150 else draw.randrange(10, 50_000)


# --- stand-ins for the executor -------------------------------------------------------------------


class Tokens:
    """Samples for each request whose tokens are all computed after the step."""

    def __init__(self, _base: Any) -> None:
        self.prompts: dict[str, int] = {}
        self.sampled: dict[str, int] = {}

    def execute(self, scheduled: Any) -> Any:
        """The runner's output of a step, or None until `sample` is called."""
        self.scheduled = scheduled
        empty = import_module("vllm.v1.outputs").EMPTY_MODEL_RUNNER_OUTPUT
        return None if scheduled.total_num_scheduled_tokens else empty

    def sample(self) -> Any:
        """The runner's output of the step."""
        scheduled, cached = self.scheduled, self.scheduled.scheduled_cached_reqs
        computed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        for request in scheduled.scheduled_new_reqs:
            self.prompts.setdefault(request.req_id, len(request.prompt_token_ids))
            computed[request.req_id] = request.num_computed_tokens
        sampled: list[list[int]] = []
        for name, tokens in scheduled.num_scheduled_tokens.items():
            done = self.sampled.setdefault(name, 0)
            is_whole = computed[name] + tokens >= self.prompts[name] + done
            sampled.append([token(name, done)] if is_whole else [])
            self.sampled[name] += is_whole
        names = list(scheduled.num_scheduled_tokens)
        return import_module("vllm.v1.outputs").ModelRunnerOutput(
            names, {name: row for row, name in enumerate(names)}, sampled
        )


class SpyreRunner:
    """The plugin's own model runner with the driver's stand-in model."""

    def __init__(self, base: Any) -> None:
        driver = import_module("sendnn")
        self.model = driver.StandInModel(self.tokens)
        self.runner = driver.ChunkedPrefillModelRunner(base, is_driver_worker=True, rank=0)
        self.runner._model = self.model
        self.runner.warmup_mode = False
        self.sampled: dict[str, int] = {}

    def tokens(self) -> list[int]:
        """The next token of each row of the runner's batch."""
        runner = self.runner
        batch = runner.prefill_batch if self.model.is_prefill else runner.input_batch
        rows = batch.sorted_requests_ids
        done = {row: len(runner.requests[row].output_token_ids) for row in rows}
        return [token(row, index) for row, index in done.items()]

    def execute(self, scheduled: Any) -> Any:
        """The runner's output of a step, or None until `sample` is called."""
        return self.runner.execute_model(scheduled)

    def sample(self) -> Any:
        """The runner's output of the step."""
        return self.runner.sample_tokens(None)


def executor_class(make_runner: Callable[[Any], Any], block_size: int) -> type:
    """An executor of the engine core whose runner is a stand-in."""
    base: Any = import_module("vllm.v1.executor.abstract").Executor
    interface = import_module("vllm.v1.kv_cache_interface")
    float32 = import_module("torch").float32

    class StandIn(base):  # type: ignore[misc]
        def _init_executor(self) -> None:
            self.is_sleeping = False
            self.runner = make_runner(self.vllm_config)

        def get_kv_cache_specs(self) -> list[Any]:
            spec = interface.FullAttentionSpec(
                block_size, num_kv_heads=1, head_size=1, dtype=float32
            )
            return [{"layer": spec}]

        def determine_available_memory(self) -> list[int]:
            return [1 << 24]

        def initialize_from_config(self, _configs: Any) -> None: ...

        def compile_or_warm_up_model(self) -> None: ...

        def check_health(self) -> None: ...

        def shutdown(self) -> None: ...

        def collective_rpc(self, *_: Any, **__: Any) -> list[Any]:
            return []

        def execute_model(self, scheduled: Any, non_block: bool = False) -> Any:
            return self._answer(self.runner.execute(scheduled), non_block)

        def sample_tokens(self, _grammar: Any, non_block: bool = False) -> Any:
            return self._answer(self.runner.sample(), non_block)

        def _answer(self, answer: Any, non_block: bool) -> Any:
            future: Future[Any] = Future()
            future.set_result(answer)
            return future if non_block else answer

    return StandIn


# --- serving --------------------------------------------------------------------------------------


class Server:
    """An engine core with its clients, `steps` steps long."""

    def __init__(self, module: str, log: Path) -> None:
        name = "vllm_v1" if module == "async" else module
        driver, sizes = import_module(name), SIZES[name]
        base = driver.engine_config(driver.base_config)
        if name == "sendnn":
            driver.configure(base, sizes, [])
        else:
            driver.configure(base, sizes)
            base.cache_config.num_gpu_blocks_override = sizes["num_blocks"] + 1
        if module == "async":
            base.scheduler_config.async_scheduling = True
            base.scheduler_config.scheduler_cls = f"{RECORDER}.RecordedAsyncScheduler"
        os.environ["LOCKSTEP_LOG"] = str(log)
        import_module(RECORDER).register()
        make_runner = SpyreRunner if name == "sendnn" else Tokens
        core = import_module("vllm.v1.engine.core").EngineCore
        self.core = core(base, executor_class(make_runner, sizes["block_size"]), log_stats=True)
        self.block_size = sizes["block_size"]
        self.requests = 0

    @property
    def present(self) -> list[str]:
        """The requests that have not left."""
        return list(self.core.scheduler.requests)

    def add(self, request_id: str, prompt: list[int], most_tokens: int) -> None:
        """A request arrives, as in `EngineCoreProc`."""
        utils = import_module("vllm.v1.core.kv_cache_utils")
        sha256 = import_module("vllm.utils.hashing").sha256
        params = import_module("vllm").SamplingParams(max_tokens=most_tokens, temperature=0.0)
        params._eos_token_id = END
        hasher = utils.get_request_block_hasher(self.block_size, sha256)
        request = import_module("vllm.v1.request").Request(
            request_id, prompt, params, None, arrival_time=time.time(), block_hasher=hasher
        )
        self.core.add_request(request)
        self.requests += 1

    def serve_alone(self, steps: int) -> Iterator[None]:
        """Requests come and go in this thread."""
        load, draw = Load(7), random.Random(7)
        for _ in range(steps):
            present = self.present
            if len(present) < MOST_PRESENT and (draw.random() < 0.35 or not present):
                self.add(*load.take(f"r{self.requests}"))
            leaves, leaves_running = draw.random() < 0.02, draw.random() < 0.01
            if present and leaves:
                self.core.abort_requests([draw.choice(present)])
            elif present and leaves_running:  # the engine core looks here while the model runs
                self.core.aborts_queue.put([draw.choice(present)])
            yield self.core.step_fn()

    def serve_clients(self, steps: int, clients: int) -> Iterator[None]:
        """Requests come and go in threads of their own."""
        inbox: queue.Queue[Callable[[], None]] = queue.Queue()
        ended = threading.Event()

        def client(number: int) -> None:
            load, draw, sent = Load(number), random.Random(number), 0
            while not ended.is_set():
                if len(self.core.scheduler.requests) >= MOST_PRESENT:
                    time.sleep(0.0005)
                    continue
                request = load.take(f"c{number}-{sent}")
                sent += 1
                inbox.put(lambda request=request: self.add(*request))  # type: ignore[misc]
                time.sleep(draw.random() * 0.004)
                if draw.random() < 0.05:
                    self.core.aborts_queue.put([request[0]])
                elif draw.random() < 0.05:
                    inbox.put(lambda name=request[0]: self.core.abort_requests([name]))  # type: ignore[misc]

        threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
        for thread in threads:
            thread.start()
        taken = 0
        while taken < steps:
            while not inbox.empty():
                inbox.get()()
            if self.core.scheduler.has_requests() or self.core.batch_queue:
                yield self.core.step_fn()
                taken += 1
            else:
                time.sleep(0.0005)
        ended.set()
        for thread in threads:
            thread.join()


def main(module: str, steps: str, clients: str, *logs: str) -> None:
    """Serve once for each defect, each time with a log of its own."""
    from driver import put_back

    name = "vllm_v1" if module == "async" else module
    table = tomllib.loads((PUT_BACK / f"{name}.toml").read_text(encoding="utf-8"))
    load_recorder()
    for defect, _, log in (entry.partition("=") for entry in logs):
        undo = put_back(table[defect], table) if defect != "none" else lambda: None
        server = Server(module, Path(log))  # whose recorder wraps the methods that it finds
        taken, end = 0, "served"
        serving = (
            server.serve_clients(int(steps), int(clients))
            if int(clients)
            else server.serve_alone(int(steps))
        )
        try:
            for _ in serving:
                taken += 1
        except Exception as error:  # a server with a defect may fall
            if defect == "none":
                raise
            end = f"fell: {type(error).__name__}"
        finally:
            undo()
        recorder = server.core.scheduler._lockstep_recorder
        recorder.close()
        print(defect, taken, server.requests, end, recorder.stopped, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
