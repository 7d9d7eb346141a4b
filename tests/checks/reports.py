"""Validate reports against the schemas of the package."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from checks.cli import envelope

SCHEMAS = Path(envelope.__file__).with_name("schemas")


@cache
def validator(command: str) -> Draft202012Validator:
    """Of the reports of a command; fields that its schema does not name are errors, too."""
    schema = json.loads((SCHEMAS / f"{command}.json").read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(_closed(schema))


def validated(report: dict[str, Any]) -> dict[str, Any]:
    """The validated report in a file."""
    written: dict[str, Any] = json.loads(json.dumps(report))
    wrong = list(validator(str(report["command"])).iter_errors(written))
    if wrong:
        raise AssertionError("; ".join(f"{error.json_path}: {error.message}" for error in wrong))
    return report


def _closed(schema: Any) -> Any:
    """The schema with objects that have no other fields than those it names."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    return closed | {"additionalProperties": False} if "properties" in schema else closed
