"""Several configurations of one workload: which they are, and what they cost side by side."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path

from attrs import frozen

from checks.cli.configuration import read_settings
from checks.harness.serving import Settings
from spec.core.errors import ConfigError


@frozen
class Variant:
    """One of the configurations; `label` says in what it differs from the others."""

    label: str
    settings: Settings


def variants(
    compared: Sequence[str],
    path: Path | None,
    settings: Sequence[str],
    environment: Mapping[str, str] | None,
) -> list[Variant]:
    """Every combination of the values that `--compare key=one,other` names; else the only one.

    Raises:
        ConfigError: a comparison that is none, or any of the configurations is wrong.
    """
    choices = [list(_choices(one)) for one in compared]
    keys = [chosen[0].partition("=")[0] for chosen in choices]
    if len(set(keys)) < len(keys):
        raise ConfigError("comparison", ", ".join(keys), "each key once").at("--compare")
    return [
        Variant(", ".join(chosen), read_settings(path, (*settings, *chosen), environment))
        for chosen in product(*choices)
    ]


def _choices(compared: str) -> Iterator[str]:
    """The settings that a comparison stands for."""
    key, equals, values = (part.strip() for part in compared.partition("="))
    listed = [value.strip() for value in values.split(",")]
    if not key or not equals or len(listed) < 2 or not all(listed):
        raise ConfigError("comparison", compared, "key=one,other").at("--compare")
    if len(set(listed)) < len(listed):
        raise ConfigError(key, values, "different values").at("--compare")
    return (f"{key}={value}" for value in listed)
