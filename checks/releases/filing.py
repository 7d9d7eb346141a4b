"""Everything that a campaign met, made small and recorded: a case and a file for each defect."""

from collections.abc import Iterator
from pathlib import Path

from attrs import evolve, frozen

from checks.harness.campaign import Campaign, FirstSeen, Plan, shrunk
from checks.harness.comparison import compare
from checks.harness.finding import Finding, Kind
from checks.harness.recording import Recording, file_name, read_recording, record
from checks.harness.shrinking import Shrunk
from checks.harness.system import System
from checks.policies import policy_named
from spec.core.errors import InputError


@frozen
class Filed:
    """A defect with its smallest case.

    `id`: the row of a table that knows it, or nothing. `says`: what is wrong. `reason`: why, where
    that is known. `times`: how often it was met, in episodes or, where `steps`, in steps. `first`:
    where it was met first. `path`: the recording of the small case.
    """

    id: str
    says: str
    reason: str
    times: int
    first: FirstSeen
    small: Shrunk[Finding]
    path: Path
    steps: bool = False

    @property
    def recording(self) -> Recording:
        """The small case with the records of the driver."""
        return read_recording(self.path)


def filed_findings(
    system: System, plan: Plan, driver: str, seen: Campaign, directory: Path
) -> Iterator[Filed]:
    """What no table knows."""
    for signature, first in seen.first_seen.items():
        small, path = _recorded(system, plan, driver, first, directory)
        yield Filed("", small.finding.says, "", seen.times[signature], first, small, path)


def filed_known(
    system: System, plan: Plan, driver: str, seen: Campaign, directory: Path
) -> Iterator[Filed]:
    """The rows of the table of known differences that were met."""
    for row in policy_named(system.hello.policy).known_differences:
        if row.id in seen.examples:
            first = seen.examples[row.id]
            small, path = _recorded(system, plan, driver, first, directory)
            small = evolve(small, finding=_as_unknown(read_recording(path)) or small.finding)
            yield Filed(row.id, row.says, row.reason, seen.known[row.id], first, small, path)


def filed_rules(
    system: System, plan: Plan, driver: str, seen: Campaign, directory: Path
) -> Iterator[Filed]:
    """The rules that were broken where it is known that they do not hold."""
    policy = policy_named(system.hello.policy)
    for rule in policy.expected_reasons:
        if rule in seen.examples:
            first = seen.examples[rule]
            first = evolve(first, terms=evolve(first.terms, rules_only=True))
            small, path = _recorded(system, plan, driver, first, directory)
            recording = read_recording(path)
            episode = compare(recording, recording.case, recording.terms)
            small = evolve(small, finding=episode.findings[first.finding.signature])
            reason = policy.expected_reason(rule, first.case.config) or ""
            says, times = small.finding.says, seen.expected[rule]
            yield Filed(rule, says, reason, times, first, small, path, steps=rule != Kind.ENDLESS)


def _recorded(
    system: System, plan: Plan, driver: str, first: FirstSeen, directory: Path
) -> tuple[Shrunk[Finding], Path]:
    """The smallest case that shows it, on record; the same finding has the same name.

    Raises:
        InputError: nothing can be written there.
    """
    small = shrunk(plan, first)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        allowed = f"a directory that can be written to ({error.strerror})"
        raise InputError("--findings", str(directory), allowed) from None
    path = directory / file_name(system.hello.name, small.case, small.finding)
    command = f"lockstep conform {driver} --case {path.name}"
    record(system, small.case, first.terms, path, about=small.finding.says, command=command)
    return small, path


def _as_unknown(recording: Recording) -> Finding | None:
    """What the comparison finds if no table is looked at: the fields that differ."""
    stranger = evolve(recording, hello=evolve(recording.hello, name=""))
    return compare(stranger, recording.case, recording.terms).finding
