"""The envelope of every report: its format, its command and its outcome."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from checks.cli import HOLDS, INCOMPLETE, VIOLATED
from checks.export.outside import Check, file_content, json_object, refusing_missing, schema_check
from spec.core.errors import InputError, TraceError

Json: TypeAlias = dict[str, Any]

FORMAT, VERSION = "lockstep-report", 1
OUTCOMES = {HOLDS: "holds", VIOLATED: "violated", INCOMPLETE: "incomplete"}
FAILED = "failed"


def make_report(command: str, code: int, content: Mapping[str, Any]) -> Json:
    """The report of a command with this exit code."""
    outcome = OUTCOMES.get(code, FAILED)
    head = {"format": FORMAT, "version": VERSION, "command": command, "outcome": outcome}
    return {**head, **content}


def read_report(path: Path, command: str) -> Json:
    """The report of an earlier run of this command, checked against the schema.

    Reports of earlier versions may lack fields; looking up a missing field raises TraceError.

    Raises:
        TraceError: the file does not exist, is no JSON, is the report of another command, or has a
            wrong field.
    """
    try:
        report = json_object(file_content(path), "file")
        for key, value in make_report(command, HOLDS, {}).items():
            if key != "outcome" and report.get(key) != value:
                raise TraceError(key, report.get(key), repr(value))
        _schema_check(command)(report, "")
    except InputError as error:
        raise error.at(path) from None
    refusing: Json = refusing_missing(report, path)
    return refusing


@cache
def _schema_check(command: str) -> Check:
    schema = (Path(__file__).parent / "schemas" / f"{command}.json").read_bytes()
    return schema_check(json.loads(schema), may_lack_fields=True)
