"""Counterexamples as files."""

from pathlib import Path

from checks.explore.exploring import Exploration, Finding, rules_of, sentence
from checks.export.trace.line import Violation
from checks.export.trace.writing import TraceWriter


def write_counterexample(exploration: Exploration, finding: Finding, path: Path) -> None:
    """A finding as a full trace with the actions that led there: `lockstep replay` reads it."""
    instance = finding.instance
    with TraceWriter(
        path,
        instance.config,
        instance.requests,
        full=True,
        actions=finding.script,
        external=instance.external,
        returning=sorted(exploration.instance.returning),
    ) as trace:
        for step in finding.steps:
            trace.write(step)
        # An arrival or an abort may break a rule too: no step shows the state that it leaves.
        unseen = None if finding.steps and finding.end == finding.steps[-1].after else finding.end
        says = sentence(finding.rule, rules_of(instance))
        trace.violated(Violation(finding.rule, says, finding.found, finding.loop, unseen))
