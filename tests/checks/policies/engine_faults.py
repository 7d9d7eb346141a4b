"""Planted faults of engines, and the search for them.

They are the slips that an engine is prone to: a formula one off, a list in the wrong order, and
what is kept from an earlier step although it no longer holds.
"""

from collections.abc import Callable
from typing import Any

import pytest
from attrs import frozen

from checks.harness.system import System
from tests.checks.faults.patches import Wrong
from tests.checks.faults.planting import Planted, name_and_sentence
from tests.checks.harness.cases import Hunt, hunt


@frozen
class EngineFault(Planted):
    """A wrong version of a part of the engine, and what it is about."""

    area: str


class EngineFaults(list[EngineFault]):
    """The planted faults of one engine."""

    def fault(self, area: str, place: Any, attribute: str) -> Callable[..., Wrong]:
        """Decorator for a wrong function; or to be called with one and a text."""

        def register(wrong: Wrong, text: str = "") -> Wrong:
            name, sentence = name_and_sentence(wrong, text)
            self.append(EngineFault(name, sentence, place, attribute, wrong, area))
            return wrong

        return register


def hunt_fault(engine: System, fault: EngineFault, episodes: int) -> Hunt:
    """Search for the fault of this engine in at most `episodes` episodes."""
    with pytest.MonkeyPatch.context() as patch:
        fault.plant(patch)
        return hunt(engine, episodes, name=f"{fault.area}: {fault.name}")
