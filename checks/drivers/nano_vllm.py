"""Driver of nano-vLLM: its scheduler and block manager, step by step.

nano-vLLM itself is not on the package index. A package that is, nano-vllm-npu, has its scheduler,
block manager and sequences, before chunked prefill, as the text describes them; that one is driven,
or the checkout of nano-vLLM whose directory `LOCKSTEP_NANO_VLLM` names (commit 9e8507e). Run by a
Python that has numpy and xxhash; needs nothing else, for neither the package's `__init__.py`, which
loads the model, nor its configuration is imported. There is no model: what is sampled is
scripted. The order of calls is that of `LLMEngine.step`: schedule, the model, postprocess.
"""

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

from lockstep_driver import END_OF_SEQUENCE, Driver, Json, ids, serve

VARIABLE = "LOCKSTEP_NANO_VLLM"
WRITTEN_FOR = "this driver is written for commit 9e8507e"
NPU = ("nano-vllm-npu", "nanovllmnpu")  # a distribution and its package

HELLO: Json = {
    "policy": "nano-vllm",
    "name": "nano-vllm",
    "config": {
        "token_gate": ["full_length"],
        "memory_gate": ["all_blocks"],
        "sequence_limit": ["batch"],
        "new_block": ["after_boundary"],
        "hit_check": ["tokens"],
        "full_hit": ["all_cached"],
    },
    "abilities": ["ends", "order"],
    "left_out": [],
}
MODULES = {
    "Sequence": "engine.sequence",
    "BlockManager": "engine.block_manager",
    "Scheduler": "engine.scheduler",
    "SamplingParams": "sampling_params",
}
NEEDED = {
    "BlockManager": ("compute_hash", "can_allocate", "allocate", "can_append", "may_append"),
    "Scheduler": ("add", "schedule", "preempt", "postprocess", "is_finished"),
    "scheduler": ("waiting", "running", "block_manager"),
    "block manager": ("blocks", "free_block_ids", "hash_to_block_id"),
    "block": ("ref_count", "hash", "token_ids"),
    "sequence": (
        *("token_ids", "num_tokens", "num_cached_tokens", "num_completion_tokens"),
        *("block_table", "is_finished"),
    ),
}


class SourceError(SystemExit):
    """There is no nano-vLLM, or it is not what this driver is written for: the driver ends."""

    def __init__(self, says: str) -> None:
        super().__init__(f"nano-vLLM: {says}")


def source() -> tuple[str, Path, str]:
    """Package, directory and release: of the checkout that is named, else of what is installed.

    Raises:
        SourceError: there is none.
    """
    if VARIABLE not in os.environ:
        return installed(*NPU, f"; or set {VARIABLE} to a checkout's directory")
    checkout = Path(os.environ[VARIABLE])
    if not (checkout / "nanovllm" / "engine" / "scheduler.py").is_file():
        raise SourceError(f"no nanovllm/engine/scheduler.py in {checkout}")
    return "nanovllm", checkout / "nanovllm", f"nano-vLLM {commit_of(checkout)}"


def installed(distribution: str, package: str, instead: str = "") -> tuple[str, Path, str]:
    """Package, directory and release of a distribution.

    Raises:
        SourceError: it is not installed.
    """
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise SourceError(f"{distribution} is not installed{instead}")
    directory = Path(found.submodule_search_locations[0])
    return package, directory, f"{distribution} {version(distribution)}"


def engine(package: str, directory: Path, modules: Mapping[str, str]) -> SimpleNamespace:
    """The classes of an engine by the modules they are in, imported without package and config.

    Raises:
        SourceError: one is not there, or lacks something that this driver asks it for.
    """
    stand_in(package, __path__=[str(directory)])
    stand_in(f"{package}.config", Config=SimpleNamespace)
    found = SimpleNamespace()
    for name, module in modules.items():
        try:
            loaded = import_module(f"{package}.{module}")
        except ImportError as error:
            raise SourceError(f"{error}; {WRITTEN_FOR}") from None
        check(module, loaded, [name])
        setattr(found, name, getattr(loaded, name))
    return found


