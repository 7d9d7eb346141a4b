"""Limits on sizes of which a machine stores one by one: larger values are mistakes."""

from spec.core.configuration import PolicyConfig
from spec.core.errors import ConfigError

MOST_BLOCKS = 2**22
MOST_POOL_TOKENS = 2**28  # the simulated device stores 8 bytes for each
MOST_ROWS = 2**20
_KEYS = {"max_num_seqs": MOST_ROWS, "num_cpu_blocks": MOST_BLOCKS}  # where a policy has them


def refuse_large_sizes(config: PolicyConfig) -> None:
    """Refuse a batch or a pool, configured or derived, that does not fit into memory.

    Raises:
        ConfigError: there are too many rows, blocks or tokens.
    """
    for key, most in _KEYS.items():
        if (value := getattr(config, key, 0)) > most:
            raise ConfigError(key, value, f"at most {most}")
    if config.pool_blocks > MOST_BLOCKS:
        allowed = f"at most {MOST_BLOCKS}; if absent: max_num_seqs x the blocks of max_model_len"
        raise ConfigError("num_blocks", config.pool_blocks, allowed)
    if config.pool_blocks * config.block_size > MOST_POOL_TOKENS:
        most = MOST_POOL_TOKENS // config.pool_blocks
        raise ConfigError(
            "block_size", config.block_size, f"at most {most} with {config.pool_blocks} blocks"
        )
