"""The reference moves its decode batch as the proofs say, or what was proven of runs is stale."""

import re
from collections import Counter
from typing import Any

import pytest
from attrs import evolve

from checks.chapters import PROOFS
from checks.proofs.obligations import OBLIGATIONS
from checks.proofs.spyre import batch_moves
from checks.proofs.spyre.agreement import instance, small
from checks.proofs.spyre.batch_moves import INSTANCES, LEMMAS, MOVES, Move, edges, stale
from reference.spyre import admission, transitions
from spec.spyre.records import Context, Step
from spec.spyre.state import State


def with_fault(monkeypatch: pytest.MonkeyPatch, name: str, wrong: Any) -> str | None:
    """Why the evidence is stale with this function among the transitions of the reference."""
    wrong.__module__ = transitions.__name__
    monkeypatch.setattr(transitions, name, wrong, raising=False)
    return stale()


def test_every_transition_of_the_reference_is_one_of_the_moves() -> None:
    assert stale() is None


def test_a_new_transition_without_a_move_makes_the_evidence_stale(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def swap(_ctx: Context, state: State) -> State:
        """What no lemma speaks of."""
        return state

    found = with_fault(monkeypatch, "swap", swap)

    assert found == "transitions and their moves differ: swap"


def test_every_move_that_changes_rows_has_its_lemmas() -> None:
    assert set(LEMMAS) == set(MOVES.values()) == set(Move)
    assert {one for lemmas in LEMMAS.values() for one in lemmas} <= set(OBLIGATIONS)
    assert [move for move, lemmas in LEMMAS.items() if not lemmas] == [Move.STAY, Move.LEFT_OUT]


def test_the_chapter_has_every_transition_beside_its_lemmas() -> None:
    rows = re.findall(r"^\| ([^|]*) \| (`[^|]*`) \| ([^|]*) \|$", PROOFS.read_text("utf-8"), re.M)
    written = {name: move for move, names, _ in rows for name in re.findall(r"`(\w+)`", names)}
    lemmas = {move: set(re.findall(r"PRV-AN[YS]-\d+", why)) for move, _, why in rows}

    assert written == {name: str(move) for name, move in MOVES.items()}
    assert lemmas == {str(move): set(ids) for move, ids in LEMMAS.items()}


def test_the_prover_sees_every_transition_that_is_not_left_out() -> None:
    seen: Counter[str] = Counter()
    for one in INSTANCES.values():
        for _, edge in edges(one):
            seen[edge.action.split()[0].rstrip(",")] += 1
            if isinstance(edge.record, Step):
                seen.update(event.transition for event in edge.record.events)
                seen[f"refused, {edge.record.refusal}"] += 1
    assert [
        name for name, move in MOVES.items() if move is not Move.LEFT_OUT and not seen[name]
    ] == [
        "pad",  # seen as a jump
        "extend",  # seen as an allocation
    ]
    assert min(seen["jump_tkv"], seen["allocate"], seen["refused, SPY-VOL-4"]) > 0


# --- a reference that does something else ---------------------------------------------------------


def test_a_row_that_decodes_two_tokens_makes_the_evidence_stale(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = transitions.decode

    def twice(ctx: Context, state: State) -> Any:
        state, events = right(ctx, state)
        rows = tuple(evolve(row, generated=row.generated + 1) for row in state.decoding)
        return evolve(state, decoding=rows), events

    assert "by the moves" in str(with_fault(monkeypatch, "decode", twice))


def test_a_chunk_that_lets_a_row_slip_makes_the_evidence_stale(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = transitions.chunk

    def losing(ctx: Context, state: State) -> Any:
        state, planned, events = right(ctx, state)
        return evolve(state, decoding=state.decoding[:-1]), planned, events

    assert "by the moves" in str(with_fault(monkeypatch, "chunk", losing))


def test_a_request_that_joins_without_the_rule_makes_the_evidence_stale(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admission, "last_chunk_refusal", lambda *_: None)

    assert "joins, which the rule does not admit" in str(stale())


def test_without_interleaving_a_request_is_judged_by_the_tkv_of_another_prefill() -> None:
    shipped = small(admission="shipped", interleave=False, max_batch_tkv_limit=16)

    found = batch_moves.disagreement("shipped", instance(shipped, (4, 2), (1, 2), (1, 2)))

    assert found == "instance shipped: 2 joins, judged by the tkv of other rows"


def test_with_pausing_requests_join_that_the_rule_does_not_admit() -> None:
    paused = small(pausing=True, max_batch_tkv_limit=6)

    found = batch_moves.disagreement("paused", instance(paused, (2, 3), (2, 3)))

    assert found == "instance paused: 1 joins, which the rule does not admit"
