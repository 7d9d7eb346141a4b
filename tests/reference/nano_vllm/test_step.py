"""The scheduler step by example: gates, hits, runner, and requests that never fit."""

import pytest
from attrs import evolve

from reference.core.frozen_map import updated
from reference.nano_vllm import transitions
from reference.nano_vllm.model_input import model_input
from reference.nano_vllm.step import schedule
from spec.core.errors import WorkloadError
from spec.core.requests import Oversized
from spec.nano_vllm.config import FullHit, Hashing, Prefill, TokenGate
from tests.reference.nano_vllm.scenes import log, machine, queues
from tests.reference.scenes import arrived, of_parts, steps_from
from tests.requests import request


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


def test_prompt_is_cut_to_the_budget_and_goes_on_before_others() -> None:
    """A has 11 tokens, a budget of 5: parts of 5, 5 and 1, the last beside B; C finds A's
    blocks in the step after that.
    """
    first, second = of_parts("a", ("s", 8), ("a", 3)), request("b", 4, 2)
    scene = machine(
        *(first, second, of_parts("c", ("s", 8), ("c", 1))),
        prefill=Prefill.FIRST_CHUNKED,
        hashing=Hashing.COMPUTED,
        token_gate=TokenGate.NEW_TOKENS,
        max_num_batched_tokens=5,
    )

    steps = steps_from(scene, arrived(scene), 4)

    assert [dict(step.scheduled) for step in steps] == [
        {"a": 5},
        {"a": 5},
        {"a": 1, "b": 4},
        {"c": 1},
    ]
    assert [[*step.outputs] for step in steps] == [[], [], ["a", "b"], ["c"]]
    begun = steps[0].after
    assert (begun.waiting[0].blocks, begun.waiting[0].computed, begun.running) == ((0, 1, 2), 5, ())
    assert [*begun.pool.keys] == [0]


def test_runner_is_handed_a_part_of_a_prompt_that_is_cut() -> None:
    scene = machine(request("a", 11, 2), prefill=Prefill.FIRST_CHUNKED, max_num_batched_tokens=5)
    begun = scene.step(arrived(scene)).after

    given = model_input(scene.ctx, schedule(scene.ctx, begun))

    assert given.positions == (5, 6, 7, 8, 9)
    assert given.context_lens == (10,)
    assert given.block_tables == ((0, 1, 2),)


def test_request_that_never_fits_is_refused_or_waits_for_ever() -> None:
    """Two blocks of four: the ninth token of A finds no slot, and A preempts itself."""
    with pytest.raises(WorkloadError, match="found 3; allowed: at most num_blocks"):
        machine(request("a", 7, 3), num_blocks=2)
    scene = machine(request("a", 7, 3), request("b", 1), num_blocks=2, oversized=Oversized.QUEUED)

    steps = steps_from(scene, arrived(scene), 5)

    assert [log(step) for step in steps] == ["prefill a", "decode a", "idle", "idle", "idle"]
    assert [step.refusal for step in steps] == ["NANO-ADM-2"] * 5
    assert queues(steps[-1].after) == ("a b", "")
