"""What is claimed of the machine speaks of runs that exist, and notices wrong machines."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pytest
from attrs import asdict, evolve

from checks.export.trace.reading import read_trace
from checks.proofs.obligations import OBLIGATIONS, Obligation, Verdict
from checks.proofs.prover import Proof, prove
from checks.proofs.registry import Integer, Statement
from checks.proofs.scenario import write_scenario
from checks.proofs.spyre import bounded, symbolic, to_come
from checks.proofs.spyre.bounded import Run, every_step_of, within_volume
from checks.proofs.spyre.inductive import (
    SIZES,
    no_step_is_idle,
    one_prefill_is_kept,
    order_of_arrival_is_kept,
    prefills_are_interleaved,
    slots_are_kept,
    tkv_stays_bounded,
    tokens_keep_fitting,
)
from checks.proofs.spyre.machine import (
    PREFILLING,
    Client,
    Machine,
    Move,
    Place,
    Setting,
    Situation,
    exact,
    nobody_yet,
)
from checks.proofs.spyre.symbolic import MACHINE, between, step
from checks.proofs.spyre.to_come import (
    admission_keeps_the_limit,
    clients_leave_with_their_rows,
    decoding_keeps_the_limit,
    leaving_keeps_the_limit,
    only_the_admitted_join,
    order_is_of_no_matter,
    rows_decode_together,
    rows_wait_for_a_chunk,
    the_next_step_keeps_the_limit,
)
from spec.core.arithmetic import Number, Truth, every, select
from spec.spyre import admission, padding
from spec.spyre.admission import Member
from spec.spyre.variants import Admission

_QUICK_SEED = 1  # one with which the solver is quick to find what is wrong
OF_A_STEP = [one for one in OBLIGATIONS if one.startswith(("PRV-MAC", "PRV-TOC-1", "PRV-TOC-4"))]


def in_small(statement: Callable[..., Statement], **more: Any) -> Callable[..., Statement]:
    """The statement for a block of 2 and a chunk of 4 tokens."""
    return partial(statement, block_size=2, chunk_size=4, **more)


def proof_of(statement: Callable[[Integer], Statement]) -> Proof:
    """What the prover says of a statement that is in no registry."""
    return prove(Obligation("PRV-TEST", "Planted.", "all", (), statement), seed=_QUICK_SEED)


def assert_refuted(statement: Callable[[Integer], Statement]) -> None:
    """Refuted by numbers that break the claim as integers, too."""
    proof = proof_of(statement)
    assert proof.verdict is Verdict.REFUTED
    assert statement(lambda name: proof.numbers.get(name, 0)).is_counterexample is True


# --- wrong machines -----------------------------------------------------------------------------


def stepping(change: Callable[[Setting, Situation], tuple[Setting, Situation]]) -> Machine:
    """The machine, but it sees another setting or situation."""

    def wrong(setting: Setting, clients: Sequence[Client], situation: Situation) -> Move:
        seen, found = change(setting, situation)
        return step(seen, clients, found)

    return Machine(between, wrong)


def forgets_interleaving(setting: Setting, situation: Situation) -> tuple[Setting, Situation]:
    return evolve(setting, interleave=False), situation


def has_a_slot_too_many(setting: Setting, situation: Situation) -> tuple[Setting, Situation]:
    return evolve(setting, max_num_seqs=setting.max_num_seqs + 1), situation


def last_come_first_served(
    setting: Setting, clients: Sequence[Client], situation: Situation
) -> Move:
    turned = evolve(situation, places=situation.places[::-1])
    move = step(setting, clients[::-1], turned)
    return evolve(move, after=evolve(move.after, places=move.after.places[::-1]))


def overlooks_the_prefill(
    setting: Setting, clients: Sequence[Client], situation: Situation
) -> Move:
    """The first request's prefill goes on beside that of another."""
    first, *others = situation.places
    hidden = Place(select(first.phase == PREFILLING, 0, first.phase), 0, 0)
    move = step(setting, clients, evolve(situation, places=(hidden, *others)))
    kept = evolve(
        move.after.places[0],
        phase=select(first.phase == PREFILLING, PREFILLING, move.after.places[0].phase),
    )
    return evolve(move, after=evolve(move.after, places=(kept, *move.after.places[1:])))


def decodes_twice(setting: Setting, clients: Sequence[Client], situation: Situation) -> Move:
    """The first row gets two tokens, also while others are prefilled."""
    move = step(setting, clients, situation)
    first, *others = move.after.places
    further = evolve(first, computed=first.computed + 1)
    return evolve(move, after=evolve(move.after, places=(further, *others)))


