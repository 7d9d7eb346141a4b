"""Random walks over the block manager: calls that a scheduler might make, in random order.

Each walk is a list of operations for `released_blocks.py` with what each comes to in the reference.
Beside it the walk keeps what every slot of both devices holds, and notes where that is not what the
sequence reads.
"""

from collections.abc import Callable, Iterable
from functools import partial
from random import Random
from typing import Any

from attrs import define, evolve, field

from reference.core.block_pool import new_pool
from reference.core.frozen_map import FrozenMap
from reference.vllm_v0 import block_manager, swapping
from reference.vllm_v0.block_manager import Fit
from reference.vllm_v0.memory import EngineEnds
from spec.core.blocks import BlockPool
from spec.core.requests import Prompt, Request
from spec.vllm_v0.config import VllmV0Config
from spec.vllm_v0.records import Context, Group, Pairs, Sequence, State, context_of
from spec.vllm_v0.variants import Reading

Json = dict[str, Any]
Slot = tuple[str, int, int]  # device, block, place in the block

QUEUES = ("waiting", "running", "swapped")
ENDS = {
    "no free blocks": "NoFreeBlocksError",
    "a block of the CPU is marked as used on the GPU": "KeyError",
    "a forked sequence leaves before it was scheduled": "AssertionError",
}


def random_config(draw: Random, reading: Reading) -> VllmV0Config:
    """A few blocks on either device."""
    return VllmV0Config(
        block_size=draw.choice((1, 2, 3, 4)),
        num_blocks=draw.randint(6, 20),
        num_cpu_blocks=draw.choice((0, 4, 12, 24)),
        watermark_blocks=draw.choice((0, 0, 1, 2)),
        prefix_caching=draw.random() < 0.6,
        num_lookahead_slots=draw.choice((0, 0, 2, 5)),
        max_model_len=64,
        reading=reading,
    )


def random_requests(draw: Random, config: VllmV0Config) -> list[Request]:
    """Prompts that share beginnings, or go on where another request's answer ends.

    Without caching some are read by an encoder; several sequences only without lookahead slots.
    """
    requests: list[Request] = []
    for number in range(25):
        prompt = Prompt.of_stream(draw.choice("pq"), draw.randint(1, 5 * config.block_size))
        if requests and draw.random() < 0.5:
            prompt = with_answer(requests[-1], draw.randint(1, config.block_size + 1))
        asked = Request(
            id=str(number),
            prompt=prompt,
            max_tokens=draw.randint(2, 12),
            n=1 if config.num_lookahead_slots else draw.choice((1, 1, 2, 3)),
            lora=int(draw.random() < 0.1),
            encoder_len=0 if config.prefix_caching else draw.choice((0, 0, 5)),
        )
        requests.append(asked)
    return requests


def with_answer(earlier: Request, count: int) -> Prompt:
    """The prompt of an earlier request and so many tokens of its answer."""
    answer = [earlier.output_token(index) for index in range(count)]
    return Prompt.of_tokens([*earlier.prompt.tokens(), *answer])


