"""Prove or refute obligations with the solver, in parallel, with a time limit for each."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any

from attrs import evolve
from z3 import Z3Exception

from checks.cores import as_they_come
from checks.export.files import new_file
from checks.proofs import words
from checks.proofs.obligations import OBLIGATIONS
from checks.proofs.questions import (
    Answer,
    Question,
    numbers_of_few_rows,
    smt_script,
    solver_questions,
)
from checks.proofs.registry import Numbers, Obligation, Proof, Second, Verdict
from checks.proofs.sampling import drawn, smallest
from checks.proofs.scenario import breaks_in_a_run
from checks.proofs.second import opinion

PATIENCE = 60.0  # seconds of processor time for an obligation
_LEAST_PATIENCE = 0.1  # seconds for each question at least
_PATIENCE_FOR_PREMISES = 5.0  # seconds
_CANNOT_BE_STATED = (TypeError, ValueError, LookupError, Z3Exception)


def prove(
    obligation: Obligation,
    timeout_seconds: float = PATIENCE,
    seed: int = 0,
    *,
    second: bool = False,
    export: Path | None = None,
) -> Proof:
    """Ask the solver for numbers that break the claim; if there are none, it is proven.

    Cited obligations are taken to be proven, see `settled`. If the solver does not prove a claim
    about any number of rows, small batches are searched, so that a refutation has numbers.
    `second`: also ask a second solver. `export`: the directory for the questions.
    """
    if obligation.every is not None:
        return _enumerated(obligation, obligation.every())
    began = process_time()
    try:
        questions, cites = solver_questions(obligation)
    except _CANNOT_BE_STATED as error:
        seconds, reason = process_time() - began, f"cannot be stated: {error}"
        return Proof(obligation.id, Verdict.UNKNOWN, seconds, reason=reason, is_unstated=True)
    if export is not None:
        with new_file(export / f"{obligation.id}.smt2") as file:
            file.write(smt_script(questions))
    answer = _refuted_by_sample(obligation) if questions[0].is_of_rows else None
    if answer is None:
        answer = _answers(obligation, questions, began + timeout_seconds, seed)
    seconds = process_time() - began
    says = opinion(questions, answer.verdict, timeout_seconds) if second else ""
    if says is Second.DISAGREES:
        answer = Answer(Verdict.UNKNOWN, reason=f"{answer.verdict}, says one solver, not the other")
    return Proof(
        obligation=obligation.id,
        verdict=answer.verdict,
        seconds=seconds,
        size=sum(question.size for question in questions),
        numbers=answer.numbers,
        reason=answer.reason,
        cites=tuple(cites),
        second=says,
    )


def _enumerated(obligation: Obligation, every: Iterable[Numbers]) -> Proof:
    """The proof by checking all numbers; the first that break the claim refute it."""
    began, checked, verdict = process_time(), 0, Verdict.VACUOUS
    broken: Numbers = {}
    for numbers in every:
        statement = obligation.statement(numbers.__getitem__)
        if all(statement.given):
            checked += 1
            verdict = Verdict.PROVEN
            if not statement.claim:
                verdict, broken = Verdict.REFUTED, numbers
                break
    seconds = process_time() - began
    return Proof(obligation.id, verdict, seconds, size=checked, numbers=dict(broken))


def _refuted_by_sample(obligation: Obligation) -> Answer | None:
    """A refutation by random small numbers; None if none of them break the claim."""
    broken = [numbers for numbers, statement in drawn(obligation) if not statement.claim]
    return _refuted(obligation, broken) if broken else None


def _refuted(obligation: Obligation, broken: Sequence[Numbers]) -> Answer:
    """The refutation by the smallest of these numbers, if possible by numbers of a failing run."""
    runs = partial(breaks_in_a_run, obligation)
    running = next(filter(runs, broken[:_TRIED_IN_RUNS]), None)
    if running is None:
        return Answer(Verdict.REFUTED, numbers=smallest(obligation, broken[0]))
    return Answer(Verdict.REFUTED, numbers=smallest(obligation, running, runs))


_TRIED_IN_RUNS = 40  # refutations that are tried in runs


def _answers(
    obligation: Obligation, questions: Sequence[Question], end: float, seed: int
) -> Answer:
    """The solver's answer to all questions; the first that is not proven ends them."""
    for question in questions:
        left = max(end - process_time(), _LEAST_PATIENCE)
        if not question.is_of_rows:
            answer = question.answer(left, seed)
        else:
            answer = _answer_about_rows(obligation, question, left, seed)
        if answer.verdict is not Verdict.PROVEN:
            return answer
        if (vacuous := _vacuity(obligation, question, seed)) is not None:
            return vacuous
    return Answer(Verdict.PROVEN)


def _answer_about_rows(
    obligation: Obligation, question: Question, seconds: float, seed: int
) -> Answer:
    """The solver's answer about any number of rows, or a refutation with a few rows.

    A false claim would use up the time, so that a few rows are searched after a part of it.
    """
    answer = question.answer(seconds * _PART_BEFORE_FEW_ROWS, seed)
    if answer.verdict is Verdict.PROVEN:
        return answer
    numbers = numbers_of_few_rows(obligation, breaking=True)
    if numbers is not None:
        return _refuted(obligation, [numbers])
    return question.answer(seconds * (1 - _PART_BEFORE_FEW_ROWS), seed)