def generates_while_waiting(
    clients: Sequence[Client], situation: Situation, index: Number
) -> Situation:
    after = between(clients, situation, index)
    first, *others = after.places
    return evolve(after, places=(evolve(first, generated=first.generated - 1), *others))


WRONG_MACHINES: dict[str, tuple[Callable[..., Statement], Machine]] = {
    "two prefills": (one_prefill_is_kept, Machine(between, overlooks_the_prefill)),
    "no interleaving": (prefills_are_interleaved, stepping(forgets_interleaving)),
    "a slot too many": (slots_are_kept, stepping(has_a_slot_too_many)),
    "last come, first served": (
        order_of_arrival_is_kept,
        Machine(between, last_come_first_served),
    ),
    "a token too many": (
        in_small(tokens_keep_fitting, who=0),
        Machine(between, decodes_twice),
    ),
    "a token too many in a decode step": (
        in_small(rows_decode_together),
        Machine(between, decodes_twice),
    ),
    "a token during a chunk": (
        in_small(rows_wait_for_a_chunk),
        Machine(between, decodes_twice),
    ),
    "more to come than before": (
        in_small(clients_leave_with_their_rows),
        Machine(generates_while_waiting, step),
    ),
}


@pytest.mark.parametrize("name", WRONG_MACHINES)
def test_a_wrong_machine_is_refuted(name: str) -> None:
    statement, machine = WRONG_MACHINES[name]
    assert proof_of(partial(statement, machine=MACHINE)).verdict is Verdict.PROVEN
    assert_refuted(partial(statement, machine=machine))


# --- wrong formulas -----------------------------------------------------------------------------


def one_more(formula: Callable[..., Number]) -> Callable[..., Number]:
    return lambda *arguments: formula(*arguments) + 1


@pytest.mark.parametrize(
    ("statement", "module", "function", "fault"),
    [
        (
            in_small(tokens_keep_fitting, who=0),
            symbolic,
            "chunk_end",
            one_more(padding.chunk_end),
        ),
        (
            in_small(tokens_keep_fitting, who=0),
            symbolic,
            "active_chunk",
            one_more(padding.active_chunk),
        ),
        (
            in_small(tkv_stays_bounded),
            symbolic,
            "max_tkv",
            lambda lengths, size: padding.max_tkv(lengths, size) + size,
        ),
        (
            in_small(the_next_step_keeps_the_limit),
            symbolic,
            "volume",
            lambda rows, tkv: padding.volume(rows + 1, tkv),
        ),
        (
            in_small(only_the_admitted_join),
            symbolic,
            "_others",
            lambda _turns, rows: [evolve(row, remaining=0) for row in rows[:-1]],
        ),
        (
            partial(leaving_keeps_the_limit, block_size=2),
            to_come,
            "max_tkv",
            lambda lengths, _size: 9 - lengths[0],
        ),
        (
            partial(decoding_keeps_the_limit, block_size=2),
            to_come,
            "next_of",
            lambda row: Member(row.length + 2, row.remaining - 1),
        ),
        (
            partial(order_is_of_no_matter, block_size=2),
            to_come,
            "max_tkv",
            lambda lengths, _size: lengths[0],
        ),
    ],
)
def test_a_wrong_formula_is_refuted(
    statement: Callable[[Integer], Statement],
    module: ModuleType,
    function: str,
    fault: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, function, fault)
    assert_refuted(statement)


def without_the_candidates_end(
    batch: Sequence[Member], candidate: Member, limit: Number, block_size: Number
) -> Truth:
    *volumes, _own = admission.worst_case_volumes(batch, candidate, block_size)
    return every(one <= limit for one in volumes)


def one_too_generous(
    batch: Sequence[Member], candidate: Member, limit: Number, block_size: Number
) -> Truth:
    return admission.exact_volume_holds(batch, candidate, limit + 1, block_size)


