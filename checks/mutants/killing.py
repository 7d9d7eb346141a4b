"""Try mutants, each in a process of its own, until something says that the program is wrong."""

import gc
import json
import os
import resource
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, groupby
from math import inf
from operator import attrgetter
from time import monotonic
from types import FunctionType

from attrs import evolve, field, frozen

from checks.cores import on_all_cores
from checks.ending import stopping
from checks.mutants.planting import functions_of, plant
from checks.mutants.sites import Mutant
from checks.mutants.trials import Explored, Trial, Tried
from checks.registry import RULES

_MEMORY_BYTES = 4 << 30  # of the process in which a mutant runs
_SLOWER = 5  # times as long as without a mutant, then it hangs
_PATIENCE_SECONDS = 2.0  # and so long at least
_UNTRIED_KILLS = 0.1  # of a trial that has killed nothing yet, so that long ones wait
_FURTHER = 10  # trials that are asked for a rule where what noticed a mutant first names none

SAME = "same program"
HANGS = "hangs"
STATES = "states"


@frozen
class Outcome:
    """What became of a mutant.

    `by`: the rule, obligation or difference that fell; None if none did. `means`: explore, run,
    fuzz, prove or conform. `trial`: in which instance or cases. `tried`: how many trials of each
    means run what it changes, and how many states the explored instances have.
    """

    mutant: Mutant
    by: str | None
    means: str = ""
    trial: str = ""
    tried: Mapping[str, int] = field(factory=dict)

    @property
    def is_alive(self) -> bool:
        """True if no check noticed the mutant."""
        return self.by is None

    @property
    def rule(self) -> str | None:
        """The rule that is named by what killed it: it falls, or its witness or refutation is lost.

        None of what killed by a difference, an error or an obligation alone.
        """
        return rule_in(self.by or "")

    @property
    def reached(self) -> int:
        """How many trials run what it changes."""
        return sum(count for means, count in self.tried.items() if means != STATES)

    def followed_by(self, later: "Outcome") -> "Outcome":
        """Of a survivor: what became of it in further trials."""
        return evolve(later, tried=dict(Counter(self.tried) + Counter(later.tried)))


@frozen
class Evidence:
    """Trials, with what they say of the right program."""

    trials: tuple[Tried, ...] = field(repr=False)
    _without_lines: tuple[Tried, ...] = field(init=False, repr=False)  # which are much to hand over

    def __attrs_post_init__(self) -> None:
        without = tuple(evolve(one, lines={}) for one in self.trials)
        object.__setattr__(self, "_without_lines", without)

    @staticmethod
    def of(done: Iterable[Tried]) -> "Evidence":
        """Those of these trials that say something of the right program."""
        return Evidence(tuple(one for one in done if one.verdict is not None))

    def about(self, mutant: Mutant) -> list[Tried]:
        """Those that run what the mutant changes, without the lines that they run."""
        both = zip(self.trials, self._without_lines, strict=True)
        return [one for with_lines, one in both if with_lines.runs(mutant)]


def outcomes(
    evidence: Evidence, mutants: Iterable[Mutant], until: float = inf
) -> Iterator[Outcome]:
    """What becomes of each mutant, on all cores, in their order, as far as there is time.

    Those of one function stand side by side; one core takes them, and learns which trials kill.

    `until`: on the clock of `time.monotonic`; later no mutant is tried.
    """
    functions = groupby(mutants, key=attrgetter("path", "function"))
    pieces = [[(one, evidence.about(one)) for one in some] for _, some in functions]
    yield from chain.from_iterable(on_all_cores(partial(_neighbours, until), pieces))


def _neighbours(until: float, mutants: Sequence[tuple[Mutant, list[Tried]]]) -> list[Outcome]:
    """What becomes of the mutants of one function: first tried is what killed one before."""
    for trial in {one.trial for _, trials in mutants for one in trials}:
        trial.prepare()
    functions = functions_of(mutants[0][0].path)
    kills = Counter[Trial]()
    found: list[Outcome] = []
    for mutant, trials in mutants:
        if monotonic() >= until or stopping():
            break
        trials.sort(key=lambda one: one.calls / (kills[one.trial] + _UNTRIED_KILLS))
        one, killer = outcome(mutant, trials, functions)
        kills.update([killer] if killer else ())
        found.append(one)
    return found


def outcome(
    mutant: Mutant, about: Sequence[Tried], functions: Sequence[FunctionType]
) -> tuple[Outcome, Trial | None]:
    """What becomes of one mutant, in a process of its own, and which trial killed it.

    `functions`: of its module. Of a mutant that nothing runs only whether it is the same program.
    """
    lines = in_process(partial(_try, mutant, about, functions))
    match [json.loads(line) for line in lines]:
        case [*_, {"by": by, "number": None}]:
            return Outcome(mutant, by, tried=_counted(about)), None
        case [*_, {"by": by, "number": number}]:
            trial = about[number].trial
            return Outcome(mutant, by, trial.means, trial.name, _counted(about)), trial
    raise RuntimeError(f"the process of {mutant.id} died")


def _counted(trials: Sequence[Tried]) -> dict[str, int]:
    """How many trials of each means there are, and how many states they explore."""
    counts = Counter(tried.trial.means for tried in trials)
    explored = (tried.verdict for tried in trials if isinstance(tried.verdict, Explored))
    counts[STATES] = sum(verdict.states for verdict in explored)
    return dict(+counts)


def _try(
    mutant: Mutant,
    about: Sequence[Tried],
    functions: Sequence[FunctionType],
    say: Callable[[object], None],
) -> None:
    """Plant the mutant, then try one trial after the other, up to the first that names a rule.

    Where one kills it and names none, a few more are tried. It says what killed it, and the number
    of the trial; beforehand that this one hangs.
    """
    if not plant(mutant, functions):
        say({"by": SAME, "number": None})
        return
    noticed: dict[str, object] | None = None
    last = len(about)
    for number, one in enumerate(about):
        if number > last:
            break
        say(noticed or {"by": HANGS, "number": number})  # the last word if it is ended meanwhile
        signal.setitimer(signal.ITIMER_PROF, _SLOWER * one.seconds + _PATIENCE_SECONDS)
        if one.trial.goes_as_before(mutant.room):
            continue
        try:
            by = one.trial.killed_by(one.verdict)
        except Exception as error:  # where nothing is judged yet: the machine cannot be made
            by = f"error ({type(error).__name__})"
        if by is not None and rule_in(by) is not None:
            say({"by": by, "number": number})
            return
        if by is not None and noticed is None:
            noticed, last = {"by": by, "number": number}, number + _FURTHER
    say(noticed or {"by": None, "number": None})


def rule_in(text: str) -> str | None:
    """The rule that a text names; None if it names none."""
    return next((word for word in text.split() if word in RULES), None)


def in_process(work: Callable[[Callable[[object], None]], None]) -> list[str]:
    """What `work` says, as lines of JSON, in a process that may hang, die or eat its memory.

    The timer that the work sets for itself ends it.
    """
    reading, writing = os.pipe()
    gc.freeze()  # what is there already is looked through by no collection in the child
    child = os.fork()
    if child == 0:
        _run_and_leave(work, writing)
    gc.unfreeze()
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as said:
        lines = said.readlines()
    os.waitpid(child, 0)
    return lines


def _run_and_leave(work: Callable[[Callable[[object], None]], None], writing: int) -> None:
    """In the child: nothing of it comes back but what it says."""
    try:
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        work(lambda what: _write(writing, what))
    finally:
        os._exit(0)


def _write(descriptor: int, what: object) -> None:
    os.write(descriptor, f"{json.dumps(what)}\n".encode())
