"""The envelope of every report: which command wrote it, and how it ended."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from checks.cli import HOLDS, INCOMPLETE, VIOLATED
from spec.core.errors import TraceError

Json: TypeAlias = dict[str, Any]

FORMAT, VERSION = "lockstep-report", 1
OUTCOMES = {HOLDS: "holds", VIOLATED: "violated", INCOMPLETE: "incomplete"}
FAILED = "failed"


def report_of(command: str, code: int, content: Mapping[str, Any]) -> Json:
    """The report of a command that ends with this exit code."""
    outcome = OUTCOMES.get(code, FAILED)
    head = {"format": FORMAT, "version": VERSION, "command": command, "outcome": outcome}
    return {**head, **content}


def read_report(path: Path, command: str) -> Json:
    """The report of an earlier run of this command.

    Raises:
        TraceError: no such file, no JSON, or the report of another command.
    """
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        allowed = f"a report that `lockstep {command} --json` wrote ({error})"
        raise TraceError("file", str(path), allowed) from None
    report = found if isinstance(found, dict) else {}
    for key, value in report_of(command, HOLDS, {}).items():
        if key != "outcome" and report.get(key) != value:
            raise TraceError(key, report.get(key), repr(value)).at(path)
    return report
