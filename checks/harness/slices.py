"""The steps of a run, judged in slices beside it, so that no core is idle.

A step consists of values that never change. A process that begins as a copy of the one that took
the steps has them at hand as they are, judges them while the run goes on, and says what it found.
Where all cores have enough to do already, the run judges its newest one itself.
"""

import gc
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import current_process, get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Protocol, TypeAlias

from attrs import define, field, frozen

from checks.ending import WorkerDiedError, begin_as_worker, end_at_once
from checks.harness.judging import Broken
from checks.harness.system import Step

_STEPS = 1_000  # of a slice
_QUEUED = 4_000_000  # entries of all queues that the steps of a slice copied, 8 bytes each
_MOST_BREACHES = 10  # of each rule that are kept, the first ones

Breach: TypeAlias = tuple[int, str, str]  # number of the step, id of the rule, what was found
Forget: TypeAlias = Callable[[Step], None]


class Judging(Protocol):
    """What judges steps, each by itself and by what it knows of those before."""

    def observe_all(self, steps: Sequence[Step]) -> Iterable[Broken]:
        """What the next steps break. An error that it raises ends the run."""

    def pass_over(self, *steps: Step) -> None:
        """Take note of the next steps without judging them."""


@contextmanager
def judged_in_slices(judges: Sequence[Judging], forget: Forget) -> Iterator["Slices"]:
    """What shows all steps, in order, to these judges. Processes end with the block.

    `forget`: drops what is kept of the requests that left with a step, once it is judged.
    """
    slices = Slices(judges, forget)
    try:
        yield slices
    finally:
        slices.end_processes()


def _most_processes() -> int:
    """How many processes may judge beside this one, where they can begin as copies.

    One more than cores: while this one judges a slice itself, too, some of them come to their end.
    """
    cores = os.cpu_count() or 1
    may_start = sys.platform == "linux" and not current_process().daemon  # as a cluster's are
    return cores + 1 if may_start and cores > 1 else 0


@frozen
class _Process:
    """It judges a slice."""

    process: BaseProcess
    answer: Connection


@define
class Slices:
    """Steps that are judged, some of them later and in other processes; `steps`: how many."""

    _judges: Sequence[Judging]
    _forget: Forget
    steps: int = field(default=0, init=False)
    _most: int = field(factory=_most_processes, init=False)
    _steps: list[Step] = field(factory=list, init=False)  # of the slice that is not full
    _queued: int = field(default=0, init=False)
    _found: list[Breach] = field(factory=list, init=False)
    _at_work: list[_Process] = field(factory=list, init=False)

    def observe(self, step: Step) -> None:
        """One more step."""
        self.steps += 1
        self._steps.append(step)
        waiting = step.after.waiting
        if waiting is not step.before.waiting and isinstance(waiting, tuple):  # else it is shared
            self._queued += len(waiting)
        if not self._most or len(self._steps) >= _STEPS or self._queued >= _QUEUED:
            self._end_slice()

    def breaches(self) -> list[Breach]:
        """The first few of each rule, of all steps.

        Raises:
            WorkerDiedError: a process was killed while it judged.
        """
        self._judge_here()
        while self._at_work:
            self._take_answer(self._at_work[0])
        return self._found

    def end_processes(self) -> None:
        """Those that still judge."""
        for worker in self._at_work:
            end_at_once(worker.process)
            worker.process.join()

    def _end_slice(self) -> None:
        for worker in [worker for worker in self._at_work if worker.answer.poll()]:
            self._take_answer(worker)
        if len(self._at_work) < self._most:
            self._judge_beside()
        else:
            self._judge_here()

    def _judge_here(self) -> None:
        self._note(_breaches(self._judges, self._steps))
        self._drop_steps()

    def _judge_beside(self) -> None:
        copies = get_context("fork")
        receiver, sender = copies.Pipe(duplex=False)
        process = copies.Process(target=_answer, args=(sender, self._judges, self._steps))
        process.start()
        sender.close()
        self._at_work.append(_Process(process, receiver))
        for judge in self._judges:
            judge.pass_over(*self._steps)
        self._drop_steps()

    def _drop_steps(self) -> None:
        for step in self._steps:
            self._forget(step)
        self._steps, self._queued = [], 0

    def _take_answer(self, worker: _Process) -> None:
        try:
            answer = worker.answer.recv()
        except EOFError:
            raise WorkerDiedError("a worker process was killed, which judged the run") from None
        if isinstance(answer, Exception):
            raise answer
        self._note(answer)
        worker.process.join()
        self._at_work.remove(worker)

    def _note(self, found: list[Breach]) -> None:
        if found:  # of another slice, which may be an earlier one
            self._found = _first_of_each(sorted(self._found + found))


def _answer(sender: Connection, judges: Sequence[Judging], steps: list[Step]) -> None:
    """In the process that judges: send what the steps break, or the error that is raised."""
    begin_as_worker()
    gc.disable()  # it ends soon
    try:
        sender.send(_breaches(judges, steps))
    except Exception as error:
        sender.send(error)


def _breaches(judges: Sequence[Judging], steps: Sequence[Step]) -> list[Breach]:
    found = (breach for judge in judges for breach in judge.observe_all(steps))
    return _first_of_each(
        (violation.step, violation.rule.id, violation.found) for violation in found
    )


def _first_of_each(breaches: Iterable[Breach]) -> list[Breach]:
    counts, kept = Counter[str](), list[Breach]()
    for breach in breaches:
        counts[breach[1]] += 1
        if counts[breach[1]] <= _MOST_BREACHES:
            kept.append(breach)
    return kept
