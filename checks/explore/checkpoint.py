"""A stopped search, to be resumed with exactly the same counts.

A checkpoint holds no states. The machine is deterministic: repeating the same steps finds the same
states again, and only the states in which a rule was broken are judged a second time. Repeating
takes about two fifths of the original time, and shows that the machine has not changed.
"""

from attrs import define, fields, frozen

from checks.explore.model import Sightings
from checks.export.checkpoint import require_equal


@frozen
class Setup:
    """Settings that a resumed search must share with the stopped one."""

    order: str
    keep_going: bool
    properties: tuple[str, ...]
    witnesses: tuple[str, ...]


@define
class Piece:
    """The part of a search between a start or resume and the next stop.

    `max_depth`: its bound. `taken`: number of states taken from the queue.
    """

    max_depth: int | None
    taken: int = 0


@frozen(kw_only=True)
class Checkpoint:
    """Where a search stopped: its pieces, its counts and the results of judging.

    `states`, `transitions`, `depth`: counts at the stop. `sightings`: by rule, of its witness.
    `broken`: by rule, the index of the state whose expansion showed the first violation.
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
        """Refuse a search with other settings.

        Raises:
            CheckpointError: the checkpoint was made by a search with another setup.
        """
        for key in (field.name for field in fields(Setup)):
            require_equal(f"checkpoint, {key}", getattr(self.setup, key), getattr(setup, key))
