"""Refusals of a prefill: each where it begins to hold, and one step before."""

import pytest
from attrs import evolve

from reference.spyre import transitions
from reference.spyre.admission import (
    blocks_of_next_chunk,
    last_chunk_refusal,
    prefill_refusal,
    reserved_blocks,
)
from reference.spyre.machine import SpyreMachine
from spec.spyre.state import Sequence, State
from spec.spyre.variants import Admission
from tests.reference.scenes import arrived, of_parts, steps_from, steps_to_the_end
from tests.reference.spyre.scenes import batch, machine
from tests.requests import request


def refusal(scene: SpyreMachine, state: State, id_: str | None = None) -> str | None:
    """Of the request, or of the head of the queue; of the prefilling one if none waits."""
    candidates = [*state.waiting, *([state.prefilling] if state.prefilling else [])]
    chosen = next(candidate for candidate in candidates if id_ in (None, candidate.id))
    return prefill_refusal(scene.ctx, state, chosen)


def prefilling(state: State, computed: int) -> State:
    """The head of the queue as one whose prefill has come this far, blocks of no concern."""
    head = evolve(state.waiting[0], computed=computed)
    return evolve(state, waiting=state.waiting[1:], prefilling=head)


# --- priority rules -------------------------------------------------------------------------------


def test_no_request_is_prefilled_while_one_row_is_paused_and_another_runs() -> None:
    scene = machine(request("a", 1, 20), request("b", 1, 20), request("c", 3), pausing=True)
    state = scene.arrive(batch(scene, a=(2, 0), b=(2, 0)), "c")
    one_paused, _ = transitions.pause(scene.ctx, state, state.decoding[0])
    all_paused, _ = transitions.pause(scene.ctx, one_paused, one_paused.decoding[0])

    assert refusal(scene, state) is None
    assert refusal(scene, one_paused) == "SPY-PAU-4"
    assert refusal(scene, all_paused) is None  # as in 2.6.3: no row runs, a new request may


# --- blocks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("num_blocks", "rule"), [(7, None), (6, "SPY-RES-1")])
def test_reservation_lets_a_request_in_only_if_its_worst_case_is_free_and_not_promised(
    num_blocks: int, rule: str | None
) -> None:
    """Two blocks are held, one is promised; the new request may need four."""
    scene = machine(request("a", 1, 11), request("b", 9, 7), num_blocks=num_blocks)
    state = batch(scene, a=(5, 0))
    state = evolve(state, decoding=(evolve(state.decoding[0], reserved=1),))

    assert reserved_blocks(state) == 1
    assert refusal(scene, scene.arrive(state, "b")) == rule


@pytest.mark.parametrize(("num_blocks", "rule"), [(8, None), (7, "SPY-RES-1")])
def test_cached_blocks_that_a_request_holds_need_not_be_free(
    num_blocks: int, rule: str | None
) -> None:
    """Both need five blocks, two of them are shared. The first holds four and is promised one."""
    requests = [of_parts(id_, ("s", 8), (id_, 8), max_tokens=4) for id_ in "ab"]
    scene = machine(*requests, prefix_caching=True, num_blocks=num_blocks)
    state = steps_from(scene, arrived(scene), 2)[-1].after
    assert reserved_blocks(state) == 1

    assert refusal(scene, evolve(state, last_kind="decode")) == rule


def test_cached_blocks_that_no_request_holds_are_taken_from_the_free_ones() -> None:
    scene = machine(
        of_parts("a", ("s", 8), max_tokens=1),
        of_parts("b", ("s", 8), ("b", 4), max_tokens=4),
        request("c", 1, 8),
        prefix_caching=True,
        num_blocks=6,
    )
    state = steps_to_the_end(scene, arrived(scene, "a"))[-1].after
    state = scene.arrive(evolve(state, last_kind="decode"), "b")

    def with_promise(blocks: int) -> State:
        return evolve(state, decoding=(Sequence("c", 1, reserved=blocks),))

    assert len(state.pool.free) == 6
    assert refusal(scene, with_promise(2)) is None
    assert refusal(scene, with_promise(3)) == "SPY-RES-1"


