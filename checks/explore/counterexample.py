"""Counterexamples as files."""

from pathlib import Path

from checks.explore.exploring import Exploration, Finding, policy_rules, sentence
from checks.export.trace.line import Violation
from checks.export.trace.writing import TraceWriter


def write_counterexample(exploration: Exploration, finding: Finding, path: Path) -> None:
    """Write a finding as a full trace with its actions, for `lockstep replay`."""
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
        # An arrival or an abort may break a rule too: then no step shows the state after it.
        unseen = None if finding.steps and finding.end == finding.steps[-1].after else finding.end
        says = sentence(finding.rule, policy_rules(instance))
        trace.violated(Violation(finding.rule, says, finding.found, finding.loop, unseen))
