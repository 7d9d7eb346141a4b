"""A second solver for the same questions: cvc5, which reads them as SMT-LIB text.

It is an extra, `pip install lockstep-schedulers[cvc5]`. Its answer changes no verdict, unless the
two solvers contradict each other.
"""

from collections.abc import Iterable
from importlib.util import find_spec
from time import process_time

from checks.proofs.questions import Question
from checks.proofs.registry import Second, Verdict
from spec.core.errors import InputError

NAME = "cvc5"
_BUSY = 4  # the solver is stopped after this multiple of the processor time, in wall-clock time


def require_second() -> None:
    """Refuse an installation without the second solver.

    Raises:
        InputError: the second solver is not installed.
    """
    if find_spec(NAME) is None:
        needed = f"pip install 'lockstep-schedulers[{NAME}]'"
        raise InputError(f"{NAME} is not installed", needed, "")


def opinion(questions: Iterable[Question], verdict: Verdict, seconds: float) -> Second:
    """The second solver's opinion on a verdict, within this much processor time.

    It is undecided on questions that the first solver did not decide.
    """
    if verdict not in (Verdict.PROVEN, Verdict.REFUTED):
        return Second.UNDECIDED
    end = process_time() + seconds
    result = "unsat"
    for question in questions:
        result = _answer(question, end)
        if result != "unsat":
            break
    if result not in ("sat", "unsat"):
        return Second.UNDECIDED
    agrees = (result == "unsat") == (verdict is Verdict.PROVEN)
    return Second.AGREES if agrees else Second.DISAGREES


def _answer(question: Question, end: float) -> str:
    """The solver's result for the first form of the question that is decided; else empty."""
    result = ""
    for script, is_whole in question.scripts:
        left = end - process_time()
        result = _solver_output(script, left if is_whole else min(left, 5.0)) if left > 0 else ""
        if result == "unsat" or (result == "sat" and is_whole):
            return result
    return ""


def _solver_output(script: str, seconds: float) -> str:
    import cvc5

    solver = cvc5.Solver(cvc5.TermManager())
    solver.setOption("tlimit-per", str(int(seconds * _BUSY * 1000)))
    parser = cvc5.InputParser(solver)
    parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, script, "question")
    said = ""
    while not (command := parser.nextCommand()).isNull():
        said += str(command.invoke(solver, parser.getSymbolManager()))
    return said.strip()