@pytest.mark.parametrize(("num_blocks", "rule"), [(5, "BLK-9"), (6, None)])
def test_without_reservation_the_next_chunk_alone_needs_its_blocks(
    num_blocks: int, rule: str | None
) -> None:
    """Four blocks are held; the first chunk takes two, the whole prompt would take four."""
    scene = machine(
        request("a", 1, 15), request("b", 16, 4), num_blocks=num_blocks, reservation=False
    )
    state = scene.arrive(batch(scene, a=(16, 0)), "b")

    assert blocks_of_next_chunk(scene.ctx, state, state.waiting[0]) == 2
    assert refusal(scene, state) == rule


# --- last chunk -----------------------------------------------------------------------------------


def short_and_limit(limit: int, **config: object) -> tuple[SpyreMachine, State]:
    """The example of the text against itself: two short requests, blocks of 2."""
    requests = request("a", 1, 4), request("b", 1, 2)
    scene = machine(*requests, block_size=2, chunk_size=4, max_batch_tkv_limit=limit, **config)
    return scene, scene.arrive(batch(scene, a=(2, 0)), "b")


@pytest.mark.parametrize(
    ("admission", "enough", "rule"),
    [
        (Admission.EXACT, 8, "SPY-VOL-4"),  # the next step has two rows of tkv 4
        (Admission.DOCUMENTED, 6, "SPY-VOL-2"),  # it believes that B ends with tkv 3
        (Admission.SHIPPED, 12, "SPY-VOL-3"),  # it rounds up and adds a block: two rows of 6
    ],
)
def test_each_variant_admits_from_its_own_limit(
    admission: Admission, enough: int, rule: str
) -> None:
    scene, state = short_and_limit(enough, admission=admission)
    assert refusal(scene, evolve(state, last_tkv=2)) is None

    scene, state = short_and_limit(enough - 1, admission=admission)
    assert refusal(scene, evolve(state, last_tkv=2)) == rule


def test_shipped_goes_by_the_tkv_that_the_last_step_returned() -> None:
    scene, state = short_and_limit(12, admission=Admission.SHIPPED)

    assert refusal(scene, evolve(state, last_tkv=2)) is None
    assert refusal(scene, evolve(state, last_tkv=4)) == "SPY-VOL-3"


@pytest.mark.parametrize(("max_model_len", "rule"), [(28, None), (27, "SPY-LEN-2")])
def test_documented_keeps_what_may_be_generated_within_the_model_length(
    max_model_len: int, rule: str | None
) -> None:
    """A (tkv 2) moves to tkv 10 when B joins with three blocks, and has 18 tokens to come."""
    sizes = {"max_model_len": max_model_len, "admission": Admission.DOCUMENTED}
    scene = machine(request("a", 1, 20), request("b", 9, 2), **sizes)
    state = prefilling(scene.arrive(batch(scene, a=(2, 0)), "b"), computed=4)

    assert refusal(scene, state) == rule
    assert last_chunk_refusal(scene.ctx, state, state.prefilling or state.waiting[0]) == rule


def test_shipped_without_interleaving_judges_before_the_first_chunk_and_never_again() -> None:
    variant = {"admission": Admission.SHIPPED, "interleave": False}
    scene = machine(request("a", 1, 12), request("b", 20, 4), max_batch_tkv_limit=24, **variant)
    state = scene.arrive(batch(scene, a=(2, 0)), "b")

    assert refusal(scene, state) == "SPY-VOL-3"
    assert refusal(scene, prefilling(state, computed=12)) is None


def test_prompt_whose_beginning_is_cached_is_judged_before_its_first_computed_chunk() -> None:
    """All but the last chunk of B is cached, so its first chunk is the last one."""
    scene = machine(
        of_parts("s", ("s", 16), max_tokens=1),
        request("a", 1, 12),
        of_parts("b", ("s", 16), ("b", 4), max_tokens=4),
        max_batch_tkv_limit=24,
        prefix_caching=True,
    )
    cached = steps_to_the_end(scene, arrived(scene, "s"))[-1].after
    row = batch(scene, a=(2, 0)).decoding[0]
    state = scene.arrive(evolve(cached, decoding=(row,), last_kind="decode"), "b")

    assert refusal(scene, state) == "SPY-VOL-4"
    assert refusal(scene, evolve(state, pool=scene.initial().pool)) is None
