"""Questions to the solver: are there numbers that break an obligation's claim?"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from time import process_time

import z3
from attrs import evolve, field, frozen

from checks.proofs.abstraction import parts_first, without_products
from checks.proofs.any_rows import ROW, exact_facts, facts, row_numbers
from checks.proofs.registry import Case, Obligation, Statement, Verdict
from spec.core.arithmetic import implies, negate, some

Variables = Mapping[str, z3.ExprRef]


# The first limit of each strategy, in the solver's own units, so that the answer does not depend on
# the load of the machine: about five seconds each.
_STRATEGIES = ((z3.Solver, 20_000_000), (z3.SimpleSolver, 2_000_000))
_BUSY = 4  # the solver is stopped after this multiple of the processor time, in wall-clock time


@frozen
class Answer:
    """The solver's verdict, with the numbers of a refutation, or the reason why it gave up."""

    verdict: Verdict
    numbers: dict[str, int] = field(factory=dict)
    reason: str = ""


@frozen(eq=False)
class Question:
    """Is `broken` true of some numbers?

    `premises`: the hypotheses without the claim; None for one case of several, whose premises may
    be impossible. `variables`: the numbers by name. `is_of_rows`: the question is about any number
    of rows, of which the solver sees only instances. `abstract`: the question with unknown
    functions for products and quotients, which is asked first.
    """

    broken: z3.BoolRef
    premises: z3.BoolRef | None
    variables: Variables
    is_of_rows: bool
    abstract: z3.BoolRef | None = None

    @property
    def size(self) -> int:
        """The number of distinct terms."""
        return sum(1 for _ in parts_first(self.broken))

    @property
    def scripts(self) -> list[tuple[str, bool]]:
        """The question in the language that solvers share (SMT-LIB 2.6), and whether it is whole.

        The claim is proven if one of the forms is unsat, refuted if the whole one is sat.
        """
        forms = (
            [(self.broken, True)]
            if self.abstract is None
            else [(self.abstract, False), (self.broken, True)]
        )
        return [(_script(term), is_whole) for term, is_whole in forms]

    def answer(self, seconds: float, seed: int) -> Answer:
        """Proven if no numbers break the claim, else refuted by the smallest; or unknown."""
        if self.abstract is not None and self._is_unsat_abstractly(seconds, seed):
            return Answer(Verdict.PROVEN)
        solver, result = self._asked(seconds, seed)
        if result == z3.unsat:
            return Answer(Verdict.PROVEN)
        if result == z3.unknown:
            return Answer(Verdict.UNKNOWN, reason=solver.reason_unknown())
        if self.is_of_rows:
            return Answer(Verdict.UNKNOWN, reason="not decided with the instantiated rows")
        variables = {name: term.translate(solver.ctx) for name, term in self.variables.items()}
        return Answer(Verdict.REFUTED, _smallest(solver, variables))

    def _asked(self, seconds: float, seed: int) -> tuple[z3.Solver, z3.CheckSatResult]:
        """The solver, and its result within this much processor time.

        The time depends on luck: with one seed the solver may answer at once, with another not in
        an hour. So it is restarted with new seeds, with two strategies in turn, and twice the limit
        for each next pair.
        """
        end = process_time() + seconds
        for attempt in count():
            for make, spent in _STRATEGIES:
                left = max(end - process_time(), 0.1)
                solver = _solver(make, self.broken, left, seed + attempt)
                solver.set("rlimit", spent << attempt)
                result = solver.check()
                if result != z3.unknown or process_time() >= end:
                    return solver, result
        raise AssertionError("attempts never end")

    def _is_unsat_abstractly(self, seconds: float, seed: int) -> bool:
        make, spent = _STRATEGIES[-1]
        solver = _solver(make, self.abstract, seconds, seed)
        solver.set("rlimit", spent)
        return bool(solver.check() == z3.unsat)

    def is_vacuous(self, seconds: float, seed: int) -> bool | None:
        """True if no numbers satisfy the premises; None if the solver did not decide it.

        Divisors of 2 are tried first, which is far easier.
        """
        if self.premises is None:
            return False
        small = [(divisor, z3.IntVal(2)) for divisor in _divisors(self.premises)]
        for premises in (z3.substitute(self.premises, *small), self.premises):
            result = _solver(z3.Solver, premises, seconds, seed).check()
            if result == z3.sat:
                return False
        return None if result == z3.unknown else True


def _script(term: z3.BoolRef) -> str:
    solver = z3.Solver()
    solver.add(term)
    return f"(set-logic ALL)\n{solver.to_smt2()}"


def smt_script(questions: Sequence[Question]) -> str:
    """All questions about an obligation as one script; the obligation is proven if each is unsat.

    A question with an abstract form is written in that form: if it is unsat, so is the whole one.
    """
    return "(reset)\n".join(question.scripts[0][0] for question in questions)


