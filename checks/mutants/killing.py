"""Try mutants, each in its own process, until a trial shows that the program is wrong."""

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
from checks.mutants.planting import module_functions, plant
from checks.mutants.sites import Mutant
from checks.mutants.trials import Explored, Trial, Tried
from checks.registry import RULES

_MEMORY_BYTES = 4 << 30  # of the process in which a mutant runs
_SLOWER = 5  # a trial that takes this many times its time without a mutant hangs
_PATIENCE_SECONDS = 2.0  # a trial is never ended earlier
_UNTRIED_KILLS = 0.1  # of a trial without kills, so that long trials come later
_FURTHER = 10  # trials after the first kill that may still name a rule

SAME = "same program"
HANGS = "hangs"
STATES = "states"


@frozen
class Outcome:
    """The outcome of a mutant.

    `by`: the rule, obligation or difference that killed it; None if it survived. `means`: explore,
    run, fuzz, prove or conform. `trial`: the instance, case or obligation. `tried`: by means, the
    number of trials that run the mutated code, and the number of states of the explored instances.
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
        """The rule that killed it: it is broken, or its witness or refutation is lost.

        None if a difference, an error or an obligation killed it.
        """
        return named_rule(self.by or "")

    @property
    def reached(self) -> int:
        """The number of trials that run the mutated code."""
        return sum(count for means, count in self.tried.items() if means != STATES)

    def then(self, later: "Outcome") -> "Outcome":
        """The outcome of a survivor after further trials."""
        return evolve(later, tried=dict(Counter(self.tried) + Counter(later.tried)))


@frozen
class Evidence:
    """Trials with their verdicts on the right program."""

    trials: tuple[Tried, ...] = field(repr=False)
    _without_lines: tuple[Tried, ...] = field(init=False, repr=False)  # lines are large to send

    def __attrs_post_init__(self) -> None:
        without = tuple(evolve(trial, lines={}) for trial in self.trials)
        object.__setattr__(self, "_without_lines", without)

    @staticmethod
    def of(done: Iterable[Tried]) -> "Evidence":
        """The trials that have a verdict on the right program."""
        return Evidence(tuple(trial for trial in done if trial.verdict is not None))

    def about(self, mutant: Mutant) -> list[Tried]:
        """The trials that run the mutated code, without their lines."""
        both = zip(self.trials, self._without_lines, strict=True)
        return [trial for with_lines, trial in both if with_lines.runs(mutant)]


def outcomes(
    evidence: Evidence, mutants: Iterable[Mutant], until: float = inf
) -> Iterator[Outcome]:
    """The outcome of each mutant, in their order, tried on all cores until the time is over.

    The mutants of one function are adjacent; one core tries them and learns which trials kill.

    `until`: on the clock of `time.monotonic`; later no mutant is tried.
    """
    functions = groupby(mutants, key=attrgetter("path", "function"))
    pieces = [
        [(mutant, evidence.about(mutant)) for mutant in neighbours] for _, neighbours in functions
    ]
    yield from chain.from_iterable(on_all_cores(partial(_neighbours, until), pieces))


def _neighbours(until: float, mutants: Sequence[tuple[Mutant, list[Tried]]]) -> list[Outcome]:
    """The outcomes of the mutants of one function; trials that killed before are tried first."""
    for trial in {tried.trial for _, trials in mutants for tried in trials}:
        trial.prepare()
    functions = module_functions(mutants[0][0].path)
    kills = Counter[Trial]()
    results: list[Outcome] = []
    for mutant, trials in mutants:
        if monotonic() >= until or stopping():
            break
        trials.sort(key=lambda tried: tried.calls / (kills[tried.trial] + _UNTRIED_KILLS))
        result, killer = outcome(mutant, trials, functions)
        kills.update([killer] if killer else ())
        results.append(result)
    return results


def outcome(
    mutant: Mutant, about: Sequence[Tried], functions: Sequence[FunctionType]
) -> tuple[Outcome, Trial | None]:
    """The outcome of one mutant, tried in its own process, and the trial that killed it.

    `functions`: those of its module. Without trials it is only decided whether the mutant is the
    same program.
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
    """By means, the number of trials; also the number of states that they explore."""
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
    """Plant the mutant and try the trials in turn, up to the first kill that names a rule.

    After a kill that names no rule a few more trials are tried. `say` reports the kill and the
    number of the trial; before each trial it reports that this trial hangs, in case it does.
    """
    if not plant(mutant, functions):
        say({"by": SAME, "number": None})
        return
    noticed: dict[str, object] | None = None
    last = len(about)
    for number, tried in enumerate(about):
        if number > last:
            break
        # The last report if the timer ends the process.
        say(noticed or {"by": HANGS, "number": number})
        signal.setitimer(signal.ITIMER_PROF, _SLOWER * tried.seconds + _PATIENCE_SECONDS)
        if tried.trial.is_unchanged(mutant.room):
            continue
        try:
            by = tried.trial.killer(tried.verdict)
        except Exception as error:  # before anything is judged: the machine cannot be made
            by = f"error ({type(error).__name__})"
        if by is not None and named_rule(by) is not None:
            say({"by": by, "number": number})
            return
        if by is not None and noticed is None:
            noticed, last = {"by": by, "number": number}, number + _FURTHER
    say(noticed or {"by": None, "number": None})


def named_rule(text: str) -> str | None:
    """The rule that a text names; None if it names none."""
    return next((word for word in text.split() if word in RULES), None)


def in_process(work: Callable[[Callable[[object], None]], None]) -> list[str]:
    """The reports of `work`, as lines of JSON; its process may hang, die or run out of memory.

    The timer that `work` sets for itself ends the process.
    """
    reading, writing = os.pipe()
    gc.freeze()  # the child's garbage collector skips existing objects
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
    """Run `work` in the child process; only its reports come back."""
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
