"""Spyre for the commands, the explorer and the harness."""
