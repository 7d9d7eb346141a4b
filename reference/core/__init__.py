"""The common parts of all machines: the block pool, guards, a step under way."""
