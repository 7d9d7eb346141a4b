"""Filing of a campaign's findings: each cause is shrunk and recorded in a file."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from checks.harness.campaigns.campaign import (
    Campaign,
    FirstSeen,
    Found,
    own_system,
    shrunk,
    shrunk_causes,
)
from checks.harness.campaigns.recording import Recording, file_name, read_recording, record
from checks.harness.campaigns.shrinking import Budget, Shrunk
from checks.harness.comparison import compare
from checks.harness.finding import Finding, Kind
from checks.harness.policy import evidence_of
from spec.core.errors import InputError, cannot


@frozen(kw_only=True)
class Filed(Found):
    """A defect with its smallest case and recording.

    `id`: the id of the known difference or expected violation, or empty. `says`: what is wrong.
    `reason`: the known reason, or empty. `steps`: `times` counts steps instead of episodes.
    """

    id: str = ""
    says: str
    reason: str = ""
    steps: bool = False

    @property
    def recording(self) -> Recording:
        """The smallest case with the driver's records."""
        return read_recording(self.path)

    def with_finding(self, finding: Finding) -> "Filed":
        """The same case with another finding."""
        return evolve(self, small=evolve(self.small, finding=finding))


def filed_findings(
    seen: Campaign,
    driver: str,
    directory: Path,
    budget: Callable[[int], Budget] = lambda _left: Budget(),
) -> Iterator[Filed]:
    """File the unknown findings of a campaign, each cause once.

    `driver`: name and options of the driver for the command that repeats a case. `budget`: the
    budget for shrinking a finding, by the number of findings left.
    """
    for first, small, times, also in shrunk_causes(seen, budget):
        yield _filed(seen, driver, directory, first, small, times=times, also=also)


def filed_known(seen: Campaign, driver: str, directory: Path) -> Iterator[Filed]:
    """File the known differences that the campaign met."""
    for row in evidence_of(seen.policy).known_differences:
        if row.id in seen.examples:
            first = seen.examples[row.id]
            known: dict[str, Any] = {"id": row.id, "reason": row.reason}
            filed = _filed(seen, driver, directory, first, times=seen.known[row.id], **known)
            finding = _as_unknown(filed.recording) or filed.finding
            own_steps = evolve(finding, alone=filed.finding.alone)
            yield evolve(filed, says=row.says).with_finding(own_steps)


def filed_rules(seen: Campaign, driver: str, directory: Path) -> Iterator[Filed]:
    """File the expected violations that the campaign met."""
    for rule in evidence_of(seen.policy).expected_reasons():
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
    """Record the smallest case of a finding; equal findings get the same file name.

    Raises:
        InputError: the directory cannot be written.
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
    """The finding of a comparison without known differences: the fields that differ."""
    stranger = evolve(recording, hello=evolve(recording.hello, name=""))
    return compare(stranger, recording.case, recording.terms).finding
