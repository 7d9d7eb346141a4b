"""Drivers: one file per scheduler, run in that scheduler's own environment, never imported.

A driver knows nothing of ours. It speaks the line protocol that `spec/chapters/drivers.md` tells,
over its standard streams; `template.py` is a complete example to start from.
"""
