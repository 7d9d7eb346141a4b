"""What is claimed of the machine speaks of runs that exist, and notices wrong machines."""

from collections import Counter
from collections.abc import Sequence
from random import Random
from types import ModuleType
from typing import Any

import pytest
from attrs import asdict, evolve

from checks.proofs.obligations import OBLIGATIONS
from checks.proofs.prover import prove
from checks.proofs.registry import Obligation, Verdict
from checks.proofs.spyre import bounded, future_steps, inductive, numeric_machine
from checks.proofs.spyre.bounded import Run, every_step_of, within_volume
from checks.proofs.spyre.inductive import SIZES, Scene, no_step_is_idle
from checks.proofs.spyre.numeric_machine import (
    PREFILLING,
    Client,
    RequestState,
    SchedulerState,
    Setting,
    StepResult,
    at_the_start,
    between,
    rule_of,
    step,
)
from spec.core.arithmetic import Number, Truth, every, select
from spec.spyre import admission, padding
from spec.spyre.admission import Member
from spec.spyre.variants import Admission
from tests.checks.proofs.faults import Formula, one_more

EXACT = rule_of(Admission.EXACT)
_QUICK_SEED = 1  # one with which the solver is quick to find what is wrong
OF_A_STEP = [one for one in OBLIGATIONS if one.startswith(("PRV-MAC", "PRV-TOC-1", "PRV-TOC-4"))]


def assert_refuted(obligation: Obligation) -> None:
    """Refuted by numbers that break the claim as integers, too."""
    proof = prove(obligation, seed=_QUICK_SEED)
    assert proof.verdict is Verdict.REFUTED
    assert obligation.statement(lambda name: proof.numbers.get(name, 0)).is_counterexample is True


# --- wrong machines -----------------------------------------------------------------------------


def with_setting(**changes: Formula) -> Formula:
    """The machine under another value of a key."""

    def wrong(setting: Setting, clients: Sequence[Client], state: SchedulerState) -> StepResult:
        others = {key: change(getattr(setting, key)) for key, change in changes.items()}
        return step(evolve(setting, **others), clients, state)

    return wrong


def last_come_first_served(
    setting: Setting, clients: Sequence[Client], state: SchedulerState
) -> StepResult:
    turned = evolve(state, requests=state.requests[::-1])
    result = step(setting, clients[::-1], turned)
    return evolve(result, after=evolve(result.after, requests=result.after.requests[::-1]))


def overlooking_the_prefill(
    setting: Setting, clients: Sequence[Client], state: SchedulerState
) -> StepResult:
    """The first request's prefill goes on beside that of another."""
    first, *others = state.requests
    hidden = RequestState(select(first.phase == PREFILLING, 0, first.phase), 0, 0)
    result = step(setting, clients, evolve(state, requests=(hidden, *others)))
    after, *rest = result.after.requests
    kept = evolve(after, phase=select(first.phase == PREFILLING, PREFILLING, after.phase))
    return evolve(result, after=evolve(result.after, requests=(kept, *rest)))


def decoding_twice(
    setting: Setting, clients: Sequence[Client], state: SchedulerState
) -> StepResult:
    """The first row gets two tokens, also while others are prefilled."""
    result = step(setting, clients, state)
    first, *others = result.after.requests
    further = evolve(first, computed=first.computed + 1)
    return evolve(result, after=evolve(result.after, requests=(further, *others)))


def generating_while_waiting(
    clients: Sequence[Client], state: SchedulerState, index: Number
) -> SchedulerState:
    after = between(clients, state, index)
    first, *others = after.requests
    return evolve(after, requests=(evolve(first, generated=first.generated - 1), *others))


