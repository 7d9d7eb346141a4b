"""A known difference excuses only its own effect: any other difference is a finding."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import pytest
from attrs import evolve

import tests.recorded
from checks.harness.campaigns.recording import read_recording
from checks.harness.comparison import compare
from checks.harness.finding import Episode
from checks.harness.system import Json
from tests.recorded.scenes import FILE_NAMES, SCENES

RECORDED = Path(next(iter(tests.recorded.__path__)))
ROWS_OF_STEPS = ("SND-4", "VLM-1", "VLM-2", "VLM-3", "VLZ-10")
SHOWN = [name for name, scene in SCENES.items() if scene.known in ROWS_OF_STEPS]
Change = Callable[[Json], object]


def again(scene: str, change: Change) -> Episode:
    """The recording once more, with the step changed in which the difference shows."""
    recording = read_recording(RECORDED / FILE_NAMES[scene])
    records = deepcopy([*recording.records])
    change(records[compare(recording, recording.case, recording.terms).steps])
    changed = evolve(recording, records=records)
    return compare(changed, changed.case, changed.terms)


def turned(own: Json) -> None:
    """The last two free blocks swapped."""
    free = own["blocks"].get("evictable") or own["free_list"]
    free[-2:] = reversed(free[-2:])


ALSO_WRONG: dict[str, Change] = {
    "the order of free blocks": turned,
    "a token": lambda own: own["outputs"].update(a=[3]),
    "what is scheduled": lambda own: own["scheduled"].update(a=99),
}


def test_every_difference_in_a_step_is_recorded() -> None:
    assert {SCENES[name].known for name in SHOWN} == {*ROWS_OF_STEPS}


@pytest.mark.parametrize("scene", SHOWN)
def test_the_difference_alone_is_known(scene: str) -> None:
    episode = again(scene, lambda _own: None)

    assert (episode.known, episode.finding) == (SCENES[scene].known, None)


@pytest.mark.parametrize("wrong", ALSO_WRONG)
@pytest.mark.parametrize("scene", SHOWN)
def test_with_something_else_wrong_it_is_a_finding(scene: str, wrong: str) -> None:
    episode = again(scene, ALSO_WRONG[wrong])

    assert episode.known is None
    assert episode.finding is not None
