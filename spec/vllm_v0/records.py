"""Records of the vLLM V0 scheduler: its state between two steps, and a step.

A request is a group of sequences: one until its prompt is computed, then as many as it asks for.
All classes are immutable, hashable and comparable.
"""

from collections.abc import Iterable, Mapping

from attrs import evolve, field, frozen

from spec.core import records
from spec.core.blocks import BlockPool
from spec.core.records import DECODE, IDLE, PREFILL, StepRecord
from spec.core.requests import VOCABULARY, Request
from spec.vllm_v0.block_keys import PrefixKeys
from spec.vllm_v0.config import VllmV0Config


@frozen
class Sequence:
    """One of the sequences of a group; lengths in tokens.

    `id`: the request's for the first, for those forked from it see `sequence_names`. `generated`:
    tokens sampled. `slots`: tokens that have a slot in the block table. `blocks`: the table, on the
    CPU while the group is swapped out. `is_finished`: it has all its tokens and no blocks any more.
    """

    id: str
    generated: int = 0
    slots: int = 0
    blocks: tuple[int, ...] = ()
    is_finished: bool = False


@frozen
class Group:
    """A request inside the scheduler; lengths in tokens.

    `arrival`: how many arrived before it, kept only where the scheduling looks at it. `computed`:
    tokens of each unfinished sequence whose keys and values are in the cache. `is_prefill`: its
    prompt, or what it computes again after a preemption, is unfinished. `is_swapped`: its blocks
    are on the CPU. `cached`: tokens that the cache had when that was first asked for, remembered
    until its next admission; None: not asked yet. `is_forgotten`: it is swapped out and the
    release has dropped what it remembers of it. `cross`: blocks for what its encoder
    computed. `mark`: how recently it was scheduled, see `State.marks`. `waited`: time in the
    waiting queue, kept only as far as the delay looks at it.
    """

    id: str
    prompt_len: int
    sequences: tuple[Sequence, ...]
    arrival: int = 0
    computed: int = 0
    is_prefill: bool = True
    is_swapped: bool = False
    cached: int | None = None
    is_forgotten: bool = False
    cross: tuple[int, ...] = ()
    mark: int = 0
    waited: float = 0.0

    @property
    def unfinished(self) -> tuple[Sequence, ...]:
        """The sequences that sample on."""
        return tuple([sequence for sequence in self.sequences if not sequence.is_finished])

    @property
    def generated(self) -> int:
        """Tokens that the longest of its sequences has sampled."""
        return max(sequence.generated for sequence in self.sequences)

    @property
    def tokens(self) -> int:
        """Prompt and generated tokens of an unfinished sequence: they are all of one length."""
        return self.prompt_len + self.unfinished[0].generated

    @property
    def blocks(self) -> tuple[int, ...]:
        """The blocks of all its tables, those of the first sequence in front."""
        tables = (*(sequence.blocks for sequence in self.sequences), self.cross)
        return tuple(block for table in tables for block in table)


@frozen
class State:
    """A scheduler at rest. A request is in exactly one of the places, from arrival on.

    `pool` and `cpu`: the blocks of the GPU and of the CPU. `waiting`, `running`, `swapped`: in
    queue order. `finished` and `aborted` have left; of the finished `ignored` without all their
    tokens, for being too long or never fitting. `computed`: with prefix caching, the cached blocks
    whose tokens are computed. `marks`: of each block that a sequence gave back since it was last
    handed out, unless it is blank, how recently it was used: the smaller, the longer ago;
    the numbers are ranks; without a mark is longest ago. `artificial`: preemptions without a reason
    that are left. `has_prefilled`: a step with prompts has been, so that its duration is known.
    `failure`: what ended the engine, if anything did.
    """

    pool: BlockPool
    cpu: BlockPool
    waiting: tuple[Group, ...] = ()
    running: tuple[Group, ...] = ()
    swapped: tuple[Group, ...] = ()
    finished: frozenset[str] = frozenset()
    aborted: frozenset[str] = frozenset()
    ignored: frozenset[str] = frozenset()
    computed: frozenset[int] = frozenset()
    marks: Mapping[int, int] = field(kw_only=True)
    artificial: int = 0
    has_prefilled: bool = False
    failure: str = ""

    @property
    def present(self) -> tuple[Group, ...]:
        """Every request that has arrived and has not left."""
        return (*self.waiting, *self.running, *self.swapped)

    @property
    def is_idle(self) -> bool:
        """True if no request is pending, or the engine has ended."""
        return not self.present or bool(self.failure)