@pytest.mark.parametrize(
    ("name", "function", "wrong"),
    [
        ("PRV-MAC-1", "step", overlooking_the_prefill),
        ("PRV-MAC-2", "step", with_setting(interleave=lambda _: False)),
        ("PRV-MAC-3", "step", with_setting(max_num_seqs=lambda most: most + 1)),
        ("PRV-MAC-4", "step", last_come_first_served),
        ("PRV-MAC-5B1", "step", decoding_twice),
        ("PRV-TOC-1B1", "between", generating_while_waiting),
        ("PRV-TOC-1B2", "step", decoding_twice),
        ("PRV-TOC-1B3", "step", decoding_twice),
    ],
)
def test_a_wrong_machine_is_refuted(
    name: str, function: str, wrong: Formula, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert prove(OBLIGATIONS[name], seed=_QUICK_SEED).verdict is Verdict.PROVEN
    monkeypatch.setattr(inductive, function, wrong)
    assert_refuted(OBLIGATIONS[name])


# --- wrong formulas -----------------------------------------------------------------------------


def without_the_candidates_end(
    batch: Sequence[Member], candidate: Member, limit: Number, block_size: Number
) -> Truth:
    *volumes, _own = admission.worst_case_volumes(batch, candidate, block_size)
    return every(one <= limit for one in volumes)


@pytest.mark.parametrize(
    ("name", "module", "function", "wrong"),
    [
        ("PRV-MAC-5B1", numeric_machine, "chunk_end", one_more(padding.chunk_end)),
        ("PRV-MAC-5B1", numeric_machine, "active_chunk", one_more(padding.active_chunk)),
        (
            "PRV-MAC-6B",
            numeric_machine,
            "max_tkv",
            lambda lengths, size: padding.max_tkv(lengths, size) + size,
        ),
        ("PRV-TOC-4B", numeric_machine, "volume", lambda rows, tkv: padding.volume(rows + 1, tkv)),
        (
            "PRV-TOC-1B4",
            numeric_machine,
            "_others",
            lambda _turns, rows: [evolve(row, remaining=0) for row in rows[:-1]],
        ),
        ("PRV-TOC-2B1", future_steps, "max_tkv", lambda lengths, _size: 9 - lengths[0]),
        (
            "PRV-TOC-2B2",
            future_steps,
            "next_of",
            lambda row: Member(row.length + 2, row.remaining - 1),
        ),
        ("PRV-TOC-2B3", future_steps, "max_tkv", lambda lengths, _size: lengths[0]),
        ("PRV-TOC-3B", future_steps, "exact_volume_holds", without_the_candidates_end),
        (
            "PRV-TOC-3B",
            future_steps,
            "exact_volume_holds",
            lambda rows, one, limit, size: admission.exact_volume_holds(rows, one, limit + 1, size),
        ),
    ],
)
def test_a_wrong_formula_is_refuted(
    name: str, module: ModuleType, function: str, wrong: Formula, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, function, wrong)
    assert_refuted(OBLIGATIONS[name])


def with_limit(more: int) -> Formula:
    """The rule `exact` under a limit of so many tokens more."""

    def rule(setting: Setting, batch: Any, candidate: Member, last_tkv: Number) -> Truth:
        return EXACT(evolve(setting, limit=setting.limit + more), batch, candidate, last_tkv)

    return rule


def test_a_run_with_a_wrong_exact_rule_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded, "rule_of", lambda _: with_limit(1))
    run = Run(4, Admission.EXACT, within=bounded.ENOUGH_TO_FAIL)
    assert_refuted(
        Obligation(
            *("PRV-TEST", "Planted.", "all", ()),
            lambda integer: every_step_of(integer, run, within_volume),
        )
    )


def test_a_rule_that_refuses_a_request_alone_leaves_steps_idle() -> None:
    stingy = with_limit(-1)
    assert_refuted(
        Obligation(
            *("PRV-TEST", "Planted.", "all", ()),
            lambda integer: no_step_is_idle(Scene.drawn(integer, *SIZES["B"], stingy)),
        )
    )


# --- what is claimed speaks of runs that exist ---------------------------------------------------


def scenes(random: Random, block_size: int, chunk_size: int, count: int) -> Any:
    """Numbers of states on the way of random runs under `exact`."""
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
            rule=EXACT,
        )
        state = at_the_start(clients)
        for index in range(14):
            state = between(clients, state, index)
            yield numbers_of(setting, clients, state, index)
            state = step(setting, clients, state).after


def numbers_of(
    setting: Setting, clients: Sequence[Client], state: SchedulerState, index: int
) -> dict[str, int]:
    values = asdict(setting, filter=lambda field, _value: field.name != "rule")
    values |= {"prefilled": state.prefilled, "last_tkv": state.last_tkv, "index": index + 1}
    for number, pair in enumerate(zip(clients, state.requests, strict=True)):
        values |= {f"{name}_{number}": one for part in pair for name, one in asdict(part).items()}
    return {name: int(value) for name, value in values.items()}


@pytest.mark.parametrize("letter", SIZES)
def test_what_every_step_keeps_holds_on_random_runs(letter: str) -> None:
    """Each obligation about a step says something of real states, and what is true of them."""
    random, met = Random(5), Counter[str]()
    others = SIZES.keys() - {letter}
    for numbers in scenes(random, *SIZES[letter], count=25):
        numbers["admits"] = random.randint(0, 1)
        for name in OF_A_STEP:
            if name.removeprefix("PRV-").split("-")[1][1:2] in others:
                continue
            statement = OBLIGATIONS[name].statement(numbers.__getitem__)
            if all(statement.given):
                met[name] += 1
                assert statement.claim is True, (name, numbers)
    assert min(met.values()) >= 8
    assert sum(name in met for name in OF_A_STEP) == 4 + (len(OF_A_STEP) - 4) // 2
