"""The shipped sample workloads: their origin, and that they run."""

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from engine.workloads import read_workload
from spec.spyre.config import SpyreConfig
from tests.engine.workload_files import HEADER, fit

EXAMPLES = Path(__file__).parents[2] / "examples"


def scattered(row: int, most: int) -> int:
    """A number from 1 to `most` that looks random and is the same everywhere."""
    return (row * 2_654_435_761 % 2**32) * most // 2**32 + 1


def azure_sample() -> Iterator[str]:
    """Forty requests, one to four seconds apart, short answers to prompts of all lengths."""
    yield HEADER
    moment = datetime(2026, 1, 5, 9, 30, 0, 123_456)
    for row in range(40):
        lengths = f"{scattered(row + 1, 1_800)},{scattered(row + 7, 160)}"
        yield f"{moment:%Y-%m-%d %H:%M:%S.%f}0,{lengths}"
        moment += timedelta(milliseconds=1_000 + scattered(row + 3, 3_000))


def mooncake_sample() -> Iterator[str]:
    """Ten conversations of three turns; a turn shares the full blocks of the one before it."""
    talks: list[list[int]] = [[0, 0] for _ in range(10)]  # the last id is of a block in progress
    for row in range(30):
        ids = talks[row % 10]
        fresh = 1 + max(number for talk in talks for number in talk)
        ids[-1:] = range(fresh, fresh + scattered(row + 1, 2))
        length = (len(ids) - 1) * 512 + scattered(row + 5, 512)
        yield json.dumps(
            {
                "timestamp": row * 2_500,
                "input_length": length,
                "output_length": scattered(row + 11, 120),
                "hash_ids": ids,
            }
        )


def shared_prefix_sample() -> Iterator[str]:
    """Six conversations of four turns behind one system prompt; each turn repeats those before."""
    yield '{"format": "lockstep-workload", "version": 1}'
    for row in range(24):
        talk, turn = row % 6, row // 6
        parts = [["system", 128], [f"talk {talk}", 30 + 60 * turn + scattered(talk + 1, 30)]]
        yield json.dumps(
            {
                "id": f"{talk}.{turn}",
                "arrival_s": 12 * row,
                "prompt_parts": parts,
                "max_tokens": scattered(row + 2, 24),
            }
        )


SAMPLES = {
    "azure_sample.csv": (azure_sample, "\r\n"),
    "mooncake_sample.jsonl": (mooncake_sample, "\n"),
    "shared_prefix.jsonl": (shared_prefix_sample, "\n"),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_is_what_its_generator_makes(name: str) -> None:
    generator, line_end = SAMPLES[name]

    assert (EXAMPLES / name).read_bytes().decode() == "".join(
        f"{line}{line_end}" for line in generator()
    )


@pytest.mark.parametrize(
    ("name", "format_", "requests"),
    [
        ("first.jsonl", "lockstep", 7),
        ("shared_prefix.jsonl", "lockstep", 24),
        ("azure_sample.csv", "azure", 40),
        ("mooncake_sample.jsonl", "mooncake", 30),
    ],
)
def test_a_sample_can_be_served_whole(name: str, format_: str, requests: int) -> None:
    workload = read_workload(EXAMPLES / name)

    servable, refused = fit(workload, SpyreConfig())

    assert (workload.format, len(servable), refused) == (format_, requests, [])