def stand_in(name: str, **attributes: Any) -> None:
    """A module of this name that is not the engine's."""
    sys.modules[name] = module = ModuleType(name)
    vars(module).update(attributes)


def check(what: str, found: Any, needed: Iterable[str]) -> None:
    """End the driver if something that it asks for is not there."""
    for name in needed:
        if not hasattr(found, name):
            raise SourceError(f"{what} has no `{name}`; {WRITTEN_FOR}")


def commit_of(directory: Path) -> str:
    """The checked out commit, as git names it."""
    command = ["git", "-C", str(directory), "rev-parse", "--show-toplevel", "--short", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    top, _, commit = done.stdout.strip().partition("\n")
    is_its_own = done.returncode == 0 and Path(top) == directory.resolve()
    return commit if is_its_own else "of unknown commit"


class NanoVllm(Driver):
    """The scheduler, fresh in each episode; its sequences carry their request's id.

    `prefill_len`: tokens that each request's prefill covers. `contents`: of each block's hash the
    request and the index there. `chains`: hashes of each request's full blocks.
    """

    about: ClassVar[Json] = HELLO
    modules: ClassVar[Mapping[str, str]] = MODULES
    needed: ClassVar[Mapping[str, Iterable[str]]] = NEEDED

    def __init__(self) -> None:
        package, directory, release = self.source()
        self.under_test = (package,)
        self.engine = engine(package, directory, self.modules)
        for name in self.modules:
            self.check(name, getattr(self.engine, name))
        self.hello = self.about | {"release": release}

    def source(self) -> tuple[str, Path, str]:
        """Package, directory and release.

        Raises:
            SourceError: there is none.
        """
        return source()

    def check(self, what: str, found: Any) -> None:
        """End the driver if something that it asks of this is not there."""
        check(what, found, self.needed.get(what, ()))

    def start(self, config: Json) -> None:
        """Begin an episode with a fresh scheduler."""
        self.block_size = self.engine.Sequence.block_size = config["block_size"]
        sizes = ("max_num_seqs", "max_num_batched_tokens", "max_model_len")
        self.scheduler = self.engine.Scheduler(
            SimpleNamespace(
                **{name: config[name] for name in sizes},
                eos=END_OF_SEQUENCE,
                num_kvcache_blocks=config["num_blocks"],
                kvcache_block_size=self.block_size,
            )
        )
        self.check("scheduler", self.scheduler)
        self.manager = self.scheduler.block_manager
        self.check("block manager", self.manager)
        self.check("block", self.manager.blocks[0])
        self.listen()
        self.prefill_len: dict[str, int] = {}
        self.contents: dict[int, list[Any]] = {}
        self.chains: dict[str, list[int]] = {}

    def listen(self) -> None:
        """Note in their order admissions, new blocks and victims."""
        manager, scheduler = self.manager, self.scheduler
        allocate, append, preempt = manager.allocate, manager.may_append, scheduler.preempt
        self.order: list[list[Any]] = []

        def allocated(sequence: Any) -> None:
            allocate(sequence)
            table = list(sequence.block_table)
            cached = sequence.num_cached_tokens
            self.order.append(["admit", sequence.request_id, cached, table])

        def appended(sequence: Any) -> None:
            held = len(sequence.block_table)
            append(sequence)
            if new := list(sequence.block_table[held:]):
                self.order.append(["allocate", sequence.request_id, 1, new])

        def preempted(sequence: Any) -> None:
            self.order.append(["preempt", sequence.request_id])
            preempt(sequence)

        manager.allocate, manager.may_append, scheduler.preempt = allocated, appended, preempted

    def arrive(self, request_id: str) -> None:
        """Hand a request to the scheduler, as `LLMEngine.add_request` does."""
        sequence = self.sequence(request_id)
        self.check("sequence", sequence)
        sequence.request_id = request_id
        self.scheduler.add(sequence)

    def sequence(self, request_id: str) -> Any:
        """The request as the scheduler's own."""
        given = self.requests[request_id]
        params = self.engine.SamplingParams(max_tokens=given["max_tokens"])
        return self.engine.Sequence(list(given["prompt"]), params)

    def postprocess(self, batch: Sequence[Any], tokens: Sequence[int]) -> None:
        """What the engine does with the sampled tokens."""
        self.scheduler.postprocess(batch, tokens)

    def run(self) -> Json:
        """One step of the engine."""
        if self.scheduler.is_finished():  # then the engine does not call the scheduler
            return {"kind": "idle", "scheduled": {}, "outputs": {}, "finished": []}
        waiting = list(self.scheduler.waiting)
        self.order.clear()
        batch, is_prefill = self.scheduler.schedule()
        for one in waiting:
            if one.block_table:
                self.prefill_len[one.request_id] = one.num_tokens
        record = self.decided(batch, is_prefill)
        lengths = {one.request_id: one.num_completion_tokens for one in batch}
        own = {
            request_id: [self.scripted_token(request_id, index)]
            for request_id, index in lengths.items()
        }
        self.postprocess(batch, self.sampled(batch))
        finished = ids(one for one in batch if one.is_finished)
        return record | {"outputs": own, "finished": finished, "order": list(self.order)}

    def sampled(self, batch: Iterable[Any]) -> list[int]:
        """What the model samples for each sequence of the batch."""
        return [self.token(one.request_id, one.num_completion_tokens) for one in batch]

    def decided(self, batch: Sequence[Any], is_prefill: bool) -> Json:
        """The batch as it is handed to the model; its rows as they are once it has run."""
        rows, scheduled = [], {}
        for one in batch:
            row = self.row(one) | {"computed": one.num_tokens, "blocks": list(one.block_table)}
            rows.append(row | {"generated": one.num_completion_tokens + 1})
            scheduled[row["id"]] = one.num_tokens - one.num_cached_tokens if is_prefill else 1
        return {
            "kind": "prefill" if is_prefill else "decode",
            "batch": rows,
            "scheduled": scheduled,
        }

    def state(self) -> Json:
        """Queues, sequences and blocks."""
        waiting, running = list(self.scheduler.waiting), list(self.scheduler.running)
        tables = {one.request_id: list(one.block_table) for one in running}
        self.learn_hashes((*waiting, *running))
        free, blocks = self.manager.free_block_ids, dict(enumerate(self.manager.blocks))
        hashes = {index: one.hash for index, one in blocks.items() if one.hash != -1}
        lookup = self.manager.hash_to_block_id
        return {
            "waiting": ids(waiting),
            "running": ids(running),
            "paused": [],
            "decoding": [self.row(one) for one in running],
            "others": [self.row(one) for one in waiting],
            "block_tables": tables,
            "blocks": {
                "used": len({block for table in tables.values() for block in table}),
                "free": len(free),
            },
            "free_list": list(free),
            "references": {index: one.ref_count for index, one in blocks.items() if one.ref_count},
            "keys": [[*self.contents[key], index] for index, key in hashes.items()],
            "cached": [[*self.contents[key], index] for key, index in lookup.items()],
        }

    def row(self, sequence: Any) -> Json:
        """A sequence as the scheduler knows it; the newest token of a running one is to come."""
        request_id = sequence.request_id
        is_running = bool(sequence.block_table)
        covers = self.prefill_len.get(request_id, 0) if is_running else sequence.num_tokens
        return {
            "id": request_id,
            "prefill_len": covers,
            "computed": sequence.num_tokens - 1 if is_running else 0,
            "generated": sequence.num_completion_tokens,
            "hit_blocks": sequence.num_cached_tokens // self.block_size,
        }

    def learn_hashes(self, sequences: Iterable[Any]) -> None:
        """Note what the hashes of these sequences' full blocks stand for."""
        for one in sequences:
            request_id, size = one.request_id, self.block_size
            chain = self.chains.setdefault(request_id, [])
            for index in range(len(chain), one.num_tokens // size):
                tokens = one.token_ids[index * size : (index + 1) * size]
                chain.append(self.manager.compute_hash(tokens, chain[-1] if chain else -1))
                self.contents.setdefault(chain[-1], [request_id, index])


if __name__ == "__main__":
    serve(NanoVllm)
