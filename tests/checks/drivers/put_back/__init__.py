"""Defects put back into releases one at a time, and whether `conform` finds them."""
