"""The counterparts that there are, by policy. To add one: a module, a row here."""

from collections.abc import Mapping

from checks.conformance.counterpart import Counterpart
from checks.conformance.nano_vllm.counterpart import NANO_VLLM
from checks.conformance.spyre import SPYRE
from checks.conformance.vllm_v1.counterpart import VLLM_V1
from spec.policies.configuration import PolicyConfig

COUNTERPARTS: Mapping[str, Counterpart] = {
    one.policy.name: one for one in (SPYRE, NANO_VLLM, VLLM_V1)
}


def counterpart_of(config: PolicyConfig) -> Counterpart:
    """The counterpart of drivers that run such a configuration."""
    return COUNTERPARTS[config.policy]
