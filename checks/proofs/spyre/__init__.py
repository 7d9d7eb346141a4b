"""Obligations about Spyre: layout, volume, admission, blocks, and the numeric machine."""
