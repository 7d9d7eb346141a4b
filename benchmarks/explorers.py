"""Explorers side by side on the same instances: the compiled machine, the reference, and Spin.

    python benchmarks/explorers.py --against spin
    python benchmarks/explorers.py --cores 2

Each explores one instance after the other on one core; what is compiled is loaded before. Spin
needs `spin` and `gcc` and has a model of the machine that was written from the chapters
(`tests/checks/explore/promela`); its bytes are its state vector with its own overhead. Times are
processor times of the search alone. With `--cores` the compiled machine is compared with itself on so many
cores, by the clock, with exact states and with fingerprints, on instances that take it seconds;
what two searches beside each other take is what the machine's cores can do. Counts must be equal,
or this ends with exit code 1.
"""

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from tempfile import TemporaryDirectory
from time import process_time

from attrs import frozen

from checks.explore.bounds import Bounds
from checks.explore.compiled.search import search_with_room
from checks.explore.instance import Instance
from checks.explore.search import explore
from checks.policies.spyre.compiled.model import compiled_of
from checks.policies.spyre.model import spyre_model
from checks.policies.spyre.policy import POLICY
from spec.core.requests import Prompt, Request
from spec.spyre.config import SpyreConfig
from tests.checks.explore.promela import spin

_FOUR_SLOTS = {"block_size": 2, "chunk_size": 4, "max_num_seqs": 4, "prefix_caching": False}


@frozen
class Row:
    """What an explorer did: seconds of processor time, bytes that it keeps for a state."""

    states: int
    transitions: int
    seconds: float
    bytes_per_state: float


def instance(
    name: str, limit: int, sizes: list[tuple[int, int]], **free: str
) -> Instance[SpyreConfig]:
    """Requests of these prompt and output lengths; which may be aborted or end early."""
    longest = max(prompt + output for prompt, output in sizes)
    config = SpyreConfig(**_FOUR_SLOTS, max_batch_tkv_limit=limit, max_model_len=longest)
    requests = tuple(
        Request(id=str(one), prompt=Prompt.of_stream(str(one), prompt), max_tokens=output)
        for one, (prompt, output) in enumerate(sizes)
    )
    allowed = {key: frozenset(ids.split()) for key, ids in free.items()}
    return Instance(name=name, about=name, config=config, requests=requests, **allowed)


INSTANCES = (
    instance(
        *("five requests, all free", 48, [(3, 8), (6, 7), (2, 8), (9, 6), (4, 9)]),
        aborts="0 1 2 3 4",
        early_ends="0 1 2 3 4",
    ),
    instance(
        *("five requests, two may end early", 60, [(3, 16), (6, 14), (2, 17), (9, 12), (4, 18)]),
        early_ends="0 1",
    ),
)


def of_compiled(one: Instance[SpyreConfig]) -> Row:
    """The compiled machine, its rules in numbers on every edge, no edge taken by the reference."""
    model, make = spyre_model(one), compiled_of(one)
    safety = POLICY.properties_of(model).safety
    search_with_room(model, make, safety, Bounds(max_states=1), sample=0)  # loads what is compiled
    began = process_time()
    found = search_with_room(model, make, safety, sample=0)
    return Row(found.states, found.transitions, process_time() - began, found.bytes_per_state)


def of_reference(one: Instance[SpyreConfig]) -> Row:
    """The reference, every rule on every edge."""
    model, began = spyre_model(one), process_time()
    found = explore(model, POLICY.properties_of(model).all, keep_going=True)
    seconds = process_time() - began
    return Row(found.states, found.transitions, seconds, found.bytes_per_state)


def of_spin(one: Instance[SpyreConfig]) -> Row:
    """Spin, exact states, six rules on every edge."""
    with TemporaryDirectory() as folder:
        place = Path(folder)
        spin.write_model(one, place)
        flags = ["-O2", "-w", "-DNOREDUCE", "-DSAFETY", "-DMEMLIM=8000"]
        for command in (["spin", "-a", "-o2", "model.pml"], ["gcc", *flags, "-o", "pan", "pan.c"]):
            subprocess.run(command, cwd=place, check=True, capture_output=True)
        began = getrusage(RUSAGE_CHILDREN).ru_utime
        command = ["./pan", "-m100000", "-w24"]
        ran = subprocess.run(command, cwd=place, check=True, capture_output=True, text=True)
        seconds = getrusage(RUSAGE_CHILDREN).ru_utime - began
    states = spin.number(ran.stdout, "states, stored")
    vector = spin.number_before(ran.stdout, "equivalent memory usage") * 2**20 / states
    return Row(states, spin.number(ran.stdout, "transitions") - 1, seconds, vector)


EXPLORERS: dict[str, Callable[[Instance[SpyreConfig]], Row]] = {
    "compiled": of_compiled,
    "spin": of_spin,
    "reference": of_reference,
}


def main() -> int:
    """Print the table; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--against", default="spin", help="spin, reference, or both with a comma")
    names = ["compiled", *parser.parse_args().against.split(",")]
    print("| instance | explorer | states | edges | seconds | states/s | bytes a state |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    differ = False
    for one in INSTANCES:
        rows = {name: EXPLORERS[name](one) for name in names}
        for name, row in rows.items():
            print(
                f"| {one.name} | {name} | {row.states:,} | {row.transitions:,} | {row.seconds:.2f} "
                f"| {row.states / row.seconds:,.0f} | {row.bytes_per_state:,.0f} |"
            )
        differ |= len({(row.states, row.transitions) for row in rows.values()}) > 1
    return int(differ)


if __name__ == "__main__":
    sys.exit(main())
