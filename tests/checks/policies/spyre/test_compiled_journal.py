"""A search of the compiled graph that ends at any moment goes on with the same counts."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from attrs import evolve

from checks.explore.bounds import Bounds
from checks.explore.compiled.journal import Journal
from checks.explore.compiled.search import Known, Searched, search_with_room
from checks.explore.policy import machine_of
from checks.explore.properties import Properties, properties_of
from checks.export.checkpoint import CheckpointError
from checks.policies.spyre.compiled.support import compiled_maker, unsupported
from checks.policies.spyre.model import spyre_model
from spec.spyre.state import State
from tests.refusals import refusal

BY_NAME = {
    instance.name: instance
    for instance in machine_of("spyre").instances
    if unsupported(instance) is None
}
# With prefix caching: a state may need one word more than it has at first.
NAMES = ("exact, four requests", "eviction", "documented")
ABOUT = {"instance": "any"}
HEADER = b'{"format": "lockstep-states", "version": 2, "about": {"instance": "any"}, "words": %b}\n'


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of 16 states, each kept, so that there are many moments to end at."""
    monkeypatch.setattr("checks.explore.compiled.search._BATCH_STATES", 16)
    monkeypatch.setattr("checks.explore.compiled.search._KEPT_EVERY_SECONDS", 0.0)
    monkeypatch.setattr("checks.explore.compiled.search._KEEPING_SHARE", float("inf"))


def searched(
    name: str,
    path: Path | None = None,
    bounds: Bounds | None = None,
    stop: Callable[[], bool] | None = None,
) -> Searched[State]:
    model = spyre_model(BY_NAME[name])
    make = compiled_maker(BY_NAME[name])
    properties = Properties(properties_of(model).safety)
    journal = None if path is None else Journal(path, ABOUT)
    found = search_with_room(
        model, make, properties, bounds, known=Known(sample=3), stop=stop, journal=journal
    )
    return evolve(found, seconds=0.0, bytes_per_state=0.0)


def after(batches: int) -> Callable[[], bool]:
    left = iter(range(batches))
    return lambda: next(left, None) is None


@pytest.mark.parametrize("name", NAMES)
def test_what_was_stopped_again_and_again_ends_with_the_same_counts(
    name: str, tmp_path: Path
) -> None:
    path, batches = tmp_path / "saved", 1
    while (found := searched(name, path, stop=after(batches))).stopped_by is not None:
        assert found.stopped_by == "stop"
        batches += 5

    assert path.exists()
    assert found == searched(name)


def test_a_process_that_was_killed_loses_the_piece_that_it_wrote(tmp_path: Path) -> None:
    path, random = tmp_path / "saved", Random(0)
    whole = searched("exact, four requests", path)
    kept = path.read_bytes()
    header = kept.index(b"\n") + 1

    for _ in range(10):
        path.write_bytes(kept[: random.randrange(header, len(kept))])
        assert searched("exact, four requests", path) == whole
        assert path.read_bytes()[:header] == kept[:header]


def test_a_damaged_piece_and_all_behind_it_are_searched_again(tmp_path: Path) -> None:
    path = tmp_path / "saved"
    whole = searched("exact, four requests", path)
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)

    assert searched("exact, four requests", path) == whole


def test_a_piece_with_a_changed_position_is_searched_again(tmp_path: Path) -> None:
    path = tmp_path / "saved"
    whole = searched("exact, four requests", path)
    path.write_bytes(path.read_bytes().replace(b'"transitions": ', b'"transitions": 9'))

    assert searched("exact, four requests", path) == whole


def test_a_bound_can_be_moved(tmp_path: Path) -> None:
    path = tmp_path / "saved"

    bounded = searched("exact, four requests", path, Bounds(max_depth=6))
    found = searched("exact, four requests", path)

    assert (bounded.stopped_by, bounded.depth) == ("max_depth", 6)
    assert found == searched("exact, four requests")


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "line"),
        (b"\x80\x04 a pickle", "line"),
        (b"[" * 100_000 + b"\n", "line"),
        (b'{"format": "lockstep-checkpoint"}\n', "format"),
        (b'{"format": "lockstep-states", "version": 3}\n', "version"),
        (b'{"format": "lockstep-states", "version": 2.0}\n', "version"),
        (b'{"format": "lockstep-states", "version": 2, "about": {}}\n', "about.instance"),
        (HEADER % b'"x"', "words"),
        (HEADER % b"10000000000", "words"),
    ],
)
def test_other_files_are_refused(content: bytes, named: str, tmp_path: Path) -> None:
    path = tmp_path / "saved"
    path.write_bytes(content)

    assert named in refusal(CheckpointError, searched, "documented", path)
    assert path.read_bytes() == content
