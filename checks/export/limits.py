"""Limits on the size of the pool, which is stored block by block: larger values are mistakes."""

from spec.core.configuration import PolicyConfig
from spec.core.errors import ConfigError

MOST_BLOCKS = 2**22
MOST_POOL_TOKENS = 2**28  # the simulated device stores 8 bytes for each


def refuse_large_pool(config: PolicyConfig) -> None:
    """Refuse a pool, configured or derived, that does not fit into memory.

    Raises:
        ConfigError: the pool has too many blocks or tokens.
    """
    if config.pool_blocks > MOST_BLOCKS:
        allowed = f"at most {MOST_BLOCKS}; if absent: max_num_seqs x the blocks of max_model_len"
        raise ConfigError("num_blocks", config.pool_blocks, allowed)
    if config.pool_blocks * config.block_size > MOST_POOL_TOKENS:
        most = MOST_POOL_TOKENS // config.pool_blocks
        raise ConfigError(
            "block_size", config.block_size, f"at most {most} with {config.pool_blocks} blocks"
        )
