"""The scheduler step by example: gates, hits, runner, and requests that never fit."""

import pytest
from attrs import evolve

from reference.core.frozen_map import updated
from reference.nano_vllm import transitions
from reference.nano_vllm.model_input import model_input
from reference.nano_vllm.step import schedule
from spec.core.errors import WorkloadError
from spec.nano_vllm.config import FullHit, MemoryGate, Oversized, SequenceLimit, TokenGate
from tests.reference.nano_vllm.scenes import log, machine, queues
from tests.reference.scenes import arrived, of_parts, steps_from
from tests.requests import request


@pytest.mark.parametrize(
    ("gate", "steps"),
    [
        (TokenGate.FULL_LENGTH, ["prefill a b", "prefill c"]),
        (TokenGate.NEW_TOKENS, ["prefill a b c"]),
    ],
)
def test_hits_make_room_in_the_budget_by_the_reading(gate: TokenGate, steps: list[str]) -> None:
    """Budget 20: 10, then 10 of which 8 are cached; the third has 10 more, 8 of them cached."""
    requests = [of_parts(id_, ("s", 8), (id_, 2)) for id_ in "abc"]
    scene = machine(*requests, max_model_len=20, max_num_batched_tokens=20, token_gate=gate)

    assert [log(step) for step in steps_from(scene, arrived(scene), len(steps))] == steps


@pytest.mark.parametrize(
    ("gate", "batch"), [(MemoryGate.ALL_BLOCKS, "a"), (MemoryGate.NEW_BLOCKS, "a b")]
)
def test_hits_make_room_in_the_pool_by_the_reading(gate: MemoryGate, batch: str) -> None:
    """Four blocks: A takes three, B needs three, two of which A holds."""
    requests = [of_parts(id_, ("s", 8), (id_, 2)) for id_ in "ab"]
    scene = machine(*requests, num_blocks=5, memory_gate=gate)

    step = scene.step(arrived(scene))

    assert log(step) == f"prefill {batch}"
    assert step.refusal == (None if batch == "a b" else "NANO-ADM-2")


@pytest.mark.parametrize(
    ("reading", "computed"), [(FullHit.ALL_CACHED, 0), (FullHit.LAST_COMPUTED, 4)]
)
def test_prompt_cached_as_a_whole(reading: FullHit, computed: int) -> None:
    scene = machine(of_parts("a", ("s", 8)), of_parts("b", ("s", 8)), full_hit=reading)

    step = scene.step(arrived(scene, "b", after=scene.step(arrived(scene, "a")).after))

    assert step.scheduled == {"b": computed}


def test_prompt_cached_as_a_whole_may_decode_its_last_token_beside_others() -> None:
    """It waits for a step that prefills nothing; where all that is admitted is such, at once."""
    cached, other = of_parts("b", ("s", 8)), request("c", 3, 2)
    scene = machine(of_parts("a", ("s", 8)), cached, other, full_hit=FullHit.LAST_DECODED)
    first = scene.step(arrived(scene, "a")).after

    alone = scene.step(arrived(scene, "b", after=first))
    mixed = scene.step(arrived(scene, "b", "c", after=first))

    assert (alone.kind, alone.scheduled) == ("decode", {"a": 1, "b": 1})
    assert [row.computed for row in alone.batch] == [9, 8]
    assert (mixed.kind, mixed.scheduled) == ("prefill", {"c": 3})
    assert [(row.id, row.computed) for row in mixed.after.running] == [("a", 8), ("b", 7), ("c", 3)]


def test_what_is_decoded_first_takes_no_place_in_the_prefill_batch() -> None:
    """Two may be in a step's batch: B, which is cached, is in none; C and D are, E is not."""
    cached, others = of_parts("b", ("s", 8)), [request(id_, 3, 2) for id_ in "cde"]
    scene = machine(
        of_parts("a", ("s", 8)),
        cached,
        *others,
        max_num_seqs=2,
        sequence_limit=SequenceLimit.BATCH,
        full_hit=FullHit.LAST_DECODED,
    )
    first = scene.step(arrived(scene, "a")).after

    step = scene.step(arrived(scene, "b", "c", "d", "e", after=first))

    assert (log(step), step.refusal) == ("prefill c d", "NANO-ADM-3")
    assert queues(step.after) == ("e", "a b c d")


def test_block_that_was_a_hit_is_not_hashed_again_by_what_is_decoded_first() -> None:
    """The last block of B's prompt has got another hash by then, from one that it is a hit for."""
    scene = machine(of_parts("a", ("s", 8)), of_parts("b", ("s", 8)), full_hit=FullHit.LAST_DECODED)
    first = scene.step(arrived(scene, "a")).after
    admitted, _ = transitions.admit(scene.ctx, arrived(scene, "b", after=first))
    renamed = evolve(admitted.pool, keys=updated(admitted.pool.keys, {1: b"another"}))
    state = evolve(admitted, pool=renamed)

    after, _ = transitions.append(scene.ctx, state, state.running[-1])

    assert after.pool == renamed


def test_runner_is_handed_the_tokens_that_are_not_cached() -> None:
    """A prefill of A, whose first four tokens B shares, and of B, in blocks of four."""
    first, second = of_parts("a", ("s", 4), ("a", 2)), of_parts("b", ("s", 4), ("b", 1))
    scene = machine(first, second)

    given = model_input(scene.ctx, schedule(scene.ctx, arrived(scene)))

    assert (given.is_prefill, given.graph_size) == (True, None)
    assert given.tokens == (*first.prompt.tokens(), *second.prompt.tokens()[4:])
    assert given.positions == (0, 1, 2, 3, 4, 5, 4)
    assert given.slots == (0, 1, 2, 3, 4, 5, 8)
    assert given.context_lens == (6, 5)
    assert given.block_tables == ((0, 1), (0, 2))


def test_request_that_never_fits_is_refused_or_waits_for_ever() -> None:
    """Two blocks of four: the ninth token of A finds no slot, and A preempts itself."""
    with pytest.raises(WorkloadError, match="found 3; allowed: at most num_blocks"):
        machine(request("a", 7, 3), num_blocks=2)
    scene = machine(request("a", 7, 3), request("b", 1), num_blocks=2, oversized=Oversized.QUEUED)

    steps = steps_from(scene, arrived(scene), 5)

    assert [log(step) for step in steps] == ["prefill a", "decode a", "idle", "idle", "idle"]
    assert [step.refusal for step in steps] == ["NANO-ADM-2"] * 5
    assert queues(steps[-1].after) == ("a b", "")
