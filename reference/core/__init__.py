"""What the machines of all policies share: the block pool, guards, a step under way."""
