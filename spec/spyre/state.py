"""The state of a Spyre scheduler between two steps: requests in their phases, and the pool.

Rules judge these records from any origin: the reference, the engine, a trace read
from a file, a driver of a released scheduler. All are immutable, hashable and comparable.
"""

from collections import abc
from collections.abc import Callable, Set
from operator import attrgetter
from typing import Any

from attrs import fields, frozen

from spec.core.blocks import BlockPool
from spec.core.records import IDLE, PREFILL
from spec.spyre.config import SpyreConfig
from spec.spyre.queue import chosen_from
from spec.spyre.variants import Queue

PADDING_BLOCK = 0  # the dummy block: padding is read from it, redirected writes go to it


@frozen
class Sequence:
    """A request inside the scheduler; lengths in tokens.

    `computed`: tokens whose keys and values are in the cache, those of reused blocks included.
    `generated`: tokens sampled so far. `prefill_len`: tokens that its prefill covers (the
    prompt; after a preemption also what it had generated). `left_padding`: of its last decode
    step. `blocks`: its block table without padding. `reserved`: blocks promised to it and not
    yet handed out. `hit_blocks`: cached blocks found when it was admitted. `waited_steps`:
    steps since it was paused in which others decoded or were paused, too.
    """

    id: str
    prefill_len: int
    computed: int = 0
    generated: int = 0
    left_padding: int = 0
    blocks: tuple[int, ...] = ()
    reserved: int = 0
    hit_blocks: int = 0
    waited_steps: int = 0

    @property
    def tkv(self) -> int:
        """Padded position up to which its cache is populated (spyre, "Key concepts")."""
        return self.left_padding + self.computed


@frozen(kw_only=True)
class Past:
    """What a scheduler remembers of its last steps, for the rules that look at it.

    `last_kind` and `last_tkv`: kind and tkv (tokens) of the step before, the latter only where an
    admission condition looks at it.
    """

    last_kind: str = IDLE
    last_tkv: int = 0


_REMEMBERED = tuple(key.name for key in fields(Past))
_as_tuple: Callable[[Past], tuple[Any, ...]] = attrgetter(*_REMEMBERED)


def remembered(past: Past) -> dict[str, Any]:
    """What is remembered, by the names of a state's fields."""
    return dict(zip(_REMEMBERED, _as_tuple(past), strict=True))


def is_remembered_alike(past: Past, other: Past) -> bool:
    """True if two states remember the same of earlier steps."""
    return _as_tuple(past) == _as_tuple(other)


def past_after(config: SpyreConfig, kind: str, tkv: int) -> Past:
    """What is remembered after a step of this kind and tkv."""
    return Past(last_kind=kind, last_tkv=tkv if config.variant.uses_last_tkv else 0)


def line_length(config: SpyreConfig, cohort: int, waiting: int) -> int:
    """How many at the head of the queue the next one is chosen from by width, of all `waiting`."""
    if config.queue is not Queue.ALIGNED:
        return waiting
    return int(chosen_from(cohort, waiting, config.max_overtakes))


def cohort_after_admission(config: SpyreConfig, cohort: int, waiting: int) -> int:
    """How many are left of the cohort when one of it was admitted; 0 where the queue has none."""
    return line_length(config, cohort, waiting) - 1 if config.queue is Queue.ALIGNED else 0


def must_interleave(config: SpyreConfig, past: Past, *, decodes: bool) -> bool:
    """True if no prefill may come next, whether requests decode or not being given.

    Source: spyre, "Priority rules, Prefill-decode interleaving".
    """
    return config.interleave and past.last_kind == PREFILL and decodes


@frozen
class State(Past):
    """A scheduler at rest. A request is in exactly one of the places, from arrival on.

    `waiting` in queue order; `decoding` in batch order; `paused` in the order of pausing;
    `finished` and `aborted` have left. `compiling`: their grammars are not ready. `unencoded`: the
    encoder has not been given their images, `encoding`: it has not encoded them yet. `untold`: of
    those that left as their images failed, those whose clients were not told. `behind`:
    those at the end of the queue that came with a grammar since the last step, so that others that
    come stand before them; 0 but in 2.6.3. `orphaned`: blocks that stay set aside for requests
    whose clients left; 0 but in 2.6.3. `cohort`: with `queue = aligned`, how many at the head of
    the queue are left of those that are all admitted before any other; 0 between two cohorts.
    """

    pool: BlockPool
    waiting: abc.Sequence[Sequence] = ()
    prefilling: Sequence | None = None
    decoding: tuple[Sequence, ...] = ()
    paused: tuple[Sequence, ...] = ()
    finished: Set[str] = frozenset()
    aborted: Set[str] = frozenset()
    compiling: frozenset[str] = frozenset()
    unencoded: frozenset[str] = frozenset()
    encoding: frozenset[str] = frozenset()
    untold: frozenset[str] = frozenset()
    behind: int = 0
    orphaned: int = 0
    last_kind: str = IDLE
    last_tkv: int = 0
    cohort: int = 0

    @property
    def admitted(self) -> tuple[Sequence, ...]:
        """Every request that was admitted and has not left."""
        own = () if self.prefilling is None else (self.prefilling,)
        return (*own, *self.decoding, *self.paused)

    @property
    def without_images(self) -> frozenset[str]:
        """The requests whose images are not encoded."""
        return self.unencoded | self.encoding if self.unencoded or self.encoding else frozenset()

    @property
    def present(self) -> tuple[Sequence, ...]:
        """Every request that has arrived and has not left."""
        return (*self.waiting, *self.admitted)

    @property
    def running(self) -> tuple[Sequence, ...]:
        """The running queue: a prefill goes before the batch when it ran last, else behind."""
        if self.prefilling is None:
            return self.decoding
        if self.last_kind == PREFILL:
            return (self.prefilling, *self.decoding)
        return (*self.decoding, self.prefilling)

    @property
    def is_idle(self) -> bool:
        """True if no request is pending."""
        return not self.waiting and not self.admitted
