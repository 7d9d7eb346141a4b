"""Everything that a campaign met, made small and recorded: a case and a file for each defect."""

from collections.abc import Iterator
from pathlib import Path

from attrs import evolve, frozen

from checks.conformance.campaign import Campaign, Met
from checks.conformance.episode import Lab
from checks.conformance.finding import Finding
from checks.conformance.recording import (
    Recording,
    file_name,
    judged_again,
    read_recording,
    record,
    record_alone,
    recorded_again,
)
from checks.conformance.shrinking import Shrunk, shrink, shrink_alone, shrink_known
from checks.fuzz.finding import Kind
from checks.fuzz.known import known_reason, known_reasons
from checks.releases.known import known_for
from spec.core.errors import InputError


@frozen
class Filed:
    """A defect with its smallest case.

    `id`: the row of a table that knows it, or nothing. `says`: what is wrong. `reason`: why, where
    that is known. `times`: how often it was met, in episodes or, where `steps`, in steps. `met`:
    where it was met first. `path`: the recording of the small case.
    """

    id: str
    says: str
    reason: str
    times: int
    met: Met
    small: Shrunk
    path: Path
    steps: bool = False

    @property
    def recording(self) -> Recording:
        """The small case with what the driver told of it."""
        return read_recording(self.path)


def filed_findings(lab: Lab, driver: str, seen: Campaign, directory: Path) -> list[Filed]:
    """What no table knows."""
    filed = []
    for signature, met in seen.met.items():
        small = shrink(lab, met.case, met.terms, met.finding)
        path = _recorded(lab, driver, met, small, directory)
        filed.append(Filed("", small.finding.says, "", seen.times[signature], met, small, path))
    return filed


def filed_known(lab: Lab, driver: str, seen: Campaign, directory: Path) -> Iterator[Filed]:
    """The rows of the table of known differences that were met."""
    for id_, row in known_for(lab.hello.name, lab.hello.release).items():
        if id_ in seen.examples:
            met = seen.examples[id_]
            small = shrink_known(lab, met.case, met.terms, met.finding)
            path = _recorded(lab, driver, met, small, directory)
            small = evolve(small, finding=_as_unknown(read_recording(path)) or small.finding)
            yield Filed(id_, row.says, row.reason, seen.known[id_], met, small, path)


def filed_rules(lab: Lab, driver: str, seen: Campaign, directory: Path) -> Iterator[Filed]:
    """The rules that were broken where it is known that they do not hold."""
    for rule in known_reasons(lab.hello.policy):
        if rule in seen.examples:
            met = seen.examples[rule]
            small = shrink_alone(lab, met.case, met.terms, met.finding)
            path = _path(directory, lab, small)
            command = f"lockstep conform {driver} --case {path.name}"
            record_alone(lab, small.case, met.terms, path, about=met.finding.says, command=command)
            judged = judged_again(read_recording(path))
            small = evolve(small, finding=judged.findings[met.finding.signature])
            reason = known_reason(rule, met.case.config) or ""
            says, times = small.finding.says, seen.excused[rule]
            yield Filed(rule, says, reason, times, met, small, path, steps=rule != Kind.ENDLESS)


def _recorded(lab: Lab, driver: str, met: Met, small: Shrunk, directory: Path) -> Path:
    """The small case on record; the same finding has the same name."""
    path = _path(directory, lab, small)
    command = f"lockstep conform {driver} --case {path.name}"
    record(lab, small.case, met.terms, path, about=small.finding.says, command=command)
    return path


def _path(directory: Path, lab: Lab, small: Shrunk) -> Path:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        allowed = f"a directory that can be written to ({error.strerror})"
        raise InputError("--findings", str(directory), allowed) from None
    return directory / file_name(lab.hello.name, small.case, small.finding)


def _as_unknown(recording: Recording) -> Finding | None:
    """What the comparison finds if no table is looked at: the fields that differ."""
    stranger = evolve(recording, hello=evolve(recording.hello, name=""))
    return recorded_again(stranger).finding
