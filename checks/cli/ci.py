"""Reports for CI systems: JUnit, SARIF and GitHub annotations.

Each rule, obligation or finding is a case; a case that was not judged is skipped, with the reason.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, TypeAlias
from urllib.parse import quote

from attrs import frozen

from checks.export.files import new_file
from checks.export.printable import printable
from checks.registry import RULES

Status: TypeAlias = Literal["passed", "failed", "skipped"]

_SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


@frozen(kw_only=True)
class Case:
    """A claim with its outcome.

    `suite`: the instance or release in which it was judged. `says`: its sentence. `found`: the
    violation, or the reason why it was not judged. `file`: the file with the violation. For a
    finding also `title`: one line that says what is wrong; `details`: lines for repeating it;
    `source` and `line`: the place in the file under test.
    """

    name: str
    suite: str
    status: Status
    says: str = ""
    found: str = ""
    file: str | None = None
    title: str = ""
    details: tuple[str, ...] = ()
    source: str | None = None
    line: int = 1

    @property
    def key(self) -> str:
        """The unique name of the case in a report."""
        return f"{self.suite}: {self.name}"

    @property
    def headline(self) -> str:
        """One line: what is wrong, or the name and suite."""
        return self.title or f"{self.name} in {self.suite}"

    @property
    def lines(self) -> list[str]:
        """The text of the case: sentence, violation, details and file."""
        written = f"written: {self.file}" if self.file else ""
        return [*filter(None, (self.says, self.found, *self.details, written))] or [self.name]

    @property
    def place(self) -> str | None:
        """The file to open: the file under test, else the file with the violation."""
        path = self.source or self.file
        return None if path is None else _relative(path)


def _relative(path: str) -> str:
    """The path relative to the working directory if it is below it, else unchanged."""
    whole, here = Path(path).absolute(), Path.cwd()
    return (whole.relative_to(here) if whole.is_relative_to(here) else Path(path)).as_posix()


def status_of(*, violated: object, undecided: object = False) -> Status:
    """The status: failed for a violation, else skipped if undecided, else passed."""
    return "failed" if violated else "skipped" if undecided else "passed"


def write_junit(path: Path, command: str, cases: Iterable[Case]) -> None:
    """Write a test suite for each suite of cases.

    Raises:
        TraceError: the file cannot be written.
    """
    from junitparser import Failure, JUnitXml, Skipped, TestCase, TestSuite

    made = JUnitXml(f"lockstep {command}")
    for suite, group in groupby(cases, lambda case: case.suite):
        into = TestSuite(suite)
        for case in group:
            element = TestCase(printable(case.name), classname=f"{command}.{printable(suite)}")
            text = printable("\n".join(case.lines))
            if case.status == "failed":
                failure = Failure(printable(case.headline), printable(case.name))
                failure.text = text
                element.result = [failure]
            elif case.status == "skipped":
                element.result = [Skipped(text)]
            into.add_testcase(element)
        made.add_testsuite(into)
    with new_file(path) as file:
        file.write(made.tostring().decode() + "\n")  # type: ignore[no-untyped-call]


_MOST_RESULTS = 5_000  # of a run: what GitHub shows
_MOST_TITLE = 255  # characters, of what GitHub takes as a title
_MOST_DESCRIPTION = 1_024  # characters, of a rule's description there
_NO_PLACE = "lockstep"  # a result of GitHub needs the name of a file


def write_sarif(path: Path, command: str, code: int, cases: Sequence[Case]) -> None:
    """Write a SARIF 2.1.0 log with a result for each case that failed.

    The log lists every judged rule. Cases that hold are no results, because code scanning shows
    each result as an alert. Each result has a place and a fingerprint that is the same in later
    runs. Source: GitHub, "SARIF support for code scanning".

    Raises:
        TraceError: the file cannot be written.
    """
    by_name = {case.name: case for case in reversed(cases)}
    ids = sorted(by_name)
    release = version("lockstep-schedulers")
    failed = [case for case in cases if case.status == "failed"][:_MOST_RESULTS]
    driver = {
        "name": "lockstep",
        "version": release,
        "rules": [_sarif_rule(by_name[id_]) for id_ in ids],
    }
    run = {
        "tool": {"driver": driver},
        "invocations": [
            {"commandLine": f"lockstep {command}", "executionSuccessful": True, "exitCode": code}
        ],
        "results": [_sarif_result(case, ids.index(case.name)) for case in failed],
    }
    with new_file(path) as file:
        json.dump({"$schema": _SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}, file, indent=1)


def github_lines(cases: Iterable[Case]) -> Iterator[str]:
    """A GitHub workflow command for each case that failed; GitHub shows it as an annotation."""
    for case in cases:
        if case.status == "failed":
            at = "" if case.place is None else f"file={_property(case.place)},"
            at += f"line={case.line}," if case.source else ""
            title = _property(_short(case.headline, _MOST_TITLE))
            yield f"::error {at}title={title}::{_message(chr(10).join(case.lines))}"


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _sarif_rule(case: Case) -> dict[str, Any]:
    """A rule with all fields that GitHub requires; its sentence is the description."""
    says = help_text = case.says or case.title or case.name
    if case.name in RULES:
        rule = RULES[case.name]
        says = rule.sentence
        help_text = f"{says}\nSource: {rule.source}\nMore: lockstep rules {case.name}"
    description = {"text": _short(says, _MOST_DESCRIPTION)}
    return {
        "id": case.name,
        "shortDescription": description,
        "fullDescription": description,
        "help": {"text": help_text},
    }


def _sarif_result(case: Case, index: int) -> dict[str, Any]:
    place = {"uri": quote(case.place or _NO_PLACE)}
    where = {"artifactLocation": place, "region": {"startLine": case.line}}
    digest = blake2b(case.key.encode(), digest_size=8).hexdigest()
    return {
        "ruleId": case.name,
        "ruleIndex": index,
        "kind": "fail",
        "level": "error",
        "message": {"text": "\n".join([case.headline, *case.lines])},
        "locations": [{"physicalLocation": where}],
        "partialFingerprints": {"lockstep/v1": digest},
    }


def _message(text: str) -> str:
    """The text, escaped for a GitHub workflow command."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")
