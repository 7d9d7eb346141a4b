"""Words of the claims about the machine as a whole: requests, situations, settings, steps.

The machine is the Spyre scheduler without prefix caching, with enough blocks and without pausing,
first come first served. What a step is, is not said here: a `Machine` takes a situation, made of
numbers or of solver terms, to the next. `checks.proofs.spyre.symbolic` has the one that the
obligations speak of; a test hands in wrong ones.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from attrs import frozen

from spec.core.arithmetic import Number, Truth, every, select
from spec.spyre.admission import (
    Member,
    documented_volume_holds,
    exact_volume_holds,
    model_length_holds,
    shipped_volume_holds,
)

# --- what a machine is --------------------------------------------------------------------------

ABSENT, WAITING, PREFILLING, DECODING, GONE = range(5)  # phases of a request, in this order
NEVER = 10**9  # a step that no run reaches


def count(conditions: Sequence[Truth]) -> Number:
    """How many of the conditions hold."""
    return sum(select(condition, 1, 0) for condition in conditions)


@frozen
class Client:
    """What a client asks for and when it comes and goes; lengths in tokens.

    It samples the end of sequence as token `output_len`, arrives before step `arrival` and goes
    away before step `abort_at`.
    """

    prompt_len: Number
    max_tokens: Number
    output_len: Number
    arrival: Number
    abort_at: Number = NEVER


@frozen
class Place:
    """Where a request is, and its tokens computed and generated; none unless it was admitted."""

    phase: Number
    computed: Number
    generated: Number


@frozen
class Situation:
    """A scheduler at rest: the place of every client, in order of arrival.

    `prefilled`: the step before was a prefill. `last_tkv`: what that step returned, in tokens.
    """

    places: tuple[Place, ...]
    prefilled: Truth
    last_tkv: Number

    def are(self, phase: int) -> list[Truth]:
        """Of every request, whether it is in this phase."""
        return [place.phase == phase for place in self.places]


def nobody_yet(clients: Sequence[Client]) -> Situation:
    """The situation before anybody has arrived."""
    return Situation(tuple(Place(ABSENT, 0, 0) for _ in clients), prefilled=False, last_tkv=0)


Rule = Callable[["Setting", Sequence[Member], Member, Number], Truth]


@frozen
class Setting:
    """The configuration, as far as the machine looks at it; lengths in tokens.

    `rule`: may the candidate join the batch, given what the step before returned as tkv? It is
    asked with one row per other request, outsiders for those that are not decoding.
    `judged_first`: the last-chunk conditions are judged once, before the first chunk, as 2.6.3
    does with interleaving off.
    """

    block_size: int
    chunk_size: int
    interleave: Truth
    limit: Number
    max_num_seqs: Number
    max_model_len: Number
    rule: Rule
    judged_first: bool = False


@frozen
class Move:
    """One step: where it led, what it was, its tkv and volume in tokens; idle if neither kind."""

    after: Situation
    is_prefill: Truth
    is_decode: Truth
    tkv: Number
    volume: Number


class Between(Protocol):
    """What happens before step `index`: arrivals, then aborts."""

    def __call__(self, clients: Sequence[Client], situation: Situation, index: Number) -> Situation:
        """The situation that the step finds."""


class Stepping(Protocol):
    """What the scheduler does."""

    def __call__(self, setting: Setting, clients: Sequence[Client], situation: Situation) -> Move:
        """One scheduler step."""


@frozen
class Machine:
    """A scheduler on numbers or terms, and its environment."""

    between: Between
    step: Stepping


# --- admission rules ----------------------------------------------------------------------------


def exact(setting: Setting, batch: Sequence[Member], candidate: Member, _last_tkv: Number) -> Truth:
    """The rule `exact`."""
    return exact_volume_holds(batch, candidate, setting.limit, setting.block_size)


def documented(
    setting: Setting, batch: Sequence[Member], candidate: Member, _last_tkv: Number
) -> Truth:
    """The rule `documented`, both of its conditions."""
    size = setting.block_size
    return every(
        [
            model_length_holds(batch, candidate, setting.max_model_len, size),
            documented_volume_holds(batch, candidate, setting.limit, size),
        ]
    )


def shipped(
    setting: Setting, batch: Sequence[Member], candidate: Member, last_tkv: Number
) -> Truth:
    """The rule `shipped`."""
    return shipped_volume_holds(batch, candidate, setting.limit, setting.block_size, last_tkv)


def outsider(candidate: Member, setting: Setting) -> Member:
    """A member that changes no admission: as long as the candidate, gone since long ago.

    It stands for a row that is not in the batch, where a list needs a fixed number of rows. No
    tkv exceeds the model length by a block, and no rule adds more than three.
    """
    return Member(candidate.length, -(setting.max_model_len + 4 * setting.block_size))
