"""Machines: one immutable state machine per scheduler, written to be read next to its chapter."""
