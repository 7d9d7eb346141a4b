"""Explorers side by side on the same instances: the compiled machine, the reference, and Spin.

    python benchmarks/explorers.py --against spin
    python benchmarks/explorers.py --cores 2

Each explores one instance after the other on one core; compiled code is loaded before. Spin needs
`spin` and `gcc` and has a model of the machine that was written from the chapters
(`tests/checks/explore/promela`); its bytes are its state vector with its own overhead. Times are
processor times of the search alone. `--cores` compares the compiled machine on one core and on
several instead, by wall time, with exact states and with fingerprints, on instances that take
seconds. If counts differ, the exit code is 1.
"""

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from tempfile import TemporaryDirectory
from time import perf_counter, process_time

from attrs import frozen

from checks.explore.bounds import Bounds
from checks.explore.compiled.search import Known, search_with_room
from checks.explore.instance import Instance
from checks.explore.properties import Properties, properties_of
from checks.explore.search import explore
from checks.policies.spyre.compiled.support import compiled_maker
from checks.policies.spyre.model import spyre_model
from spec.core.requests import Prompt, Request
from spec.spyre.config import SpyreConfig
from tests.checks.explore.promela import spin

_FOUR_SLOTS = {"block_size": 2, "chunk_size": 4, "max_num_seqs": 4, "prefix_caching": False}


@frozen
class Row:
    """The result of an explorer: counts, seconds, and stored bytes per state."""

    states: int
    transitions: int
    seconds: float
    bytes_per_state: float


def _instance(
    name: str, limit: int, sizes: list[tuple[int, int]], **free: str
) -> Instance[SpyreConfig]:
    """An instance with requests of these prompt and output lengths.

    `free`: ids of the requests with a freedom of `Instance`, such as `aborts`.
    """
    longest = max(prompt + output for prompt, output in sizes)
    config = SpyreConfig(**_FOUR_SLOTS, max_batch_tkv_limit=limit, max_model_len=longest)
    requests = tuple(
        Request(id=str(number), prompt=Prompt.of_stream(str(number), prompt), max_tokens=output)
        for number, (prompt, output) in enumerate(sizes)
    )
    allowed = {key: frozenset(ids.split()) for key, ids in free.items()}
    return Instance(name=name, about=name, config=config, requests=requests, **allowed)


INSTANCES = (
    _instance(
        *("five requests, all free", 48, [(3, 8), (6, 7), (2, 8), (9, 6), (4, 9)]),
        aborts="0 1 2 3 4",
        early_ends="0 1 2 3 4",
    ),
    _instance(
        *("five requests, two may end early", 60, [(3, 16), (6, 14), (2, 17), (9, 12), (4, 18)]),
        early_ends="0 1",
    ),
)


LARGER = (
    _instance(
        *(
            "six requests, two may end early",
            60,
            [(3, 11), (6, 9), (2, 12), (9, 10), (4, 11), (5, 9)],
        ),
        early_ends="0 1",
    ),
    _instance(
        *("six requests, all free", 60, [(3, 11), (6, 9), (2, 12), (9, 10), (4, 11), (5, 9)]),
        aborts="0 1 2 3 4 5",
        early_ends="0 1 2 3 4 5",
    ),
)


def of_compiled(instance: Instance[SpyreConfig]) -> Row:
    """Explore with the compiled machine; its numeric rules judge every edge, the reference none."""
    model, make = spyre_model(instance), compiled_maker(instance)
    properties = Properties(properties_of(model).safety)
    bounds = Bounds(max_states=1)
    search_with_room(model, make, properties, bounds, known=Known(sample=0))  # loads compiled code
    began = process_time()
    result = search_with_room(model, make, properties, known=Known(sample=0))
    return Row(result.states, result.transitions, process_time() - began, result.bytes_per_state)


def of_reference(instance: Instance[SpyreConfig]) -> Row:
    """Explore with the reference; every rule judges every edge."""
    model, began = spyre_model(instance), process_time()
    result = explore(model, properties_of(model).all, keep_going=True)
    seconds = process_time() - began
    return Row(result.states, result.transitions, seconds, result.bytes_per_state)


def of_spin(instance: Instance[SpyreConfig]) -> Row:
    """Explore with Spin: exact states, six rules on every edge."""
    with TemporaryDirectory() as folder:
        place = Path(folder)
        spin.write_model(instance, place)
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


def on_cores(instance: Instance[SpyreConfig], cores: int, *, fingerprints: bool) -> Row:
    """Explore with the compiled machine on `cores` cores; wall time of the fastest of three."""
    model, make = spyre_model(instance), compiled_maker(instance)
    properties, rows = Properties(properties_of(model).safety), list[Row]()
    for _ in range(3):
        began = perf_counter()
        result = search_with_room(
            model, make, properties, known=Known(fingerprints, 0), cores=cores
        )
        seconds = perf_counter() - began
        rows.append(Row(result.states, result.transitions, seconds, result.bytes_per_state))
    return min(rows, key=lambda row: row.seconds)


def compare_cores(cores: int) -> int:
    """Print the table that compares one core with `cores`; returns the exit code."""
    print("| instance | states known | edges | 1 core, states/s | times | bytes a state |")
    print("| --- | --- | --- | --- | --- | --- |")
    differ = False
    for instance in (*INSTANCES[1:], *LARGER):
        for fingerprints in (False, True):
            alone, together = (
                on_cores(instance, each, fingerprints=fingerprints) for each in (1, cores)
            )
            states = f"{alone.states:,} {'by 64 bits' if fingerprints else 'exactly'}"
            print(
                f"| {instance.name} | {states} | {alone.transitions:,} "
                f"| {alone.states / alone.seconds:,.0f} | {alone.seconds / together.seconds:.2f} "
                f"| {together.bytes_per_state:,.1f} |"
            )
            differ |= (alone.states, alone.transitions) != (together.states, together.transitions)
    return int(differ)


def main() -> int:
    """Print the table; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--against", default="spin", help="spin, reference, or both with a comma")
    parser.add_argument("--cores", type=int, help="compare one core with N instead")
    parser.add_argument("--instances", type=int, help="only the first N")
    asked = parser.parse_args()
    if asked.cores is not None:
        return compare_cores(asked.cores)
    names = ["compiled", *asked.against.split(",")]
    print("| instance | explorer | states | edges | seconds | states/s | bytes a state |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    differ = False
    for instance in INSTANCES[: asked.instances]:
        rows = {name: EXPLORERS[name](instance) for name in names}
        for name, row in rows.items():
            print(
                f"| {instance.name} | {name} | {row.states:,} | {row.transitions:,} "
                f"| {row.seconds:.2f} "
                f"| {row.states / row.seconds:,.0f} | {row.bytes_per_state:,.0f} |"
            )
        differ |= len({(row.states, row.transitions) for row in rows.values()}) > 1
    return int(differ)


if __name__ == "__main__":
    sys.exit(main())
