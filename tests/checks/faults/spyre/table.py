"""The table of the planted faults of Spyre.

Of the rules that catch a fault the first names it.
"""

from pathlib import Path

from checks.explore.instance import read_instances
from spec.spyre.config import SpyreConfig
from tests.checks.faults.planting import FaultTable

MORE = read_instances(Path(__file__).with_name("instances.toml"), plain=SpyreConfig)
FAULTS = FaultTable("spyre", MORE)
fault = FAULTS.fault
