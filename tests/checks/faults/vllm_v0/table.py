"""The table of the planted faults of vLLM V0; of the rules that catch a fault any may be first."""

from checks.policies import POLICIES
from tests.checks.faults.planting import FaultTable

FAULTS = FaultTable(POLICIES["vllm-v0"])
fault = FAULTS.fault
