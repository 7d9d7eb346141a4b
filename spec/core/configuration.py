"""The base of all configurations: common keys, and the check of each key's type and range."""

from collections.abc import Mapping
from enum import StrEnum
from functools import partial
from math import inf
from typing import Any, ClassVar, Self

from attrs import Attribute, asdict, fields, frozen

from spec.core.arithmetic import cdiv
from spec.core.errors import ConfigError


def checked_keys(_class: type, keys: list["Attribute[Any]"]) -> list["Attribute[Any]"]:
    """The keys, each with a check of its type: what attrs calls a field transformer.

    So a value is refused, and the name of a variant becomes the variant, wherever it comes from.
    """
    return [key.evolve(converter=partial(typed, key.name, key.type)) for key in keys]


@frozen(kw_only=True)
class PolicyConfig:
    """A configuration; lengths in tokens, times in units of the simulated clock.

    A subclass says which policy it is of, and gives what keys it has their defaults. Whole numbers
    are 1 or more, unless `LEAST` says how small one may be, and at most what `MOST` says, if it
    does; others 0 or more. `LATER` names the keys that came after drivers had been written: a
    driver that does not name one has its default.

    Raises:
        ConfigError: another policy's name, a value of the wrong type or out of its range.
    """

    LEAST: ClassVar[Mapping[str, int]] = {}
    MOST: ClassVar[Mapping[str, int]] = {}
    LATER: ClassVar[tuple[str, ...]] = ()

    policy: str
    block_size: int = 1
    num_blocks: int | None = None
    max_num_seqs: int = 1
    max_model_len: int = 16
    prefill_time: float = 8.0
    decode_time: float = 1.0

    def __attrs_post_init__(self) -> None:
        name = self.name_of_policy()
        if self.policy != name:
            raise ConfigError("policy", self.policy, name)
        for key in fields(type(self)):
            if key.type in _LEAST:
                least = self.LEAST.get(key.name, _LEAST[key.type])
                most = self.MOST.get(key.name, inf)
                _check_range(key.name, getattr(self, key.name), least, most)

    @classmethod
    def name_of_policy(cls) -> str:
        """What the key `policy` of such a configuration says."""
        return str(fields(cls).policy.default)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """The configuration with `values` over the defaults.

        Raises:
            ConfigError: an unknown key, or what the class itself refuses.
        """
        known = [key.name for key in fields(cls)]
        for name, value in values.items():
            if name not in known:
                raise ConfigError(name, value, f"a key out of {', '.join(known)}")
        return cls(**values)

    def as_mapping(self) -> dict[str, Any]:
        """Every key with its value; keys that are absent by default are left out."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def derived(self) -> dict[str, Any]:
        """Keys that need not be configured, as the numbers that they come to."""
        return {"num_blocks": self.pool_blocks}

    @property
    def pool_blocks(self) -> int:
        """KV blocks of the pool; enough for every slot at full length if absent."""
        if self.num_blocks is not None:
            return self.num_blocks
        return self.max_num_seqs * int(cdiv(self.max_model_len, self.block_size))


_LEAST: Mapping[Any, int] = {int: 1, int | None: 1, float: 0}


def _check_range(name: str, value: float | None, least: int, most: float) -> None:
    if value is not None and not least <= value <= most:  # not: also for NaN
        raise ConfigError(name, value, f"at most {most}" if value > most else f"{least} or more")


def typed(name: str, type_: Any, value: Any) -> Any:
    """`value` as the key's type: variants by their value, whole numbers for times.

    Raises:
        ConfigError: it is none.
    """
    if isinstance(type_, type) and issubclass(type_, StrEnum):
        try:
            return type_(value)
        except ValueError:
            raise ConfigError(name, value, ", ".join(type_)) from None
    allowed, is_right = _TYPES[type_]
    if not is_right(value):
        raise ConfigError(name, value, allowed)
    return value


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_TYPES: dict[Any, tuple[str, Any]] = {
    str: ("a text", lambda value: isinstance(value, str)),
    str | None: ("a text", lambda value: isinstance(value, str | None)),
    bool: ("true or false", lambda value: isinstance(value, bool)),
    int: ("a whole number", _is_whole),
    int | None: ("a whole number", lambda value: value is None or _is_whole(value)),
    float: ("a number", lambda value: _is_whole(value) or isinstance(value, float)),
}
