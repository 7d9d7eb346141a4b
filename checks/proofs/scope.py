"""The scope of a policy's proofs: each key of its configuration is covered or excluded."""

from collections.abc import Mapping

from attrs import fields, frozen

from spec.core.configuration import PolicyConfig

IN_SETTING = "in the setting"  # the proofs hold for every value of the key


@frozen
class Scope:
    """Each key of a configuration: `IN_SETTING`, or the reason why the proofs leave it out."""

    config: type[PolicyConfig]
    keys: Mapping[str, str]

    def stale(self) -> str | None:
        """Why evidence is stale: the table lacks a key; None if it has all."""
        for key in fields(self.config):
            if key.name not in self.keys:
                return f"key {key.name} of the configuration is neither in the setting nor excluded"
        return None
