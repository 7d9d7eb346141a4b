"""The configuration of a run, from a TOML file, environment variables and single settings.

The key `policy` selects the scheduler and with it the other keys. A table of the file named like a
policy, or a setting `POLICY.KEY`, applies to that policy alone, so that one file can configure a
comparison of policies. The table `[cost]`, or a setting `cost.KEY`, sets the costs of steps; its
keys are those of `engine.core.clock.CostModel`. A calibration (`checks.cli.cost_file`) or estimates
of AIConfigurator (`checks.harness.estimates`) replace that table. Where neither a cost nor a step
time is set, the costs are the policy's default.

Later sources win: defaults, file, calibration, environment, settings. Every error names the source
of the value.
"""

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import product
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from checks.cli.cost_file import UNIT, read_cost
from checks.cli.toml_file import MOST, brief, key_line, parse_toml, read_text
from checks.export.limits import refuse_large_sizes
from checks.export.policy import presentation_of
from checks.harness.estimates import estimated_costs, is_estimate
from checks.harness.runs.settings import Settings
from checks.registry import DEFAULT, POLICIES, claims_of
from engine.core.clock import CostModel
from spec.core.configuration import PolicyConfig
from spec.core.errors import ConfigError, InputError, Place

_COST = "cost."
_TIMES = ("prefill_time", "decode_time")


@frozen
class _Given:
    """A value for a key, and its source."""

    key: str
    value: Any
    place: Place


