"""The configuration of a run: a TOML file, environment variables and single settings.

The key `policy` says which scheduler is configured, and so which other keys there are. A table of
the file that is named like a policy, or `POLICY.KEY` as a setting, is for that policy alone: so
one file serves a comparison of policies. The table `[cost]`, or `cost.KEY` as a setting, says what
steps cost beyond their times; its keys are those of `engine.core.clock.CostModel`.

What comes later wins: defaults, file, environment, settings. Every error names the place that the
value came from.
"""

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import product
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from checks.cli.toml_file import MOST, brief, line_of, text_of, toml_of
from checks.export.limits import refuse_large_pool
from checks.harness.settings import Settings
from checks.registry import DEFAULT, POLICIES, claims_of
from engine.core.clock import CostModel
from spec.core.configuration import PolicyConfig
from spec.core.errors import ConfigError, InputError, Place

_COST = "cost."


@frozen
class _Given:
    """A value for a key, and where it was given."""

    key: str
    value: Any
    place: Place


def read_settings(
    path: Path | None,
    settings: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    base: PolicyConfig | None = None,
    compared: Sequence[str] = (),
) -> Settings:
    """The configuration that file, environment and settings make together, over `base`.

    `path`: a TOML file of top-level keys. `settings`: `key=value` each, the value in TOML's
    syntax or, for text, a bare word; of two for one key the later wins. `environment`: where the
    variables of the policies' plugins are looked up; an empty one counts as unset. `base`: instead
    of the defaults. `compared`: settings of one variant of a comparison.

    Raises:
        ConfigError: a file that cannot be read or is no TOML, an unknown key, a value of the
            wrong type or out of range; with file and line, `--set KEY`, `--compare KEY` or the
            variable.
    """
    everything = [
        *_from_file(path),
        *_from_environment(environment or {}),
        *_from_options("--set", settings),
        *_from_options("--compare", compared),
    ]
    policy = _policy(everything, base)
    given: dict[str, _Given] = {}
    for one in _of_policy(everything, policy):
        _refuse_misplaced(one, policy)
        _refuse_excess(one)
        given[one.key] = one
    try:
        values = {} if base is None else base.as_mapping()
        costs = {key: one.value for key, one in given.items() if key.startswith(_COST)}
        own = {key: one.value for key, one in given.items() if key not in costs}
        config: PolicyConfig = claims_of(policy).config.from_mapping(values | own)
        refuse_large_pool(config)
        named = {key.removeprefix(_COST): value for key, value in costs.items()}
        return Settings(config, CostModel.from_mapping(named, config))
    except ConfigError as error:
        raise _placed(error, given) from None


def _policy(given: Sequence[_Given], base: PolicyConfig | None) -> str:
    """The policy that is configured: what was given last, else that of `base`, else the default."""
    name: object = DEFAULT if base is None else base.policy
    place: Place | None = None
    for one in given:
        if one.key == "policy":
            name, place = one.value, one.place
    if isinstance(name, str) and name in POLICIES:
        return name
    error = ConfigError("policy", brief(name), ", ".join(POLICIES))
    raise error if place is None else error.at(place.source, place.line)


def _of_policy(given: Iterable[_Given], policy: str) -> Iterator[_Given]:
    """What is meant for every policy, or for this one alone.

    Raises:
        ConfigError: what is meant for another one is none of its keys.
    """
    for one in given:
        name, _, key = one.key.partition(".")
        if name not in POLICIES:
            yield one
        elif name == policy:
            yield evolve(one, key=key)
        else:
            _refuse_misplaced(evolve(one, key=key), name)


def _placed(error: ConfigError, given: Mapping[str, _Given]) -> InputError:
    """The error where its value was given, else where a value was that it does not go with."""
    involved = [error.field, *(key for key in given if key in error.allowed)]
    place = next((given[key].place for key in involved if key in given), None)
    return error if place is None else error.at(place.source, place.line)


def _refuse_misplaced(one: _Given, policy: str) -> None:
    """Refuse what is no key, and values that are no single value."""
    where = one.place.source, one.place.line
    if isinstance(one.value, (dict, list)):
        kind = "table" if isinstance(one.value, dict) else "array"
        raise ConfigError(kind, brief(one.key), "only keys with a single value").at(*where)
    keys = claims_of(policy).keys
    if one.key not in keys and not one.key.startswith(_COST):
        nearest = "".join(f"; nearest: {key}" for key in get_close_matches(one.key, keys, n=1))
        others = [other for other in POLICIES if one.key in claims_of(other).keys]
        hint = f"; {one.key} is a key of {', '.join(others)}" if others else nearest
        raise ConfigError("key", brief(one.key), f"{', '.join(keys)}{hint}").at(*where)


