"""Small instances of Spyre, beside the default ones."""

from typing import Any

from checks.explore.instance import Instance
from checks.proofs.unshared import unshared
from spec.spyre.config import SpyreConfig


def instance(config: SpyreConfig, *sizes: tuple[int, int]) -> Instance[SpyreConfig]:
    """Requests of these prompt and output lengths; all may be aborted or end early."""
    requests = tuple(unshared(*sizes))
    ids = frozenset(request.id for request in requests)
    return Instance(name="", about="", config=config, requests=requests, aborts=ids, early_ends=ids)


def small(**keys: Any) -> SpyreConfig:
    """A configuration of small numbers, these keys changed."""
    sizes = {"block_size": 2, "chunk_size": 4, "max_model_len": 12, "max_num_seqs": 3}
    return SpyreConfig(**{**sizes, "max_batch_tkv_limit": 18, "prefix_caching": False, **keys})
