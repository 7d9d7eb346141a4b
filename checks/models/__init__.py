"""The machines as the explorer sees them, and the instances that are explored by default."""
