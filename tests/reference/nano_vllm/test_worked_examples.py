"""The numbers and walk-throughs of the text, run on the machine, in the order of the text.

Every rule is judged in every step, but for those that the released choices do not keep.
"""

from typing import Any

from attrs import evolve

from reference.nano_vllm.machine import NanoVllmMachine
from reference.nano_vllm.model_input import NO_BLOCK, model_input
from reference.nano_vllm.step import schedule
from spec.core.blocks import block_bytes, block_index, slot
from spec.core.records import Event
from spec.nano_vllm.config import NanoVllmConfig
from spec.nano_vllm.records import Sequence, State, Step
from tests.reference import scenes
from tests.reference.nano_vllm.scenes import log, machine, queues
from tests.reference.scenes import arrived, keeping_the_rules, of_parts
from tests.requests import request


def steps_from(scene: NanoVllmMachine, *given: Any) -> list[Step]:
    return keeping_the_rules(scene, scenes.steps_from(scene, *given))


def steps_to_the_end(scene: NanoVllmMachine, state: State) -> list[Step]:
    return keeping_the_rules(scene, scenes.steps_to_the_end(scene, state))


def test_sequence_of_five_tokens_from_arrival_to_its_end() -> None:
    """Chapter 3, "What Is a Sequence?": waiting without a block, then running, then finished."""
    scene = machine(request("a", 5, 3))
    waiting = arrived(scene)

    steps = steps_to_the_end(scene, waiting)

    assert waiting.waiting == (Sequence("a", prefill_len=5),)
    assert steps[0].after.running == (
        Sequence("a", prefill_len=5, computed=5, generated=1, blocks=(0, 1)),
    )
    assert [log(step) for step in steps] == ["prefill a", "decode a", "decode a"]
    assert [step.scheduled for step in steps] == [{"a": 5}, {"a": 1}, {"a": 1}]
    assert steps[-1].finished == ("a",)
    assert steps[-1].after == evolve(
        scene.initial(), pool=steps[-1].after.pool, finished=frozenset("a")
    )
    assert steps[-1].after.pool.references == {}


def _running(scene: NanoVllmMachine, **rows: int) -> State:
    """The running queue, each row with so many tokens, the newest not computed yet."""
    state = scene.initial()
    for id_, length in rows.items():
        state = scene.step(arrived(scene, id_, after=state)).after
        assert state.running[-1].computed + 1 == length
    return state


def test_one_decode_step_at_a_boundary_within_a_block_and_at_the_end() -> None:
    """Chapter 6, "One Decode Step": A has 256 tokens in the cache, B 100, C samples its end."""
    requests = request("a", 256), request("b", 100), request("c", 511)
    config = NanoVllmConfig(num_blocks=8)
    scene = NanoVllmMachine.of(config, requests)
    state = _running(scene, a=257, b=101, c=512)

    step = scene.step(state, ends=lambda row: row.id == "c")

    assert [len(row.blocks) for row in state.running] == [1, 1, 2]
    assert [len(row.blocks) for row in step.batch] == [2, 1, 2]
    assert step.happened("allocate") == [Event("allocate", "a", "NANO-DEC-3", (0,), (4,))]
    assert step.finished == ("c",)
    assert queues(step.after) == ("", "a b")
    assert step.after.pool.free == (5, 6, 7, 3, 2)


def test_shared_system_prompt_is_computed_once() -> None:
    """Chapter 7: 13 tokens without the cache, 9 with it, 4 (31 %) saved."""
    system = ("system", 4)
    first, second = of_parts("a", system, ("a", 3)), of_parts("b", system, ("b", 2))
    scene = machine(first, second, block_size=2)

    cold = scene.step(arrived(scene, "a"))
    cached = scene.step(arrived(scene, "b", after=cold.after))

    assert (cold.scheduled, cached.scheduled) == ({"a": 7}, {"b": 2})
    assert sum((first.prompt_len, second.prompt_len)) == 13
    assert cached.batch[0].blocks[:2] == cold.batch[0].blocks[:2]


def test_system_prompt_shorter_than_a_block_is_never_found() -> None:
    """Chapter 7 draws a shared block of 128 tokens; blocks have 256, only full ones are hashed."""
    requests = [of_parts(id_, ("system", 128), (id_, 10)) for id_ in "ab"]
    scene = NanoVllmMachine.of(NanoVllmConfig(num_blocks=8), requests)

    step = scene.step(arrived(scene, "b", after=scene.step(arrived(scene, "a")).after))

    assert step.scheduled == {"b": 138}


def test_reference_counts_of_a_shared_block_over_time() -> None:
    """Chapter 7, "Reference Counting": 1, 2, 1 and not free, 0 and free."""
    scene = machine(of_parts("a", ("s", 4), ("a", 1)), of_parts("b", ("s", 4), ("b", 1)))
    allocated = scene.step(arrived(scene, "a")).after
    shared = scene.step(arrived(scene, "b", after=allocated)).after

    first_gone = scene.step(shared, ends=lambda row: row.id == "a").after
    both_gone = scene.step(first_gone, ends=lambda row: row.id == "b").after

    states = (allocated, shared, first_gone, both_gone)
    assert [state.pool.references.get(0) for state in states] == [1, 2, 1, None]
    assert [0 in state.pool.free for state in states] == [False, False, False, True]


