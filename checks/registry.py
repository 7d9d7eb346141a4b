"""The registry of policies: where each is found, what it claims, and the rules of all by id.

A policy has four parts, each in a module of its package that is imported when it is first asked
for: `claims` (here), `machine` (`checks.explore.policy`), `evidence` (`checks.harness.policy`) and
`presentation` (`checks.export.policy`). The folder that asks for a part says what is in it. To add
a policy: a package in each room, and a name in `_BUILT_IN`; or, from outside, a call of `register`.
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

_PLAIN_CONTEXT: Any = context_of  # where ContextT is no class of the policy's own


@frozen(kw_only=True)
class Claims(Generic[ConfigT, ContextT, StateT, StepT]):
    """What a policy claims: its rules, and the records that they speak of.

    `step`: the class of its steps. `context_of`: what rules look up, for a configuration and
    requests. `refuse_unservable`: raises WorkloadError for a request that no run could complete.
    `variables`: environment variables by which the released plugin is configured, and the keys that
    they set. `implied`: settings that make those which are given, texts by key, a configuration
    that can be.
    """

    config: type[ConfigT]
    registry: Registry[ConfigT, ContextT, StateT, StepT]
    step: type[StepT]
    context_of: Callable[[ConfigT, Iterable[Request]], ContextT] = _PLAIN_CONTEXT
    refuse_unservable: Callable[[Request, ConfigT], None] = refuse_too_long
    variables: Mapping[str, str] = field(factory=dict)
    implied: Callable[[Mapping[str, str]], Mapping[str, str]] = lambda _given: {}

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of its configurations."""
        return tuple(key.name for key in fields(self.config))


class _Rules(Mapping[str, AnyRule]):
    """The rules of all policies by id; no more policies are imported than need be."""

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


_CHECKS = __name__.rpartition(".")[0]  # inside another package where it is installed
_BUILT_IN = ("spyre", "nano-vllm", "vllm-v1", "vllm-v0")
DEFAULT = _BUILT_IN[0]  # of every command

# The package of each policy, by name.
POLICIES: dict[str, str] = {
    name: f"{_CHECKS}.policies.{name.replace('-', '_')}" for name in _BUILT_IN
}
RULES: Mapping[str, AnyRule] = _Rules()
_PARTS: dict[tuple[str, str], Any] = {}


def register(policy: str, package: str = "", **parts: Any) -> None:
    """Add a policy under this name; parts that are not given stand in modules of the package.

    Raises:
        ValueError: there is one of that name.
    """
    if policy in POLICIES:
        raise ValueError(f"two policies are called {policy}")
    POLICIES[policy] = package
    _PARTS.update({(policy, name): part for name, part in parts.items()})


def unregister(policy: str) -> None:
    """Take out a policy that was registered."""
    del POLICIES[policy]
    for key in [key for key in _PARTS if key[0] == policy]:
        del _PARTS[key]


def known_policy(name: str) -> str:
    """The name, if there is a policy of this name.

    Raises:
        ConfigError: there is none.
    """
    if name not in POLICIES:
        raise ConfigError("policy", name, ", ".join(POLICIES))
    return name


def part_of(policy: str, part: str) -> Any:
    """A part of the policy of this name, imported when it is first asked for.

    Raises:
        ConfigError: there is no such policy.
    """
    key = policy, part
    if key not in _PARTS:
        package = POLICIES[known_policy(policy)]
        _PARTS[key] = getattr(import_module(f"{package}.{part}"), part.upper())
    return _PARTS[key]


def claims_of(policy: str) -> Claims[Any, Any, Any, Any]:
    """What the policy of this name claims."""
    claims: Claims[Any, Any, Any, Any] = part_of(policy, "claims")
    return claims


def imported_when_called(module: str, name: str) -> Callable[..., Any]:
    """The function of this name in a module inside `checks`, imported when it is called.

    So large parts of a policy, engines and tensors, are imported by what needs them alone.
    """

    def function(*args: Any) -> Any:
        return getattr(import_module(f"{_CHECKS}.{module}"), name)(*args)

    return function
