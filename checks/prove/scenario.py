"""A refutation as a run: the numbers of the solver become requests that the reference serves."""

from pathlib import Path

from checks.running import Judge, serve
from checks.traces import TraceWriter, Violation
from reference.spyre.machine import SpyreMachine
from spec.config import Config
from spec.obligations import Obligation
from spec.obligations.registry import Numbers


def write_scenario(obligation: Obligation, numbers: Numbers, directory: Path) -> Path | None:
    """Serve the obligation's scenario up to the first broken rule and write it as a trace.

    Returns the file; None if the obligation has no scenario, or one of a scheduler other than
    Spyre's, whose runs are not written as traces.

    Raises:
        ValueError: the run breaks no rule: the refutation does not hold on the reference.
    """
    if obligation.scenario is None:
        return None
    config, requests = obligation.scenario(numbers)
    if not isinstance(config, Config):
        return None
    machine = SpyreMachine.of(config, requests)
    judge = Judge(machine.ctx)
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{obligation.id.lower()}.jsonl"
    with TraceWriter(path, config, requests, full=True) as trace:
        for step in serve(machine, requests):
            trace.write(step)
            judge.observe(step)
            broken = next((one for one in judge.broken if one.rule.id in obligation.rules), None)
            if broken is not None:
                trace.violated(Violation(broken.rule.id, broken.rule.sentence, broken.found))
                return path
        raise ValueError(f"{obligation.id}: the reference breaks no rule with {dict(numbers)}")
