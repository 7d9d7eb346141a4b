"""The block manager of vLLM V0: by example, on random walks, and beside that of the release."""

import json
from collections import Counter
from pathlib import Path
from subprocess import run
from typing import Any

import pytest
from attrs import define, evolve, field

from checks.releases.environments import environment_of
from checks.releases.recipes import recipe_of
from reference.core.block_pool import new_pool
from reference.core.frozen_map import FrozenMap
from reference.vllm_v0 import block_manager, swapping
from reference.vllm_v0.memory import EngineEnds
from spec.core.errors import WorkloadError
from spec.core.requests import Prompt, Request
from spec.vllm_v0.config import VllmV0Config, refuse_unservable
from spec.vllm_v0.records import Context, Group, Pairs, Sequence, State, context_of
from spec.vllm_v0.variants import CHOICES, Reading
from tests.reference.vllm_v0.block_walks import Walk, replaced, with_answer

RELEASED, REPAIRED = Reading.RELEASED, Reading.REPAIRED
BOTH = pytest.mark.parametrize("reading", [RELEASED, REPAIRED])
CACHED: dict[str, Any] = {"prefix_caching": True}


@define
class Blocks:
    """Groups that hold blocks, with nothing that schedules them."""

    ctx: Context
    state: State
    groups: dict[str, Group] = field(factory=dict)

    @classmethod
    def of(cls, *requests: Request, **config: Any) -> "Blocks":
        """All blocks are free; blocks of four tokens, eight of them on each device."""
        small: dict[str, Any] = {
            "block_size": 4,
            "num_blocks": 8,
            "num_cpu_blocks": 8,
            "reading": REPAIRED,
        }
        ctx = context_of(VllmV0Config(**(small | config)), requests)
        pools = new_pool(ctx.config.pool_blocks), new_pool(ctx.config.num_cpu_blocks)
        waiting = {
            request.id: Group(request.id, request.prompt_len, (Sequence(request.id),))
            for request in requests
        }
        return cls(ctx, State(*pools, marks=FrozenMap()), waiting)

    def __getitem__(self, sequence_id: str) -> tuple[int, ...]:
        """The table of a sequence."""
        group = self.groups[self.ctx.owners[sequence_id]]
        return next(sequence.blocks for sequence in group.sequences if sequence.id == sequence_id)

    def admit(self, *names: str, computed: int | None = None) -> None:
        """These get their blocks, and compute so many tokens of their prompts or all."""
        for name in names:
            self.state, group = block_manager.allocate(self.ctx, self.state, self.groups[name])
            self.keep(group)
        self.compute(*names, end=computed)

    def compute(self, *names: str, end: int | None = None) -> None:
        """The step is over in which these compute their tokens up to `end`."""
        scheduled = {}
        for name in names:
            group = self.groups[name]
            scheduled[name] = (end or group.tokens) - group.computed
        running = tuple(self.groups[name] for name in names)
        state = block_manager.mark_computed(
            self.ctx, evolve(self.state, running=running), scheduled
        )
        self.state = evolve(state, running=())
        for name in names:
            group = self.groups[name]
            done = end or group.tokens
            self.keep(evolve(group, computed=done, is_prefill=done < group.tokens))

    def sample(self, name: str, count: int = 1) -> None:
        """Each of its sequences has so many more tokens."""
        group = self.groups[name]
        for sequence in group.unfinished:
            group = replaced(group, evolve(sequence, generated=sequence.generated + count))
        self.keep(evolve(group, computed=group.tokens - 1))

    def append(self, name: str, lookahead: int = 0) -> Pairs:
        asked = self.groups[name], lookahead
        self.state, group, pairs = block_manager.append_slots(self.ctx, self.state, *asked)
        self.keep(group)
        return pairs

    def fork(self, name: str) -> None:
        """Its request's sequences come to be, each with a first token."""
        children = tuple(
            sequence_id for sequence_id in self.ctx.sequences if sequence_id.startswith(f"{name}/")
        )
        asked = self.groups[name], children
        self.state, group = block_manager.fork(self.ctx, self.state, *asked)
        self.keep(group)
        self.sample(name)

    def swap(self, name: str) -> Pairs:
        """To the other device."""
        group = self.groups[name]
        way = swapping.swap_in if group.is_swapped else swapping.swap_out
        self.state, group, pairs = way(self.ctx, self.state, group)
        self.keep(group)
        return pairs

    def leave(self, name: str, mark: int = 0) -> None:
        """It gives everything back; `mark`: how recently it was scheduled."""
        group = evolve(self.groups.pop(name), mark=mark)
        self.state, _ = block_manager.free(self.ctx, self.state, group, group.unfinished)

    def cached(self, name: str) -> int:
        return block_manager.cached_tokens(self.ctx, self.state, self.groups[name])

    def keep(self, group: Group) -> None:
        self.groups[group.id] = group