_PART_BEFORE_FEW_ROWS = 0.25


def _vacuity(obligation: Obligation, question: Question, seed: int) -> Answer | None:
    """Vacuous if no numbers satisfy the hypotheses, unknown if that is not decided, else None."""
    if question.is_of_rows:
        is_seen = numbers_of_few_rows(obligation, breaking=False) is not None
        vacuous = False if is_seen else question.is_vacuous(_PATIENCE_FOR_PREMISES, seed) or None
    else:
        vacuous = question.is_vacuous(_PATIENCE_FOR_PREMISES, seed)
    if vacuous:
        return Answer(Verdict.VACUOUS, reason="no numbers satisfy what is given")
    if vacuous is False or next(drawn(obligation), None) is not None:
        return None
    return Answer(Verdict.UNKNOWN, reason=_PREMISES_UNDECIDED)


_PREMISES_UNDECIDED = "whether numbers satisfy what is given was not decided"


def prove_all(
    names: Sequence[str], timeout_seconds: float = PATIENCE, seed: int = 0, **options: Any
) -> list[Proof]:
    """Proofs of these obligations in their order, then of those that they cite, on all cores.

    `options` are those of `prove`.
    """
    return settled(names, proofs_as_they_come(names, timeout_seconds, seed, **options))


def proofs_as_they_come(
    names: Sequence[str], timeout_seconds: float = PATIENCE, seed: int = 0, **options: Any
) -> Iterator[Proof]:
    """Proofs of these obligations, on all cores, each as soon as it is done.

    Proofs of the obligations that they cite, directly or not, follow. `settled` decides which
    proofs hold.
    """
    prove_one = partial(_prove_named, timeout_seconds=timeout_seconds, seed=seed, **options)
    pending, asked = list(names), set(names)
    while pending:
        cited: dict[str, None] = {}
        for proof in _checked_proofs(pending, prove_one):
            cited |= dict.fromkeys(proof.cites)
            yield proof
        pending = [name for name in cited if name not in asked]
        asked.update(pending)


def _checked_proofs(names: Sequence[str], prove_one: Callable[[str], Proof]) -> Iterator[Proof]:
    """Each proof as soon as it is done and its basis is checked.

    Each basis is checked once, while the solver works. If the code has changed, proofs that rest on
    it are stale, even if the solver proves them. All are stale if a word has two meanings.
    """
    resting = {basis: name for name in names if (basis := OBLIGATIONS[name].basis) is not None}
    work: list[Callable[[], Any]] = [partial(_stale_reason, name) for name in resting.values()]
    work += [partial(prove_one, name) for name in names]
    bases = list(resting)
    reasons: dict[Any, str | None] = {None: words.stale()}
    waiting: list[Proof] = []  # for the check of their bases
    for number, outcome in as_they_come(_called, work):
        if number < len(bases):
            reasons[bases[number]] = reasons[None] or outcome
        else:
            waiting.append(outcome)
        checked = [proof for proof in waiting if OBLIGATIONS[proof.obligation].basis in reasons]
        waiting = [proof for proof in waiting if proof not in checked]
        for proof in checked:
            reason = reasons[OBLIGATIONS[proof.obligation].basis]
            yield proof if reason is None else _without_answer(proof, Verdict.STALE, reason)


def settled(names: Sequence[str], found: Iterable[Proof]) -> list[Proof]:
    """The proofs of these names in their order, then those of the obligations that they cite.

    A proof that cites an unproven obligation or itself, directly or not, becomes unknown. A
    refutation needs no other proof: its numbers satisfy the hypotheses and break the claim.
    """
    by_name = {proof.obligation: proof for proof in found}
    proofs = {name: by_name[name] for name in (*names, *by_name) if name in by_name}
    founded: set[str] = set()
    proven = {name for name, proof in proofs.items() if proof.verdict is Verdict.PROVEN}
    while new := {name for name in proven - founded if founded.issuperset(proofs[name].cites)}:
        founded |= new
    return [
        _without_answer(proof, Verdict.UNKNOWN, _lacking(proofs, founded, name))
        if name in proven - founded
        else proof
        for name, proof in proofs.items()
    ]


def _lacking(proofs: Mapping[str, Proof], founded: Set[str], name: str) -> str:
    """The unproven obligation on which this one rests, or the circle of its citations."""
    way = [name]
    while way[-1] in proofs and proofs[way[-1]].verdict is Verdict.PROVEN:
        way.append(next(name for name in proofs[way[-1]].cites if name not in founded))
        if way[-1] in way[:-1]:
            return f"rests on itself: {' cites '.join(way[way.index(way[-1]) :])}"
    verdict = proofs[way[-1]].verdict if way[-1] in proofs else "not decided"
    return f"rests on {way[-1]}, which is {verdict}"


def _called(work: Callable[[], Any]) -> Any:
    return work()


# Statements and bases cannot be sent to other processes; names can.


def _prove_named(name: str, **options: Any) -> Proof:
    return prove(OBLIGATIONS[name], **options)


def _stale_reason(name: str) -> str | None:
    basis = OBLIGATIONS[name].basis
    return None if basis is None else basis()


def _without_answer(proof: Proof, verdict: Verdict, reason: str) -> Proof:
    """The proof with another verdict instead of the solver's answer."""
    return evolve(proof, verdict=verdict, numbers={}, reason=reason)
