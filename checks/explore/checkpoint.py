"""A stopped search, to be resumed with exactly the same counts.

No state is kept. The machine is repeatable, so a search that takes the same steps again finds the
same states, and needs to judge none of them a second time but those where a rule was broken. This
takes about two fifths of the time that the search had taken, and shows that it is the same machine.
"""

from attrs import define, fields, frozen

from checks.explore.model import Sightings
from checks.export.checkpoint import require_equal


@frozen
class Setup:
    """What must be the same in the search that resumes."""

    order: str
    keep_going: bool
    properties: tuple[str, ...]
    witnesses: tuple[str, ...]


@define
class Piece:
    """A part of a search, from a start or a resume on.

    `max_depth`: its bound. `taken`: how many states were taken from the queue.
    """

    max_depth: int | None
    taken: int = 0


@frozen(kw_only=True)
class Checkpoint:
    """Where a search stopped: the pieces that led there, and what judging has shown.

    `states`, `transitions`, `depth`: found by then. `sightings`: of witnesses. `broken`: by rule,
    the state on whose expansion its first violation was found, by number.
    """

    setup: Setup
    pieces: tuple[Piece, ...]
    states: int
    transitions: int
    depth: int
    seconds: float
    sightings: dict[str, Sightings]
    broken: dict[str, int]

    def require(self, setup: Setup) -> None:
        """Refuse another search.

        Raises:
            CheckpointError: the checkpoint was made by a search with another setup.
        """
        for key in (field.name for field in fields(Setup)):
            require_equal(f"checkpoint, {key}", getattr(self.setup, key), getattr(setup, key))