def asks(name: str, length: int, stream: str = "", **more: Any) -> Request:
    """A request with a stream of its own or a shared one."""
    return Request(id=name, prompt=Prompt.of_stream(stream or name, length), max_tokens=16, **more)


# --- admission ------------------------------------------------------------------------------------


def test_prefixes_are_not_cached_of_what_an_encoder_reads() -> None:
    """The release does not implement it."""
    with pytest.raises(WorkloadError, match="encoder_len: found 4; allowed: 0 with prefix_caching"):
        refuse_unservable(asks("a", 4, encoder_len=4), VllmV0Config(prefix_caching=True))


# --- slots ----------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(("slots", "fits"), [(50, True), (95, False)])
def test_ten_more_slots_for_50_and_for_95_of_100(reading: Reading, slots: int, fits: bool) -> None:
    """The table of "Checking if More Slots Can Be Added", with a block for each slot."""
    blocks = Blocks.of(asks("a", slots), num_blocks=100, block_size=1, reading=reading)
    blocks.admit("a")

    asked = blocks.groups["a"], 10
    assert block_manager.can_append_slots(blocks.ctx, blocks.state, *asked) is fits


@pytest.mark.parametrize(("reading", "fits"), [(RELEASED, False), (REPAIRED, True)])
def test_no_block_is_free_and_none_is_needed(reading: Reading, fits: bool) -> None:
    """The release counts the last block, though it has room."""
    blocks = Blocks.of(asks("a", 5), num_blocks=2, reading=reading)
    blocks.admit("a")
    blocks.sample("a")

    asked = blocks.groups["a"], 0
    assert block_manager.can_append_slots(blocks.ctx, blocks.state, *asked) is fits


@pytest.mark.parametrize(("writers", "fits"), [(0, True), (1, True), (2, False)])
def test_each_sequence_that_writes_to_a_shared_block_needs_a_copy(writers: int, fits: bool) -> None:
    """Three hold a block that is not full, and one is free."""
    blocks = Blocks.of(asks("a", 3, n=3), num_blocks=2)
    blocks.admit("a")
    asked = blocks.groups["a"], ("a/1", "a/2")
    blocks.state, group = block_manager.fork(blocks.ctx, blocks.state, *asked)
    for sequence in group.sequences[:writers]:
        group = replaced(group, evolve(sequence, generated=1))

    assert block_manager.can_append_slots(blocks.ctx, blocks.state, group, 0) is fits


# --- shared blocks --------------------------------------------------------------------------------


def test_a_block_is_copied_for_each_sequence_that_writes_to_it_but_the_last() -> None:
    blocks = Blocks.of(asks("a", 6, n=3))
    blocks.admit("a")
    blocks.fork("a")

    assert {blocks[name] for name in ("a", "a/1", "a/2")} == {(1, 2)}
    assert blocks.append("a") == ((2, 3), (2, 4))
    assert [blocks[name] for name in ("a", "a/1", "a/2")] == [(1, 3), (1, 4), (1, 2)]
    assert blocks.state.pool.references == {1: 3, 2: 1, 3: 1, 4: 1}


@BOTH
def test_a_full_block_gives_way_to_a_computed_one_of_the_same_content(reading: Reading) -> None:
    """A and b have the same prompt and so the same answer; a is two tokens ahead."""
    blocks = Blocks.of(asks("a", 6, "s"), asks("b", 6, "s"), reading=reading, **CACHED)
    blocks.admit("a", "b")
    for name in "aabb":
        blocks.sample(name)
        blocks.append(name)
        blocks.compute(name)

    assert (blocks["a"], blocks["b"]) == ((1, 2), (1, 2))
    assert blocks.state.pool.free[0] == 3


@pytest.mark.parametrize(("reading", "block"), [(RELEASED, 2), (REPAIRED, 4)])
def test_only_under_the_release_a_block_gives_way_to_one_not_computed_yet(
    reading: Reading, block: int
) -> None:
    """B goes on from a's answer, half done; under the release a loses what it computed itself."""
    first = asks("a", 6)
    prompts = first, Request(id="b", prompt=with_answer(first, 3), max_tokens=1)
    blocks = Blocks.of(*prompts, reading=reading, **CACHED)
    blocks.admit("b", computed=4)
    blocks.admit("a")
    assert (blocks["b"], blocks["a"]) == ((1, 2, 3), (1, 4))
    for _ in range(2):
        blocks.sample("a")
        blocks.append("a")
        blocks.compute("a")

    assert blocks["a"] == (1, block)
    assert blocks.state.pool.keys.keys() == {1, block}


# --- what counts as computed ----------------------------------------------------------------------


