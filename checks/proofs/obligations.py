"""All obligations: importing this module fills the registry.

The obligations about a policy are in the package of its name; `MODULES` gives their order.
"""

from importlib import import_module
from importlib.util import find_spec

from checks.proofs.registry import OBLIGATIONS
from checks.registry import POLICIES

__all__ = ["OBLIGATIONS"]

for _policy in POLICIES:
    _package = f"{__package__}.{_policy.replace('-', '_')}"
    if find_spec(_package) is not None:
        for _module in import_module(_package).MODULES:
            import_module(f"{_package}.{_module}")
