"""The variants of a Spyre configuration, where the text and the release differ.

A variant that has no entry in its table cannot run: a configuration that names it is refused.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum

from attrs import frozen

from spec.core.arithmetic import Number, Truth
from spec.spyre.admission import (
    Member,
    documented_volume_holds,
    exact_volume_holds,
    model_length_holds,
    shipped_volume_holds,
)


class Admission(StrEnum):
    """Which rule decides whether a request may join the decode batch, see `ADMISSIONS`.

    `exact`: ours. `documented`: the text, literally. `shipped`: sendnn-inference 2.6.3.
    """

    EXACT = "exact"
    DOCUMENTED = "documented"
    SHIPPED = "shipped"


@frozen(kw_only=True)
class Joining:
    """A request about to join the decode batch, the batch, and its limits; all in tokens.

    `decoding`: the batch without it, in any order. `candidate`: the request. `limit`: of the
    volume. `last_tkv`: what the step before returned.
    """

    decoding: Sequence[Member]
    candidate: Member
    limit: Number
    max_model_len: Number
    block_size: Number
    last_tkv: Number = 0


@frozen
class Condition:
    """A condition of joining the decode batch: the rule that refuses where it does not hold."""

    rule: str
    holds: Callable[[Joining], Truth]


@frozen(kw_only=True)
class AdmissionVariant:
    """What one `admission` means.

    `conditions`: what must hold for a request to join, in the order in which they are judged.
    `keeps_limit`: with them no future decode step exceeds the volume limit. `uses_last_tkv`: one of
    them looks at the tkv of the step before. `judged_once`: without interleaving they are judged
    before the first chunk and not again, since the chunks of a prompt then run back to back; the
    limit is then not kept, for the tkv of a prefill step is taken for that of the batch. `pauses`:
    decode steps leave requests out to keep the limit, even with pausing switched off.
    """

    conditions: tuple[Condition, ...]
    keeps_limit: bool
    uses_last_tkv: bool = False
    judged_once: bool = False
    pauses: bool = False

    def is_judged_first(self, *, interleave: bool) -> bool:
        """True if a prompt is judged before its first chunk, and not before its last."""
        return self.judged_once and not interleave

    def refusal(self, joining: Joining) -> str | None:
        """The rule of the first condition that does not hold, or None."""
        for condition in self.conditions:
            if not condition.holds(joining):
                return condition.rule
        return None


def _exact_volume(joining: Joining) -> Truth:
    return exact_volume_holds(
        joining.decoding, joining.candidate, joining.limit, joining.block_size
    )


def _documented_volume(joining: Joining) -> Truth:
    return documented_volume_holds(
        joining.decoding, joining.candidate, joining.limit, joining.block_size
    )


def _shipped_volume(joining: Joining) -> Truth:
    return shipped_volume_holds(
        joining.decoding, joining.candidate, joining.limit, joining.block_size, joining.last_tkv
    )


def _model_length(joining: Joining) -> Truth:
    return model_length_holds(
        joining.decoding, joining.candidate, joining.max_model_len, joining.block_size
    )


ADMISSIONS: Mapping[Admission, AdmissionVariant] = {
    Admission.EXACT: AdmissionVariant(
        conditions=(Condition("SPY-VOL-4", _exact_volume),),
        keeps_limit=True,
    ),
    Admission.DOCUMENTED: AdmissionVariant(
        conditions=(
            Condition("SPY-LEN-2", _model_length),
            Condition("SPY-VOL-2", _documented_volume),
        ),
        keeps_limit=False,
    ),
    Admission.SHIPPED: AdmissionVariant(
        conditions=(Condition("SPY-VOL-3", _shipped_volume),),
        keeps_limit=True,
        uses_last_tkv=True,
        judged_once=True,
        pauses=True,
    ),
}


class Reading(StrEnum):
    """How admitted requests are accounted for where text and release differ, see `READINGS`.

    `text`: as the plugin's page and this chapter have it. `released`: sendnn-inference 2.6.3.
    """

    TEXT = "text"
    RELEASED = "released"


@frozen
class Account:
    """What a reading says.

    `keeps_promises`: blocks set aside for a request stay so if its client leaves between two steps.
    `counts_hits`: cached blocks count as computed though their chunk is computed again, so that
    after it more tokens count as computed than are. `rounds_pool`: where no number of blocks is
    configured, they are as many as `released_pool_blocks` says. `nets_pauses`: of its statistics a
    step counts by how many more, or fewer, requests are paused, so that one that is paused and one
    that decodes again cancel out. `holds_for_grammars`: the request that is to be prefilled next
    holds all others up while its grammar is not ready, and stands in front from then on; a newcomer
    with a grammar stands behind those that come before the same step. `stops_at_images`: a request
    whose worst case lacks blocks ends the search for one that may be prefilled, though it may not
    be prefilled itself, as its images are not encoded. `tells_failures`: the client of a request
    whose images cannot be encoded is told that it has ended.
    """

    keeps_promises: bool
    counts_hits: bool
    rounds_pool: bool
    nets_pauses: bool
    holds_for_grammars: bool
    stops_at_images: bool
    tells_failures: bool


READINGS: Mapping[Reading, Account] = {
    Reading.TEXT: Account(
        keeps_promises=False,
        counts_hits=False,
        rounds_pool=False,
        nets_pauses=False,
        holds_for_grammars=False,
        stops_at_images=False,
        tells_failures=True,
    ),
    Reading.RELEASED: Account(
        keeps_promises=True,
        counts_hits=True,
        rounds_pool=True,
        nets_pauses=True,
        holds_for_grammars=True,
        stops_at_images=True,
        tells_failures=False,
    ),
}


class Queue(StrEnum):
    """Which requests are looked at for admission.

    `fcfs`: only the head of the waiting queue, as the text's priorities imply. `overtaking`:
    whichever meets the conditions first, as 2.6.3 does: a request that is refused is stepped over,
    unless it was refused for lack of blocks. `aligned`: only the request whose row ends narrowest,
    so that rows of like widths meet in the batch; of the first `max_overtakes` + 1 in the queue,
    and of the next as many once all of these were admitted. `shortest`: the same of all that wait,
    so that a wide one may starve. Both are ours: see `spec.spyre.queue`.
    """

    FCFS = "fcfs"
    OVERTAKING = "overtaking"
    SHORTEST = "shortest"
    ALIGNED = "aligned"

    def steps_over(self, refusal: str) -> bool:
        """True if the next request is looked at when this rule has refused one."""
        return self is Queue.OVERTAKING and refusal != "SPY-RES-1"

    @property
    def is_by_width(self) -> bool:
        """True if the request whose row ends narrowest is looked at."""
        return self in (Queue.SHORTEST, Queue.ALIGNED)
