"""Try mutants, each in a process of its own, until something says that the program is wrong."""

import gc
import json
import os
import resource
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from attrs import evolve, field, frozen

from checks.cores import on_all_cores
from checks.mutants.planting import plant
from checks.mutants.sites import Mutant
from checks.mutants.trials import Trial, Tried, tried

_MEMORY_BYTES = 4 << 30  # of the process in which a mutant runs
_SLOWER = 5  # times as long as without a mutant, then it hangs
_PATIENCE_SECONDS = 4.0  # and so long at least

SAME = "same program"


@frozen
class Outcome:
    """What became of a mutant.

    `by`: the rule, obligation or difference that fell; None if none did. `means`: explore, fuzz
    or prove. `trial`: in which instance or cases. `reached`: trials that run its function.
    """

    mutant: Mutant
    by: str | None
    means: str = ""
    trial: str = ""
    reached: int = 0

    @property
    def is_alive(self) -> bool:
        """True if no check noticed the mutant."""
        return self.by is None

    def followed_by(self, later: "Outcome") -> "Outcome":
        """Of a survivor: what became of it in further trials."""
        return evolve(later, reached=self.reached + later.reached)


@frozen
class Evidence:
    """Trials, with what they say of the right program."""

    trials: tuple[Tried, ...] = field(repr=False)

    @staticmethod
    def of(trials: Sequence[Trial]) -> "Evidence":
        """The trials that say something of the right program, each tried, on all cores."""
        done = on_all_cores(tried, trials)
        return Evidence(tuple(one for one in done if one.verdict is not None))

    def about(self, mutant: Mutant) -> list[Tried]:
        """Those that run the mutant's function, the cheap ones first."""
        name = f"{mutant.path}:{mutant.function}"
        reached = [one for one in self.trials if name in one.functions]
        return sorted(reached, key=lambda one: one.seconds)


def outcomes(evidence: Evidence, mutants: Iterable[Mutant]) -> Iterator[Outcome]:
    """What becomes of each mutant, on all cores, in their order."""
    yield from on_all_cores(partial(outcome, evidence), mutants)


def outcome(evidence: Evidence, mutant: Mutant) -> Outcome:
    """What becomes of one mutant, in a process of its own."""
    about = evidence.about(mutant)
    lines = in_process(partial(_try, mutant, about))
    match [json.loads(line) for line in lines]:
        case [*_, {"by": by, "means": means, "trial": trial}]:
            return Outcome(mutant, by, means, trial, len(about))
        case [*_, {"means": means, "trial": trial}]:  # it was ended in the middle of it
            return Outcome(mutant, "hangs", means, trial, len(about))
    raise RuntimeError(f"the process of {mutant.id} died")


def _try(mutant: Mutant, about: Sequence[Tried], say: Callable[[object], None]) -> None:
    """Plant the mutant, then one trial after the other; each is announced before it begins."""
    if not plant(mutant):
        say({"by": SAME, "means": "", "trial": ""})
        return
    for one in about:
        where = {"means": one.trial.means, "trial": one.trial.name}
        say(where)
        signal.setitimer(signal.ITIMER_PROF, _SLOWER * one.seconds + _PATIENCE_SECONDS)
        try:
            by = one.trial.killed_by(one.verdict)
        except Exception as error:  # where nothing is judged yet: the machine cannot be made
            by = f"error ({type(error).__name__})"
        if by is not None:
            say({"by": by, **where})
            return
    say({"by": None, "means": "", "trial": ""})


def in_process(work: Callable[[Callable[[object], None]], None]) -> list[str]:
    """What `work` says, as lines of JSON, in a process that may hang, die or eat its memory.

    The timer that the work sets for itself ends it.
    """
    reading, writing = os.pipe()
    gc.collect()
    child = os.fork()
    if child == 0:
        _run_and_leave(work, writing)
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
