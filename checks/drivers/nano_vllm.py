"""Driver of nano-vLLM: its scheduler and block manager, step by step.

nano-vLLM itself is not on the package index. The package nano-vllm-npu has its scheduler, block
manager and sequences, before chunked prefill, as the text describes them. The driver runs this
package, or the checkout of nano-vLLM in the directory `LOCKSTEP_NANO_VLLM`, of any commit from
9e8507e to bb823b3; the parameters of its methods say which readings it has. It needs numpy and
xxhash alone, because it imports neither the package's `__init__.py`, which loads
the model, nor its configuration. There is no model: sampled tokens are scripted. The order of calls
is that of `LLMEngine.step`: schedule, the model, postprocess.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

from lockstep_driver import END_OF_SEQUENCE, Driver, Json, ids, serve

VARIABLE = "LOCKSTEP_NANO_VLLM"
REQUIRED_COMMIT = "this driver is written for commits 9e8507e to bb823b3"
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
        "prefill": ["whole"],
        "hashing": ["allocated"],
        "oversized": ["refused"],  # where nothing can be scheduled, an assertion ends the engine
    },
    "abilities": ["ends", "order"],
    "left_out": [],
}
CHUNKED: Json = {"token_gate": ["new_tokens"], "prefill": ["first_chunked"]}  # from 812eb1c on
COMPUTED: Json = {  # from f64d821 on
    "memory_gate": ["new_blocks"],
    "full_hit": ["last_computed"],
    "hashing": ["computed"],
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
    """nano-vLLM is missing, or is another version than this driver supports: the driver ends."""

    def __init__(self, says: str) -> None:
        super().__init__(f"nano-vLLM: {says}")


def source() -> tuple[str, Path, str]:
    """Package, directory and release of a checkout, else of the installed package.

    The checkout is the named one, else one that is on the path, as `--source` puts it there.

    Raises:
        SourceError: there is neither.
    """
    on_path = find_spec("nanovllm")
    if VARIABLE in os.environ:
        checkout = Path(os.environ[VARIABLE])
    elif on_path is not None and on_path.submodule_search_locations:
        checkout = Path(on_path.submodule_search_locations[0]).parent
    else:
        return installed(*NPU, f"; or set {VARIABLE} to a checkout's directory")
    if not (checkout / "nanovllm" / "engine" / "scheduler.py").is_file():
        raise SourceError(f"no nanovllm/engine/scheduler.py in {checkout}")
    return "nanovllm", checkout / "nanovllm", f"nano-vLLM {checkout_commit(checkout)}"


def installed(distribution: str, package: str, instead: str = "") -> tuple[str, Path, str]:
    """Package, directory and release of a distribution.

    Raises:
        SourceError: it is not installed.
    """
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise SourceError(f"{distribution} is not installed{instead}")
    directory = Path(spec.submodule_search_locations[0])
    return package, directory, f"{distribution} {version(distribution)}"


def engine(package: str, directory: Path, modules: Mapping[str, str]) -> SimpleNamespace:
    """The classes of an engine, imported without the package's `__init__` and configuration.

    `modules`: by class name, the module in the package.

    Raises:
        SourceError: a class is missing, or lacks an attribute that this driver uses.
    """
    replace_module(package, __path__=[str(directory)])
    replace_module(f"{package}.config", Config=SimpleNamespace)
    classes = SimpleNamespace()
    for name, module in modules.items():
        try:
            loaded = import_module(f"{package}.{module}")
        except ImportError as error:
            raise SourceError(f"{error}; {REQUIRED_COMMIT}") from None
        check(module, loaded, [name])
        setattr(classes, name, getattr(loaded, name))
    return classes


def replace_module(name: str, **attributes: Any) -> None:
    """Replace the module of this name by one with these attributes."""
    sys.modules[name] = module = ModuleType(name)
    vars(module).update(attributes)


def check(what: str, found: Any, needed: Iterable[str]) -> None:
    """End the driver if a needed attribute is missing."""
    for name in needed:
        if not hasattr(found, name):
            raise SourceError(f"{what} has no `{name}`; {REQUIRED_COMMIT}")


def takes(method: Callable[..., Any], count: int, name: str) -> bool:
    """True if a method has a parameter of this name behind its first `count`, which it always has.

    Raises:
        SourceError: it has another one there.
    """
    _, *later = [*signature(method).parameters][count - 1 :]
    for other in later:
        if other != name:
            raise SourceError(f"{method.__qualname__} takes `{other}`; {REQUIRED_COMMIT}")
    return bool(later)


def checkout_commit(directory: Path) -> str:
    """The commit of a checkout, abbreviated, or "of unknown commit"."""
    command = ["git", "-C", str(directory), "rev-parse", "--show-toplevel", "--short", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    top, _, commit = done.stdout.strip().partition("\n")
    is_its_own = done.returncode == 0 and Path(top) == directory.resolve()
    return commit if is_its_own else "of unknown commit"


class NanoVllm(Driver):
    """The released scheduler, new in each episode; its sequences have their request's id.

    `is_chunked`: prefills may be cut. `prefill_len`: tokens of each request's prefill. `hits`: the
    blocks that it found. `contents`: by block hash, the request and the
    block index. `chains`: the hashes of each request's full blocks.
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
        self.is_chunked = False
        self.hello = self.about | {"config": self.readings(), "release": release}

    def readings(self) -> Json:
        """The values of the configuration that the scheduler has, by what its methods take.

        Raises:
            SourceError: a method has a parameter that this driver does not know.
        """
        self.is_chunked = takes(self.engine.Scheduler.postprocess, 3, "is_prefill")
        hashes_computed = takes(self.engine.BlockManager.allocate, 2, "num_cached_blocks")
        chunked = CHUNKED if self.is_chunked else {}
        computed = COMPUTED if hashes_computed else {}
        return {**self.about["config"], **chunked, **computed}

    def source(self) -> tuple[str, Path, str]:
        """Package, directory and release.

        Raises:
            SourceError: it is missing.
        """
        return source()

    def check(self, what: str, found: Any) -> None:
        """End the driver if `found` lacks an attribute that `needed` lists for `what`."""
        check(what, found, self.needed.get(what, ()))

    def start(self, config: Json) -> None:
        """Begin an episode with a new scheduler."""
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
        self.hits: dict[str, int] = {}
        self.contents: dict[int, list[Any]] = {}
        self.chains: dict[str, list[int]] = {}

    def listen(self) -> None:
        """Wrap the scheduler's methods to note admissions, new blocks and preemptions in order."""
        manager, scheduler = self.manager, self.scheduler
        allocate, append, preempt = manager.allocate, manager.may_append, scheduler.preempt
        self.order: list[list[Any]] = []

        def allocated(sequence: Any, *hits: int) -> None:
            allocate(sequence, *hits)
            table = list(sequence.block_table)
            cached = sequence.num_cached_tokens
            self.prefill_len[sequence.request_id] = sequence.num_tokens
            self.hits[sequence.request_id] = cached // self.block_size
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
        """The request as a sequence of the scheduler."""
        request = self.requests[request_id]
        params = self.engine.SamplingParams(max_tokens=request["max_tokens"])
        return self.engine.Sequence(list(request["prompt"]), params)

    def postprocess(self, batch: Sequence[Any], tokens: Sequence[int], is_prefill: bool) -> None:
        """Pass the sampled tokens to the scheduler, as the engine does."""
        phase = (is_prefill,) if self.is_chunked else ()
        self.scheduler.postprocess(batch, tokens, *phase)

    def run(self) -> Json:
        """One step of the engine."""
        if self.scheduler.is_finished():  # the engine does not call an empty scheduler
            return {"kind": "idle", "scheduled": {}, "outputs": {}, "finished": []}
        self.order.clear()
        batch, is_prefill = self.scheduler.schedule()
        record = self.decided(batch, is_prefill)
        self.postprocess(batch, self.sampled(batch), is_prefill)
        outputs = {}
        for sequence, row in zip(batch, record["batch"], strict=True):
            index, row["generated"] = row["generated"], sequence.num_completion_tokens
            if row["generated"] > index:  # a prefill that is cut gets no token
                outputs[row["id"]] = [self.scripted_token(row["id"], index)]
        finished = ids(sequence for sequence in batch if sequence.is_finished)
        return record | {"outputs": outputs, "finished": finished, "order": list(self.order)}

    def sampled(self, batch: Iterable[Any]) -> list[int]:
        """The token that the model samples for each sequence of the batch."""
        return [
            self.token(sequence.request_id, sequence.num_completion_tokens) for sequence in batch
        ]

    def decided(self, batch: Sequence[Any], is_prefill: bool) -> Json:
        """The batch that the scheduler passes to the model; its tokens count as computed."""
        rows, scheduled = [], {}
        for sequence in batch:
            cached, tokens = sequence.num_cached_tokens, sequence.num_tokens
            count = sequence.num_scheduled_tokens if self.is_chunked else tokens - cached
            row = self.row(sequence) | {
                "computed": min(cached + count, tokens) if is_prefill else tokens,
                "blocks": list(sequence.block_table),
            }
            rows.append(row)
            scheduled[row["id"]] = count if is_prefill else 1
        return {
            "kind": "prefill" if is_prefill else "decode",
            "batch": rows,
            "scheduled": scheduled,
        }

    def state(self) -> Json:
        """Queues, sequences and blocks."""
        waiting, running = list(self.scheduler.waiting), list(self.scheduler.running)
        tables = {
            sequence.request_id: list(sequence.block_table)
            for sequence in (*waiting, *running)
            if sequence.block_table
        }
        self.learn_hashes((*waiting, *running))
        free, blocks = self.manager.free_block_ids, dict(enumerate(self.manager.blocks))
        hashes = {index: block.hash for index, block in blocks.items() if block.hash != -1}
        lookup = self.manager.hash_to_block_id
        return {
            "waiting": ids(waiting),
            "running": ids(running),
            "paused": [],
            "decoding": [self.row(sequence) for sequence in running],
            "others": [self.waiting_row(sequence) for sequence in waiting],
            "block_tables": tables,
            "blocks": {
                "used": len({block for table in tables.values() for block in table}),
                "free": len(free),
            },
            "free_list": list(free),
            "references": {
                index: block.ref_count for index, block in blocks.items() if block.ref_count
            },
            "keys": [[*self.contents[key], index] for index, key in hashes.items()],
            "cached": [[*self.contents[key], index] for key, index in lookup.items()],
        }

    def row(self, sequence: Any) -> Json:
        """The row of a running sequence, whose newest token is not computed yet."""
        request_id = sequence.request_id
        return {
            "id": request_id,
            "prefill_len": self.prefill_len[request_id],
            "computed": sequence.num_tokens - 1,
            "generated": sequence.num_completion_tokens,
            "hit_blocks": self.hits[request_id],
        }

    def waiting_row(self, sequence: Any) -> Json:
        """The row of a waiting sequence; one with blocks has computed a part of its prefill."""
        if sequence.block_table:
            return self.row(sequence) | {"computed": sequence.num_cached_tokens}
        return {
            "id": sequence.request_id,
            "prefill_len": sequence.num_tokens,
            "computed": 0,
            "generated": sequence.num_completion_tokens,
            "hit_blocks": 0,
        }

    def learn_hashes(self, sequences: Iterable[Any]) -> None:
        """Note request and block index for the hashes of these sequences' full blocks."""
        for sequence in sequences:
            request_id, size = sequence.request_id, self.block_size
            chain = self.chains.setdefault(request_id, [])
            for index in range(len(chain), sequence.num_tokens // size):
                tokens = sequence.token_ids[index * size : (index + 1) * size]
                chain.append(self.manager.compute_hash(tokens, chain[-1] if chain else -1))
                self.contents.setdefault(chain[-1], [request_id, index])


if __name__ == "__main__":
    serve(NanoVllm)