def _refuse_excess(one: _Given) -> None:
    """Refuse numbers that no machine could work with."""
    if isinstance(one.value, (int, float)) and not abs(one.value) <= MOST:  # not: also for NaN
        error = ConfigError(one.key, brief(one.value), f"a number up to {MOST}")
        raise error.at(one.place.source, one.place.line)


# --- variants -----------------------------------------------------------------------------------


@frozen
class Sources:
    """From where a configuration comes: the arguments of `read_settings`."""

    path: Path | None = None
    settings: tuple[str, ...] = ()
    environment: Mapping[str, str] | None = None
    compared: tuple[str, ...] = ()

    def read(self, base: PolicyConfig | None = None) -> Settings:
        """The configuration, over `base` instead of the defaults if it is given.

        Raises:
            ConfigError: see `read_settings`.
        """
        return read_settings(self.path, self.settings, self.environment, base, self.compared)

    def variants(self, compared: Sequence[str]) -> dict[str, Settings]:
        """Every combination of the values that `--compare key=one,other` names; else the only one.

        The label of each says in what it differs from the others.

        Raises:
            ConfigError: a comparison that is none, or any of the configurations is wrong.
        """
        choices = [list(_choices(one)) for one in compared]
        keys = [chosen[0].partition("=")[0] for chosen in choices]
        if len(set(keys)) < len(keys):
            raise ConfigError("comparison", ", ".join(keys), "each key once").at("--compare")
        return {
            ", ".join(chosen): evolve(self, compared=chosen).read() for chosen in product(*choices)
        }


def _choices(compared: str) -> Iterator[str]:
    """The settings that a comparison stands for."""
    key, equals, values = (part.strip() for part in compared.partition("="))
    listed = [value.strip() for value in values.split(",")]
    if not key or not equals or len(listed) < 2 or not all(listed):
        raise ConfigError("comparison", compared, "key=one,other").at("--compare")
    if len(set(listed)) < len(listed):
        raise ConfigError(key, values, "different values").at("--compare")
    return (f"{key}={value}" for value in listed)


# --- the file -----------------------------------------------------------------------------------


def _from_file(path: Path | None) -> Iterator[_Given]:
    if path is None:
        return
    text = text_of(path)
    for key, value in toml_of(text, path).items():
        if key in ("cost", *POLICIES) and isinstance(value, dict):
            for name, own in value.items():
                yield _Given(f"{key}.{name}", own, Place(str(path), line_of(name, text, key)))
        else:
            yield _Given(key, value, Place(str(path), line_of(key, text)))


# --- environment and settings -------------------------------------------------------------------


def _from_environment(environment: Mapping[str, str]) -> Iterator[_Given]:
    for claims in map(claims_of, POLICIES if environment else ()):
        defaults = claims.config()
        for variable, key in claims.variables.items():
            if text := environment.get(variable, ""):
                value = _number(variable, key, text, type(getattr(defaults, key)))
                yield _Given(key, value, Place(variable))


def _number(variable: str, key: str, text: str, kind: type) -> int | bool:
    """The text as a value of the key's type: a whole number, or of a switch whether it is not 0."""
    if not re.fullmatch(r"\s*-?[0-9]{1,20}\s*", text):
        allowed = "0 or 1" if kind is bool else "a whole number"
        raise ConfigError(key, brief(text), allowed).at(variable)
    return int(text) != 0 if kind is bool else int(text)


def _from_options(option: str, settings: Sequence[str]) -> Iterator[_Given]:
    for setting in settings:
        key, equals, text = (part.strip() for part in setting.partition("="))
        if not key or not equals:
            raise ConfigError("setting", brief(setting), "key=value").at(option)
        # A key that is none may hold anything: it is shown as what was found, not as a place.
        is_known = _is_known(key)
        place = Place(f"{option} {key}" if is_known else option)
        yield _Given(key, _value(text), place)


def _is_known(key: str) -> bool:
    name, _, own = key.partition(".")
    if name in POLICIES:
        return own in claims_of(name).keys
    return key.startswith(_COST) or any(key in claims_of(policy).keys for policy in POLICIES)


def _value(text: str) -> Any:
    """What the text means as a TOML value; a text that means nothing there stands for itself."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return brief(text)
    return parsed["value"] if len(parsed) == 1 else brief(text)
