"""Work on all cores: ordered outcomes, no idle core, workers prepared before the first item."""

import os
import time
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from checks.cores import on_all_cores

MANY = 12  # items, more than are begun ahead
PATIENCE_S = 60.0  # for what is sure to come, unless the first item holds up the others


@pytest.fixture(autouse=True)
def _two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)


def first_waits_for_last(directory: Path, item: int) -> int:
    """The first item takes as long as all others together."""
    last, until = directory / str(MANY - 1), time.monotonic() + PATIENCE_S
    if item:
        (directory / str(item)).touch()
    while not item and not last.exists():
        assert time.monotonic() < until, "the others wait for the first"
        time.sleep(0.001)
    return item


def test_a_long_item_keeps_its_core_only_and_outcomes_come_in_order(tmp_path: Path) -> None:
    work = partial(first_waits_for_last, tmp_path)
    assert list(on_all_cores(work, iter(range(MANY)))) == list(range(MANY))


def test_items_without_end_are_taken_as_they_are_needed() -> None:
    outcomes = on_all_cores(abs, count())
    assert [next(outcomes) for _ in range(3)] == [0, 1, 2]
    outcomes.close()  # type: ignore[attr-defined]


def prepared(directory: Path) -> None:
    """Leaves a file."""
    (directory / f"{time.monotonic_ns()}").touch()


@pytest.mark.parametrize("cores", [1, 2])
def test_all_is_prepared_before_the_first_item_is_taken(
    cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    found = []

    def items() -> Iterator[int]:
        found.append(len(list(tmp_path.iterdir())))
        yield 0

    assert list(on_all_cores(abs, items(), partial(prepared, tmp_path))) == [0]
    assert found == [cores]


def refused() -> None:
    """Cannot be prepared."""
    raise ValueError("not installed")


def test_what_preparing_raises_is_raised_before_an_item_is_taken() -> None:
    items = count()
    with pytest.raises(ValueError, match="not installed"):
        next(on_all_cores(abs, items, refused))
    assert next(items) == 0