def read_settings(
    path: Path | None,
    settings: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Settings:
    """The configuration from file, environment and settings, see `Sources`."""
    return Sources(path, tuple(settings), environment).read()


@frozen
class Sources:
    """The sources of a configuration.

    `path`: a TOML file of top-level keys. `settings`: `key=value`, the value in TOML syntax or a
    bare word; the last setting of a key wins. `environment`: the variables of the policies'
    plugins; an empty variable counts as unset. `compared`: settings of one variant of a comparison.
    `cost`: the file of a calibration, or a name of estimates, in place of the costs in the file.
    """

    path: Path | None = None
    settings: tuple[str, ...] = ()
    environment: Mapping[str, str] | None = None
    compared: tuple[str, ...] = ()
    cost: str | None = None

    def read(self, base: PolicyConfig | None = None, *, default_costs: bool = True) -> Settings:
        """The configuration.

        `base`: replaces the defaults of its policy. `default_costs`: those of the policy are
        charged if neither a cost nor a step time is set; else steps are counted.

        Raises:
            ConfigError: the file cannot be read or is no TOML, a key is unknown, a value has the
                wrong type or is out of range; names file and line, `--set KEY`, `--compare KEY` or
                the variable.
        """
        everything = [
            *self._from_files(),
            *_from_environment(self.environment or {}),
            *_from_options("--set", self.settings),
            *_from_options("--compare", self.compared),
        ]
        policy = _policy(everything, base)
        by_key: dict[str, _Given] = {}
        for setting in _of_policy(everything, policy):
            _refuse_misplaced(setting, policy)
            _refuse_excess(setting)
            by_key[setting.key] = setting
        try:
            values = base.as_mapping() if base is not None and base.policy == policy else {}
            costs = {key: setting.value for key, setting in by_key.items() if key.startswith(_COST)}
            own = {key: setting.value for key, setting in by_key.items() if key not in costs}
            config: PolicyConfig = claims_of(policy).config.from_mapping(values | own)
            refuse_large_sizes(config)
            named = {key.removeprefix(_COST): value for key, value in costs.items()}
            if default_costs and not named and by_key.keys().isdisjoint(_TIMES):
                return Settings(config, presentation_of(policy).cost)
            cost = CostModel.from_mapping(named, config)
            if self.cost is None:
                return Settings(config, cost)
            about = estimated_costs(self.cost).about if is_estimate(self.cost) else ""
            return Settings(config, cost, UNIT, about)
        except ConfigError as error:
            raise _placed(error, by_key) from None

    def _from_files(self) -> Iterator[_Given]:
        """The keys of the file, and the costs of `cost` instead of its own."""
        for given in _from_file(self.path):
            if self.cost is None or not given.key.startswith(_COST):
                yield given
        yield from _from_cost(self.cost)

    def variants(self, compared: Sequence[str]) -> dict[str, Settings]:
        """The configurations of all combinations of `--compare key=one,other`, by label.

        The label has the compared settings; it is empty if nothing is compared. Where policies are
        compared, the default costs are not charged, since their units differ.

        Raises:
            ConfigError: a comparison is malformed, or one of the configurations is invalid.
        """
        choices = [list(_choices(group)) for group in compared]
        keys = [chosen[0].partition("=")[0] for chosen in choices]
        if len(set(keys)) < len(keys):
            raise ConfigError("comparison", ", ".join(keys), "each key once").at("--compare")
        return {
            ", ".join(chosen): evolve(self, compared=chosen).read(
                default_costs="policy" not in keys
            )
            for chosen in product(*choices)
        }


def _choices(compared: str) -> Iterator[str]:
    """The settings of a comparison."""
    key, equals, values = (part.strip() for part in compared.partition("="))
    listed = [value.strip() for value in values.split(",")]
    if not key or not equals or len(listed) < 2 or not all(listed):
        raise ConfigError("comparison", compared, "key=one,other").at("--compare")
    if len(set(listed)) < len(listed):
        raise ConfigError(key, values, "different values").at("--compare")
    return (f"{key}={value}" for value in listed)


def _policy(settings: Sequence[_Given], base: PolicyConfig | None) -> str:
    """The configured policy: the last one given, else that of `base`, else the default."""
    name: object = DEFAULT if base is None else base.policy
    place: Place | None = None
    for setting in settings:
        if setting.key == "policy":
            name, place = setting.value, setting.place
    if isinstance(name, str) and name in POLICIES:
        return name
    error = ConfigError("policy", brief(name), ", ".join(POLICIES))
    raise error if place is None else error.at(place.source, place.line)


def _of_policy(settings: Iterable[_Given], policy: str) -> Iterator[_Given]:
    """The settings for every policy and for this one."""
    for setting in settings:
        name, _, key = setting.key.partition(".")
        if name not in POLICIES:
            yield setting
        elif name == policy:
            yield evolve(setting, key=key)
        else:
            _refuse_misplaced(evolve(setting, key=key), name)


def _placed(error: ConfigError, settings: Mapping[str, _Given]) -> InputError:
    """The error with the source of its value, else the source of a value that it conflicts with."""
    involved = [error.field, *(key for key in settings if key in error.allowed)]
    place = next((settings[key].place for key in involved if key in settings), None)
    return error if place is None else error.at(place.source, place.line)


def _refuse_misplaced(setting: _Given, policy: str) -> None:
    """Refuse unknown keys, and tables and arrays as values."""
    where = setting.place.source, setting.place.line
    if isinstance(setting.value, (dict, list)):
        kind = "table" if isinstance(setting.value, dict) else "list"
        raise ConfigError(str(brief(setting.key)), f"a {kind}", "a single value").at(*where)
    keys = claims_of(policy).keys
    if setting.key not in keys and not setting.key.startswith(_COST):
        nearest = "".join(f"; nearest: {key}" for key in get_close_matches(setting.key, keys, n=1))
        others = [other for other in POLICIES if setting.key in claims_of(other).keys]
        hint = f"; {setting.key} is a key of {', '.join(others)}" if others else nearest
        raise ConfigError("key", brief(setting.key), f"{', '.join(keys)}{hint}").at(*where)


def _refuse_excess(setting: _Given) -> None:
    """Refuse numbers above MOST, infinities and NaN."""
    if (
        isinstance(setting.value, (int, float)) and not abs(setting.value) <= MOST
    ):  # not: also for NaN
        error = ConfigError(setting.key, brief(setting.value), f"a number up to {MOST}")
        raise error.at(setting.place.source, setting.place.line)


# --- the file -----------------------------------------------------------------------------------


def _from_file(path: Path | None) -> Iterator[_Given]:
    if path is None:
        return
    text = read_text(path)
    for key, value in parse_toml(text, path).items():
        if key in ("cost", *POLICIES) and isinstance(value, dict):
            for name, own in value.items():
                yield _Given(f"{key}.{name}", own, Place(str(path), key_line(name, text, key)))
        else:
            yield _Given(key, value, Place(str(path), key_line(key, text)))


def _from_cost(source: str | None) -> Iterator[_Given]:
    if source is None:
        return
    if is_estimate(source):
        for name, value in estimated_costs(source).cost.items():
            yield _Given(f"{_COST}{name}", value, Place("--cost"))
        return
    table, text = read_cost(Path(source))
    for name, value in table.items():
        yield _Given(f"{_COST}{name}", value, Place(source, key_line(name, text, "cost")))


# --- environment and settings -------------------------------------------------------------------


def _from_environment(environment: Mapping[str, str]) -> Iterator[_Given]:
    for claims in map(claims_of, POLICIES if environment else ()):
        defaults = claims.config()
        for variable, key in claims.variables.items():
            if text := environment.get(variable, ""):
                value = _number(variable, key, text, type(getattr(defaults, key)))
                yield _Given(key, value, Place(variable))


def _number(variable: str, key: str, text: str, kind: type) -> int | bool:
    """The text as a whole number; for a switch, true unless it is 0."""
    if not re.fullmatch(r"\s*-?[0-9]{1,20}\s*", text):
        allowed = "0 or 1" if kind is bool else "a whole number"
        raise ConfigError(key, brief(text), allowed).at(variable)
    return int(text) != 0 if kind is bool else int(text)


def _from_options(option: str, settings: Sequence[str]) -> Iterator[_Given]:
    for setting in settings:
        key, equals, text = (part.strip() for part in setting.partition("="))
        if not key or not equals:
            raise ConfigError("setting", brief(setting), "key=value").at(option)
        # An unknown key may be any text: the error shows it as the value, not as the place.
        is_known = _is_known(key)
        place = Place(f"{option} {key}" if is_known else option)
        yield _Given(key, _value(text), place)


def _is_known(key: str) -> bool:
    name, _, own = key.partition(".")
    if name in POLICIES:
        return own in claims_of(name).keys
    return key.startswith(_COST) or any(key in claims_of(policy).keys for policy in POLICIES)


def _value(text: str) -> Any:
    """The text as a TOML value; the text itself if it is no TOML."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return brief(text)
    return parsed["value"] if len(parsed) == 1 else brief(text)