@define
class Walk:
    """A walk under way: each action that is possible does one or more operations.

    `lookahead`: slots beyond known tokens, in some operations. `scheduled`: tokens of the groups in
    the step under way; `ahead`: their lookahead slots; `hits`: tokens that they need not compute.
    `clock`: how recently a group is used that is scheduled now. `contents`: what slots hold.
    `faults`: what was read from a slot and is not the sequence's.
    """

    ctx: Context
    draw: Random
    lookahead: int
    state: State
    arrivals: list[str]
    clock: int = 1
    scheduled: dict[str, int] = field(factory=dict)
    ahead: dict[str, int] = field(factory=dict)
    hits: dict[str, int] = field(factory=dict)
    operations: list[list[Any]] = field(factory=list)
    expected: list[Json] = field(factory=list)
    contents: dict[Slot, int] = field(factory=dict)
    faults: list[str] = field(factory=list)

    @classmethod
    def of(cls, seed: int, actions: int, reading: Reading = Reading.RELEASED) -> "Walk":
        """So many actions, unless the engine ends before."""
        draw = Random(seed)
        config = random_config(draw, reading)
        ctx = context_of(config, random_requests(draw, config))
        state = State(
            pool=new_pool(config.pool_blocks),
            cpu=new_pool(config.num_cpu_blocks),
            marks=FrozenMap(),
        )
        walk = cls(ctx, draw, config.num_lookahead_slots, state, list(ctx.requests))
        walk.go(actions)
        return walk

    def go(self, actions: int) -> None:
        rare = (self.arrive, self.swap_out, self.recompute, self.abort, self.look_up)
        often = (self.admit, self.end_step, self.swap_in, self.grow)
        for _ in range(actions):
            try:
                self.draw.choice((*rare, *often, *often, self.grow))()
            except EngineEnds as end:
                self.expected.append({"error": ENDS[end.reason]})
                return

    # --- what is noted ---

    def asked(self, answer: Any, name: str, *arguments: Any) -> Any:
        """An operation that changes nothing, and its answer."""
        self.operations.append([name, *arguments])
        self.expected.append({"answer": answer, **blocks(self.state)})
        return answer

    def did(self, effect: Callable[[], Pairs | None], name: str, *arguments: Any) -> None:
        """An operation that changes the state, and the blocks that it copies."""
        self.operations.append([name, *arguments])
        answer = effect()
        self.expected.append({"answer": answer, **blocks(self.state)})

    # --- queues ---

    def some(self, groups: Iterable[Group]) -> Group | None:
        """One of them, if there is any."""
        listed = list(groups)
        return self.draw.choice(listed) if listed else None

    def now(self, group: Group) -> Group:
        """The group as it is now."""
        return next(row for row in self.state.present if row.id == group.id)

    def idle(self) -> Iterable[Group]:
        """Running groups that the step under way has not scheduled."""
        return (group for group in self.state.running if group.id not in self.scheduled)

    def put(self, state: State, group: Group, queue: str) -> None:
        """The state with the group in this queue only, or in none if it has finished."""
        for name in QUEUES:
            present = [row for row in getattr(state, name) if row.id != group.id]
            joined = [group] if name == queue and group.unfinished else []
            state = evolve(state, **{name: (*present, *joined)})  # type: ignore[arg-type]
        self.state = state

    # --- what a scheduler does ---

    def arrive(self) -> None:
        if not self.arrivals:
            return
        request = self.ctx.requests[self.arrivals.pop()]
        group = Group(request.id, request.prompt_len, (Sequence(request.id),))
        asked = (list(request.prompt.tokens()), request.encoder_len, request.lora)
        self.did(lambda: self.put(self.state, group, "waiting"), "arrive", request.id, *asked)

    def look_up(self) -> None:
        group = self.some((*self.state.waiting, *self.state.running))
        if group is not None:
            found = block_manager.cached_tokens(self.ctx, self.state, group)
            self.asked(found, "cached_tokens", group.id)

    def admit(self) -> None:
        group = self.some(self.state.waiting)
        if group is None:
            return
        lookahead = self.draw.choice((0, 0, self.lookahead))
        fit = block_manager.can_allocate(self.ctx, self.state, group, lookahead)
        if self.asked(fit, "can_allocate", group.id, lookahead) is not Fit.NOW:
            return
        found = block_manager.cached_tokens(self.ctx, self.state, group)
        self.asked(found, "cached_tokens", group.id)

        def effect() -> None:
            self.put(*block_manager.allocate(self.ctx, self.state, group), "running")

        self.did(effect, "allocate", group.id)
        if lookahead:
            self.append(group, lookahead)
        self.schedule(group, lookahead, min(found, group.tokens - 1))

    def grow(self) -> None:
        group = self.some(self.idle())
        if group is None:
            return
        lookahead = self.draw.choice((0, self.lookahead))
        fits = block_manager.can_append_slots(self.ctx, self.state, group, lookahead)
        if self.asked(fits, "can_append_slots", group.id, lookahead):
            self.append(group, lookahead)
            self.schedule(group, lookahead)

    def append(self, group: Group, lookahead: int) -> None:
        def effect() -> Pairs:
            asked = self.now(group), lookahead
            state, grown, pairs = block_manager.append_slots(self.ctx, self.state, *asked)
            self.put(state, grown, "running")
            self.copy(pairs, "gpu", "gpu")
            return pairs

        self.did(effect, "append_slots", group.id, lookahead)

    def schedule(self, group: Group, lookahead: int, hits: int = 0) -> None:
        """The group computes its newest token, or a part of its prompt."""
        self.did(
            lambda: self.put(self.state, evolve(self.now(group), mark=self.clock), "running"),
            *("access", group.id, self.clock),
        )
        left = group.tokens - max(group.computed, hits)
        size = self.ctx.config.block_size if self.ctx.config.prefix_caching else 1
        cut = self.draw.randint(0, left // size) * size if self.draw.random() < 0.4 else 0
        chunk = cut or left
        self.scheduled[group.id] = group.tokens - left + chunk - group.computed
        self.ahead[group.id], self.hits[group.id] = lookahead, hits

    def swap_out(self) -> None:
        group = self.some(self.idle())
        if group is None:
            return
        fits = swapping.can_swap_out(self.ctx, self.state, group)
        if not self.asked(fits, "can_swap_out", group.id):
            return

        def effect() -> Pairs:
            state, swapped, pairs = swapping.swap_out(self.ctx, self.state, group)
            self.put(state, swapped, "swapped")
            self.copy(pairs, "gpu", "cpu")
            return pairs

        self.did(effect, "swap_out", group.id)

    def swap_in(self) -> None:
        group = self.some(self.state.swapped)
        if group is None:
            return
        fit = swapping.can_swap_in(self.ctx, self.state, group, self.lookahead)
        if self.asked(fit, "can_swap_in", group.id, self.lookahead) is not Fit.NOW:
            return

        def effect() -> Pairs:
            state, back, pairs = swapping.swap_in(self.ctx, self.state, group)
            self.put(state, back, "running")
            self.copy(pairs, "cpu", "gpu")
            return pairs

        self.did(effect, "swap_in", group.id)
        self.append(group, self.lookahead)
        self.schedule(group, self.lookahead)

    def recompute(self) -> None:
        group = self.some(group for group in self.idle() if len(group.sequences) == 1)
        if group is None or self.draw.random() < 0.3:
            return

        def effect() -> None:
            state, left = block_manager.free(self.ctx, self.state, group, group.unfinished)
            self.put(state, evolve(left, computed=0, is_prefill=True), "waiting")

        self.did(effect, "recompute", group.id)

    def abort(self) -> None:
        group = self.some((*self.state.waiting, *self.idle(), *self.state.swapped))
        if group is None:
            return
        ends_the_release = group.is_swapped or self.is_new(group)
        if self.draw.random() < (0.1 if ends_the_release else 0.5):
            self.leave(group)

    def is_new(self, group: Group) -> bool:
        """True if the group was forked and not scheduled since."""
        return len(group.sequences) > 1 and group.generated == 1

    def leave(self, group: Group) -> None:
        """The group's client goes away."""

        def effect() -> None:
            state, left = block_manager.free(self.ctx, self.state, group, group.unfinished)
            self.put(state, finished(left, left.unfinished), "")

        self.did(effect, "abort", group.id)

    def end_step(self) -> None:
        """What was scheduled is computed; groups whose tokens all are fork and sample."""

        def effect() -> None:
            self.state = block_manager.mark_computed(self.ctx, self.state, self.scheduled)

        self.did(effect, "mark_computed", list(self.scheduled))
        for request_id, tokens in self.scheduled.items():
            group = next(group for group in self.state.running if group.id == request_id)
            self.compute(group, group.computed + tokens)
            group = evolve(group, computed=group.computed + tokens)
            self.put(self.state, group, "running")
            if group.computed == group.tokens:
                self.sample(self.fork(group))
        self.scheduled.clear()
        self.clock += 1

    def fork(self, group: Group) -> Group:
        """The group as it samples its first token, with all its sequences."""
        n = self.ctx.requests[group.id].n
        if group.generated or n == 1:
            return group
        children = tuple(f"{group.id}/{number}" for number in range(1, n))

        def effect() -> None:
            self.put(*block_manager.fork(self.ctx, self.state, group, children), "running")

        self.did(effect, "fork", group.id, children)
        return self.now(group)

    def sample(self, group: Group) -> None:
        """Each unfinished sequence gets as many tokens; one or all of them may end."""
        left = self.ctx.requests[group.id].end - group.generated
        most = 1 if group.is_prefill else 1 + self.ahead[group.id]
        count = min(self.draw.randint(1, most), left)
        for sequence in group.unfinished:
            request = self.ctx.sequences[sequence.id]
            tokens = [request.output_token(sequence.generated + index) for index in range(count)]
            group = replaced(group, evolve(sequence, generated=sequence.generated + count))
            grown = evolve(group, is_prefill=False)
            self.did(partial(self.put, self.state, grown, "running"), "sample", sequence.id, tokens)
        self.compute(group, group.tokens - 1)
        group = evolve(group, is_prefill=False, computed=group.tokens - 1)
        self.put(self.state, group, "running")
        if count == left:
            self.finish(group, group.unfinished)
        elif len(group.unfinished) > 1 and self.draw.random() < (
            0.02 if self.is_new(group) else 0.1
        ):
            self.finish(group, group.unfinished[-1:])

    def finish(self, group: Group, over: tuple[Sequence, ...]) -> None:
        """These sequences have all their tokens."""

        def effect() -> None:
            state, left = self.state, finished(group, over)
            if not left.unfinished:
                state, left = block_manager.free_cross(self.ctx, state, left)
            self.put(*block_manager.free_tables(self.ctx, state, left, over), "running")

        self.did(effect, "finish", group.id, [sequence.id for sequence in over])

    # --- what slots hold ---

    def compute(self, group: Group, end: int) -> None:
        """Tokens up to `end` are in the cache: those not there yet are written, all are read."""
        size, first = self.ctx.config.block_size, max(group.computed, self.hits[group.id])
        for sequence in group.unfinished:
            values = self.values(sequence.id, end)
            slots: list[Slot] = [
                ("gpu", sequence.blocks[place // size], place % size) for place in range(end)
            ]
            self.contents |= dict(zip(slots[first:], values[first:], strict=True))
            wrong = [
                place for place in range(end) if self.contents.get(slots[place]) != values[place]
            ]
            self.faults += [f"{sequence.id} reads at {place} another's token" for place in wrong]

    def values(self, sequence_id: str, count: int) -> list[int]:
        """What the slots of a sequence's first tokens are to hold: they and all before them."""
        request = self.ctx.sequences[sequence_id]
        outputs = (request.output_token(index) for index in range(count - request.prompt_len))
        value, values = hash(request.lora), []
        for token in (*request.prompt.tokens(), *outputs):
            value = hash((value, token))
            values.append(value)
        return values[:count]

    def copy(self, pairs: Pairs, source: str, target: str) -> None:
        """Blocks are copied, one after the other."""
        for origin, copied in pairs:
            for place in range(self.ctx.config.block_size):
                held = self.contents.get((source, origin, place), 0)
                self.contents[target, copied, place] = held


def replaced(group: Group, sequence: Sequence) -> Group:
    """The group with another state of one of its sequences."""
    sequences = (sequence if other.id == sequence.id else other for other in group.sequences)
    return evolve(group, sequences=tuple(sequences))


def finished(group: Group, over: Iterable[Sequence]) -> Group:
    """The group after these of its sequences have ended."""
    for sequence in over:
        group = replaced(group, evolve(sequence, is_finished=True))
    return group


def blocks(state: State) -> Json:
    """Tables and pools, as `released_blocks.py` has them."""
    held = [sequence for group in state.present for sequence in group.sequences if sequence.blocks]
    return {
        "tables": {sequence.id: list(sequence.blocks) for sequence in held},
        "slots": {sequence.id: sequence.slots for sequence in held},
        "cross": {group.id: list(group.cross) for group in state.present if group.cross},
        "computed": sorted(state.computed),
        "gpu": pool(state.pool),
        "cpu": pool(state.cpu),
    }


def pool(device: BlockPool) -> Json:
    """Free blocks in order, holders, and blocks with contents."""
    references = {str(block): count for block, count in device.references.items()}
    return {"free": list(device.free), "references": references, "known": sorted(device.keys)}
