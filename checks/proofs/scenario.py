"""A refutation as a run: the reference serves requests made from the solver's numbers."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from checks.explore.examine import MACHINE_ERROR
from checks.explore.exploring import sentence
from checks.export.trace.line import Violation
from checks.export.trace.writing import TraceWriter
from checks.harness.case import Case
from checks.harness.judging import Judge
from checks.harness.runs.serving import served
from checks.proofs.registry import Numbers, Obligation
from checks.registry import claims_of
from reference.core.guards import GuardError
from spec.core.configuration import PolicyConfig
from spec.core.errors import InputError
from spec.core.requests import Request


def write_scenario(obligation: Obligation, numbers: Numbers, directory: Path) -> Path | None:
    """Serve the obligation's scenario up to the first broken rule and write it as a trace.

    A machine that stops at the guard of one of the obligation's rules also breaks that rule.
    Returns the file; None if the obligation has no scenario.

    Raises:
        ValueError: the run breaks no rule: the refutation does not hold on the reference.
    """
    if obligation.scenario is None:
        return None
    config, requests = obligation.scenario(numbers)
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{obligation.id.lower()}.jsonl"
    with TraceWriter(path, config, requests, full=True) as trace:
        violation = _violation(trace, obligation.rules, config, requests)
        if violation is None:
            raise ValueError(f"{obligation.id}: the reference breaks no rule with {dict(numbers)}")
        trace.violated(violation)
    return path


def breaks_in_a_run(obligation: Obligation, numbers: Numbers) -> bool:
    """True if the obligation's scenario can be served and breaks one of its rules."""
    if obligation.scenario is None:
        return False
    with TemporaryDirectory() as directory:
        try:
            return write_scenario(obligation, numbers, Path(directory)) is not None
        except (InputError, ValueError, LookupError):
            return False


def _violation(
    trace: TraceWriter, rules: Sequence[str], config: PolicyConfig, requests: list[Request]
) -> Violation | None:
    """The first violation of the rules; the steps up to it are written to the trace."""
    judge = Judge(claims_of(config.policy).context_of(config, requests))
    try:
        for step in served(Case(config, tuple(requests))):
            trace.write(step)
            violations = judge.observe(step)
            broken = next((found for found in violations if found.rule.id in rules), None)
            if broken is not None:
                return Violation(broken.rule.id, broken.rule.sentence, broken.found)
    except GuardError as error:
        if error.rule in rules:
            return Violation(MACHINE_ERROR, sentence(MACHINE_ERROR), str(error))
        raise
    return None
