"""What releases of vLLM V0 do otherwise: nothing that is known."""

from checks.harness.difference import KnownDifference

KNOWN_DIFFERENCES: tuple[KnownDifference, ...] = ()
