"""Spyre's reference makes the moves that its proofs speak of, or what was proven of runs is stale."""

import re
from collections import Counter
from random import Random

import pytest

from checks.chapters import PROOFS
from checks.explore.instance import Instance
from checks.policies import POLICIES
from checks.proofs.links import RUNS, edges_of
from checks.proofs.obligations import OBLIGATIONS
from checks.proofs.spyre import moves
from checks.proofs.spyre.agreement import instance, small
from checks.proofs.spyre.moves import LEMMAS, LINK, MOVES, Move, covers, large_case
from reference.spyre import transitions
from spec.spyre.records import Context
from spec.spyre.state import State
from tests.checks.proofs.changes import Change, cases_of, changes_a_run, steps_of

ADMISSION, TRANSITIONS = "reference.spyre.admission", "reference.spyre.transitions"
STEP, CHUNKS, STATE = "reference.spyre.step", "reference.spyre.chunks", "spec.spyre.state"


def test_the_reference_makes_the_moves() -> None:
    assert moves.stale() is None


def test_a_new_transition_without_a_move_makes_the_evidence_stale(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def swap(_ctx: Context, state: State) -> State:
        """No lemma speaks of it."""
        return state

    swap.__module__ = transitions.__name__
    monkeypatch.setattr(transitions, "swap", swap, raising=False)

    assert moves.stale() == "transitions and their moves differ: swap"


def test_every_move_that_changes_rows_has_its_lemmas() -> None:
    assert set(LEMMAS) == set(MOVES.values()) == set(Move)
    assert {name for lemmas in LEMMAS.values() for name in lemmas} <= set(OBLIGATIONS)
    assert [move for move, lemmas in LEMMAS.items() if not lemmas] == [Move.STAY, Move.LEFT_OUT]


def test_the_chapter_has_every_transition_beside_its_lemmas() -> None:
    rows = re.findall(r"^\| ([^|]*) \| (`[^|]*`) \| ([^|]*) \|$", PROOFS.read_text("utf-8"), re.M)
    written = {name: move for move, names, _ in rows for name in re.findall(r"`(\w+)`", names)}
    lemmas = {
        move: set(re.findall(r"PRV-AN[YS]-\d+", why)) for move, _, why in rows if move in set(Move)
    }

    assert {name: move for name, move in written.items() if move in set(Move)} == {
        name: str(move) for name, move in MOVES.items()
    }
    assert lemmas == {str(move): set(ids) for move, ids in LEMMAS.items()}


def covered() -> list[Instance[object]]:
    return [one for one in POLICIES["spyre"].instances if covers(one.config)]


def test_every_transition_that_is_not_left_out_is_compared() -> None:
    seen: Counter[str] = Counter()
    for one in covered():
        for edge in edges_of(one):
            seen.update(["arrive"] * len(edge.arrived))
            if edge.step is None:
                seen.update(["abort"] * len(edge.left))
                continue
            seen.update(event.transition for event in edge.step.events)
            seen[f"refused, {edge.step.refusal}"] += 1
    named = {"pad": "jump_tkv", "extend": "allocate"}  # events that are called otherwise
    assert [
        name
        for name, move in MOVES.items()
        if move is not Move.LEFT_OUT and not seen[named.get(name, name)]
    ] == []
    for rule in ("SPY-VOL-2", "SPY-VOL-3", "SPY-VOL-4", "SPY-LEN-2", "SPY-RES-1"):
        assert seen[f"refused, {rule}"] > 0


def test_large_runs_have_many_rows_and_limits_that_bind() -> None:
    cases = [large_case(Random(f"spyre {number}")) for number in range(RUNS)]
    runs = [steps_of(case) for case in cases]
    rows = [max(len(step.batch) for step in run) for run in runs]
    refused = sum(any(step.refusal == "SPY-VOL-4" for step in run) for run in runs)
    preempted = sum(any(step.happened("preempt") for step in run) for run in runs)
    assert max(rows) >= 25
    assert sum(most >= 10 for most in rows) >= 6
    assert refused >= 8
    assert preempted >= 1


# --- a reference that does something else ---------------------------------------------------------

CHANGES = [
    Change(place, text, instead)
    for place, text, instead in (
        # the limit, the moment, and what the rule is asked about
        (f"{ADMISSION}.last_chunk_refusal", "limit=ctx.config.max_batch_tkv_limit", "limit=ctx.config.max_batch_tkv_limit + 1"),
        (f"{ADMISSION}.last_chunk_refusal", "limit=ctx.config.max_batch_tkv_limit", "limit=ctx.config.max_batch_tkv_limit - 1"),
        (f"{ADMISSION}.last_chunk_refusal", "for row in state.decoding]", "for row in state.decoding[:8]]"),
        (f"{ADMISSION}.last_chunk_refusal", "for row in state.decoding]", "for row in state.decoding[1:]]"),
        (f"{ADMISSION}.last_chunk_refusal", "remaining_tokens(ctx, row))", "min(remaining_tokens(ctx, row), 50))"),
        (f"{ADMISSION}.last_chunk_refusal", "Member(row.computed,", "Member(min(row.computed, 500),"),
        (f"{ADMISSION}.last_chunk_refusal", "Member(sequence.prefill_len, remaining_tokens(ctx, sequence))", "Member(sequence.prefill_len, remaining_tokens(ctx, sequence) - 1)"),
        (f"{ADMISSION}.last_chunk_refusal", "last_tkv=state.last_tkv", "last_tkv=0"),
        (f"{ADMISSION}._chunk_refusal", "next_chunk(ctx, _as_admitted(ctx, state, sequence)).is_last", "next_chunk(ctx, _as_admitted(ctx, state, sequence)).chunk == 0"),
        (f"{ADMISSION}._chunk_refusal", "len(state.running) >= ctx.config", "len(state.running) > ctx.config"),
        # promises and blocks
        (f"{ADMISSION}.worst_case_blocks", "remaining = remaining_tokens(ctx, sequence)", "remaining = remaining_tokens(ctx, sequence) - ctx.config.block_size"),
        (f"{ADMISSION}.reserved_blocks", "for sequence in state.admitted)", "for sequence in state.admitted[:5])"),
        (f"{ADMISSION}._block_refusal", "shared = sum(block in state.pool.references for block in hits)", "shared = len(hits)"),
        (f"{TRANSITIONS}._grow", "still_promised(sequence.reserved, count)", "sequence.reserved"),
        (f"{TRANSITIONS}.extend", "row.computed + 1,", "row.computed + 2,"),
        (f"{TRANSITIONS}.finish", "pool = release(pool, row.blocks)", "pool = release(pool, row.blocks[:30])"),
        # the batch
        (f"{TRANSITIONS}.decode", "generated=row.generated + 1", "generated=row.generated + (2 if row.generated == 40 else 1)"),
        (f"{TRANSITIONS}.join", "generated=sequence.generated + 1", "generated=sequence.generated"),
        # the order of the queue, of preemption, of prefill and decode steps
        (f"{STEP}.last_admitted", "state.decoding[0]", "state.decoding[-1]"),
        (f"{STEP}.blocks_lacking", "needed - len(state.pool.free)", "needed - len(state.pool.free) + 1"),
        (f"{STEP}.in_line", "key=lambda one: width_of(ctx, one)", "key=lambda one: -width_of(ctx, one)"),
        (f"{TRANSITIONS}.preempt", "waiting=(again, *state.waiting)", "waiting=(*state.waiting, again)"),
        (f"{TRANSITIONS}.arrive", "waiting=(*state.waiting, newcomer)", "waiting=(newcomer, *state.waiting)"),
        (f"{TRANSITIONS}.abort", "cohort=state.cohort - (leaver in state.waiting[: state.cohort]),", ""),
        (f"{STATE}.cohort_after_admission", "waiting) - 1 if", "waiting) - 2 if"),
        (f"{STATE}.must_interleave", "past.last_kind == PREFILL and", "past.last_kind == PREFILL and past.last_tkv > 9 and"),
        (f"{STATE}.past_after", "last_kind=kind", "last_kind=kind if tkv < 900 else 'idle'"),
    )
]  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(change, id=str(change), marks=() if place % 6 == 0 else pytest.mark.thorough)
        for place, change in enumerate(CHANGES)
    ],
)
def test_a_reference_that_does_something_else_makes_the_evidence_stale(change: Change) -> None:
    with change.planted():
        assert moves.stale() is not None


@pytest.mark.thorough
@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_each_change_changes_some_run(change: Change) -> None:
    assert changes_a_run(change, cases_of("spyre", large_case))


def test_without_interleaving_a_request_is_judged_by_the_tkv_of_another_prefill() -> None:
    shipped = small(admission="shipped", interleave=False, max_batch_tkv_limit=16)

    found = next(LINK.differences_in(instance(shipped, (4, 2), (1, 2), (1, 2))))

    assert found == "instance : who joins: 2 joins, judged by the tkv of other rows"


def test_with_pausing_requests_join_that_the_rule_does_not_admit() -> None:
    paused = small(pausing=True, max_batch_tkv_limit=6)

    found = next(LINK.differences_in(instance(paused, (2, 3), (2, 3))))

    assert found == "instance : who joins: 1 joins, which SPY-VOL-4 refuses"
