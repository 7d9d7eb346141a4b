"""What the solver is asked about an obligation: numbers that break its claim.

It is the one module, with `any_rows`, that loads the solver.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from time import process_time

import z3
from attrs import evolve, field, frozen

from checks.proofs.abstraction import parts_first, without_products
from checks.proofs.any_rows import ROW, exact_facts, facts, numbers_in
from checks.proofs.registry import Case, Obligation, Statement, Verdict
from spec.core.arithmetic import implies, negate, some

Variables = Mapping[str, z3.ExprRef]


# What each strategy may spend at first, in the solver's own units, so that what comes out does not
# hang on how busy the machine is: about five seconds of either.
_STRATEGIES = ((z3.Solver, 20_000_000), (z3.SimpleSolver, 2_000_000))
_BUSY = 4  # so many times the processor's time may pass before the solver is stopped all the same


@frozen
class Answer:
    """What the solver said: of a refutation with the numbers, where it gave up with the reason."""

    verdict: Verdict
    numbers: dict[str, int] = field(factory=dict)
    reason: str = ""


@frozen(eq=False)
class Question:
    """Is `broken` true of some numbers? `premises`: what is given and known, without the claim.

    `variables`: the numbers by name. `is_of_rows`: rows of any number are spoken of, of which the
    solver does not see all. Of one case of several the premises may be impossible, and are None.
    `abstract`: the question without what is multiplied and divided, to be asked first.
    """

    broken: z3.BoolRef
    premises: z3.BoolRef | None
    variables: Variables
    is_of_rows: bool
    abstract: z3.BoolRef | None = None

    @property
    def size(self) -> int:
        """Distinct terms, shared ones counted once."""
        return sum(1 for _ in parts_first(self.broken))

    @property
    def scripts(self) -> list[tuple[str, bool]]:
        """The question in the language that solvers share (SMT-LIB 2.6), and whether it is whole.

        The claim is proven if one of them is found to be unsat, refuted if the whole one is sat.
        """
        forms = (
            [(self.broken, True)]
            if self.abstract is None
            else [(self.abstract, False), (self.broken, True)]
        )
        return [(_script(term), is_whole) for term, is_whole in forms]

    def answer(self, seconds: float, seed: int) -> Answer:
        """Proven if there are no such numbers, else refuted by the smallest; or not decided."""
        if self.abstract is not None and self._is_unsat_abstractly(seconds, seed):
            return Answer(Verdict.PROVEN)
        solver, found = self._asked(seconds, seed)
        if found == z3.unsat:
            return Answer(Verdict.PROVEN)
        if found == z3.unknown:
            return Answer(Verdict.UNKNOWN, reason=solver.reason_unknown())
        if self.is_of_rows:
            return Answer(Verdict.UNKNOWN, reason="not decided by the rows that are looked at")
        variables = {name: one.translate(solver.ctx) for name, one in self.variables.items()}
        return Answer(Verdict.REFUTED, _smallest(solver, variables))

    def _asked(self, seconds: float, seed: int) -> tuple[z3.Solver, z3.CheckSatResult]:
        """What the solver says within so many seconds of the processor's time, and the solver.

        How long it takes is a matter of luck: it may find in no time with one seed what it does not
        find in an hour with another. So it starts anew, with two strategies in turn and twice the
        patience for each next pair.
        """
        end = process_time() + seconds
        for attempt in count():
            for make, spent in _STRATEGIES:
                left = max(end - process_time(), 0.1)
                solver = _solver(make, self.broken, left, seed + attempt)
                solver.set("rlimit", spent << attempt)
                found = solver.check()
                if found != z3.unknown or process_time() >= end:
                    return solver, found
        raise AssertionError("attempts never end")

    def _is_unsat_abstractly(self, seconds: float, seed: int) -> bool:
        make, spent = _STRATEGIES[-1]
        solver = _solver(make, self.abstract, seconds, seed)
        solver.set("rlimit", spent)
        return bool(solver.check() == z3.unsat)

    def is_vacuous(self, seconds: float, seed: int) -> bool | None:
        """True if no numbers satisfy the premises; None if the solver did not find out.

        It looks first where divisors are small, which is far easier.
        """
        if self.premises is None:
            return False
        small = [(one, z3.IntVal(2)) for one in _divisors(self.premises)]
        for premises in (z3.substitute(self.premises, *small), self.premises):
            found = _solver(z3.Solver, premises, seconds, seed).check()
            if found == z3.sat:
                return False
        return None if found == z3.unknown else True


def _script(term: z3.BoolRef) -> str:
    solver = z3.Solver()
    solver.add(term)
    return f"(set-logic ALL)\n{solver.to_smt2()}"


def script_of(questions: Sequence[Question]) -> str:
    """All questions about an obligation, one after the other; it is proven if each is unsat.

    Where a question has a form without products, that is the one: of it the whole one follows.
    """
    return "(reset)\n".join(question.scripts[0][0] for question in questions)


def _divisors(claim: z3.ExprRef) -> list[z3.ExprRef]:
    """The variables by which something is divided."""
    kinds = (z3.Z3_OP_IDIV, z3.Z3_OP_MOD)
    divided = (one for one in parts_first(claim) if z3.is_app(one) and one.decl().kind() in kinds)
    found = {one.arg(1).get_id(): one.arg(1) for one in divided if z3.is_const(one.arg(1))}
    return [one for one in found.values() if not z3.is_int_value(one)]


def questions_of(obligation: Obligation) -> tuple[list[Question], list[str]]:
    """The questions about an obligation, all to be answered with proven, and what it cites.

    Raises:
        TypeError, ValueError, LookupError, Z3Exception: a formula cannot be written for any
            numbers, or a citation is no instance of what is cited.
    """
    variables: dict[str, z3.ExprRef] = {}

    def integer(name: str) -> z3.ArithRef:
        return variables.setdefault(name, z3.Int(name))

    statement = obligation.statement(integer)
    parts = statement.parts or [statement]
    return [one for part in parts for one in _questions(part, variables)], statement.cites


def _questions(statement: Statement, variables: Variables) -> Iterator[Question]:
    """One for each case, and whether there is no other; or one alone."""
    if not statement.cases:
        yield _question(statement, variables)
        return
    for case in statement.cases:
        yield evolve(_question(_of_case(statement, case), variables), premises=None)
    shown = [case.claim for case in statement.cases if case.claim is not None]
    if shown:
        follows = implies(some(shown), statement.claim)
        yield evolve(_question(Statement(follows), variables), premises=None)
    is_covered = some(case.condition for case in statement.cases)
    yield _question(evolve(statement, claim=is_covered, cases=()), variables)


def _of_case(statement: Statement, case: Case) -> Statement:
    return evolve(
        statement,
        claim=statement.claim if case.claim is None else case.claim,
        given=[*statement.given, case.condition],
        known=[*statement.known, *case.known],
        cases=(),
    )


def _question(statement: Statement, variables: Variables) -> Question:
    looked_at = [] if statement.rows is None else [*statement.rows.folds.looked_at]
    premises, broken = z3.And(statement.hypotheses), z3.And(statement.is_counterexample)
    if statement.rows is not None:
        statement.rows.folds.looked_at = looked_at  # without what the cited look at for themselves
        hidden = [(term, z3.FreshInt("opaque")) for term in statement.opaque]
        folds, words = statement.rows.folds, statement.words
        premises, broken = (
            z3.And(facts(folds, [one], words, hidden)) for one in (premises, broken)
        )
    abstract = without_products(broken) if statement.is_congruent else None
    return Question(
        broken,
        premises,
        variables,
        is_of_rows=statement.rows is not None,
        abstract=abstract,
    )


def _solver(
    make: Callable[..., z3.Solver], term: z3.BoolRef, seconds: float, seed: int
) -> z3.Solver:
    """A solver with a context of its own: what else a context has seen is a matter of luck, too."""
    context = z3.Context()
    solver = make(ctx=context)
    solver.set("timeout", int(seconds * _BUSY * 1000))
    solver.set("random_seed", seed)
    solver.add(term.translate(context))
    return solver


# --- the smallest numbers of a refutation ---------------------------------------------------------

# What the solver may spend on whether there are smaller numbers, in its own units, so that the
# answer does not hang on how busy the machine is; about a second.
_SPENT_ON_SMALLER = 3_000_000
_NO_TIMEOUT_MS = 2**32 - 1


def _smallest(solver: z3.Solver, variables: Variables) -> dict[str, int]:
    """The numbers of a refutation, as small as they come: first their sum, then one by one.

    So they are easy to follow by hand, and the same whatever the solver happened upon. Where it
    does not find out soon whether there are smaller ones, those at hand are kept.
    """
    found = _numbers(solver.model(), variables)
    if min(found.values()) < 0:
        return found
    solver.add(*(variable >= 0 for variable in variables.values()))
    solver.set("timeout", _NO_TIMEOUT_MS)
    solver.set("rlimit", _SPENT_ON_SMALLER)
    terms = list(variables.values())
    for term in (z3.Sum(terms), *terms):
        found = _with_least(solver, term, variables, found)
        solver.add(term == _value(term, variables, found))
    return found


# --- a few rows instead of any number -------------------------------------------------------------

_FEW_ROWS = [z3.Const(f"row {place}", ROW) for place in range(3)]
_SMALL_BLOCKS = (1, 2, 4)
_SPENT_ON_FEW_ROWS = 4_000_000  # in the solver's own units, about a second


def numbers_of_few_rows(obligation: Obligation, *, breaking: bool) -> dict[str, int] | None:
    """Numbers of up to three rows that satisfy what is given, and break the claim if so asked.

    Blocks are small. Of what is cited nothing is used: what is found stands by itself.
    """
    variables: dict[str, z3.ArithRef] = {}

    def integer(name: str) -> z3.ArithRef:
        return variables.setdefault(name, z3.Int(name))

    statement = obligation.statement(integer)
    wanted = z3.And([*statement.given, *([negate(statement.claim)] if breaking else [])])
    term = z3.And(exact_facts(statement.rows.folds, [wanted], _FEW_ROWS))
    sizes = _SMALL_BLOCKS if "block_size" in variables else (1,)
    for size in sizes:
        small = z3.substitute(term, (z3.Int("block_size"), z3.IntVal(size)))
        solver = _solver(z3.Solver, small, 5.0, 0)
        solver.set("rlimit", _SPENT_ON_FEW_ROWS)
        if solver.check() == z3.sat:
            own = {name: one.translate(solver.ctx) for name, one in variables.items()}
            rows = numbers_in(solver.model(), statement.rows.folds, _FEW_ROWS)
            found = {**_numbers(solver.model(), own), **rows}
            return found | ({"block_size": size} if "block_size" in own else {})
    return None


def _with_least(
    solver: z3.Solver, term: z3.ArithRef, variables: Variables, found: dict[str, int]
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


def _value(term: z3.ArithRef, variables: Variables, found: dict[str, int]) -> int:
    chosen = [(variable, variable.sort().cast(found[name])) for name, variable in variables.items()]
    return int(z3.simplify(z3.substitute(term, *chosen)).as_long())


def _numbers(model: z3.ModelRef, variables: Variables) -> dict[str, int]:
    return {
        name: model.eval(variable, model_completion=True).as_long()
        for name, variable in variables.items()
    }
