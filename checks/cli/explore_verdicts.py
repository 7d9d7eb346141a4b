"""The verdicts of `lockstep explore` by instance and rule: of a run, a record and a report."""

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
    policy_rules,
    sentence,
)
from checks.explore.instance import title_of
from checks.explore.policy import offered
from engine.workloads.checked import NOTHING, brief
from spec.core.errors import InputError


def require_default(option: str, instances: Sequence[AnyInstance], *, large: bool = False) -> None:
    """Refuse instances that are not default ones, or with `large` not large ones.

    Raises:
        InputError: an instance is a user's own, or has a changed key.
    """
    kept = [*offered(large=large, thorough=large)]
    own = next((title for title in instances if title not in kept), None)
    if own is not None:
        what = "large" if large else "default"
        raise InputError(option, title_of(own), f"{what} instances as they are")


def recorded_baseline(expect: str, instances: Sequence[AnyInstance]) -> Expected:
    """The verdicts on these instances, on record or in a report.

    Raises:
        InputError: an instance is not on record, or has another configuration in the report.
    """
    if expect == RECORDED:
        require_default(f"--expect {RECORDED}", instances)

    def of_report(report: Json) -> Verdicts:
        listed = {entry["instance"]: entry for entry in report["instances"]}
        for instance in instances:
            title, config = title_of(instance), json.loads(json.dumps(instance.config.as_mapping()))
            there = listed.get(title, {}).get("config", {})
            for key in config | there:
                if there.get(key) != config.get(key):
                    value = brief(there.get(key, NOTHING))
                    allowed = f"an instance of the report, where its {key} is {value!r}"
                    raise InputError(f"--expect {expect}", title, allowed)
        return instance_verdicts(listed.items())

    return expected_verdicts(
        expect, "explore", lambda: instance_verdicts(recorded(EXPLORED).items()), of_report
    )


def rule_cases(exploration: Exploration, directory: Path) -> Iterator[Case]:
    """A CI case for each rule of the policy in an instance.

    `directory`: the directory of the counterexamples.
    """
    title, stopped_by = title_of(exploration.instance), exploration.result.stopped_by
    broken = {finding.rule: finding for finding in exploration.findings}
    rules = policy_rules(exploration.instance)
    for rule in dict.fromkeys((*rules, *broken)):
        finding = broken.get(rule)
        reason, file = "", None
        if finding is not None:
            reason, file = finding.found, str(directory / counterexample_name(exploration, finding))
        elif rule in exploration.sampled:
            edges = exploration.result.transitions
            reason = f"judged on {exploration.sampled[rule]} of {edges} edges only"
        elif rule not in exploration.rules:
            reason = "not judged: it does not apply under this configuration"
        elif stopped_by:
            reason = f"incomplete ({stopped_by}): holds so far"
        elif rule in exploration.unseen:
            reason = "not seen: nothing happened that it is about"
        undecided = stopped_by or rule not in exploration.rules or rule in exploration.unseen
        yield Case(
            suite=title,
            name=rule,
            status=status_of(violated=finding, undecided=undecided),
            says=sentence(rule, rules),
            found=reason,
            file=file,
        )


def instance_verdicts(instances: Iterable[tuple[str, Mapping[str, Any]]]) -> Verdicts:
    """The verdicts of a record or a report, by instance and rule."""
    verdicts = {}
    for title, entry in instances:
        otherwise = UNDECIDED if entry.get("stopped_by") else "holds"
        for rule in (*entry["rules"], DEADLOCK, MACHINE_ERROR):
            refuted, own = rule in entry["violations"], rule not in (DEADLOCK, MACHINE_ERROR)
            unseen = own and otherwise != UNDECIDED and not entry["witnesses"].get(rule)
            said = "not seen" if unseen else otherwise
            verdicts[f"{title}: {rule}"] = "refuted" if refuted else said
    return verdicts
