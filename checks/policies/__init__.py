"""The policies that there are, by name; what differs between schedulers stands in here.

Commands find the policy of a configuration with `policy_of` and ask it for machine, rules and
instances. To add one: a configuration, records and rules in `spec`, a machine in `reference`, a
module here.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

from checks.explore.environment import MachineModel
from checks.explore.instance import Instance
from checks.policies.nano_vllm.policy import NANO_VLLM
from checks.policies.policy import Policy, Server
from checks.policies.spyre.policy import SPYRE
from checks.policies.vllm_v1.policy import VLLM_V1
from spec.core.configuration import PolicyConfig
from spec.core.rule import AnyRule

__all__ = [
    "DEFAULT_POLICY",
    "NANO_VLLM",
    "POLICIES",
    "RULES",
    "SPYRE",
    "VLLM_V1",
    "AnyModel",
    "AnyPolicy",
    "Policy",
    "Server",
    "policy_of",
    "title_of",
]

AnyPolicy: TypeAlias = Policy[Any, Any, Any, Any]
AnyModel: TypeAlias = MachineModel[Any, Any]

POLICIES: Mapping[str, AnyPolicy] = {one.name: one for one in (SPYRE, NANO_VLLM, VLLM_V1)}

RULES: Mapping[str, AnyRule] = {
    rule.id: rule for policy in POLICIES.values() for rule in policy.registry.rules.values()
}


DEFAULT_POLICY: AnyPolicy = SPYRE  # where nothing says which


def policy_of(config: PolicyConfig) -> AnyPolicy:
    """The policy that a configuration is for."""
    return POLICIES[config.policy]


def title_of(instance: Instance[Any]) -> str:
    """The name of an instance, behind its policy's unless that is the default: no two are equal."""
    policy = policy_of(instance.config)
    return instance.name if policy is DEFAULT_POLICY else f"{policy.name}, {instance.name}"
