"""A calibration: the costs of steps in a file, in seconds.

TOML: `format = "lockstep-cost"`, `version = 1`, `unit = "second"`, `about`, where the costs are
from, and the table `[cost]` of a configuration.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from checks.cli.toml_file import brief, key_line, parse_toml, read_text
from checks.export.files import new_file
from spec.core.errors import ConfigError

FORMAT, VERSION, UNIT = "lockstep-cost", 1, "second"
_HEAD = {"format": FORMAT, "version": VERSION, "unit": UNIT}


def write_cost(path: Path, cost: Mapping[str, float], about: str) -> None:
    """Write a calibration.

    Raises:
        OSError: the file cannot be written.
    """
    head = [f"{key} = {json.dumps(value)}" for key, value in (_HEAD | {"about": about}).items()]
    table = [f"{key} = {value!r}" for key, value in cost.items()]
    with new_file(path) as file:
        file.write("\n".join([*head, "", "[cost]", *table, ""]))


def read_cost(path: Path) -> tuple[dict[str, Any], str]:
    """The table of a calibration, whose values are not checked, and the text of the file.

    Raises:
        ConfigError: the file cannot be read, or is no calibration; names file and line.
    """
    text = read_text(path)
    content = parse_toml(text, path)
    for key, due in _HEAD.items():
        if content.get(key) != due:
            found = brief(content.get(key, "nothing"))
            allowed = f"{due}, as lockstep calibrate writes it"
            raise ConfigError(key, found, allowed).at(path, key_line(key, text))
    table = content.get("cost")
    if not isinstance(table, dict):
        raise ConfigError("cost", brief(content.get("cost", "nothing")), "a table").at(path)
    return table, text
