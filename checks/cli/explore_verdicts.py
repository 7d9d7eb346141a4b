"""The verdicts of `lockstep explore` by instance and rule: now, on record, and in a report."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from checks.cli.ci import Case, status_of
from checks.cli.envelope import Json
from checks.cli.expect import RECORDED, UNDECIDED, Expected, Verdicts, expected_verdicts
from checks.evidence import EXPLORED, recorded
from checks.explore.examine import DEADLOCK, MACHINE_ERROR
from checks.explore.exploring import (
    AnyInstance,
    Exploration,
    counterexample_name,
    rules_of,
    sentence,
)
from checks.explore.instance import title_of
from checks.explore.policy import offered
from spec.core.errors import InputError


def require_default(option: str, instances: Sequence[AnyInstance], *, large: bool = False) -> None:
    """Refuse an instance that has no verdicts on record, or none on that of the large ones.

    Raises:
        InputError: an instance of one's own, or with a key changed.
    """
    kept = [*offered(large=large, thorough=large)]
    own = next((one for one in instances if one not in kept), None)
    if own is not None:
        what = "large" if large else "default"
        raise InputError(option, title_of(own), f"{what} instances as they are")


def expected_of(expect: str, instances: Sequence[AnyInstance]) -> Expected:
    """The verdicts on record, or in a report, on these instances.

    Raises:
        InputError: an instance is not on record, or has another configuration in the report.
    """
    if expect == RECORDED:
        require_default(f"--expect {RECORDED}", instances)

    def of_report(report: Json) -> Verdicts:
        listed = {one["instance"]: one for one in report["instances"]}
        for instance in instances:
            title, config = title_of(instance), instance.config.as_mapping()
            there = listed.get(title, {}).get("config")
            if there != json.loads(json.dumps(config)):
                allowed = f"an instance of the report, with the same configuration: {there}"
                raise InputError(f"--expect {expect}", title, allowed)
        return verdicts_of(listed.items())

    return expected_verdicts(
        expect, "explore", lambda: verdicts_of(recorded(EXPLORED).items()), of_report
    )


def cases_of(one: Exploration, directory: Path) -> Iterator[Case]:
    """Each rule of the policy in an instance; its counterexample is in the directory."""
    title, stopped_by = title_of(one.instance), one.result.stopped_by
    broken = {finding.rule: finding for finding in one.findings}
    rules = rules_of(one.instance)
    for rule in dict.fromkeys((*rules, *broken)):
        finding = broken.get(rule)
        found, file = "", None
        if finding is not None:
            found, file = finding.found, str(directory / counterexample_name(one, finding))
        elif rule in one.sampled:
            found = f"judged on {one.sampled[rule]} of {one.result.transitions} edges only"
        elif rule not in one.rules:
            found = "not judged: it does not apply under this configuration"
        elif stopped_by:
            found = f"incomplete ({stopped_by}): holds so far"
        elif rule in one.unseen:
            found = "not seen: nothing happened that it is about"
        undecided = stopped_by or rule not in one.rules or rule in one.unseen
        yield Case(
            suite=title,
            name=rule,
            status=status_of(violated=finding, undecided=undecided),
            says=sentence(rule, rules),
            found=found,
            file=file,
        )


def verdicts_of(instances: Iterable[tuple[str, Mapping[str, Any]]]) -> Verdicts:
    """Each verdict by instance and rule, of a record or a report."""
    verdicts = {}
    for title, one in instances:
        otherwise = UNDECIDED if one.get("stopped_by") else "holds"
        for rule in (*one["rules"], DEADLOCK, MACHINE_ERROR):
            refuted, own = rule in one["violations"], rule not in (DEADLOCK, MACHINE_ERROR)
            unseen = own and otherwise != UNDECIDED and not one["witnesses"].get(rule)
            said = "not seen" if unseen else otherwise
            verdicts[f"{title}: {rule}"] = "refuted" if refuted else said
    return verdicts
