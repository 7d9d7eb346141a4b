"""Spin finds as many states and edges as the explorer, in a model written from the chapter."""

import re
import shutil
from pathlib import Path
from random import Random

import pytest

from checks.chapters import EVIDENCE
from checks.evidence import EXPLORED, recorded
from checks.explore.instance import Instance
from checks.explore.policy import machine_of
from checks.explore.search import explore
from spec.core.errors import WorkloadError
from spec.core.requests import Oversized, Prompt, Request
from spec.spyre.config import SpyreConfig, refuse_unservable
from spec.spyre.variants import Admission, Queue
from tests.checks.explore.promela.spin import counted

# The rules that the model prints when they do not hold.
CHECKED = {"SPY-VOL-1", "SPY-LEN-1", "SPY-PRI-4", "SPY-PAU-6", "SPY-RES-1", "BLK-6"}
BY_ORBITS = "alike"  # the explorer counts it with requests renamed, the model has no such thing
MODELLED = (Admission.EXACT, Admission.DOCUMENTED, Admission.SHIPPED)  # in Promela
COUNTED = {
    instance.name: instance
    for instance in machine_of("spyre").instances
    if not (
        instance.config.prefix_caching
        or instance.config.queue.is_by_width
        or instance.config.admission not in MODELLED
        or instance.config.oversized is Oversized.QUEUED
        or any(request.grammar or request.has_images for request in instance.requests)
        or instance.name == BY_ORBITS
    )
}
ROW = r"\| ([^|]+) \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \|"

needs_spin = pytest.mark.skipif(
    not (shutil.which("spin") and shutil.which("gcc")), reason="needs spin (Debian: spin) and gcc"
)


@pytest.mark.thorough
@needs_spin
@pytest.mark.parametrize("instance", COUNTED.values(), ids=COUNTED)
def test_spin_counts_the_same_states_and_edges_and_finds_the_same_rules_broken(
    instance: Instance[SpyreConfig], tmp_path: Path
) -> None:
    record = recorded(EXPLORED)[instance.name]

    count = counted(instance, tmp_path)

    assert (count.states, count.transitions) == (record["states"], record["transitions"])
    assert count.broken == CHECKED & record["violations"].keys()
    assert count.is_endless == bool(instance.returning)


@pytest.mark.thorough
@needs_spin
@pytest.mark.parametrize("seed", range(24))
def test_spin_counts_the_same_in_drawn_instances(seed: int, tmp_path: Path) -> None:
    instance = drawn(Random(seed))

    count, found = counted(instance, tmp_path), explore(machine_of("spyre").model(instance), [])

    assert (count.states, count.transitions) == (found.states, found.transitions)


def drawn(rng: Random) -> Instance[SpyreConfig]:
    """Two or three requests, no two alike, under a configuration in which some limit may bind."""
    block, ids = rng.choice([1, 2, 3, 4]), [str(number) for number in range(rng.choice([2, 3]))]
    admission = rng.choice(MODELLED)
    reservation = admission is Admission.SHIPPED or rng.random() < 0.7
    config = SpyreConfig(
        block_size=block,
        chunk_size=block * rng.choice([1, 2, 3]),
        max_model_len=rng.randint(12, 16),
        max_num_seqs=rng.choice([2, 3, 3]),
        max_batch_tkv_limit=rng.randint(10, 26),
        num_blocks=rng.choice([None, 12 // block + 1]),
        interleave=rng.random() < 0.6,
        prefix_caching=False,
        admission=admission,
        queue=rng.choice([Queue.FCFS, Queue.OVERTAKING]),
        reservation=reservation,
        pausing=reservation and rng.random() < 0.3,
        long_output_first=rng.random() < 0.5,
    )
    requests = tuple(
        Request(
            id=request_id, prompt=Prompt.of_stream(request_id, length), max_tokens=rng.randint(1, 5)
        )
        for request_id, length in zip(ids, rng.sample(range(1, 8), len(ids)), strict=True)
    )
    try:
        for request in requests:
            refuse_unservable(request, config)
    except WorkloadError:
        return drawn(rng)
    return Instance(
        name="drawn",
        about="drawn",
        config=config,
        requests=requests,
        aborts=frozenset(request_id for request_id in ids if rng.random() < 0.4),
        early_ends=frozenset(request_id for request_id in ids if rng.random() < 0.6),
    )


@pytest.mark.thorough
@needs_spin
def test_a_block_of_padding_too_many_in_the_model_makes_other_counts(tmp_path: Path) -> None:
    record = recorded(EXPLORED)["exact"]

    count = counted(COUNTED["exact"], tmp_path, EXTRA_BLOCKS=1)

    assert count.states != record["states"]
    assert count.transitions != record["transitions"]


def listed() -> dict[str, tuple[int, ...]]:
    """The numbers of the chapter's table, by instance."""
    _, _, section = EVIDENCE.read_text(encoding="utf-8").partition("## Counted twice")
    rows = re.findall(ROW, section)
    return {
        name: tuple(int(number.replace(",", "")) for number in numbers) for name, *numbers in rows
    }


def test_the_chapter_lists_the_counts_on_record() -> None:
    rows, record = listed(), recorded(EXPLORED)

    counts = {name: (record[name]["states"], record[name]["transitions"]) for name in rows}
    assert rows == {name: (states,) * 2 + (edges,) * 2 for name, (states, edges) in counts.items()}
    assert len(rows) >= 28


@pytest.mark.thorough
def test_the_chapter_lists_every_instance_that_is_counted_twice() -> None:
    assert listed().keys() == COUNTED.keys()
