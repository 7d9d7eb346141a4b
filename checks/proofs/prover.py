"""Prove or refute obligations: each by the solver, side by side, with a time limit."""

from collections.abc import Iterator, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import z3
from attrs import frozen

from checks.harness.cores import on_all_cores
from checks.proofs.bits import as_bit_vectors
from checks.proofs.obligations import OBLIGATIONS, Obligation, Verdict


@frozen
class Proof:
    """What the solver said of an obligation.

    `numbers`: of a refutation, a value for each variable that breaks the claim. `size`: distinct
    terms that the solver was given. `reason`: why it gave up, if it did.
    """

    obligation: str
    verdict: Verdict
    seconds: float
    size: int
    numbers: dict[str, int]
    reason: str = ""

    @property
    def is_as_expected(self) -> bool:
        """True if the verdict is the one that a correct specification has."""
        return self.verdict is OBLIGATIONS[self.obligation].expected

    def as_mapping(self) -> dict[str, Any]:
        """All of it, with the obligation's text, for a JSON report."""
        told = OBLIGATIONS[self.obligation]
        return {
            "obligation": told.id,
            "says": told.sentence,
            "bounds": told.bounds,
            "rules": list(told.rules),
            "verdict": self.verdict.value,
            "expected": told.expected.value,
            "seconds": round(self.seconds, 3),
            "size": self.size,
            "numbers": self.numbers,
            "reason": self.reason,
        }


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
    numbers: dict[str, int] = {}
    if verdict is Verdict.REFUTED:
        numbers = _smallest(solver, variables, _numbers(solver.model(), variables))
    return Proof(
        obligation=obligation.id,
        verdict=verdict,
        seconds=perf_counter() - began,
        size=_size(solver.assertions()),
        numbers=numbers,
        reason=solver.reason_unknown() if verdict is Verdict.UNKNOWN else "",
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
    """Proofs of these obligations, on all cores, in the order given."""
    work = partial(_prove_named, timeout_seconds=timeout_seconds, seed=seed)
    yield from on_all_cores(work, names)


def _prove_named(name: str, timeout_seconds: float | None, seed: int) -> Proof:
    """Statements do not travel between processes; names do."""
    return prove(OBLIGATIONS[name], timeout_seconds, seed)
