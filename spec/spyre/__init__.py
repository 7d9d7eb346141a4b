"""Spyre: configuration, formulas, records and rules."""
