"""What can be seen of a scheduler between two steps: requests in their phases, and the pool.

Rules speak about these classes, whoever produced them: the reference, the engine, a trace read
from a file, a driver of a released scheduler. All are immutable, hashable and comparable.
"""

from attrs import frozen

from spec.core.blocks import BlockPool

PADDING_BLOCK = 0  # the dummy block: padding is read from it, redirected writes go to it


@frozen(cache_hash=True)
class Sequence:
    """A request inside the scheduler; lengths in tokens.

    `computed`: tokens whose keys and values are in the cache, those of reused blocks included.
    `generated`: tokens sampled so far. `prefill_len`: tokens that its prefill covers (the
    prompt; after a preemption also what it had generated). `left_padding`: of its last decode
    step. `blocks`: its block table without padding. `reserved`: blocks promised to it and not
    yet handed out. `hit_blocks`: cached blocks found when it was admitted. `waited_steps`:
    decode steps since it was paused.
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


@frozen(cache_hash=True)
class State:
    """A scheduler at rest. A request is in exactly one of the places, from arrival on.

    `waiting` in queue order; `decoding` in batch order; `paused` in the order of pausing;
    `finished` and `aborted` have left. `last_kind` and `last_tkv` are of the step before.
    """

    pool: BlockPool
    waiting: tuple[Sequence, ...] = ()
    prefilling: Sequence | None = None
    decoding: tuple[Sequence, ...] = ()
    paused: tuple[Sequence, ...] = ()
    finished: frozenset[str] = frozenset()
    aborted: frozenset[str] = frozenset()
    last_kind: str = "idle"
    last_tkv: int = 0

    @property
    def admitted(self) -> tuple[Sequence, ...]:
        """Every request that was admitted and has not left."""
        own = () if self.prefilling is None else (self.prefilling,)
        return (*own, *self.decoding, *self.paused)

    @property
    def present(self) -> tuple[Sequence, ...]:
        """Every request that has arrived and has not left."""
        return (*self.waiting, *self.admitted)

    @property
    def running(self) -> tuple[Sequence, ...]:
        """The running queue: a prefill goes before the batch when it ran last, else behind."""
        if self.prefilling is None:
            return self.decoding
        if self.last_kind == "prefill":
            return (self.prefilling, *self.decoding)
        return (*self.decoding, self.prefilling)

    @property
    def is_idle(self) -> bool:
        """True if no request is pending."""
        return not self.waiting and not self.admitted
