"""Instances counted by Spin, in a model that was written from the chapter and not from our code.

An instance sets constants of the model: lengths, limits, and which requests may be aborted or end
early.
"""

import re
import subprocess
from pathlib import Path

from attrs import frozen

from checks.explore.instance import Instance
from spec.spyre.config import SpyreConfig
from spec.spyre.variants import Admission, Queue

MODEL = Path(__file__).with_name("spyre.pml")


@frozen
class Count:
    """Spin's result: distinct states, edges between them, and the broken rules.

    `is_endless`: there is a run without end.
    """

    states: int
    transitions: int
    broken: frozenset[str]
    is_endless: bool


def counted(instance: Instance[SpyreConfig], folder: Path, **faults: int) -> Count:
    """The whole graph of an instance: generated, compiled and searched in an empty `folder`.

    `faults` are constants of the model that are set otherwise.

    Raises:
        CalledProcessError: the model cannot be compiled.
    """
    write_model(instance, folder, **faults)
    # -o2: variables that are only written are part of a state, too.
    _output(["spin", "-a", "-o2", "model.pml"], folder)
    found = _searched(folder, "-DPRINTF")
    assert "errors: 0" in found, found
    return Count(
        states=number(found, "states, stored"),
        transitions=number(found, "transitions") - 1,  # Spin counts the way to the first state
        broken=frozenset(re.findall(r"broken: (\S+)", found)),
        is_endless="non-progress cycle (at" in _searched(folder, "-DNP", "-l"),
    )


def write_model(instance: Instance[SpyreConfig], folder: Path, **faults: int) -> None:
    """The model of an instance as `model.pml` in the folder."""
    constants = _constants(instance) | faults
    lines = [f"#define {name} {value}\n" for name, value in constants.items()]
    (folder / "model.pml").write_text("".join(lines) + MODEL.read_text(encoding="utf-8"))


def _searched(folder: Path, mode: str, *options: str) -> str:
    _output(["gcc", "-w", mode, "-DNOREDUCE", "-o", "pan", "pan.c"], folder)
    return _output(["./pan", "-m100000", *options], folder)


def _constants(instance: Instance[SpyreConfig]) -> dict[str, object]:
    config, requests = instance.config, instance.requests
    blocks = [0] * config.pool_blocks  # the explorer does not distinguish them
    lengths = [(request.prompt_len, request.max_tokens) for request in requests]
    return {
        "N": len(requests),
        "PROMPTS": ", ".join(str(prompt) for prompt, _ in lengths),
        "MAX_TOKENS": ", ".join(str(output) for _, output in lengths),
        "LONGEST": max(output for _, output in lengths),
        "TABLE": max(map(sum, lengths)) // config.block_size + 1,
        "ABORTS": _bits(instance.aborts),
        "EARLY_ENDS": _bits(instance.early_ends),
        "RETURNING": _bits(instance.returning),
        "BLOCK": config.block_size,
        "CHUNK": config.chunk_size,
        "MODEL_LEN": config.max_model_len,
        "SLOTS": config.max_num_seqs,
        "LIMIT": config.max_batch_tkv_limit,
        "POOL": config.pool_blocks,
        "POOL_ORDER": ", ".join(map(str, blocks)),
        "INTERLEAVE": int(config.interleave),
        "OVERTAKING": int(config.queue is Queue.OVERTAKING),
        "RESERVATION": int(config.reservation),
        "PAUSING": int(config.pausing),
        "LONG_OUTPUT_FIRST": int(config.long_output_first),
        "DOCUMENTED": int(config.admission is Admission.DOCUMENTED),
        "SHIPPED": int(config.admission is Admission.SHIPPED),
    }


def _bits(ids: frozenset[str]) -> int:
    return sum(1 << int(request_id) for request_id in ids)


def _output(command: list[str], folder: Path) -> str:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


def number(found: str, unit: str) -> int:
    """The number in front of these words in Spin's output."""
    return int(printed_number(found, unit))


def printed_number(found: str, unit: str) -> float:
    """As `number`, but the number may have a fraction."""
    match = re.search(rf"([\d.]+)\s+{unit}", found)
    assert match is not None, found
    return float(match[1])