@pytest.mark.parametrize("fault", [without_the_candidates_end, one_too_generous])
def test_a_wrong_exact_rule_is_refuted(
    fault: Callable[..., Truth], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(to_come, "exact_volume_holds", fault)
    assert_refuted(partial(admission_keeps_the_limit, block_size=2))


def test_a_run_with_a_wrong_exact_rule_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    def generous(setting: Setting, batch: Any, candidate: Member, last_tkv: Number) -> Truth:
        return exact(evolve(setting, limit=setting.limit + 1), batch, candidate, last_tkv)

    monkeypatch.setitem(bounded._RULES, Admission.EXACT, generous)
    run = Run(4, Admission.EXACT, within=bounded.ENOUGH_TO_FAIL)
    assert_refuted(partial(every_step_of, run, within_volume))


def test_a_rule_that_refuses_whoever_is_alone_leaves_steps_idle() -> None:
    def stingy(setting: Setting, batch: Any, candidate: Member, last_tkv: Number) -> Truth:
        return exact(evolve(setting, limit=setting.limit - 1), batch, candidate, last_tkv)

    assert_refuted(in_small(no_step_is_idle, rule=stingy))


# --- what is claimed speaks of runs that exist ---------------------------------------------------


def situations(random: Random, block_size: int, chunk_size: int, count: int) -> Any:
    """Numbers of situations on the way of random runs under `exact`."""
    for _ in range(count):
        sizes = [(random.randint(1, 3 * chunk_size), random.randint(1, 9)) for _ in range(3)]
        total = max(map(sum, sizes))
        arrivals = sorted(random.randint(0, 8) for _ in sizes)
        clients = [
            Client(*size, random.randint(1, size[1]), arrival, random.choice([99, 6]))
            for size, arrival in zip(sizes, arrivals, strict=True)
        ]
        setting = Setting(
            block_size=block_size,
            chunk_size=chunk_size,
            interleave=random.random() < 0.7,
            limit=total + random.randint(0, 2 * total),
            max_num_seqs=random.randint(1, 3),
            max_model_len=total + random.randint(0, 3),
            rule=exact,
        )
        situation = nobody_yet(clients)
        for index in range(14):
            situation = between(clients, situation, index)
            yield numbers_of(setting, clients, situation, index)
            situation = step(setting, clients, situation).after


def numbers_of(
    setting: Setting, clients: Sequence[Client], situation: Situation, index: int
) -> dict[str, int]:
    values = asdict(setting, filter=lambda field, _value: field.name != "rule")
    values |= {"prefilled": situation.prefilled, "last_tkv": situation.last_tkv, "index": index + 1}
    for number, pair in enumerate(zip(clients, situation.places, strict=True)):
        values |= {f"{name}_{number}": one for part in pair for name, one in asdict(part).items()}
    return {name: int(value) for name, value in values.items()}


@pytest.mark.parametrize(("block_size", "chunk_size"), SIZES)
def test_what_every_step_keeps_holds_on_random_runs(block_size: int, chunk_size: int) -> None:
    """Each obligation about a step says something of real situations, and what is true of them."""
    random, met = Random(5), Counter[str]()
    others = {"A": SIZES[1], "B": SIZES[0]}
    for numbers in situations(random, block_size, chunk_size, count=25):
        numbers["admits"] = random.randint(0, 1)
        for name in OF_A_STEP:
            letter = name.removeprefix("PRV-").split("-")[1][1:2]
            if others.get(letter) == (block_size, chunk_size):
                continue
            statement = OBLIGATIONS[name].statement(numbers.__getitem__)
            if all(statement.given):
                met[name] += 1
                assert statement.claim is True, (name, numbers)
    assert min(met.values()) >= 8
    assert sum(name in met for name in OF_A_STEP) == 4 + (len(OF_A_STEP) - 4) // 2


# --- refutations run ----------------------------------------------------------------------------


@pytest.mark.thorough  # the fast tier runs `lockstep prove`, which replays every refutation too
@pytest.mark.parametrize(
    ("name", "rule"),
    [("PRV-RUN-1B", "SPY-VOL-1"), ("PRV-RUN-3B", "SPY-PAU-6"), ("PRV-RUN-4", "SPY-LEN-1")],
)
def test_a_refuted_run_breaks_the_rule_on_the_reference(
    name: str, rule: str, tmp_path: Path
) -> None:
    proof = prove(OBLIGATIONS[name])
    assert proof.verdict is Verdict.REFUTED
    path = write_scenario(OBLIGATIONS[name], proof.numbers, tmp_path)
    assert path is not None
    trace = read_trace(path)
    assert trace.violation is not None
    assert trace.violation.rule == rule
    assert len(trace.steps) == 4


def test_three_steps_are_too_few_for_the_text_to_fail() -> None:
    assert prove(OBLIGATIONS["PRV-RUN-1A"]).verdict is Verdict.PROVEN
