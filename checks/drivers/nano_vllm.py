"""Driver of nano-vLLM: its scheduler and block manager, step by step.

nano-vLLM itself is not on the package index. A package that is, nano-vllm-npu, has its scheduler,
block manager and sequences, before chunked prefill, as the text describes them; that one is driven,
or the checkout of nano-vLLM whose directory `LOCKSTEP_NANO_VLLM` names (commit 9e8507e). Run by a
Python that has numpy and xxhash; needs nothing else, for neither the package's `__init__.py`, which
loads the model, nor its configuration is imported. There is no model: the script says what is
sampled. The order of calls is that of `LLMEngine.step`: schedule, the model, postprocess.

The line protocol is described in the chapter on drivers of the project that this file is from.
"""

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

VARIABLE = "LOCKSTEP_NANO_VLLM"
DISTRIBUTION, PACKAGE = "nano-vllm-npu", "nanovllmnpu"
ANSWERS = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)  # whatever the libraries print goes to standard error

Json = dict[str, Any]

END_OF_SEQUENCE = 2**31 - 2  # sampled where a script says that a request ends; never told
HELLO = {
    "format": "lockstep-driver",
    "version": 1,
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
    "abilities": ["ends"],
    "left_out": [],
}
NEEDED = {
    "Scheduler": ("add", "schedule", "postprocess", "is_finished"),
    "BlockManager": ("compute_hash", "can_allocate", "allocate", "can_append", "may_append"),
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

    def __init__(self, told: str) -> None:
        super().__init__(f"nano-vLLM: {told}")


class Source:
    """The classes of an engine, imported without its package and its configuration.

    `package`: its name; `directory`: where it is; `release`: as what it is known.
    """

    def __init__(self, package: str, directory: Path, release: str) -> None:
        self.release, self.directory, self.package = release, directory, package
        stand_in(package, __path__=[str(directory)])
        stand_in(f"{package}.config", Config=SimpleNamespace)
        self.Sequence = self.named("sequence", "Sequence")
        self.BlockManager = self.named("block_manager", "BlockManager")
        self.Scheduler = self.named("scheduler", "Scheduler")
        self.SamplingParams = import_module(f"{package}.sampling_params").SamplingParams
        check("BlockManager", self.BlockManager)
        check("Scheduler", self.Scheduler)

    @staticmethod
    def found() -> "Source":
        """The checkout that is named, else the package that is installed."""
        if VARIABLE in os.environ:
            directory = Path(os.environ[VARIABLE])
            package = directory / "nanovllm"
            if not (package / "engine" / "scheduler.py").is_file():
                raise SourceError(f"no nanovllm/engine/scheduler.py in {directory}")
            return Source("nanovllm", package, f"nano-vLLM {commit_of(directory)}")
        installed = find_spec(PACKAGE)
        if installed is None or not installed.submodule_search_locations:
            told = f"{DISTRIBUTION} is not installed; or set {VARIABLE} to a checkout's directory"
            raise SourceError(told)
        directory = Path(installed.submodule_search_locations[0])
        return Source(PACKAGE, directory, f"{DISTRIBUTION} {version(DISTRIBUTION)}")

    def named(self, module: str, name: str) -> Any:
        """A class of one of the engine's modules."""
        loaded = import_module(f"{self.package}.engine.{module}")
        if not hasattr(loaded, name):
            raise SourceError(f"{self.package}/engine/{module}.py has no {name}")
        return getattr(loaded, name)


def stand_in(name: str, **attributes: Any) -> None:
    """A module of this name that is not the engine's."""
    module = ModuleType(name)
    module.__dict__.update(attributes)
    sys.modules[name] = module


def check(what: str, found: Any) -> None:
    """Everything that this driver asks of it is there."""
    for name in NEEDED[what]:
        if not hasattr(found, name):
            told = f"{what} has no `{name}`; this driver is written for commit 9e8507e"
            raise SourceError(told)


def commit_of(directory: Path) -> str:
    """The checked out commit, as git names it."""
    command = ["git", "-C", str(directory), "rev-parse", "--show-toplevel", "--short", "HEAD"]
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    place, _, commit = asked.stdout.strip().partition("\n")
    is_its_own = asked.returncode == 0 and Path(place) == directory.resolve()
    return commit if is_its_own else "of unknown commit"


class Released:
    """One episode: a fresh scheduler.

    `names`: requests of its sequences, by their identity. `prefill_len`: tokens that each request's
    prefill covers. `contents`: of each block's hash the request and the index there.
    """

    def __init__(self, source: Source, config: Json, requests: list[Json]) -> None:
        self.source = source
        self.requests = {request["id"]: request for request in requests}
        self.block_size = config["block_size"]
        source.Sequence.block_size = self.block_size
        self.scheduler = source.Scheduler(
            SimpleNamespace(
                max_num_seqs=config["max_num_seqs"],
                max_num_batched_tokens=config["max_num_batched_tokens"],
                max_model_len=config["max_model_len"],
                eos=END_OF_SEQUENCE,
                num_kvcache_blocks=config["num_blocks"],
                kvcache_block_size=self.block_size,
            )
        )
        check("scheduler", self.scheduler)
        self.manager = self.scheduler.block_manager
        check("block manager", self.manager)
        check("block", self.manager.blocks[0])
        self.names: dict[int, str] = {}
        self.prefill_len: dict[str, int] = {}
        self.contents: dict[int, list[Any]] = {}
        self.chains: dict[str, list[int]] = {}  # hashes of each request's full blocks

    # --- one step ------------------------------------------------------------------------------

    def step(self, action: Json) -> Json:
        """Arrivals, then one step of the engine."""
        for request_id in action.get("arrive", ()):
            self.arrive(request_id)
        told: Json = {"before": self.at_rest()} if action.get("arrive") else {}
        if self.scheduler.is_finished():  # then nobody calls the scheduler
            return (
                told
                | {"kind": "idle", "scheduled": {}, "outputs": {}, "finished": []}
                | (self.at_rest())
            )
        batch, is_prefill = self.scheduler.schedule()
        told |= self.decided(batch, is_prefill)
        sampled = [self.sampled(one, action) for one in batch]
        self.scheduler.postprocess(batch, [token for token, _ in sampled])
        names = [self.names[id(one)] for one in batch]
        told["outputs"] = {one: [own] for one, (_, own) in zip(names, sampled, strict=True)}
        told["finished"] = [self.names[id(one)] for one in batch if one.is_finished]
        return told | self.at_rest()

    def arrive(self, request_id: str) -> None:
        """Hand a request to the scheduler, as `LLMEngine.add_request` does."""
        asked = self.requests[request_id]
        params = self.source.SamplingParams(max_tokens=asked["max_tokens"])
        sequence = self.source.Sequence(list(asked["prompt"]), params)
        check("sequence", sequence)
        self.names[id(sequence)] = request_id
        self.requests[request_id] = asked | {"sequence": sequence}  # keeps its identity its own
        self.scheduler.add(sequence)

    def sampled(self, sequence: Any, action: Json) -> tuple[int, int]:
        """What the model samples for it, and its own token if that is the end of sequence."""
        request_id = self.names[id(sequence)]
        asked, index = self.requests[request_id], sequence.num_completion_tokens
        own = int(asked["output"][index])
        natural = index + 1 == asked["output_len"] < asked["max_tokens"]
        is_end = request_id in action["ends"] if "ends" in action else natural
        return (END_OF_SEQUENCE if is_end else own), own

    # --- what can be told of it ----------------------------------------------------------------

    def decided(self, batch: Sequence[Any], is_prefill: bool) -> Json:
        """The batch as it is handed to the model; its rows as they are once it has run."""
        for one in batch if is_prefill else ():
            self.prefill_len[self.names[id(one)]] = one.num_tokens
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

    def at_rest(self) -> Json:
        """Queues, sequences and blocks."""
        waiting, running = list(self.scheduler.waiting), list(self.scheduler.running)
        tables = {self.names[id(one)]: list(one.block_table) for one in running}
        blocks = dict(enumerate(self.manager.blocks))
        self.learn_hashes((*waiting, *running))
        return {
            "waiting": [self.names[id(one)] for one in waiting],
            "running": [self.names[id(one)] for one in running],
            "paused": [],
            "decoding": [self.row(one) for one in running],
            "others": [self.row(one) for one in waiting],
            "block_tables": tables,
            "blocks": {
                "used": len({block for table in tables.values() for block in table}),
                "free": len(self.manager.free_block_ids),
            },
            "free_list": list(self.manager.free_block_ids),
            "references": {index: one.ref_count for index, one in blocks.items() if one.ref_count},
            "keys": [
                [*self.contents[one.hash], index] for index, one in blocks.items() if one.hash != -1
            ],
            "cached": [
                [*self.contents[key], block] for key, block in self.manager.hash_to_block_id.items()
            ],
        }

    def row(self, sequence: Any) -> Json:
        """A sequence as the scheduler knows it; the newest token of a running one is to come."""
        request_id = self.names[id(sequence)]
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
        """Which request's which block a hash stands for, of all that are there."""
        for one in sequences:
            request_id, size = self.names[id(one)], self.block_size
            chain = self.chains.setdefault(request_id, [])
            for index in range(len(chain), one.num_tokens // size):
                tokens = one.token_ids[index * size : (index + 1) * size]
                chain.append(self.manager.compute_hash(tokens, chain[-1] if chain else -1))
                self.contents.setdefault(chain[-1], [request_id, index])


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


def answers(lines: Iterable[str], source: Source) -> Iterator[Json]:
    """One answer to each line, until `stop` or the end."""
    live: Released | None = None
    for line in lines:
        message = json.loads(line)
        try:
            match message["do"]:
                case "start":
                    live = Released(source, message["config"], message["requests"])
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
    try:
        source = Source.found()
    except ImportError as error:
        raise SourceError(f"{error}; this driver is written for commit 9e8507e") from None
    print(json.dumps(HELLO | {"release": source.release}), file=ANSWERS)
    for answer in answers(iter(sys.stdin.readline, ""), source):
        print(json.dumps(answer, separators=(",", ":")), file=ANSWERS)


if __name__ == "__main__":
    main()
