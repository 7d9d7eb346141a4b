"""The registry of policies: their packages, their claims, and all rules by id.

A policy has four parts, each in a module of its package that is imported at first use: `claims`
(defined here), `machine` (`checks.explore.policy`), `evidence` (`checks.harness.policy`) and
`presentation` (`checks.export.policy`). To add a policy: a package in each room and a name in
`_NAMES`; or, from another package, a call of `register`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from itertools import chain
from typing import Any, Generic, TypeVar

from attrs import field, fields, frozen

from spec.core.configuration import PolicyConfig
from spec.core.errors import ConfigError
from spec.core.records import SomeContext, SomeState, SomeStep, context_of
from spec.core.requests import Request, refuse_too_long
from spec.core.rule import AnyRule, Registry

ConfigT = TypeVar("ConfigT", bound=PolicyConfig)
ContextT = TypeVar("ContextT", bound=SomeContext)
StateT = TypeVar("StateT", bound=SomeState)
StepT = TypeVar("StepT", bound=SomeStep)

_PLAIN_CONTEXT: Any = context_of  # the default, if the policy has no context class of its own


@frozen(kw_only=True)
class Claims(Generic[ConfigT, ContextT, StateT, StepT]):
    """The claims of a policy: its rules and the records that they judge.

    `step`: the class of its steps. `context_of`: makes the context of the rules from a
    configuration and requests. `refuse_unservable`: raises WorkloadError for a request that no run
    could complete. `variables`: environment variables of the released plugin, with the keys that
    they set. `implied`: further settings without which the given ones, texts by key, make no valid
    configuration.
    """

    config: type[ConfigT]
    registry: Registry[ConfigT, ContextT, StateT, StepT]
    step: type[StepT]
    context_of: Callable[[ConfigT, Iterable[Request]], ContextT] = _PLAIN_CONTEXT
    refuse_unservable: Callable[[Request, ConfigT], None] = refuse_too_long
    variables: Mapping[str, str] = field(factory=dict)
    implied: Callable[[Mapping[str, str]], Mapping[str, str]] = lambda _settings: {}

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of the policy's configurations."""
        return tuple(key.name for key in fields(self.config))


class _Rules(Mapping[str, AnyRule]):
    """The rules of all policies by id; a lookup imports policies only until the rule is found."""

    def __getitem__(self, id_: str) -> AnyRule:
        for policy in POLICIES:
            rules = claims_of(policy).registry.rules
            if id_ in rules:
                return rules[id_]
        raise KeyError(id_)

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(claims_of(policy).registry.rules for policy in POLICIES)

    def __len__(self) -> int:
        return sum(1 for _ in self)


_CHECKS = __name__.rpartition(".")[0]  # `lockstep.checks` in an installed package
_NAMES = ("spyre", "nano-vllm", "vllm-v1", "vllm-v0")
DEFAULT = _NAMES[0]  # of every command

# The package of each policy, by name.
POLICIES: dict[str, str] = {name: f"{_CHECKS}.policies.{name.replace('-', '_')}" for name in _NAMES}
RULES: Mapping[str, AnyRule] = _Rules()
_PARTS: dict[tuple[str, str], Any] = {}


def register(policy: str, package: str = "", **parts: Any) -> None:
    """Add a policy under this name; parts that are not given are in modules of the package.

    Raises:
        ValueError: a policy of that name exists.
    """
    if policy in POLICIES:
        raise ValueError(f"two policies are called {policy}")
    POLICIES[policy] = package
    _PARTS.update({(policy, name): part for name, part in parts.items()})


def unregister(policy: str) -> None:
    """Remove a registered policy."""
    del POLICIES[policy]
    for key in [key for key in _PARTS if key[0] == policy]:
        del _PARTS[key]


def known_policy(name: str) -> str:
    """The name, checked to be the name of a policy.

    Raises:
        ConfigError: there is no such policy.
    """
    if name not in POLICIES:
        raise ConfigError("policy", name, ", ".join(POLICIES))
    return name


def part_of(policy: str, part: str) -> Any:
    """A part of the policy of this name, imported at first use.

    Raises:
        ConfigError: there is no such policy.
    """
    key = policy, part
    if key not in _PARTS:
        package = POLICIES[known_policy(policy)]
        _PARTS[key] = getattr(import_module(f"{package}.{part}"), part.upper())
    return _PARTS[key]


def claims_of(policy: str) -> Claims[Any, Any, Any, Any]:
    """The claims of the policy of this name."""
    claims: Claims[Any, Any, Any, Any] = part_of(policy, "claims")
    return claims


def imported_when_called(module: str, name: str) -> Callable[..., Any]:
    """The function of this name in a module of `checks`, imported at the first call.

    Only callers then import the large parts of a policy, such as engines and tensors.
    """

    def function(*args: Any) -> Any:
        return getattr(import_module(f"{_CHECKS}.{module}"), name)(*args)

    return function
