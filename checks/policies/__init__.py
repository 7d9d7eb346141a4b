"""The registry of policies: the one place that knows which there are.

A policy is one object (`checks.policies.policy.Policy`) with all that commands, explorer, harness
and exports must know of a scheduler. It is imported when it is first asked for. To add one: a
package in each room, and a line in `_BUILT_IN`; or, from outside, a call of `register`.
"""

from collections import UserDict
from collections.abc import Iterator, Mapping, MutableMapping
from importlib import import_module
from itertools import chain
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


class _Policies(UserDict[str, "AnyPolicy"]):
    """All policies by name, each imported when it is looked up."""

    def __getitem__(self, name: str) -> "AnyPolicy":
        if isinstance(self.data[name], str):
            self.data[name] = import_module(f".{self.data[name]}.policy", __name__).POLICY
        return self.data[name]


class _Rules(Mapping[str, "AnyRule"]):
    """The rules of all policies by id; no more policies are imported than need be."""

    def __getitem__(self, id_: str) -> "AnyRule":
        for policy in POLICIES.values():
            if id_ in policy.registry.rules:
                return policy.registry.rules[id_]
        raise KeyError(id_)

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(policy.registry.rules for policy in POLICIES.values())

    def __len__(self) -> int:
        return sum(1 for _ in self)


# The package of each policy, whose POLICY it is; the first is the default of every command.
_BUILT_IN: dict[str, Any] = {
    **{"spyre": "spyre", "nano-vllm": "nano_vllm", "vllm-v1": "vllm_v1", "vllm-v0": "vllm_v0"}
}
DEFAULT = next(iter(_BUILT_IN))
POLICIES: "MutableMapping[str, AnyPolicy]" = _Policies(_BUILT_IN)
RULES: "Mapping[str, AnyRule]" = _Rules()


def register(policy: "AnyPolicy") -> None:
    """Add a policy, under the name that its configuration says.

    Raises:
        ValueError: there is one of that name.
    """
    if policy.name in POLICIES:
        raise ValueError(f"two policies are called {policy.name}")
    POLICIES[policy.name] = policy


def unregister(name: str) -> None:
    """Take out a policy that was registered."""
    del POLICIES[name]


def policy_named(name: str) -> "AnyPolicy":
    """The policy of this name.

    Raises:
        ConfigError: there is none.
    """
    if name not in POLICIES:
        raise ConfigError("policy", name, ", ".join(POLICIES))
    return POLICIES[name]


def policy_of(config: "PolicyConfig") -> "AnyPolicy":
    """The policy that a configuration is for."""
    return POLICIES[config.policy]


def title_of(instance: "Instance[Any]") -> str:
    """The name of an instance, behind its policy's unless that is the default: no two are equal."""
    name = instance.config.policy
    return instance.name if name == DEFAULT else f"{name}, {instance.name}"
