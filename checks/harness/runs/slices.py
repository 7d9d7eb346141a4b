"""Parallel judging: forked processes judge slices of a run's steps while the run goes on.

Steps are immutable. A forked process inherits the steps so far, judges a slice of them and sends
back the violations. If all cores are busy, the run judges its newest slice itself.
"""

import gc
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from multiprocessing import current_process, get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Protocol, TypeAlias

from attrs import define, field, frozen

from checks.ending import WorkerDiedError, begin_as_worker, end_at_once
from checks.harness.judging import Broken
from checks.harness.system import Step

_STEPS = 1_000  # of a slice
_QUEUED = 4_000_000  # entries of all waiting queues that the steps of a slice copied, 8 bytes each
_MOST_BREACHES = 10  # of each rule that are kept, the first ones

Breach: TypeAlias = tuple[int, str, str]  # number of the step, id of the rule, violation
Forget: TypeAlias = Callable[[Step], None]


class Judging(Protocol):
    """Judges steps in order."""

    def observe_all(self, steps: Sequence[Step]) -> Iterable[Broken]:
        """The violations in the next steps. An error that it raises ends the run."""

    def pass_over(self, *steps: Step) -> None:
        """Observe the next steps without judging them."""


def _most_processes() -> int:
    """The most forked processes that judge beside this one; 0 if it cannot fork.

    One more than cores: while this process judges a slice itself, others end.
    """
    cores = os.cpu_count() or 1
    may_start = sys.platform == "linux" and not current_process().daemon  # cluster workers are
    return cores + 1 if may_start and cores > 1 else 0


@frozen
class _Process:
    """A forked process that judges a slice."""

    process: BaseProcess
    answer: Connection


@define
class Slices:
    """Judges observed steps in order, some of them later in other processes; `steps`: their number.

    `_forget`: called with each judged step; drops the data of requests that left with it.
    """

    _judges: Sequence[Judging]
    _forget: Forget
    steps: int = field(default=0, init=False)
    _most: int = field(factory=_most_processes, init=False)
    _steps: list[Step] = field(factory=list, init=False)  # of the slice that is not full
    _queued: int = field(default=0, init=False)
    _found: list[Breach] = field(factory=list, init=False)
    _at_work: list[_Process] = field(factory=list, init=False)

    def observe(self, step: Step) -> None:
        """Add a step to the current slice."""
        self.steps += 1
        self._steps.append(step)
        waiting = step.after.waiting
        if waiting is not step.before.waiting and isinstance(waiting, tuple):  # else it is shared
            self._queued += len(waiting)
        if not self._most or len(self._steps) >= _STEPS or self._queued >= _QUEUED:
            self._end_slice()

    def breaches(self) -> list[Breach]:
        """The first violations of each rule in all steps.

        Raises:
            WorkerDiedError: a process was killed while it judged.
        """
        self._judge_here()
        while self._at_work:
            self._take_answer(self._at_work[0])
        return self._found

    def close(self) -> None:
        """End the processes that still judge."""
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
            raise WorkerDiedError("a worker process that judged the run was killed") from None
        if isinstance(answer, Exception):
            raise answer
        self._note(answer)
        worker.process.join()
        self._at_work.remove(worker)

    def _note(self, breaches: list[Breach]) -> None:
        if breaches:  # an earlier slice may answer later
            self._found = _first_of_each(sorted(self._found + breaches))


def _answer(sender: Connection, judges: Sequence[Judging], steps: list[Step]) -> None:
    """Run by the forked process: send the violations in the steps, or the error."""
    begin_as_worker()
    gc.disable()  # the process ends soon
    try:
        sender.send(_breaches(judges, steps))
    except Exception as error:
        sender.send(error)


def _breaches(judges: Sequence[Judging], steps: Sequence[Step]) -> list[Breach]:
    violations = (breach for judge in judges for breach in judge.observe_all(steps))
    return _first_of_each(
        (violation.step, violation.rule.id, violation.found) for violation in violations
    )


def _first_of_each(breaches: Iterable[Breach]) -> list[Breach]:
    counts, kept = Counter[str](), list[Breach]()
    for breach in breaches:
        counts[breach[1]] += 1
        if counts[breach[1]] <= _MOST_BREACHES:
            kept.append(breach)
    return kept