@pytest.mark.parametrize(("reading", "cached"), [(RELEASED, 12), (REPAIRED, 4)])
def test_a_prompt_that_leaves_half_done_is_found_as_far_as_it_was_computed(
    reading: Reading, cached: int
) -> None:
    blocks = Blocks.of(asks("a", 13, "s"), asks("b", 13, "s"), reading=reading, **CACHED)
    blocks.admit("a", computed=4)
    blocks.leave("a", mark=1)

    assert blocks.cached("b") == cached


def test_a_block_is_found_that_was_full_of_accepted_tokens_before_they_had_slots() -> None:
    """Two of two speculated tokens are right: what fills the block was computed a step ago."""
    first = asks("a", 6)
    again = Request(id="b", prompt=with_answer(first, 3), max_tokens=1)
    blocks = Blocks.of(first, again, num_lookahead_slots=2, **CACHED)
    blocks.admit("a")
    blocks.sample("a", 3)
    blocks.append("a", lookahead=2)
    blocks.compute("a")

    assert blocks.cached("b") == 8


@pytest.mark.parametrize(("reading", "cached"), [(RELEASED, 8), (REPAIRED, 0)])
def test_a_prefix_without_its_beginning_is_found_by_halving(reading: Reading, cached: int) -> None:
    """B used both blocks in step 7; a gave the first one back later, and used it in step 5.

    So it is the first to be evicted, and the one behind it is still there.
    """
    names = {"a": 4, "b": 8, "c": 8}
    prompts = [asks(name, length, "s") for name, length in names.items()]
    blocks = Blocks.of(*prompts, asks("d", 8), num_blocks=3, reading=reading, **CACHED)
    blocks.admit("a", "b")
    blocks.leave("b", mark=7)
    blocks.leave("a", mark=5)
    blocks.admit("d")

    assert blocks["d"] == (3, 1)
    assert blocks.cached("c") == cached


# --- swapping -------------------------------------------------------------------------------------


@BOTH
def test_what_two_sequences_share_is_swapped_twice_and_shared_no_more(reading: Reading) -> None:
    blocks = Blocks.of(asks("a", 6, n=2), reading=reading)
    blocks.admit("a")
    blocks.fork("a")
    blocks.append("a")
    blocks.compute("a")

    assert (blocks["a"], blocks["a/1"]) == ((1, 3), (1, 2))
    assert blocks.swap("a") == ((1, 1), (3, 2), (1, 3), (2, 4))
    assert (blocks["a"], blocks["a/1"]) == ((1, 2), (3, 4))
    assert tuple(blocks.state.pool.free) == (2, 1, 3, 4, 5, 6, 7, 8)
    assert blocks.swap("a") == ((1, 2), (2, 1), (3, 3), (4, 4))
    assert blocks.state.pool.references == {1: 1, 2: 1, 3: 1, 4: 1}
    assert not blocks.state.cpu.references


def fits_the_cpu(blocks: Blocks, name: str) -> bool:
    return swapping.can_swap_out(blocks.ctx, blocks.state, blocks.groups[name])


@pytest.mark.parametrize(
    ("cpu", "reading", "fits"), [(2, RELEASED, False), (3, RELEASED, True), (2, REPAIRED, True)]
)
def test_under_the_release_swapping_out_needs_room_for_the_next_token_too(
    cpu: int, reading: Reading, fits: bool
) -> None:
    blocks = Blocks.of(asks("a", 8), num_cpu_blocks=cpu, reading=reading)
    blocks.admit("a")
    blocks.sample("a")

    assert fits_the_cpu(blocks, "a") is fits


def test_blocks_for_lookahead_slots_are_counted_unless_the_release_is_followed() -> None:
    answers = {}
    for reading in (RELEASED, REPAIRED):
        blocks = Blocks.of(asks("a", 4), num_cpu_blocks=2, num_lookahead_slots=8, reading=reading)
        blocks.admit("a")
        blocks.sample("a")
        blocks.append("a", 8)
        answers[reading] = fits_the_cpu(blocks, "a")
        with pytest.raises(EngineEnds, match="no free blocks"):
            blocks.swap("a")

    assert answers == {RELEASED: True, REPAIRED: False}


@pytest.mark.parametrize(
    ("reading", "running", "fit"),
    [(RELEASED, False, "later"), (REPAIRED, False, "now"), (REPAIRED, True, "later")],
)
def test_a_swapped_group_alone_need_not_leave_the_watermark(
    reading: Reading, running: bool, fit: str
) -> None:
    """Four blocks: all of them for three blocks and the next."""
    config = {"num_blocks": 4, "watermark_blocks": 1, "reading": reading}
    blocks = Blocks.of(asks("a", 12), asks("b", 1), **config)
    blocks.admit("a")
    blocks.sample("a")
    blocks.swap("a")
    state = evolve(blocks.state, running=(blocks.groups["b"],) if running else ())

    assert swapping.can_swap_in(blocks.ctx, state, blocks.groups["a"], 0) == fit