def _divisors(claim: z3.ExprRef) -> list[z3.ExprRef]:
    """The variables that occur as divisors."""
    kinds = (z3.Z3_OP_IDIV, z3.Z3_OP_MOD)
    terms = (term for term in parts_first(claim) if z3.is_app(term))
    divisors = (term.arg(1) for term in terms if term.decl().kind() in kinds)
    constants = {divisor.get_id(): divisor for divisor in divisors if z3.is_const(divisor)}
    return [constant for constant in constants.values() if not z3.is_int_value(constant)]


def solver_questions(obligation: Obligation) -> tuple[list[Question], list[str]]:
    """The questions about an obligation, and the obligations that it cites.

    The obligation is proven if each question is answered with proven.

    Raises:
        TypeError, ValueError, LookupError, Z3Exception: a formula cannot be written for
            variables, or a citation is no instance of the cited obligation.
    """
    variables: dict[str, z3.ExprRef] = {}

    def integer(name: str) -> z3.ArithRef:
        return variables.setdefault(name, z3.Int(name))

    statement = obligation.statement(integer)
    parts = statement.parts or [statement]
    return [question for part in parts for question in _questions(part, variables)], statement.cites


def _questions(statement: Statement, variables: Variables) -> Iterator[Question]:
    """A question for each case and one whether the cases are complete; or a single question."""
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
    instances = [] if statement.rows is None else [*statement.rows.folds.instances]
    premises, broken = z3.And(statement.hypotheses), z3.And(statement.is_counterexample)
    if statement.rows is not None:
        statement.rows.folds.instances = instances  # without instances of cited statements
        hidden = [(term, z3.FreshInt("opaque")) for term in statement.opaque]
        folds, words = statement.rows.folds, statement.words
        premises, broken = (
            z3.And(facts(folds, [term], words, hidden)) for term in (premises, broken)
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
    """A solver with a new context: its time depends on what else a context has seen."""
    context = z3.Context()
    solver = make(ctx=context)
    solver.set("timeout", int(seconds * _BUSY * 1000))
    solver.set("random_seed", seed)
    solver.add(term.translate(context))
    return solver


# --- the smallest numbers of a refutation ---------------------------------------------------------

# The limit for each search for smaller numbers, in the solver's own units, so that the answer does
# not depend on the load of the machine; about a second.
_SPENT_ON_SMALLER = 3_000_000
_NO_TIMEOUT_MS = 2**32 - 1


def _smallest(solver: z3.Solver, variables: Variables) -> dict[str, int]:
    """The smallest numbers of a refutation: first their sum is minimised, then each number.

    Small numbers are easy to follow by hand and do not depend on the solver's luck. If the solver
    does not decide soon whether smaller numbers exist, the present ones are kept.
    """
    numbers = _numbers(solver.model(), variables)
    if min(numbers.values()) < 0:
        return numbers
    solver.add(*(variable >= 0 for variable in variables.values()))
    solver.set("timeout", _NO_TIMEOUT_MS)
    solver.set("rlimit", _SPENT_ON_SMALLER)
    terms = list(variables.values())
    for term in (z3.Sum(terms), *terms):
        numbers = _with_least(solver, term, variables, numbers)
        solver.add(term == _value(term, variables, numbers))
    return numbers


# --- a few rows instead of any number -------------------------------------------------------------

_FEW_ROWS = [z3.Const(f"row {place}", ROW) for place in range(3)]
_SMALL_BLOCKS = (1, 2, 4)
_SPENT_ON_FEW_ROWS = 4_000_000  # in the solver's own units, about a second


def numbers_of_few_rows(obligation: Obligation, *, breaking: bool) -> dict[str, int] | None:
    """Numbers of up to three rows that satisfy the hypotheses and, if `breaking`, break the claim.

    Blocks are small. Cited facts are not used, so that the numbers need no other proof.
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
            own = {name: term.translate(solver.ctx) for name, term in variables.items()}
            rows = row_numbers(solver.model(), statement.rows.folds, _FEW_ROWS)
            found = {**_numbers(solver.model(), own), **rows}
            return found | ({"block_size": size} if "block_size" in own else {})
    return None


def _with_least(
    solver: z3.Solver, term: z3.ArithRef, variables: Variables, numbers: dict[str, int]
) -> dict[str, int]:
    """Numbers for which the term is as small as the solver can make it, by binary search."""
    least, value = 0, _value(term, variables, numbers)
    while least < value:
        middle = (least + value) // 2
        if solver.check(term <= middle) == z3.sat:
            numbers = _numbers(solver.model(), variables)
            value = _value(term, variables, numbers)
        else:
            least = middle + 1
    return numbers


def _value(term: z3.ArithRef, variables: Variables, numbers: dict[str, int]) -> int:
    chosen = [
        (variable, variable.sort().cast(numbers[name])) for name, variable in variables.items()
    ]
    return int(z3.simplify(z3.substitute(term, *chosen)).as_long())


def _numbers(model: z3.ModelRef, variables: Variables) -> dict[str, int]:
    return {
        name: model.eval(variable, model_completion=True).as_long()
        for name, variable in variables.items()
    }
