"""Spyre's reference makes the moves that its proofs speak of, or evidence about runs is stale."""

import re
from collections import Counter
from random import Random
from typing import Any

import pytest

from checks.chapters import PROOFS
from checks.explore.instance import Instance
from checks.explore.policy import machine_of
from checks.proofs.links import RUNS, reachable_edges
from checks.proofs.obligations import OBLIGATIONS
from checks.proofs.spyre import moves
from checks.proofs.spyre.moves import LEMMAS, LINK, MOVES, Move, covers, large_case
from reference.spyre import transitions
from spec.spyre.records import Context
from spec.spyre.state import State
from tests.checks.proofs.changes import (
    Change,
    change_table,
    changes_a_run,
    drawn_cases,
    reference_steps,
)
from tests.checks.proofs.instances import instance, small


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
    assert [move for move, lemmas in LEMMAS.items() if not lemmas] == [Move.STAY, Move.EXCLUDED]


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


def covered() -> list[Instance[Any]]:
    return [instance for instance in machine_of("spyre").instances if covers(instance.config)]


@pytest.mark.thorough
def test_every_transition_that_is_not_left_out_is_compared() -> None:
    seen: Counter[str] = Counter()
    for explored in covered():
        for edge in reachable_edges(explored):
            seen.update(["arrive"] * len(edge.arrived))
            if edge.step is None:
                ready = edge.before.compiling - edge.after.compiling - edge.left
                encoded = edge.before.encoding - edge.after.encoding - edge.left
                seen.update(["abort"] * len(edge.left) + ["compiled"] * len(ready))
                seen.update(["encoded"] * len(encoded))
                seen.update(["unencodable"] * len(edge.left & edge.before.encoding))
                continue
            seen.update(event.transition for event in edge.step.events)
            seen[f"refused, {edge.step.refusal}"] += 1
    named = {"pad": "jump_tkv", "extend": "allocate"}  # events that are called otherwise
    assert [
        name
        for name, move in MOVES.items()
        if move is not Move.EXCLUDED and not seen[named.get(name, name)]
    ] == []
    for rule in ("SPY-VOL-2", "SPY-VOL-3", "SPY-VOL-4", "SPY-LEN-2", "SPY-RES-1"):
        assert seen[f"refused, {rule}"] > 0


@pytest.mark.thorough
def test_large_runs_have_many_rows_and_limits_that_bind() -> None:
    cases = [large_case(Random(f"spyre {number}")) for number in range(RUNS)]
    runs = [reference_steps(case) for case in cases]
    rows = [max(len(step.batch) for step in run) for run in runs]
    refused = sum(any(step.refusal == "SPY-VOL-4" for step in run) for run in runs)
    preempted = sum(any(step.happened("preempt") for step in run) for run in runs)
    assert max(rows) >= 25
    assert sum(most >= 10 for most in rows) >= 6
    assert refused >= 8
    assert preempted >= 1


# --- a reference that does something else ---------------------------------------------------------

CHANGES = change_table("reference_changes.toml")["spyre"]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(change, id=str(change), marks=() if place % 14 == 0 else pytest.mark.thorough)
        for place, change in enumerate(CHANGES)
    ],
)
def test_a_reference_that_does_something_else_makes_the_evidence_stale(change: Change) -> None:
    with change.planted():
        assert moves.stale() is not None


@pytest.mark.thorough
@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_each_change_changes_some_run(change: Change) -> None:
    assert changes_a_run(change, drawn_cases("spyre", large_case))


def test_without_interleaving_a_request_is_judged_by_the_tkv_of_another_prefill() -> None:
    shipped = small(admission="shipped", interleave=False, max_batch_tkv_limit=16)

    found = next(LINK.instance_differences(instance(shipped, (4, 2), (1, 2), (1, 2))))

    assert found == "instance : who joins: 2 joins, judged by the tkv of other rows"


def test_with_pausing_requests_join_that_the_rule_does_not_admit() -> None:
    paused = small(pausing=True, max_batch_tkv_limit=6)

    found = next(LINK.instance_differences(instance(paused, (2, 3), (2, 3))))

    assert found == "instance : who joins: 1 joins, which SPY-VOL-4 refuses"