@pytest.mark.parametrize(
    ("reading", "pairs"), [(RELEASED, ((1, 1), (2, 2), (3, 3))), (REPAIRED, ((1, 1),))]
)
def test_blocks_without_computed_tokens_are_not_copied_unless_the_release_is_followed(
    reading: Reading, pairs: Pairs
) -> None:
    blocks = Blocks.of(asks("a", 12), reading=reading, **CACHED)
    blocks.admit("a", computed=4)

    assert blocks.swap("a") == pairs


@pytest.mark.parametrize(("reading", "held"), [(RELEASED, {3: 1, 4: 1}), (REPAIRED, {})])
def test_what_an_encoder_computed_is_swapped_too_unless_the_release_is_followed(
    reading: Reading, held: dict[int, int]
) -> None:
    blocks = Blocks.of(asks("a", 8, encoder_len=8), reading=reading)
    blocks.admit("a")
    blocks.swap("a")

    assert blocks.state.pool.references == held
    blocks.leave("a")
    assert not blocks.state.pool.references
    assert not blocks.state.cpu.references


def test_a_swapped_group_that_leaves_ends_the_release_with_caching() -> None:
    blocks = Blocks.of(asks("a", 8), reading=RELEASED, **CACHED)
    blocks.admit("a")
    blocks.swap("a")

    with pytest.raises(EngineEnds, match="marked as used on the GPU"):
        blocks.leave("a")


# --- random walks ---------------------------------------------------------------------------------


def test_repaired_every_sequence_reads_its_own_tokens_and_nothing_leaks() -> None:
    for seed in range(60):
        walk = Walk.of(seed, 150, REPAIRED)
        assert walk.faults == []
        for group in walk.state.present:
            walk.leave(group)
        held = {**walk.state.pool.references} | {**walk.state.cpu.references}
        assert (held, walk.expected[-1].get("error")) == ({}, None)


@pytest.mark.parametrize(
    ("choice", "seed"),
    [("computed_when_allocated", 18), ("gives_way_blindly", 236), ("swaps_uncomputed", 497)],
)
def test_with_a_single_choice_of_the_release_a_sequence_reads_what_is_not_its_own(
    monkeypatch: pytest.MonkeyPatch, choice: str, seed: int
) -> None:
    assert not Walk.of(seed, 200, REPAIRED).faults
    monkeypatch.setitem(CHOICES, REPAIRED, evolve(CHOICES[REPAIRED], **{choice: True}))

    assert Walk.of(seed, 200, REPAIRED).faults


# --- beside the release ---------------------------------------------------------------------------

WALKS, ACTIONS = 400, 200
# What the release dies of and no state of ours has: its evictor's heap keeps entries of blocks that
# were found again since, and block objects of one device are given back to the other's store.
OF_THE_RELEASE_ALONE = {
    ("AssertionError", "_maybe_allocate_evicted_block_id"),
    ("IndexError", "init_block"),
}


@pytest.mark.thorough
def test_every_operation_comes_to_the_same_as_in_the_release() -> None:
    """Tables, free blocks in their order, holders, contents, computed blocks, pairs, answers."""
    walks = [Walk.of(seed, ACTIONS) for seed in range(WALKS)]
    compared: Counter[str] = Counter()
    for seed, (walk, answers) in enumerate(zip(walks, released(walks), strict=True)):
        ours = json.loads(json.dumps(walk.expected))
        for index, (operation, theirs) in enumerate(zip(walk.operations, answers, strict=False)):
            if (theirs.get("error"), theirs.get("in")) in OF_THE_RELEASE_ALONE:
                break
            theirs.pop("in", None)
            assert theirs == ours[index], (seed, index, operation)
            compared[operation[0]] += 1
        else:
            assert len(answers) == len(walk.operations)

    assert min(compared.values()) > 100, compared
    assert sum(compared.values()) > 50_000


def released(walks: list[Walk]) -> list[list[Any]]:
    """What the release answers to each operation, until it dies."""
    recipe = recipe_of("vllm-v0")
    if recipe is None or not environment_of(recipe).is_complete:
        pytest.skip("not installed: vllm-v0")
    lines = [json.dumps([_config(walk.ctx.config), walk.operations]) for walk in walks]
    command = [environment_of(recipe).python, Path(__file__).with_name("released_blocks.py")]
    ran = run(command, input="\n".join(lines), capture_output=True, text=True, check=True)
    return [json.loads(line) for line in ran.stdout.splitlines()]


def _config(config: VllmV0Config) -> dict[str, Any]:
    return {
        "block_size": config.block_size,
        "num_gpu_blocks": config.pool_blocks,
        "num_cpu_blocks": config.num_cpu_blocks,
        "watermark_blocks": config.watermark_blocks,
        "caching": config.prefix_caching,
    }
