"""Prove or refute obligations: each by the solver, side by side, with a time limit.

It is the one module, with `bit_vectors`, that loads the solver.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import z3
from attrs import evolve

from checks.cores import as_they_come
from checks.proofs.any_rows import facts
from checks.proofs.bit_vectors import as_bit_vectors
from checks.proofs.obligations import OBLIGATIONS
from checks.proofs.registry import Obligation, Proof, Verdict


def prove(obligation: Obligation, timeout_seconds: float | None = None, seed: int = 0) -> Proof:
    """Ask the solver for numbers that break the claim; that there are none proves it.

    By default it gives up after a minute, on a thorough obligation after ten.
    """
    patience = timeout_seconds or (600.0 if obligation.thorough else 60.0)
    began = perf_counter()
    variables: dict[str, z3.ExprRef] = {}

    def integer(name: str) -> z3.ArithRef:
        return variables.setdefault(name, z3.Int(name))

    statement = obligation.statement(integer)
    broken = statement.is_counterexample
    if statement.rows is not None:
        hidden = [(term, z3.FreshInt("opaque")) for term in statement.opaque]
        broken = z3.And(facts(statement.rows.folds, [broken], statement.words, hidden))
    if statement.tops:
        broken, variables = as_bit_vectors(broken, statement.tops)
    # A context of its own: how long the solver takes hangs on what else its context has seen.
    context = z3.Context()
    variables = {name: variable.translate(context) for name, variable in variables.items()}
    solver = z3.Solver(ctx=context)
    solver.set("timeout", int(patience * 1000))
    solver.set("random_seed", seed)
    solver.add(z3.And(broken).translate(context))
    answer = solver.check()
    verdict = _VERDICTS[str(answer)]
    reason = solver.reason_unknown() if verdict is Verdict.UNKNOWN else ""
    if verdict is Verdict.REFUTED and statement.rows is not None:
        verdict, reason = Verdict.UNKNOWN, "not decided by the rows that are looked at"
    numbers: dict[str, int] = {}
    if verdict is Verdict.REFUTED:
        numbers = _smallest(solver, variables, _numbers(solver.model(), variables))
    return Proof(
        obligation=obligation.id,
        verdict=verdict,
        seconds=perf_counter() - began,
        size=_size(solver.assertions()),
        numbers=numbers,
        reason=reason,
    )


_VERDICTS = {"unsat": Verdict.PROVEN, "sat": Verdict.REFUTED, "unknown": Verdict.UNKNOWN}


# What the solver may spend on whether there are smaller numbers, in its own units, so that the
# answer does not hang on how busy the machine is; about a second.
_SPENT_ON_SMALLER = 3_000_000
_NO_TIMEOUT_MS = 2**32 - 1


def _smallest(
    solver: z3.Solver, variables: dict[str, z3.ExprRef], found: dict[str, int]
) -> dict[str, int]:
    """The numbers of a refutation, as small as they come: first their sum, then one by one.

    So they are easy to follow by hand, and the same whatever the solver happened upon. Where it
    does not find out soon whether there are smaller ones, those at hand are kept. Of bit-vectors
    one by one only: a sum of many takes long to make small.
    """
    if min(found.values()) < 0:
        return found
    solver.add(*(variable >= 0 for variable in variables.values()))
    solver.set("timeout", _NO_TIMEOUT_MS)
    solver.set("rlimit", _SPENT_ON_SMALLER)
    terms = list(variables.values())
    for term in (z3.Sum(terms), *terms) if z3.is_int(terms[0]) else terms:
        found = _with_least(solver, term, variables, found)
        solver.add(term == _value(term, variables, found))
    return found


def _with_least(
    solver: z3.Solver, term: z3.ArithRef, variables: dict[str, z3.ExprRef], found: dict[str, int]
) -> dict[str, int]:
    """Numbers for which the term is as small as the solver can make it, by halving."""
    least, value = 0, _value(term, variables, found)
    while least < value:
        middle = (least + value) // 2
        if solver.check(term <= middle) == z3.sat:
            found = _numbers(solver.model(), variables)
            value = _value(term, variables, found)
        else:
            least = middle + 1
    return found


def _value(term: z3.ArithRef, variables: dict[str, z3.ExprRef], found: dict[str, int]) -> int:
    chosen = [(variable, variable.sort().cast(found[name])) for name, variable in variables.items()]
    return int(z3.simplify(z3.substitute(term, *chosen)).as_long())


def _numbers(model: z3.ModelRef, variables: dict[str, z3.ExprRef]) -> dict[str, int]:
    return {
        name: model.eval(variable, model_completion=True).as_long()
        for name, variable in variables.items()
    }


def _size(assertions: Sequence[z3.ExprRef]) -> int:
    """Distinct terms, shared ones counted once."""
    seen: set[int] = set()
    pending = list(assertions)
    while pending:
        term = pending.pop()
        if term.get_id() not in seen:
            seen.add(term.get_id())
            pending.extend(term.children())
    return len(seen)


def prove_all(
    names: Sequence[str], timeout_seconds: float | None = None, seed: int = 0
) -> Iterator[Proof]:
    """Proofs of these obligations, on all cores, in the order given; see `proofs_as_they_come`."""
    yield from sorted(
        proofs_as_they_come(names, timeout_seconds, seed),
        key=lambda proof: names.index(proof.obligation),
    )


def proofs_as_they_come(
    names: Sequence[str], timeout_seconds: float | None = None, seed: int = 0
) -> Iterator[Proof]:
    """Proofs of these obligations, on all cores, each as soon as it is there.

    What they rest on is checked once, while the solver works: where it has changed, evidence is
    stale, whatever the solver says.
    """
    resting = {basis: name for name in names if (basis := OBLIGATIONS[name].basis) is not None}
    work: list[Callable[[], Any]] = [partial(_stale_reason, name) for name in resting.values()]
    work += [partial(_prove_named, name, timeout_seconds, seed) for name in names]
    bases = list(resting)
    reasons: dict[Any, str | None] = {None: None}
    waiting: list[Proof] = []  # for the check of what they rest on
    for number, outcome in as_they_come(_called, work):
        if number < len(bases):
            reasons[bases[number]] = outcome
        else:
            waiting.append(outcome)
        checked = [one for one in waiting if OBLIGATIONS[one.obligation].basis in reasons]
        waiting = [one for one in waiting if one not in checked]
        for proof in checked:
            reason = reasons[OBLIGATIONS[proof.obligation].basis]
            yield proof if reason is None else _as_stale(proof, reason)


def _called(work: Callable[[], Any]) -> Any:
    return work()


# Statements and bases do not travel between processes; names do.


def _prove_named(name: str, timeout_seconds: float | None, seed: int) -> Proof:
    return prove(OBLIGATIONS[name], timeout_seconds, seed)


def _stale_reason(name: str) -> str | None:
    basis = OBLIGATIONS[name].basis
    return None if basis is None else basis()


def _as_stale(proof: Proof, reason: str) -> Proof:
    """The proof without its answer, which is about something else than the code."""
    return evolve(proof, verdict=Verdict.STALE, numbers={}, reason=reason)
