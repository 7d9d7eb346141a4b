"""Everything that a campaign met, made small and recorded: a case and a file for each defect."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from checks.harness.campaign import (
    Campaign,
    FirstSeen,
    Found,
    own_system,
    shrunk,
    shrunk_causes,
)
from checks.harness.comparison import compare
from checks.harness.finding import Finding, Kind
from checks.harness.policy import evidence_of
from checks.harness.recording import Recording, file_name, read_recording, record
from checks.harness.shrinking import Budget, Shrunk
from spec.core.errors import InputError, cannot


@frozen(kw_only=True)
class Filed(Found):
    """A defect with its smallest case, on record.

    `id`: the row of a table that knows it, or nothing. `says`: what is wrong. `reason`: why, where
    that is known. `steps`: it was met so often in steps, not in episodes.
    """

    id: str = ""
    says: str
    reason: str = ""
    steps: bool = False

    @property
    def recording(self) -> Recording:
        """The small case with the records of the driver."""
        return read_recording(self.path)

    def with_finding(self, finding: Finding) -> "Filed":
        """The same case with what is found in it otherwise."""
        return evolve(self, small=evolve(self.small, finding=finding))


def filed_findings(
    seen: Campaign,
    driver: str,
    directory: Path,
    budget: Callable[[int], Budget] = lambda _left: Budget(),
) -> Iterator[Filed]:
    """What no table knows, each cause once.

    `driver`: as the command that runs a case again has it, options too. `budget`: of making each
    small, by how many are left with it.
    """
    for first, small, times, also in shrunk_causes(seen, budget):
        yield _filed(seen, driver, directory, first, small, times=times, also=also)


def filed_known(seen: Campaign, driver: str, directory: Path) -> Iterator[Filed]:
    """The rows of the table of known differences that were met."""
    for row in evidence_of(seen.policy).known_differences:
        if row.id in seen.examples:
            first = seen.examples[row.id]
            known: dict[str, Any] = {"id": row.id, "reason": row.reason}
            filed = _filed(seen, driver, directory, first, times=seen.known[row.id], **known)
            finding = _as_unknown(filed.recording) or filed.finding
            own_steps = evolve(finding, alone=filed.finding.alone)
            yield evolve(filed, says=row.says).with_finding(own_steps)


def filed_rules(seen: Campaign, driver: str, directory: Path) -> Iterator[Filed]:
    """The rules that were broken where it is known that they do not hold."""
    for rule in evidence_of(seen.policy).expected_reasons:
        if rule in seen.examples:
            first = seen.examples[rule]
            first = evolve(first, terms=evolve(first.terms, rules_only=True))
            reason = evidence_of(seen.policy).expected_reason(rule, first.case.config) or ""
            known: dict[str, Any] = {"id": rule, "reason": reason}
            known["steps"] = rule != Kind.ENDLESS
            filed = _filed(seen, driver, directory, first, times=seen.expected[rule], **known)
            recording = filed.recording
            episode = compare(recording, recording.case, recording.terms)
            finding = episode.findings[first.finding.signature]
            yield evolve(filed, says=finding.says).with_finding(finding)


def _filed(
    seen: Campaign,
    driver: str,
    directory: Path,
    first: FirstSeen,
    small: Shrunk | None = None,
    **known: Any,
) -> Filed:
    """The smallest case that shows it, on record; the same finding has the same name.

    Raises:
        InputError: nothing can be written there.
    """
    system, small = own_system(seen.plan.system), small or shrunk(seen.plan, first)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot("write", directory, error, InputError) from None
    path = directory / file_name(system.hello.name, small.case, small.finding)
    says, again = small.finding.headline, f"lockstep conform {driver} --case "
    record(
        system,
        small.case,
        first.terms,
        path,
        about=says,
        command=again + path.name,
        own_steps=small.finding.alone,
        pinned=system.hello.pinned | dict(seen.plan.pinned),
    )
    return Filed(first=first, small=small, path=path, again=f"{again}{path}", says=says, **known)


def _as_unknown(recording: Recording) -> Finding | None:
    """What the comparison finds if no table is looked at: the fields that differ."""
    stranger = evolve(recording, hello=evolve(recording.hello, name=""))
    return compare(stranger, recording.case, recording.terms).finding
