"""The registry of policies: the one place that knows which there are.

A policy is one object (`checks.policies.policy.Policy`) with all that commands, explorer, harness
and exports must know of a scheduler. It is imported when it is first asked for. To add one: a
package in each room, and a line in `_BUILT_IN`; or, from outside, a call of `register`.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

from spec.core.errors import ConfigError

if TYPE_CHECKING:
    from checks.explore.environment import MachineModel
    from checks.explore.instance import Instance
    from checks.policies.policy import Policy
    from spec.core.configuration import PolicyConfig
    from spec.core.rule import AnyRule

    AnyPolicy: TypeAlias = Policy[Any, Any, Any, Any]
    AnyModel: TypeAlias = MachineModel[Any, Any]
else:
    AnyPolicy = AnyModel = Any  # imported by name in annotations, which nothing evaluates

# The package of each policy, whose POLICY it is; the first is the default of every command.
_BUILT_IN = {
    "spyre": "checks.policies.spyre",
    "nano-vllm": "checks.policies.nano_vllm",
    "vllm-v1": "checks.policies.vllm_v1",
}
DEFAULT = next(iter(_BUILT_IN))
_REGISTERED: "dict[str, AnyPolicy]" = {}


def register(policy: "AnyPolicy") -> None:
    """Add a policy, under the name that its configuration says.

    Raises:
        ValueError: there is one of that name.
    """
    if policy.name in (*_BUILT_IN, *_REGISTERED):
        raise ValueError(f"two policies are called {policy.name}")
    _REGISTERED[policy.name] = policy


def unregister(name: str) -> None:
    """Take out a policy that was registered."""
    del _REGISTERED[name]


def policy_names() -> tuple[str, ...]:
    """The names of all policies, the default first."""
    return (*_BUILT_IN, *(name for name in _REGISTERED if name not in _BUILT_IN))


def policy_named(name: str) -> "AnyPolicy":
    """The policy of this name.

    Raises:
        ConfigError: there is none.
    """
    if name not in _REGISTERED:
        if name not in _BUILT_IN:
            raise ConfigError("policy", name, ", ".join(policy_names()))
        _REGISTERED[name] = import_module(f"{_BUILT_IN[name]}.policy").POLICY
    return _REGISTERED[name]


def policy_of(config: "PolicyConfig") -> "AnyPolicy":
    """The policy that a configuration is for."""
    return policy_named(config.policy)


def title_of(instance: "Instance[Any]") -> str:
    """The name of an instance, behind its policy's unless that is the default: no two are equal."""
    name = instance.config.policy
    return instance.name if name == DEFAULT else f"{name}, {instance.name}"


class _Policies(Mapping[str, "AnyPolicy"]):
    """All policies by name, each imported when it is looked up."""

    def __getitem__(self, name: str) -> "AnyPolicy":
        if name not in policy_names():
            raise KeyError(name)
        return policy_named(name)

    def __iter__(self) -> Iterator[str]:
        return iter(policy_names())

    def __len__(self) -> int:
        return len(policy_names())


class _Rules(Mapping[str, "AnyRule"]):
    """The rules of all policies by id."""

    def __getitem__(self, id_: str) -> "AnyRule":
        for policy in POLICIES.values():
            if id_ in policy.registry.rules:
                return policy.registry.rules[id_]
        raise KeyError(id_)

    def __iter__(self) -> Iterator[str]:
        for policy in POLICIES.values():
            yield from policy.registry.rules

    def __len__(self) -> int:
        return sum(len(policy.registry.rules) for policy in POLICIES.values())


POLICIES: "Mapping[str, AnyPolicy]" = _Policies()
RULES: "Mapping[str, AnyRule]" = _Rules()