@frozen
class Budget:
    """What a step has scheduled of what it may (vllm-v0, "Scheduling Budget").

    `batched`: uncached tokens, by request; `cached`: tokens that the cache has, by request; `seqs`:
    sequences, by request. Each request is counted once in each.
    """

    token_budget: int
    max_num_seqs: int
    batched: Mapping[str, int] = field(factory=dict)
    cached: Mapping[str, int] = field(factory=dict)
    seqs: Mapping[str, int] = field(factory=dict)


Pairs = tuple[tuple[int, int], ...]  # blocks that are copied, from and to


@frozen(kw_only=True)
class Step(StepRecord):
    """One scheduler step, with what it decided.

    `planned`: the state when the decisions were made and nothing was computed yet. `scheduled`:
    tokens of each request, cached ones included, in the order of the batch. `prefills`: those of
    them that compute a prompt. `sampling`: those that sample. `budget`: what was counted.
    `admitted`, `swapped_in`, `preempted` (to be recomputed), `swapped_out`, `ignored`: ids in the
    order of the decisions; `by_priority`: those of the victims that gave way to a more urgent one.
    `swaps_out` (from GPU to CPU), `swaps_in` (from CPU to GPU) and `copies` (on the GPU): pairs of
    blocks, done in this order before anything is computed. `lookahead_slots`: of each decoding
    sequence. `is_async`: output may be processed while the next step runs. `forked`: sequences that
    came to be in this step, each with the one that it was forked from. `outputs`: tokens by
    request, those of its sequences one after the other; `sampled`: the same by sequence.
    """

    before: State
    planned: State
    after: State
    prefills: tuple[str, ...] = ()
    sampling: tuple[str, ...] = ()
    budget: Budget
    admitted: tuple[str, ...] = ()
    swapped_in: tuple[str, ...] = ()
    preempted: tuple[str, ...] = ()
    swapped_out: tuple[str, ...] = ()
    by_priority: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    swaps_out: Pairs = ()
    swaps_in: Pairs = ()
    copies: Pairs = ()
    lookahead_slots: int = 0
    is_async: bool = False
    forked: Mapping[str, str] = field(factory=dict)
    sampled: Mapping[str, tuple[int, ...]] = field(factory=dict)

    @property
    def kind(self) -> str:
        """Prefill if any request computes a prompt."""
        if not self.scheduled:
            return IDLE
        return PREFILL if self.prefills else DECODE


@frozen
class Context(records.Context[VllmV0Config]):
    """What rules may look up.

    `sequences`: of each sequence what it samples, as a request that is served alone. `names`: of
    each request the ids of its sequences, the first one's in front. `owners`: of each sequence the
    id of its request.
    """

    sequences: Mapping[str, Request] = field(factory=dict)
    names: Mapping[str, tuple[str, ...]] = field(factory=dict)
    owners: Mapping[str, str] = field(factory=dict)


def sequence_names(requests: Iterable[Request]) -> dict[str, tuple[str, ...]]:
    """The ids of the sequences of each request, the first one's in front, which is the request's.

    Of a request "a" the others are called "a/1", "a/2", …, with more slashes where a request or
    an earlier sequence has that name: a name says nothing, it is looked up in `Context.owners`.
    """
    known = {request.id: request for request in requests}
    taken = {*known}
    names: dict[str, tuple[str, ...]] = {}
    for request in known.values():
        own = [request.id]
        for index in range(1, request.n):
            slashes = "/"
            while f"{request.id}{slashes}{index}" in taken:
                slashes += "/"
            own.append(f"{request.id}{slashes}{index}")
        taken.update(own)
        names[request.id] = tuple(own)
    return names


def sequences_of(request: Request, names: Iterable[str]) -> dict[str, Request]:
    """The sequences of a request by id, each as a request of its own; `names`: their ids.

    The first samples what the request samples. Each of the others begins with another token, and
    then samples what follows from its own tokens: so they diverge from their first token on.
    """
    _, *others = names
    siblings = {
        name: evolve(
            request,
            id=name,
            n=1,
            output=((request.output_token(0) + index) % VOCABULARY, *(request.output or ())[1:]),
            output_len=request.end,
        )
        for index, name in enumerate(others, start=1)
    }
    return {request.id: request, **siblings}


def context_of(config: VllmV0Config, requests: Iterable[Request]) -> Context:
    """What rules may look up under this configuration."""
    by_id = {request.id: request for request in requests}
    names = sequence_names(by_id.values())
    sequences: dict[str, Request] = {}
    for request in by_id.values():
        sequences |= sequences_of(request, names[request.id])
    keys = PrefixKeys(sequences, config.block_size)
    owners = {name: owner for owner, own in names.items() for name in own}
    return Context(config, by_id, keys, sequences, names, owners)
