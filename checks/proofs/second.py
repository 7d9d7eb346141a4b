"""A second solver on the same questions: cvc5, read from the text that every solver reads.

It is an extra, `pip install lockstep-schedulers[cvc5]`: what it says changes no verdict, unless the
two solvers contradict each other.
"""

from collections.abc import Iterable
from importlib.util import find_spec
from time import process_time

from checks.proofs.questions import Question
from checks.proofs.registry import Second, Verdict
from spec.core.errors import InputError

NAME = "cvc5"
_BUSY = 4  # so many times the processor's time may pass before it is stopped all the same


def require_second() -> None:
    """See that the second solver is there.

    Raises:
        InputError: it is not installed.
    """
    if find_spec(NAME) is None:
        needed = f"pip install 'lockstep-schedulers[{NAME}]'"
        raise InputError(f"{NAME} is not installed", needed, "")


def opinion(questions: Iterable[Question], verdict: Verdict, seconds: float) -> Second:
    """What the second solver says within so many seconds of the processor's time.

    Of what the first one did not decide nothing is said.
    """
    if verdict not in (Verdict.PROVEN, Verdict.REFUTED):
        return Second.UNDECIDED
    end = process_time() + seconds
    found = "unsat"
    for question in questions:
        found = _answer(question, end)
        if found != "unsat":
            break
    if found not in ("sat", "unsat"):
        return Second.UNDECIDED
    agrees = (found == "unsat") == (verdict is Verdict.PROVEN)
    return Second.AGREES if agrees else Second.DISAGREES


def _answer(question: Question, end: float) -> str:
    """What it says of the question, in the first form in which that decides it."""
    found = ""
    for script, is_whole in question.scripts:
        left = end - process_time()
        found = _said_of(script, left if is_whole else min(left, 5.0)) if left > 0 else ""
        if found == "unsat" or (found == "sat" and is_whole):
            return found
    return ""


def _said_of(script: str, seconds: float) -> str:
    import cvc5

    solver = cvc5.Solver(cvc5.TermManager())
    solver.setOption("tlimit-per", str(int(seconds * _BUSY * 1000)))
    parser = cvc5.InputParser(solver)
    parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, script, "question")
    said = ""
    while not (command := parser.nextCommand()).isNull():
        said += str(command.invoke(solver, parser.getSymbolManager()))
    return said.strip()