def test_preemption_walk_through() -> None:
    """Chapter 8: running is A B C D, no block is free, A needs one; D has two and goes."""
    scene = machine(
        *(request("a", 4), request("b", 1), request("c", 1), request("d", 5)), num_blocks=5
    )
    full = steps_from(scene, arrived(scene), 1)[0].after
    assert (queues(full), full.pool.free) == (("", "a b c d"), ())

    preempting, *later = scenes.steps_from(scene, full, 5)  # NANO-PRE-4: D costs most

    assert preempting.happened("preempt", "allocate") == [
        Event("preempt", "d", "NANO-PRE-2"),
        Event("allocate", "a", "NANO-DEC-3", (0,), (4,)),
    ]
    assert log(preempting) == "decode a b c"
    assert queues(preempting.after) == ("d", "a b c")
    assert preempting.after.waiting == (Sequence("d", prefill_len=6, generated=1),)
    assert preempting.after.pool.free == (3,)
    assert [(log(step), step.refusal) for step in later[:3]] == [
        ("decode a b c", "NANO-ADM-2"),
        ("decode a b c", "NANO-ADM-2"),
        ("decode a b", "NANO-ADM-2"),  # B needs the last block but one, and C goes before D
    ]
    assert queues(later[2].after) == ("c d", "a b")


def test_victim_with_two_blocks_gives_both_back_and_is_first_afterwards() -> None:
    """Chapter 8 with longer prompts: what D had computed of its first block is still cached."""
    sizes = {"a": (8, 3), "b": (6, 2), "c": (6, 2), "d": (5, 3)}
    scene = machine(*(request(id_, *size) for id_, size in sizes.items()), num_blocks=8)

    full, preempting, third = steps_from(scene, arrived(scene), 3)

    assert (queues(full.after), full.after.pool.free) == (("", "a b c d"), ())
    assert [event.id for event in preempting.happened("preempt", "allocate")] == ["d", "a"]
    assert (log(preempting), queues(preempting.after)[0]) == ("decode a b c", "d")
    assert (log(third), third.scheduled) == ("prefill d", {"d": 2})


def test_preempted_sequence_computes_again_all_that_is_not_cached_any_more() -> None:
    """Chapter 8, "The Cost of Preemption": prompt and answer, less what a hit saves."""
    scene = machine(request("a", 3, 6), request("b", 3, 6), num_blocks=3)

    steps = steps_to_the_end(scene, arrived(scene))

    assert [log(step) for step in steps] == [
        "prefill a b",
        "decode a b",
        "decode a",  # both need a second block for their fifth token, one is left
        "decode a",
        "decode a",
        "decode a",
        "prefill b",
        "decode b",
        "decode b",
        "decode b",
    ]
    assert steps[2].after.waiting == (Sequence("b", prefill_len=5, generated=2),)
    assert steps[6].scheduled == {"b": 1}
    assert steps[6].happened("prefix_hit") == [Event("prefix_hit", "b", "NANO-PFX-5", (), (1,))]
    assert {row.id: row.generated for step in steps for row in step.batch} == {"a": 6, "b": 6}


def test_token_at_position_775_has_slot_519() -> None:
    """Chapter 9, "Block Tables": block table 3, 7, 12, 2 in blocks of 256."""
    table = (3, 7, 12, 2)

    assert block_index(775, 256) == 3
    assert 775 % 256 == 7
    assert slot(table[block_index(775, 256)], 775, 256) == 519


def test_runner_is_handed_the_slots_of_a_sequence_with_these_blocks() -> None:
    """The same numbers from a schedule: the newest token of a sequence at position 775."""
    scene = NanoVllmMachine.of(NanoVllmConfig(num_blocks=16), [request("a", 775), request("b", 3)])
    pool = evolve(scene.initial().pool, free=(3, 7, 12, 2, *{*range(16)} - {3, 7, 12, 2}))
    state = scene.step(arrived(scene, after=evolve(scene.initial(), pool=pool))).after

    given = model_input(scene.ctx, schedule(scene.ctx, state))

    asked = scene.ctx.requests
    assert (given.is_prefill, given.slots) == (False, (519, 3))
    assert given.positions == (775, 3)
    assert given.tokens == (asked["a"].output_token(0), asked["b"].output_token(0))
    assert given.context_lens == (776, 4)
    assert given.block_tables == ((3, 7, 12, 2), (0, NO_BLOCK, NO_BLOCK, NO_BLOCK))
    assert given.graph_size == 2


def test_block_of_the_text_s_model_takes_28_mebibytes() -> None:
    """Chapter 9 works out 0.875 MB from the same factors."""
    assert block_bytes(28, 8, 128, 2, 256) == 28 * 2**20
