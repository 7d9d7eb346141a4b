"""The counterparts that there are, by policy. To add one: a module, a row here."""

from collections.abc import Mapping

from checks.conformance.counterpart import Counterpart
from checks.policies.nano_vllm.driver.counterpart import NANO_VLLM
from checks.policies.spyre.driver.counterpart import SPYRE
from checks.policies.vllm_v1.driver.counterpart import VLLM_V1
from spec.core.configuration import PolicyConfig

COUNTERPARTS: Mapping[str, Counterpart] = {
    one.policy.name: one for one in (SPYRE, NANO_VLLM, VLLM_V1)
}


def counterpart_of(config: PolicyConfig) -> Counterpart:
    """The counterpart of drivers that run such a configuration."""
    return COUNTERPARTS[config.policy]
