"""The policies that there are, by name; what differs between schedulers stands in here.

Commands find the policy of a configuration with `policy_of` and ask it for machine, rules and
instances. To add one: a configuration, records and rules in `spec`, a machine in `reference`, a
module here.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

from checks.policies.nano_vllm.policy import NANO_VLLM
from checks.policies.policy import InstanceModel, Policy, Server
from checks.policies.spyre.policy import SPYRE
from checks.policies.vllm_v1.policy import VLLM_V1
from spec.core.configuration import PolicyConfig
from spec.core.rule import AnyRule

__all__ = [
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
]

AnyPolicy: TypeAlias = Policy[Any, Any, Any, Any]
AnyModel: TypeAlias = InstanceModel[Any, Any]

POLICIES: Mapping[str, AnyPolicy] = {one.name: one for one in (SPYRE, NANO_VLLM, VLLM_V1)}

RULES: Mapping[str, AnyRule] = {
    rule.id: rule for policy in POLICIES.values() for rule in policy.registry.rules.values()
}


def policy_of(config: PolicyConfig) -> AnyPolicy:
    """The policy that a configuration is for."""
    return POLICIES[config.policy]
