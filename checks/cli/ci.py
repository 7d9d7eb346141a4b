"""What a command has judged, as CI systems show it: JUnit, SARIF, annotations of GitHub.

A rule, an obligation or a finding is a case; what was not judged is skipped, with the reason.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, TypeAlias

from attrs import frozen

from checks.export.files import new_file

Status: TypeAlias = Literal["passed", "failed", "skipped"]

_SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_SARIF_KIND = {"passed": "pass", "failed": "fail", "skipped": "open"}


@frozen(kw_only=True)
class Case:
    """One claim and what became of it.

    `suite`: where it was judged, an instance or a release. `says`: its sentence. `found`: what
    speaks against it, or why it was not judged. `file`: where that was written.
    """

    name: str
    suite: str
    status: Status
    says: str = ""
    found: str = ""
    file: str | None = None

    @property
    def key(self) -> str:
        """Its name among all that a command judges."""
        return f"{self.suite}: {self.name}"


def status_of(*, violated: object, undecided: object = False) -> Status:
    """A violation fails whatever else there is."""
    return "failed" if violated else "skipped" if undecided else "passed"


def write_junit(path: Path, command: str, cases: Iterable[Case]) -> None:
    """Write a test suite for each suite of cases.

    Raises:
        TraceError: the file cannot be written.
    """
    from junitparser import Failure, JUnitXml, Skipped, TestCase, TestSuite

    made = JUnitXml(f"lockstep {command}")
    for suite, group in groupby(cases, lambda one: one.suite):
        into = TestSuite(suite)
        for case in group:
            element = TestCase(_printable(case.name), classname=f"{command}.{_printable(suite)}")
            text = _printable(_text(case))
            if case.status != "passed":
                element.result = [(Failure if case.status == "failed" else Skipped)(text)]
            into.add_testcase(element)
        made.add_testsuite(into)
    with new_file(path) as file:
        file.write(made.tostring().decode() + "\n")  # type: ignore[no-untyped-call]


def write_sarif(path: Path, command: str, code: int, cases: Sequence[Case]) -> None:
    """Write a SARIF 2.1.0 log with a result for each case.

    Raises:
        TraceError: the file cannot be written.
    """
    sentences = {one.name: one.says or one.name for one in reversed(cases)}
    ids = sorted(sentences)
    rules = [{"id": one, "shortDescription": {"text": sentences[one]}} for one in ids]
    release = version("lockstep-schedulers")
    run = {
        "tool": {"driver": {"name": "lockstep", "version": release, "rules": rules}},
        "invocations": [
            {"commandLine": f"lockstep {command}", "executionSuccessful": True, "exitCode": code}
        ],
        "results": [_sarif_result(one, ids.index(one.name)) for one in cases],
    }
    with new_file(path) as file:
        json.dump({"$schema": _SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}, file, indent=1)


def github_lines(cases: Iterable[Case]) -> Iterator[str]:
    """A workflow command for each case that failed, which GitHub shows as an annotation."""
    for case in cases:
        if case.status == "failed":
            place = f"file={_property(case.file)}," if case.file else ""
            title = _property(f"{case.name} in {case.suite}")
            yield f"::error {place}title={title}::{_message(_text(case))}"


def _text(case: Case) -> str:
    """What a person needs to know of it."""
    file = f"written: {case.file}" if case.file else ""
    return "\n".join(filter(None, (case.says, case.found, file))) or case.name


def _sarif_result(case: Case, index: int) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": case.name,
        "ruleIndex": index,
        "kind": _SARIF_KIND[case.status],
        "level": "error" if case.status == "failed" else "none",
        "message": {"text": f"{case.suite}: {case.found or case.says or case.status}"},
    }
    if case.file:
        uri = Path(case.file).as_posix()
        result["locations"] = [{"physicalLocation": {"artifactLocation": {"uri": uri}}}]
    return result


def _printable(text: str) -> str:
    """The text with what XML cannot have as escapes."""
    return "".join(one if one.isprintable() or one == "\n" else repr(one)[1:-1] for one in text)


def _message(text: str) -> str:
    """As GitHub wants the text of a workflow command."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")
