"""What a policy's proofs are about: every key of its configuration is in them or left out."""

from collections.abc import Mapping

from attrs import fields, frozen

from spec.core.configuration import PolicyConfig

IN_SETTING = "in the setting"  # what is proven is proven for every value of the key


@frozen
class Scope:
    """Each key of a configuration: `IN_SETTING`, or the reason why the proofs leave it out."""

    config: type[PolicyConfig]
    keys: Mapping[str, str]

    def stale(self) -> str | None:
        """Why evidence is stale: a key that the table does not have; None if it has them all."""
        for key in fields(self.config):
            if key.name not in self.keys:
                return f"key {key.name} of the configuration is neither in the setting nor excluded"
        return None
